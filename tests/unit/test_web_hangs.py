"""The page of a hang: who holds up whom comes first, it stays small, and nothing of a dump becomes markup."""

from dataclasses import replace
from pathlib import Path

import pytest

from diagnoser.diagnosis import hang_evidence
from diagnoser.hang import report
from diagnoser.hang.flight_recorder import Group, Operation
from diagnoser.hang.report import HangReport
from diagnoser.hang.stacks import RankStack
from diagnoser.hang.wait_graph import GroupState, Mismatch, WaitGraph
from diagnoser.model import (
    AttemptKey,
    EvidenceKind,
    EvidenceLine,
    EvidenceRequest,
    HangSuspect,
    Job,
    Provenance,
    RequestReason,
    RootCause,
    RuntimeFile,
    SuspectKind,
)
from diagnoser.model.taxonomy import FailureType, Outcome
from diagnoser.web.pages import hang_view
from diagnoser.web.pages.hang_view import RankState
from tests.hang_dumps import dump, entry, written
from tests.serving import HOSTILE, NOW, StoredLogs, save, serving, verdict

RANKS = (0, 1, 2, 3)
NODES = {rank: f"gpu-{rank:03d}" for rank in RANKS}
KEY = AttemptKey("llm-7b", 1)


def four(nodes: dict[int, str] | None = None) -> HangReport:
    """Three ranks wait for rank 2; rank 3 left no dump in the group of two."""
    done = entry("0", 5, order=0, done=True)
    waits = [done, entry("0", 6, order=1)]
    files = [
        RuntimeFile(EvidenceKind.FLIGHT_RECORDER, written(dump({"0": RANKS}, [done] if rank == 2 else waits)), rank)
        for rank in RANKS
    ]
    return report.analyze(report.read_files(files), nodes or NODES)


def large(ranks: int = 10_240, late: int = 4_711) -> HangReport:
    """All ranks but one wait for it in one group; those of its node have a group of their own."""
    world = Group("default_pg", tuple(range(ranks)))
    tensor = [Group("tp", tuple(range(first, first + 8))) for first in range(0, ranks, 8)]
    head = Operation(world, "nccl:all_reduce", 77, 1, done=False)
    groups = [GroupState(world, 77, head.name, {late: 76}, ())]
    groups += [GroupState(group, 9, "", {late: 8} if late in group.ranks else {}, ()) for group in tensor]
    others = [rank for rank in range(ranks) if rank != late]
    graph = WaitGraph(
        groups=tuple(groups), waits=dict.fromkeys(others, frozenset((late,))), heads=dict.fromkeys(others, head)
    )
    return HangReport((HangSuspect(late, SuspectKind.BEHIND, "all wait for it", 0.95, "gpu-0588"),), graph)


def hung(hang: HangReport) -> object:
    first = hang.suspects[0]
    return verdict(
        FailureType.NCCL_TIMEOUT_ERROR,
        outcome=Outcome.HUNG,
        decided_by="heuristic:waiting_ranks",
        root_cause=RootCause(0, f"rank 2: {first.why}", first.rank, first.node, source="flight_recorder"),
        evidence=(EvidenceLine(0, first.why, "behind", first.rank, "flight_recorder", Provenance.RUNTIME),),
        hang=hang_evidence.findings(hang, 4),
    )


async def test_the_page_goes_from_the_suspect_to_the_evidence(tmp_path: Path) -> None:
    """Headline, suspects with nodes, who waits for whom, the strips, the groups, the dumps, and what was asked for."""
    hang = four()
    file = RuntimeFile(EvidenceKind.FLIGHT_RECORDER, b"x" * 2048, 1, "gpu-001", NOW - 60, Provenance.RUNTIME)
    asked = EvidenceRequest("01", KEY, "default", NOW - 90, RequestReason.SILENCE, NOW - 80)
    async with serving(tmp_path, context=StoredLogs(hang=hang)) as web:
        await web.store.jobs.register(Job("llm-7b", rank_nodes=NODES))
        record = await save(web.store, "llm-7b", hung(hang))  # type: ignore[arg-type]
        await web.store.evidence.add_runtime_files(KEY, [file])
        await web.store.evidence.request(asked)
        page = (await web.client.get("/jobs/llm-7b/attempts/1/hang")).text
    order = [
        "<h1>Rank 2 on gpu-002 holds up 3 ranks</h1>",
        f'href="/diagnoses/{record.id}"',
        "<b>Rank 2</b> on ",
        "3 ranks wait for it in nccl:all_reduce number 6",
        "3 ranks <code>0\u20131, 3</code>",
        "rank <code>2</code> on gpu-002",
        'aria-label="rank: 1 suspected, 3 waiting"',
        "<title>rank 2 on gpu-002: suspected (behind)</title>",
        "<title>rank 2 on gpu-002: behind (at 5, others at 6)</title>",
        "rank 2 at 5",
        "flight recorder",
        "an agent",
        "2.0 KiB",
        "The run fell silent",
        "no answer yet",
        "/api/v1/jobs/llm-7b/attempts/1/hang",
    ]
    places = [page.index(part) for part in order]
    assert places == sorted(places)


async def test_a_diagnosis_leads_to_the_page_and_has_no_line_0(tmp_path: Path) -> None:
    """The verdict names rank and node and its source in words; the job's page has the link as well."""
    hang = four()
    async with serving(tmp_path, context=StoredLogs(hang=hang)) as web:
        record = await save(web.store, "llm-7b", hung(hang))  # type: ignore[arg-type]
        page = (await web.client.get(f"/diagnoses/{record.id}")).text
        job = (await web.client.get("/jobs/llm-7b")).text
    assert "The job hangs: rank 2 on gpu-002 holds up 3 ranks." in page
    assert '<span class="faint" title="flight_recorder">flight recorder</span>' in page
    assert "<b>line</b>" not in page and "<h2>Evidence</h2>" not in page
    for shown in (page, job):
        assert 'href="/jobs/llm-7b/attempts/1/hang"' in shown


