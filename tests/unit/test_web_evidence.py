"""Dumps of a job's ranks over the API, and what agents are asked to collect."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard

from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.diagnosis.evidence_collection import EvidenceCollection
from diagnoser.hang import report
from diagnoser.model import Attempt, AttemptKey, Event, EventKind, EvidenceKind, EvidenceRequest, Job, RequestReason
from diagnoser.model.access import Credential, Scope, StoredToken, hash_of
from diagnoser.model.work import Claim
from diagnoser.web.http import request_bodies
from tests.hang_dumps import WORLD, debug_tables_of, dump, entry, written
from tests.serving import NOW, Web, serving

JOB = "slurm-east-7"
PATH = f"/jobs/{JOB}/attempts/1/evidence"
KEY = AttemptKey(JOB)
REQUEST = "0" * 25 + "1"
RECORDER = written(dump({WORLD: range(4)}, [entry(WORLD, 1, order=1)]))
STACK = b'Process 7: python t.py\nThread 7 (idle): "MainThread"\n    load_batch (t.py:4)\n'
TOKEN = "hf_" + "aBcD" * 8 + "Ef"
RAS = b"RAS: 4 ranks in 1 communicator\n"
CREDENTIALS = (
    Credential("agent-east", Scope.AGENT, "east"),
    Credential("agent-west", Scope.AGENT, "west"),
    Credential("shipper", Scope.INGEST, "east"),
    Credential("admin", Scope.ADMIN),
)


class CountingWake(LocalWakeSignal):
    def __init__(self) -> None:
        super().__init__()
        self.told = 0

    def notify(self) -> None:
        self.told += 1


@pytest.fixture
async def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Web]:
    """With a job of the cluster east, of which line and time are known. The secret of each credential is its name."""
    monkeypatch.setattr(request_bodies, "WIRE_BYTES", 1 << 16)
    monkeypatch.setattr(request_bodies, "BODY_BYTES", 1 << 18)
    async with serving(tmp_path, attempts_due=CountingWake()) as made:
        for credential in CREDENTIALS:
            await made.store.tokens.add(StoredToken(credential, hash_of(credential.name)))
        await made.store.jobs.register(Job(JOB, cluster="east", created=NOW))
        await made.store.jobs.add_event(KEY, Event(EventKind.STARTED, NOW))
        yield made


async def send(web: Web, data: bytes, who: str = "agent-east", path: str = PATH, **query: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {who}", **query.pop("headers", {})}
    return await web.client.post("/api/v1" + path, content=data, params=query, headers=headers)


async def post(web: Web, path: str, body: dict[str, Any], who: str = "agent-east") -> httpx.Response:
    return await web.client.post("/api/v1" + path, json=body, headers={"authorization": f"Bearer {who}"})


async def test_a_dump_is_stored_as_it_was_sent(web: Web) -> None:
    """Compressed or not; a later one of the same rank and node takes the place of the earlier."""
    assert (await send(web, RECORDER, kind="flight-recorder", rank=3)).status_code == 204
    packed = zstandard.compress(STACK)
    headers = {"content-encoding": "zstd"}
    for _ in range(2):
        answer = await send(web, packed, kind="stacks", rank=3, node="n1", headers=headers)
        assert answer.status_code == 204
    assert (await send(web, RAS, kind="ras", node="n1")).status_code == 204
    files = {file.kind: file for file in await web.store.evidence.runtime_files(KEY)}
    assert {kind: file.data for kind, file in files.items()} == {
        EvidenceKind.FLIGHT_RECORDER: RECORDER,
        EvidenceKind.STACKS: STACK,
        EvidenceKind.RAS: RAS,
    }
    listed = await web.client.get("/api/v1" + PATH, headers={"authorization": "Bearer admin"})
    assert len(listed.json()) == 3
    assert {"kind": "ras", "rank": None, "node": "n1", "bytes": len(RAS)}.items() <= listed.json()[1].items()


@pytest.mark.parametrize(("who", "provenance"), [("agent-east", "runtime"), ("admin", "runtime"), ("shipper", "job")])
async def test_whose_word_a_dump_is_says_the_credential(web: Web, who: str, provenance: str) -> None:
    """A token that any job of the cluster may hold does not vouch, whatever it sends."""
    await send(web, STACK, who, kind="stacks", rank=0)
    (file,) = await web.store.evidence.runtime_files(KEY)
    assert file.provenance == provenance


@pytest.mark.parametrize(
    ("data", "query", "what"),
    [
        (b"\x80\x04cos\nsystem\n(S'touch /tmp/x'\ntR.", {"kind": "flight-recorder", "rank": 0}, ""),
        (RECORDER[:-5], {"kind": "flight-recorder", "rank": 0}, ""),
        (b"hello", {"kind": "stacks", "rank": 0}, "not stacks"),
        (STACK, {"kind": "flight-recorder", "rank": 0}, "looks like stacks"),
        (b"Thread 7 (idle)\n", {"kind": "stacks", "rank": 0}, "no stack"),
        (b"hello", {"kind": "ras"}, "NCCL RAS"),
        (STACK, {"kind": "stacks"}, "which rank"),
        (STACK, {"kind": "stacks", "rank": -2}, ""),
        (STACK, {"kind": "core", "rank": 0}, ""),
        (STACK, {"kind": "stacks", "rank": 0, "node": "a\nb"}, ""),
    ],
)
async def test_a_dump_that_cannot_be_used_is_refused(web: Web, data: bytes, query: dict[str, Any], what: str) -> None:
    """With the reason; nothing of it is stored."""
    answer = await send(web, data, **query)
    assert answer.status_code == 400
    assert what in answer.text
    assert await web.store.evidence.runtime_files(KEY) == []


async def test_a_body_is_bounded_packed_and_unpacked(web: Web) -> None:
    """A small one that unpacks to much is no way around."""
    bomb = zstandard.compress(STACK + b"\n" * (1 << 20))
    assert len(bomb) < 1 << 16
    for data, headers in ((STACK * (1 << 14), {}), (bomb, {"content-encoding": "zstd"})):
        assert (await send(web, data, kind="stacks", rank=0, headers=headers)).status_code == 413
    assert await web.store.evidence.runtime_files(KEY) == []


async def test_dumps_of_another_cluster_s_jobs_are_refused(web: Web) -> None:
    """As are those of a launch that nobody knows."""
    assert (await send(web, STACK, "agent-west", kind="stacks", rank=0)).status_code == 403
    assert (await send(web, STACK, path=PATH.replace("/1/", "/2/"), kind="stacks", rank=0)).status_code == 404
    assert await web.store.evidence.runtime_files(KEY) == []


async def test_tables_of_all_ranks_need_no_rank(web: Web) -> None:
    """As PyTorch's debug server writes them; who is behind follows from what was stored."""
    tables = debug_tables_of([("all_reduce", (0, 1, 2, 3), ""), ("barrier", (0, 1, 3), "")]).encode()
    assert (await send(web, tables, kind="flight-recorder")).status_code == 204
    stored = await web.store.evidence.runtime_files(KEY)
    assert [(file.rank, file.data) for file in stored] == [(-1, tables)]
    assert [suspect.rank for suspect in report.analyze(report.read_files(stored)).suspects] == [2]


