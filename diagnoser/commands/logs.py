"""`diagnose`, `explain` and `compress`: work on log files without a server."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, TypeVar, cast

import typer

from diagnoser.commands import logfile, render
from diagnoser.commands.terminal import AsJson, complain, err, out, print_json, site
from diagnoser.compress import AttemptLog
from diagnoser.config.loader import load_analyzer
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.pipeline import RuleKnowledge
from diagnoser.model import Diagnosis, Facts
from diagnoser.model.errors import BadInput

Consult = Callable[[Diagnosis, AttemptLog, Facts], Diagnosis]
"""A verdict -> the verdict with what the model adds; unchanged where the model is not asked."""


@contextmanager
def consulted(settings: Settings, knowledge: RuleKnowledge) -> Iterator[Consult]:
    """One connection, budget and circuit breaker for all files. If the model fails, the rules decide alone.

    Raises RuleFaults, BadInput where the site's prompts or patterns are faulty.
    """
    if not settings.asks_model:
        yield lambda verdict, log, facts: verdict
        return
    # Here, because the client of the model takes a second to load.
    import asyncio

    from prometheus_client import CollectorRegistry

    from diagnoser.config import llm_factory
    from diagnoser.diagnosis.llm_stage import consultation_input
    from diagnoser.observability import logging
    from diagnoser.observability.metrics import Metrics

    logging.set_up(as_json=False, level="error")
    with asyncio.Runner() as runner:
        endpoint = llm_factory.endpoint(settings)
        metrics = Metrics(CollectorRegistry())
        model = llm_factory.guarded(settings, endpoint, metrics)
        agent = llm_factory.failure_agent(settings, model, knowledge.policy, metrics)

        def consult(verdict: Diagnosis, log: AttemptLog, facts: Facts) -> Diagnosis:
            asked = agent.reasons_to_ask(verdict)
            if not asked:
                return verdict
            try:
                question = consultation_input(verdict, log, facts, knowledge)
                return runner.run(agent.consult(question, asked))
            except Exception as error:
                note = f"the model could not be asked: {type(error).__name__}"
                return replace(verdict, notes=(*verdict.notes, note))

        try:
            yield consult
        finally:
            runner.run(endpoint.close())


T = TypeVar("T")

_work: Callable[[Path], object] | None = None
"""What the processes do: they are forked with it, so that rules and settings need not be sent."""


def each_on_a_core(work: Callable[[Path], T], paths: Sequence[Path], *, alone: bool) -> Iterator[T]:
    """The result for each file, in their order, as it is there. alone: in this process, where work has a connection."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    if any((alone, min(cores, len(paths)) < 2, Path("-") in paths)):
        yield from map(work, paths)
        return
    # A single file needs none of it.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    global _work
    _work = work
    with ProcessPoolExecutor(min(cores, len(paths)), multiprocessing.get_context("fork")) as pool:
        try:
            yield from cast(Iterator[T], pool.map(_do, paths))
        except BrokenProcessPool:
            raise BadInput("a process was killed, perhaps for want of memory: give one file at a time") from None


def _do(path: Path) -> object:
    assert _work is not None
    return _work(path)


Files = Annotated[list[Path], typer.Argument(help="Log files, also .gz and .zst. - is standard input.")]
NodeLogFiles = Annotated[
    list[str] | None,
    typer.Option("--node-log", metavar="NODE=FILE", help="Kernel log of a node that the job ran on. Repeatable."),
]
Baselines = Annotated[
    list[Path] | None,
    typer.Option(
        "--baseline",
        metavar="FILE|DIR",
        help="Logs of clean runs of this job. Lines that none of them has come first. Repeatable.",
    ),
]
Dumps = Annotated[
    list[Path] | None,
    typer.Option(
        "--evidence",
        metavar="DIR",
        help="Flight-recorder dumps, NCCL RAS answers and stacks of the ranks, as `hang` reads them. Repeatable.",
    ),
]
ExitCode = Annotated[
    int | None,
    typer.Option(
        "--exit-code",
        metavar="N",
        min=-64,
        max=255,
        help="Exit code that the runs ended with; 128 + N or -N for signal N. 0: they completed. Of all files given.",
    ),
]


