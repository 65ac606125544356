"""The order of steps, a node's kernel line, a failure and an exit: a proof is used, or shown with the reason."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from diagnoser import compress
from diagnoser.compress import AttemptLog
from diagnoser.diagnosis import node_logs
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.diagnosis.node_faults import NOT_THE_CAUSE
from diagnoser.diagnosis.node_logs import SetAsideReason
from diagnoser.model import (
    Diagnosis,
    Event,
    EventKind,
    Evidence,
    Facts,
    Job,
    Line,
    LineBlock,
    Progress,
    Provenance,
    Stream,
)
from diagnoser.model.taxonomy import FailureType
from tests import accuracy_bars
from tests.thorough import THOROUGH

NOON = 1_772_362_800.0  # 2026-03-01 11:00:00 UTC
ORDERS = 100 if THOROUGH else 20
XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FAILURE = (
    "[rank1]:[E301 11:00:00.1 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=81, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60033 milliseconds "
    "before timing out."
)
UNDATED = FAILURE.replace("E301 11:00:00.1 ", "E ")


@pytest.fixture(scope="module")
def analyzer() -> LogAnalyzer:
    return accuracy_bars.load()


def stamp(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S")


def steps(first: int, last: int, began: float | None = None) -> list[str]:
    """One a second. began: when the first was made; None: they print no times."""
    heads = [f"{stamp(began + step - first)} INFO " if began else "" for step in range(first, last + 1)]
    return [f"{head}step {first + number} | loss 2.3412" for number, head in enumerate(heads)]


def diagnose(
    analyzer: LogAnalyzer, job: Sequence[tuple[float, Sequence[str]]], kernel: float, ended: float
) -> Diagnosis:
    """job: arrival of each body and its lines. kernel: when the fault befell the node."""
    compressor, first = analyzer.compressor(), 1
    for arrival, lines in sorted(job, key=lambda body: body[0]):
        compressor.feed(LineBlock(Stream(node="n44"), "\n".join([*lines, ""]).encode(), first, received=arrival))
        first += len(lines)
    fatal = max(arrival for arrival, lines in job if "Watchdog" in "".join(lines))
    text = f"{datetime.fromtimestamp(kernel, UTC):%b %e %H:%M:%S} n44 kernel: {XID}\n"
    node = analyzer.compressor()
    block = LineBlock(Stream("kernel", "n44", provenance=Provenance.NODE), text.encode(), 1, received=kernel)
    node.feed(node_logs.with_times(block))
    facts = Facts(
        Job("run", nodes=("n44",)),
        1,
        (Event(EventKind.EXIT, ended, code=1),),
        {"n44": [compress.to_bytes(node.take())]},
        (min(fatal, ended), ended),
        nodes=("n44",),
    )
    return analyzer.analyze(AttemptLog(compressor.take()), facts, ended + 10)


def is_shown(verdict: Diagnosis) -> bool:
    """Whether the fault proves, or a note says why it does not."""
    return bool(verdict.proofs) or any(note.startswith(f"{NOT_THE_CAUSE}: kernel log of n44") for note in verdict.notes)


ISSUE = {
    "steps, kernel, failure": ([(0.0, steps(1, 60)), (100.0, [UNDATED])], 50.0),
    "steps, failure, kernel": ([(0.0, steps(1, 60)), (100.0, [UNDATED])], 101.0),
    "kernel, steps, failure": ([(55.0, steps(1, 60)), (100.0, [UNDATED])], 50.0),
    "kernel, then steps and failure in one body": ([(400.0, [*steps(1, 60), UNDATED])], 50.0),
    "kernel, then steps and failure in one body much later": ([(1500.0, [*steps(1, 60), UNDATED])], 50.0),
}


@pytest.mark.parametrize("order", ISSUE)
def test_a_fault_proves_however_late_the_job_s_lines_arrive(analyzer: LogAnalyzer, order: str) -> None:
    """Lines without times are as old as the buffers that they went through: none of these shows that it outlived."""
    bodies, kernel = ISSUE[order]
    job = [(NOON + after, lines) for after, lines in bodies]
    verdict = diagnose(analyzer, job, NOON + kernel, max(arrival for arrival, _ in job) + 2)
    assert (verdict.type, [proof.node for proof in verdict.proofs]) == (FailureType.GPU_LOST, ["n44"])


def test_what_training_outlived_by_printed_times_is_set_aside_with_the_reason(analyzer: LogAnalyzer) -> None:
    """Five minutes of steps after the fault, by the times of both."""
    lines = [*steps(1, 300, NOON), FAILURE]
    verdict = diagnose(analyzer, [(NOON + 310, lines)], NOON + 10, NOON + 312)
    assert not verdict.proofs
    note = next(note for note in verdict.notes if note.startswith(NOT_THE_CAUSE))
    assert note.endswith(f": {SetAsideReason.OUTLIVED}")


@pytest.mark.parametrize(("ahead", "befell", "reason"), [(100.0, 20.0, SetAsideReason.OUTLIVED), (-50.0, 59.5, None)])
def test_a_node_whose_clock_is_off_is_read_by_its_ranks(ahead: float, befell: float, reason: str | None) -> None:
    """The steps that all ranks make together show how far a node's clock is off, for its own log as well."""
    points = tuple(
        Progress(step, rank, NOON + step + ahead * (rank == 2), step=step, stream=Stream("out", f"n{rank}", rank))
        for rank in range(3)
        for step in range(1, 61)
    )
    lines = tuple(Line(p.stream, p.line, "x", "x", rank=p.rank, node=p.stream.node, time=p.time) for p in points)
    kernel = Line(Stream("kernel", "n2"), 1, XID, XID, node="n2", time=NOON + befell + ahead)
    weighed = node_logs.weighed_lines(Evidence(lines, progress=points), [kernel], (NOON + 61, NOON + 62))
    assert weighed == [(kernel, reason)]