async def test_evidence_makes_a_silent_run_due(web: Web) -> None:
    """At once, with the last of the dumps that were taken together: with a part of them, ranks would look absent."""
    wake = web.services.intake.attempts_due
    assert isinstance(wake, CountingWake)
    (before,) = await web.store.jobs.attempts(JOB)
    await send(web, STACK, kind="stacks", rank=0, more=True)
    (during,) = await web.store.jobs.attempts(JOB)
    assert (during.revision, wake.told) == (before.revision, 0)
    await send(web, STACK, kind="stacks", rank=1)
    (after,) = await web.store.jobs.attempts(JOB)
    assert (after.revision, wake.told) == (before.revision + 1, 1)


def asked(id: str = REQUEST, cluster: str = "east", since: float = NOW, created: float = NOW) -> EvidenceRequest:
    return EvidenceRequest(id, KEY, cluster, since, RequestReason.SILENCE, created, ("n1",), {0: "n1"})


async def test_a_request_is_handed_to_one_agent_of_its_cluster(web: Web) -> None:
    """With all that it takes to collect; while the lease holds nobody else gets it."""
    await web.store.evidence.request(asked())
    assert (await post(web, "/evidence-requests/claim", {}, "agent-west")).json() == []
    (claimed,) = (await post(web, "/evidence-requests/claim", {"cluster": "east"})).json()
    assert claimed == {
        "id": REQUEST,
        "job": JOB,
        "attempt": 1,
        "reason": "silence",
        "since": NOW,
        "nodes": ["n1"],
        "ranks": {"0": "n1"},
        "lease_seconds": 120.0,
    }
    assert (await post(web, "/evidence-requests/claim", {})).json() == []


