"""`diagnose`, `explain` and `compress`: work on log files without a server."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from diagnoser.commands import logfile, render
from diagnoser.commands.consult import consulted
from diagnoser.commands.cores import each_on_a_core
from diagnoser.commands.terminal import AsJson, complain, err, out, print_json, site
from diagnoser.config.loader import load_analyzer
from diagnoser.model import Diagnosis
from diagnoser.model.errors import BadInput

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

        asks_model = bool(settings.llm_url) and settings.llm_trigger != "never"
        for path, diagnosis in zip(files, each_on_a_core(verdict_of, files, alone=asks_model), strict=True):
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
    from diagnoser.config.redaction import load_outbound_redactor
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
