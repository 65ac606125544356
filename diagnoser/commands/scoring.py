"""`score`: score the diagnosis on labelled logs."""

import asyncio
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer
from rich.progress import track

from diagnoser.accuracy import scoring
from diagnoser.accuracy.triggers import TriggerYield, totals, trigger_yields
from diagnoser.adapters import files
from diagnoser.commands import logfile, render_scores
from diagnoser.commands.open_store import with_store
from diagnoser.commands.terminal import AsJson, err, out, print_json, site
from diagnoser.compress import AttemptLog
from diagnoser.config.loader import load_analyzer
from diagnoser.diagnosis import pipeline
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.diagnosis.llm_stage import consultation_input
from diagnoser.model import Diagnosis, Facts
from diagnoser.model.errors import BadInput
from diagnoser.model.taxonomy import GPU_TIME_SHARE

if TYPE_CHECKING:
    from diagnoser.adapters.sql.store import SqlStore


class FoldBy(StrEnum):
    FRAMEWORK = "framework"
    LAUNCHER = "launcher"
    SCENARIO = "scenario"
    SOURCE = "source"


def score(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Folder with labels.jsonl and an <id>.log for each label. Default: the failures that people judged, "
            "from the configured database."
        ),
    ] = None,
    as_json: AsJson = False,
    model: Annotated[bool, typer.Option("--model", help="Compare with what the configured model adds.")] = False,
    spliced: Annotated[Path | None, typer.Option(help="Healthy log to put in front of each case.")] = None,
    by: Annotated[FoldBy | None, typer.Option(help="Also score each source of cases by itself.")] = None,
    triggers: Annotated[
        bool,
        typer.Option("--triggers", help="Show about which verdicts a model is asked, and how many are wrong."),
    ] = False,
) -> None:
    """Score the diagnosis on labelled logs."""
    show = _print_triggers if triggers else _print_score
    if folder is None:
        if model or spliced:
            raise BadInput("--model and --spliced need a folder of logs")
        verdicts = with_store(_site_cases, "score")
        if not verdicts:
            raise BadInput("nobody has confirmed or corrected a diagnosis yet: name a folder of labelled logs")
        show(verdicts, by, as_json)
        return
    labels = [scoring.label_of(orjson.loads(line)) for line in files.text(folder / "labels.jsonl").splitlines()]
    analyzer = load_analyzer(site())
    if model:
        _try_model(analyzer, folder, labels, as_json)
        return
    verdicts = []
    for label, (diagnosis, shift) in zip(labels, _cases(analyzer, folder, labels, spliced), strict=True):
        verdicts.append(scoring.score_case(label, diagnosis, shift))
    show(verdicts, by, as_json)


def _print_triggers(verdicts: Sequence[scoring.ScoredVerdict], by: FoldBy | None, as_json: bool) -> None:
    rows, sources = trigger_yields(verdicts), list[TriggerYield]()
    if by:
        sources = totals(scoring.folds(verdicts, by))
    if not as_json:
        render_scores.triggers(out, [*rows, *sources])
        return
    score: dict[str, object] = {"triggers": [row.figures() for row in rows]}
    if by:
        score["folds"] = [row.figures() for row in sources]
    print_json(score)


def _print_score(verdicts: Sequence[scoring.ScoredVerdict], by: FoldBy | None, as_json: bool) -> None:
    weights = {str(kind): share for kind, share in GPU_TIME_SHARE.items()}
    report = scoring.report(verdicts, weights)
    folds: dict[str, scoring.AccuracyReport] = {}
    if by:
        for name, cases in scoring.folds(verdicts, by).items():
            folds[name] = scoring.report(cases, weights)
    if as_json:
        score = render_scores.report_json(report)
        if by:
            score["folds"] = {name: render_scores.report_json(fold) for name, fold in folds.items()}
        print_json(score)
        return
    render_scores.report(out, report)
    if by:
        render_scores.folds(out, by, folds)


async def _site_cases(store: "SqlStore") -> list[scoring.ScoredVerdict]:
    """The site's own cases, with the rules of its files and the learned ones in force."""
    import time

    from diagnoser.diagnosis.attempt_logs import AttemptLogs
    from diagnoser.learning import case_replay
    from diagnoser.learning.replay_history import ReplayHistory
    from diagnoser.learning.rule_registry import RuleRegistry
    from diagnoser.observability import logging

    settings = site()
    logging.set_up(as_json=False, level="error")
    registry = RuleRegistry(load_analyzer(settings), store.rules, time.time)
    await registry.refresh()
    analyzer, policy = registry.analyzer, registry.base.knowledge.policy
    verdicts = []
    async for case in ReplayHistory(store, AttemptLogs(store, registry.compressor)).judged():
        verdict = analyzer.diagnose_with_node_logs(case.evidence, case.facts)
        verdicts.append(scoring.score_case(case_replay.label_of(case, policy), verdict))
    return verdicts


def _cases(
    analyzer: LogAnalyzer, folder: Path, labels: Sequence[scoring.Label], healthy: Path | None
) -> Iterator[tuple[Diagnosis, int]]:
    """The diagnosis of each case and the number of lines in front of it. The healthy log is compressed once."""
    deltas, shift = [], 0
    if healthy:
        with logfile.opened(healthy) as (log, size), logfile.bar(healthy, size) as on_bytes:
            head, shift = analyzer.delta(log, on_bytes=on_bytes)
        deltas.append(head)
    for label in track(labels, description=f"Diagnosing {len(labels)} logs", console=err, transient=True):
        with logfile.opened(folder / f"{label.id}.log") as (log, _):
            tail, _ = analyzer.delta(log, shift + 1)
        yield analyzer.diagnose_with_node_logs(AttemptLog.from_deltas([*deltas, tail]).evidence, Facts()), shift


def _try_model(analyzer: LogAnalyzer, folder: Path, labels: Sequence[scoring.Label], as_json: bool) -> None:
    from diagnoser.accuracy import llm_ablation
    from diagnoser.config import llm_factory
    from diagnoser.observability import logging

    settings = site()
    logging.set_up(as_json=False, level="error")
    if not settings.llm_url:
        raise BadInput("score --model needs DIAGNOSER_LLM_URL and DIAGNOSER_LLM_MODEL")
    cases = []
    for label in track(labels, description=f"Diagnosing {len(labels)} logs", console=err, transient=True):
        log = logfile.read_log(analyzer, folder / f"{label.id}.log", quiet=True)
        diagnosis = pipeline.diagnose(log.evidence, Facts(), analyzer.knowledge)
        question = consultation_input(diagnosis, log, Facts(), analyzer.knowledge)
        cases.append(llm_ablation.AblationCase(label, diagnosis, question))
    outcomes = asyncio.run(llm_factory.run_ablation(settings, cases, analyzer.knowledge.policy))
    if as_json:
        print_json({outcome.name: outcome.figures() for outcome in outcomes})
    else:
        render_scores.ablation(out, outcomes)