@pytest.mark.parametrize(
    ("who", "path", "shown"),
    [
        ("shipper", PATH, [REQUEST]),
        ("agent-east", PATH, [REQUEST]),
        ("agent-west", PATH, []),
        ("shipper-of-red", PATH, []),
        ("shipper", PATH.replace("/1/", "/2/"), []),
    ],
)
async def test_a_shipper_sees_what_is_asked_of_its_own_attempt(web: Web, who: str, path: str, shown: list[str]) -> None:
    """While it is open, whoever answers it besides; one of another cluster, tenant or launch sees nothing."""
    tenant = Credential("shipper-of-red", Scope.INGEST, "east", "red")
    await web.store.tokens.add(StoredToken(tenant, hash_of(tenant.name)))
    for request in (asked(), asked(REQUEST.replace("1", "2"), since=NOW - 1e4, created=NOW - 1e4)):
        await web.store.evidence.request(request)
    await post(web, "/evidence-requests/claim", {"cluster": "east"})
    headers = {"authorization": f"Bearer {who}"}
    answer = await web.client.get("/api/v1" + path.replace("/evidence", "/evidence-requests"), headers=headers)
    assert answer.json() == [{"id": request, "since": NOW} for request in shown]


async def test_a_claim_waits_for_a_request(web: Web) -> None:
    """A request that is made meanwhile is handed out; without one the answer is empty when the time is over."""
    claiming = asyncio.create_task(post(web, "/evidence-requests/claim", {"wait": 30.0}))
    await asyncio.sleep(0.05)
    await web.store.evidence.request(asked())
    assert [claimed["id"] for claimed in (await claiming).json()] == [REQUEST]
    assert (await post(web, "/evidence-requests/claim", {"wait": 0.1})).json() == []
    assert (await post(web, "/evidence-requests/claim", {"wait": 31})).status_code == 400


async def test_an_agent_says_how_many_it_takes(web: Web) -> None:
    """The others stay for whoever is free."""
    for number in range(3):
        await web.store.evidence.request(asked(f"{number:026}", since=NOW + number))
    assert len((await post(web, "/evidence-requests/claim", {"limit": 2})).json()) == 2
    assert len((await post(web, "/evidence-requests/claim", {})).json()) == 1
    assert (await post(web, "/evidence-requests/claim", {"limit": 0})).status_code == 400


async def test_an_old_request_is_over(web: Web) -> None:
    """What stood still then has moved, or is gone."""
    await web.store.evidence.request(asked(created=NOW - 601))
    assert (await post(web, "/evidence-requests/claim", {})).json() == []


async def test_a_cluster_s_agent_acts_for_no_other(web: Web) -> None:
    """Neither by naming it, nor by the number of a request."""
    await web.store.evidence.request(asked())
    assert (await post(web, "/evidence-requests/claim", {"cluster": "east"}, "agent-west")).status_code == 403
    path = f"/evidence-requests/{REQUEST}/result"
    assert (await post(web, path, {"cluster": "east", "result": "x"}, "agent-west")).status_code == 403
    assert (await post(web, path, {"result": "x"}, "agent-west")).status_code == 404
    assert await web.store.evidence.requests(KEY) == [(asked(), "")]


