"""Contract of the dumps of an attempt, and of what agents are asked to collect."""

from dataclasses import replace

import pytest

from diagnoser.adapters.sql import evidence
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import AttemptKey, EvidenceKind, EvidenceRequest, Provenance, RequestReason, RuntimeFile
from diagnoser.model.errors import NotFound, TooLarge
from tests.contract.records import KEY, append

DUMP = RuntimeFile(EvidenceKind.FLIGHT_RECORDER, b"dump" * 100, 3, "", 300.0, Provenance.RUNTIME)
ASKED = EvidenceRequest(
    "01", KEY, "one", 100.0, RequestReason.SILENCE, 115.0, ("gpu-001", "gpu-002"), {0: "gpu-001", 1: "gpu-002"}
)


async def test_the_newest_dump_of_a_rank_is_kept(store: SqlStore, second: SqlStore) -> None:
    """A later one replaces it; what the job sent itself cannot replace what an agent took."""
    await store.logs.append([append()])
    await store.evidence.add_runtime_files(KEY, [DUMP])
    newer, forged = replace(DUMP, data=b"newer", received=301.0), replace(DUMP, provenance=Provenance.JOB)
    answer = RuntimeFile(EvidenceKind.RAS, b"{}", node="gpu-001", received=302.0)
    await second.evidence.add_runtime_files(KEY, [newer, forged, answer])
    assert sorted(await store.evidence.runtime_files(KEY), key=repr) == sorted([newer, forged, answer], key=repr)
    listed = await store.evidence.list_runtime_files(KEY)
    assert sorted(file.bytes for file in listed) == [2, 5, 400]


async def test_dumps_are_of_a_known_attempt_and_bounded(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown attempt has none; beyond the limits nothing of a request is kept."""
    with pytest.raises(NotFound):
        await store.evidence.add_runtime_files(KEY, [DUMP])
    await store.logs.append([append()])
    await store.evidence.add_runtime_files(KEY, [DUMP])
    for most in ("FILES_MOST", "BYTES_MOST"):
        with monkeypatch.context() as bounded, pytest.raises(TooLarge):
            bounded.setattr(evidence, most, 1)
            await store.evidence.add_runtime_files(KEY, [replace(DUMP, rank=4)])
    assert await store.evidence.runtime_files(KEY) == [DUMP]


async def test_a_dump_makes_a_silent_run_due_again(store: SqlStore) -> None:
    """Also one whose silence was to be looked at again later only, and also while somebody works on it."""
    await store.logs.append([append(at=100.0)])
    (claim,) = await store.work.claim_silent(500.0, 60.0, 10.0, 9)
    await store.work.release(claim, until=9000.0)
    assert await store.work.claim_silent(520.0, 60.0, 10.0, 9) == []
    await store.evidence.add_runtime_files(KEY, [DUMP])
    (claim,) = await store.work.claim_silent(520.0, 60.0, 10.0, 9)
    await store.evidence.add_runtime_files(KEY, [replace(DUMP, rank=4)])
    await store.work.release(claim, until=9000.0)
    assert len(await store.work.claim_silent(521.0, 60.0, 10.0, 9)) == 1


async def test_dumps_that_others_follow_do_not_make_a_run_due(store: SqlStore) -> None:
    """They are stored; the last one, or the time that was set, makes it due with all of them."""
    await store.logs.append([append(at=100.0)])
    (claim,) = await store.work.claim_silent(500.0, 60.0, 10.0, 9)
    await store.work.release(claim, until=9000.0)
    await store.evidence.add_runtime_files(KEY, [DUMP], due=False)
    assert await store.evidence.runtime_files(KEY) == [DUMP]
    assert await store.work.claim_silent(520.0, 60.0, 10.0, 9) == []
    with pytest.raises(NotFound):
        await store.evidence.add_runtime_files(AttemptKey("other"), [DUMP], due=False)
    await store.evidence.add_runtime_files(KEY, [DUMP])
    assert len(await store.work.claim_silent(521.0, 60.0, 10.0, 9)) == 1


async def test_evidence_of_one_silence_is_asked_for_once(store: SqlStore, second: SqlStore) -> None:
    """By attempt and newest line; agents of other clusters do not get it, and of two agents only one does."""
    await store.logs.append([append()])
    assert await store.evidence.request(ASKED)
    assert not await second.evidence.request(replace(ASKED, id="02", created=120.0))
    assert await store.evidence.request(replace(ASKED, id="03", since=200.0, created=215.0))
    assert await store.evidence.claim_requests("two", 220.0, 60.0, 0.0, 8) == []
    assert await store.evidence.claim_requests("one", 220.0, 60.0, 200.0, 8) == [
        replace(ASKED, id="03", since=200.0, created=215.0)
    ]
    assert await second.evidence.claim_requests("one", 230.0, 60.0, 0.0, 8) == [ASKED]
    assert await second.evidence.claim_requests("one", 240.0, 60.0, 0.0, 8) == []


async def test_a_request_is_handed_out_again_until_it_is_finished(store: SqlStore) -> None:
    """An agent that dies loses it with its lease; a result ends it, only from its own cluster, and may be repeated."""
    await store.logs.append([append()])
    await store.evidence.request(ASKED)
    for now in (120.0, 181.0):
        assert await store.evidence.claim_requests("one", now, 60.0, 0.0, 8) == [ASKED]
    assert not await store.evidence.finish_request("01", "two", 190.0, "nothing")
    assert await store.evidence.finish_request("01", "one", 190.0, "2 dumps")
    assert await store.evidence.finish_request("01", "one", 191.0, "2 dumps")
    assert await store.evidence.claim_requests("one", 999.0, 60.0, 0.0, 8) == []
    assert await store.evidence.requests(KEY) == [(ASKED, "2 dumps")]
    assert await store.evidence.requests(AttemptKey("other")) == []