async def test_without_dumps_the_page_says_so(tmp_path: Path) -> None:
    """An attempt that sent none has a page, one that does not exist has none."""
    async with serving(tmp_path) as web:
        await save(web.store, "llm-7b", verdict())
        page = await web.client.get("/jobs/llm-7b/attempts/1/hang")
        assert (await web.client.get("/jobs/llm-7b/attempts/2/hang")).status_code == 404
    assert page.status_code == 200
    assert "No dumps of the ranks" in page.text and "No dump has come." in page.text


async def test_nothing_in_a_dump_becomes_markup(tmp_path: Path) -> None:
    """Names of groups, operations, nodes and calls, stacks, file names and answers of agents are shown as text."""
    group = Group(HOSTILE, (0, 1))
    head = Operation(group, HOSTILE, 3, 1, done=False)
    graph = WaitGraph(
        groups=(GroupState(group, 3, HOSTILE, {1: 2}, ()),),
        mismatches=(Mismatch(group, 3, {HOSTILE: (0,), "nccl:barrier": (1,)}),),
        waits={0: frozenset((1,))},
        heads={0: head},
    )
    suspect = HangSuspect(1, SuspectKind.BEHIND, HOSTILE, 0.9, HOSTILE)
    hang = HangReport((suspect,), graph, (RankStack(1, (HOSTILE,)),), ((HOSTILE, HOSTILE),), (HOSTILE,))
    async with serving(tmp_path, context=StoredLogs(hang=hang)) as web:
        await web.store.jobs.register(Job("llm-7b", rank_nodes={1: HOSTILE}))
        record = await save(web.store, "llm-7b", hung(hang))  # type: ignore[arg-type]
        await web.store.evidence.request(EvidenceRequest("01", KEY, "default", NOW, RequestReason.TIMEOUT, NOW))
        assert await web.store.evidence.finish_request("01", "default", NOW, HOSTILE)
        pages = [
            (await web.client.get(path)).text for path in ("/jobs/llm-7b/attempts/1/hang", f"/diagnoses/{record.id}")
        ]
    for page in pages:
        assert "&lt;script&gt;" in page
        assert "<script>fetch" not in page and "<img src=x" not in page
        assert "\x1b" not in page and "\u202e" not in page


async def test_ten_thousand_ranks_make_a_small_page(tmp_path: Path) -> None:
    """Of 10,240 ranks the late one is seen in its cell and in words, and the page stays below 200 KiB."""
    async with serving(tmp_path, context=StoredLogs(hang=large())) as web:
        await save(web.store, "llm-7b", verdict())
        page = (await web.client.get("/jobs/llm-7b/attempts/1/hang")).text
    assert len(page) < 200 << 10
    assert "Rank 4711 on gpu-0588 holds up 10\u2009239 ranks" in page or "Rank 4711 on gpu-0588 holds up 10239" in page
    assert "suspected (1 of 20, behind)" in page
    assert "10\u2009239 ranks <code>0\u20134710, 4712\u201310239</code>" in page


@pytest.mark.parametrize(("ranks", "cells"), [(4, 4), (64, 64), (512, 512), (1_024, 512), (10_240, 512)])
def test_cells_are_bounded_and_hold_every_rank_once(ranks: int, cells: int) -> None:
    """Whatever the number of ranks: no rank is missing or drawn twice, and nobody's state is hidden."""
    units = hang_view._units(range(ranks), {})
    assert len(units) <= cells
    assert [rank for unit in units for rank in unit] == list(range(ranks))
    drawn = hang_view.bands(large(max(8, ranks), 5), {})
    assert all(band.width <= hang_view.BAND for band in drawn)
    states = [cell.state for band in drawn for cell in band.strips[0].cells]
    assert states.count(RankState.SUSPECTED) == 1


def test_ranks_of_one_node_share_a_cell() -> None:
    """Where the nodes are known: so a whole node that left no dump is one cell."""
    nodes = {rank: f"n{rank // 8}" for rank in range(1_024)}
    hang = large(1_024, 5)
    graph = replace(hang.graph, not_seen=tuple(range(8, 16)))
    first = hang_view.bands(replace(hang, graph=graph), nodes)[0].strips[0]
    assert [cell.title for cell in first.cells[:2]] == [
        "ranks 0\u20137 on n0: suspected (1 of 8, behind)",
        "ranks 8\u201315 on n1: no dump",
    ]


def test_groups_of_one_name_make_one_strip() -> None:
    """As long as they share no rank: those of tensor parallelism are one row, the world another."""
    (band,) = hang_view.bands(large(16, 5), {})
    assert [strip.name for strip in band.strips] == ["rank", "the default group", "tp"]
    assert [strip.summary for strip in band.strips[1:]] == [
        "the default group: 1 behind, 15 waiting",
        "tp: 1 behind, 15 going on",
    ]


def test_waits_are_grouped_by_whom_they_are_for() -> None:
    """The most waiters first, with the operation in which the first of them stands."""
    (wait,) = hang_view.waiting(four().graph)
    assert (wait.waiters, wait.awaited) == ((0, 1, 3), (2,))
    assert wait.operation == "nccl:all_reduce number 6 of group 0"