async def test_a_result_ends_a_request(web: Web) -> None:
    """It may be repeated, and is bounded."""
    await web.store.evidence.request(asked())
    path = f"/evidence-requests/{REQUEST}/result"
    for _ in range(2):
        assert (await post(web, path, {"cluster": "east", "result": "4 stacks"})).status_code == 204
    assert await web.store.evidence.requests(KEY) == [(asked(), "4 stacks")]
    for result in ("", "x" * 2001, "a\0b"):
        assert (await post(web, path, {"result": result})).status_code == 400
    assert (await post(web, "/evidence-requests/1/result", {"result": "x"})).status_code == 400


async def test_the_ranks_of_a_silent_run_are_looked_at_again_as_its_silence_doubles(web: Web) -> None:
    """A rank that was at work may be stuck later: once at first, from a minute on again at each doubling."""
    now = [NOW]
    collection = EvidenceCollection(web.store.evidence, lambda: now[0], lambda time: f"{time:026.3f}")
    claim = Claim(Attempt(KEY, NOW, last_line=NOW), Job(JOB, cluster="east"), "token")
    seen = []
    for silent in (11, 12, 30, 59, 60, 61, 119, 120, 239, 240, 479, 480):
        now[0] = NOW + silent
        await collection.suspected(claim)
        seen.append((silent, len(await web.store.evidence.requests(KEY))))
    assert seen == [
        (11, 1), (12, 1), (30, 1), (59, 1), (60, 2), (61, 2), (119, 2), (120, 3), (239, 3),
        (240, 4), (479, 4), (480, 5),
    ]  # fmt: skip


async def test_what_ranks_do_is_stored_for_each_node(web: Web) -> None:
    """Two looks of one node are of no single rank; what cannot be read is refused."""
    looks = b'{"activity": {"3": {"cores": 0.9, "bytes": 10, "program": "cicc"}}, "seconds": 4.0}'
    assert (await send(web, looks, kind="activity", node="n1")).status_code == 204
    assert (await send(web, b'{"activity": {"3": 1}}', kind="activity", node="n1")).status_code == 400
    [file] = await web.store.evidence.runtime_files(KEY)
    assert (file.kind, file.rank, file.data) == (EvidenceKind.ACTIVITY, -1, looks)


async def test_what_a_node_said_before_its_repair_is_taken_away_as_one_tar(web: Web) -> None:
    """With the stacks of the ranks; secrets are masked in both, no name leads out of the tar, and it is for those who
    see the whole service: a node's log tells of the jobs of all."""
    parts = [{"id": "kernel_journal", "exit_code": 0, "output": f"NVRM: Xid 79\nexport HF_TOKEN={TOKEN}\n"}]
    path, headers = f"/api/v1/jobs/{JOB}/attempts/1", {"authorization": "Bearer agent-east"}
    sent = await web.client.post(f"{path}/node-snapshots", json={"node": "../gpu-02", "parts": parts}, headers=headers)
    assert sent.status_code == 204, sent.text
    await send(web, STACK + TOKEN.encode(), kind="stacks", rank=3)
    assert (await web.client.get(f"{path}/evidence.tar", headers=headers)).status_code == 403
    answer = await web.client.get(f"{path}/evidence.tar", headers={"authorization": "Bearer admin"})
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
        texts = {name: tar.extractfile(name).read().decode() for name in tar.getnames()}  # type: ignore[union-attr]
    log, stack = texts["evidence/nodes/___gpu-02/kernel_journal.txt"], "load_batch (t.py:4)"
    assert "NVRM: Xid 79" in log
    assert any(stack in text for text in texts.values())
    assert TOKEN not in str(texts)
    await web.client.post(f"{path}/node-snapshots", json={"node": "gpu-3", "parts": parts}, headers=headers)
    assert await web.store.evidence.nodes_with_snapshots(KEY) == ["../gpu-02", "gpu-3"]
