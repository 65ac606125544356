"""Whose logs are read for a diagnosis: those of the scheduler's list, and of nobody else."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import Compressor
from diagnoser.diagnosis.attempt_logs import AttemptLogs
from diagnoser.diagnosis.context import DiagnosisContext
from diagnoser.diagnosis.node_logs import PART
from diagnoser.ingest import RecordDefaults
from diagnoser.model import Attempt, AttemptKey, Diagnosis, Event, EventKind, Job, RootCause, Stream
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.model.work import Claim, DiagnosisRecord
from tests.databases import sqlite_store
from tests.ingesting import accept
from tests.integration.test_ingest_service import intake

NOW = 500_000 * PART + 60
KEY = AttemptKey("j")
ENDED = Event(EventKind.EXIT, NOW, code=1, node="vic-9")
ATTEMPT = Attempt(KEY, NOW - 60, NOW, NOW, NOW, events=(ENDED,))
XID = b"NVRM: Xid (PCI:0000:4e:00): 79, pid=0, GPU has fallen off the bus.\n"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    async with intake(opened) as made:
        for node in ("n1", "n2", "vic-9"):
            await accept(made, XID, "text", RecordDefaults(stream=Stream("kernel", node)), NOW)
        said = b"rank 0 on node vic-9\n"
        await accept(made, said, "text", RecordDefaults(job="j", stream=Stream("stdout", "vic-9")), NOW)
    yield opened
    await opened.close()


def context(store: SqlStore) -> DiagnosisContext:
    return DiagnosisContext(store, AttemptLogs(store, Compressor), lambda: NOW)


@pytest.mark.parametrize(
    ("attempt", "job", "expected"),
    [
        (replace(ATTEMPT, nodes=("n1",)), Job("j", nodes=("n1", "n2")), {"n1"}),
        (ATTEMPT, Job("j", nodes=("n1",), rank_nodes={0: "n1", 1: "n2"}), {"n1", "n2"}),
        (ATTEMPT, Job("j"), set()),
    ],
    ids=["what an agent told of the launch", "the registration", "neither"],
)
async def test_only_the_schedulers_nodes_count(store: SqlStore, attempt: Attempt, job: Job, expected: set[str]) -> None:
    """The job prints vic-9, ships as vic-9 and reports its end on vic-9: no log of vic-9 is read for it."""
    facts = await context(store).facts(Claim(attempt, job, ""))
    assert (set(facts.nodes), set(facts.node_logs)) == (expected, expected)


@pytest.mark.parametrize(("node", "shown"), [("n1", True), ("vic-9", False)])
async def test_the_page_shows_no_log_of_a_foreign_node(store: SqlStore, node: str, shown: bool) -> None:
    """A root line that calls itself a kernel line of vic-9 brings none of vic-9's own lines onto the page."""
    await store.jobs.register(Job("j", nodes=("n1",), created=NOW))
    cause = RootCause(1, "x", node=node, source="kernel")
    verdict = Diagnosis(Outcome.FAILED, Category.INFRASTRUCTURE, FailureType.GPU_LOST, 0.9, "rule:x", cause)
    lines = await context(store).node_lines(DiagnosisRecord("d", KEY, 1, NOW, True, verdict))
    assert any("Xid" in line.text for line in lines) is shown