def diagnose(
    files: Files,
    as_json: AsJson = False,
    node_log: NodeLogFiles = None,
    clean_logs: Baselines = None,
    evidence: Dumps = None,
    exit_code: ExitCode = None,
) -> None:
    """Find the root cause of failed runs from their log files; a configured model is asked about doubtful ones."""
    settings, failed = site(), False
    analyzer = load_analyzer(settings)
    nodes, baseline = logfile.node_logs(node_log), logfile.clean_runs(analyzer, clean_logs)
    dumps = logfile.dumps(evidence)
    with consulted(settings, analyzer.knowledge) as consult:

        def verdict_of(path: Path) -> Diagnosis | BadInput:
            try:
                log, facts, diagnosis = logfile.diagnosed(analyzer, path, nodes, baseline, dumps, exit_code)
            except BadInput as error:
                return error
            return consult(diagnosis, log, facts)

        for path, diagnosis in zip(files, each_on_a_core(verdict_of, files, alone=settings.asks_model), strict=True):
            if isinstance(diagnosis, BadInput):
                complain(f"diagnoser: {diagnosis}")
                failed = True
            elif as_json:
                print_json({"file": str(path), **render.contract(diagnosis)})
            else:
                render.diagnosis(out, str(path), diagnosis)
    if failed:
        raise typer.Exit(1)


def explain_(
    files: Files,
    as_json: AsJson = False,
    node_log: NodeLogFiles = None,
    clean_logs: Baselines = None,
    evidence: Dumps = None,
    exit_code: ExitCode = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown for an issue tracker, with secrets masked.")
    ] = False,
) -> None:
    """Print the full diagnosis of a log: causal chain, lines with context, rejected candidates and why."""
    from diagnoser.commands import explain, markdown
    from diagnoser.config.site_files import load_outbound_redactor
    from diagnoser.diagnosis import hang_evidence, node_logs

    settings, nodes = site(), logfile.node_logs(node_log)
    analyzer = load_analyzer(settings)
    baseline, dumps = logfile.clean_runs(analyzer, clean_logs), logfile.dumps(evidence)
    with consulted(settings, analyzer.knowledge) as consult:
        for path in files:
            log, facts, diagnosis = logfile.diagnosed(analyzer, path, nodes, baseline, dumps, exit_code)
            hang = hang_evidence.analyze(log.evidence, facts, facts.runtime)
            diagnosis = consult(diagnosis, log, facts)
            kept = [*log.evidence.lines]
            for node, parts in facts.node_logs.items():
                kept += node_logs.kept_lines(node, parts)
            if as_markdown:
                typer.echo(markdown.markdown(path.name, diagnosis, kept, load_outbound_redactor(settings)))
            elif as_json:
                print_json({"file": str(path), **explain.explained(diagnosis, kept, hang)})
            else:
                explain.explain(out, str(path), diagnosis, kept, hang)


def compress(
    file: Annotated[Path, typer.Argument(help="Log file, also .gz and .zst. - is standard input.")],
    as_json: AsJson = False,
    tokens: Annotated[int, typer.Option(help="Size of the view, in tokens.", min=200)] = 8000,
) -> None:
    """Print the compressed view of a log: important lines verbatim, the rest as counted templates."""
    analyzer = load_analyzer(site())
    started = time.perf_counter()
    log = logfile.read_log(analyzer, file)
    seconds = time.perf_counter() - started
    evidence = log.evidence
    if as_json:
        figures = {
            **asdict(evidence.compression),
            "seconds": round(seconds, 3),
            "templates": len(evidence.templates),
        }
        print_json(figures)
    else:
        out.print(log.digest.render(tokens), markup=False, highlight=False, soft_wrap=True)
        err.print(render.compression(evidence.compression, seconds), style="dim", highlight=False)