def test_steps_that_come_for_minutes_after_a_fault_outlived_it(analyzer: LogAnalyzer) -> None:
    """Without times of their own: body after body, long after the fault."""
    job = [(NOON + 20 * body, steps(20 * body + 1, 20 * body + 20)) for body in range(20)]
    verdict = diagnose(analyzer, [*job, (NOON + 400, [UNDATED])], NOON + 10, NOON + 402)
    assert not verdict.proofs and is_shown(verdict)


def test_a_fault_long_before_the_failure_is_shown(analyzer: LogAnalyzer) -> None:
    """It is of another time: what was seen is said."""
    lines = [*steps(1, 60, NOON - 60), FAILURE]
    verdict = diagnose(analyzer, [(NOON + 1, lines)], NOON - 1500, NOON + 2)
    assert not verdict.proofs
    assert any(note.endswith(f": {SetAsideReason.OTHER_TIME}") for note in verdict.notes)


@pytest.mark.parametrize("seed", range(ORDERS))
def test_in_any_order_a_fault_is_used_or_shown(analyzer: LogAnalyzer, seed: int) -> None:
    """Steps, the node's line, the failure and the exit arrive in any order, each late by up to ten minutes, in one body
    or several, with and without times."""
    draw = random.Random(seed)
    count, dated = draw.randint(5, 200), draw.random() < 0.5
    lines = steps(1, count, NOON if dated else None)
    crashed = NOON + count + draw.uniform(1, 60)
    bodies: list[tuple[float, Sequence[str]]] = []
    while lines:
        size = draw.randint(1, len(lines))
        bodies.append((NOON + count + draw.uniform(0, 600), lines[:size]))
        lines = lines[size:]
    arrivals = sorted(arrival for arrival, _ in bodies)
    job = [(arrival, body) for arrival, (_, body) in zip(arrivals, bodies, strict=True)]
    failure = max(arrivals[-1], crashed) + draw.uniform(0, 120)
    job.append((failure, [FAILURE if dated else UNDATED]))
    ended = draw.choice([crashed + 1, failure + 1])
    verdict = diagnose(analyzer, job, crashed - draw.uniform(0, 60), ended)
    assert is_shown(verdict), verdict.notes
