"""The agent's duty of evidence: requests between a service and a scheduler that may be away, and files that lie."""

import ast
import asyncio
import base64
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard

from diagnoser.agent import claims, evidence
from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.cluster import NotCollected
from diagnoser.agent.evidence import Collected, DumpPattern, EvidenceCollector, LaunchWindow
from diagnoser.client import evidence_runner
from diagnoser.client.evidence_runner import Bounds
from diagnoser.hang.activity import parse_activity
from diagnoser.model import EvidenceKind, RuntimeFile
from diagnoser.model.errors import BadInput, Denied
from tests.hang_dumps import debug_tables_of
from tests.integration.slurm.cluster import until
from tests.unit.memory_cluster import MemoryCluster, MemoryScheduler

REQUEST: dict[str, Any] = {
    "id": "01",
    "job": "memory-seven",
    "attempt": 1,
    "reason": "silence",
    "since": 100.0,
    "nodes": [],
    "ranks": {},
    "lease_seconds": 120.0,
}
STACK = b'Process 7: python t.py\nThread 7 (idle): "MainThread"\n    all_reduce (t.py:4)\n'
RECORDER = b"\x80\x04}."
UID = os.getuid()
JOB = f"4711{os.getpid()}"
"""One of each process of the tests: they run beside each other on one machine."""


def stacks(rank: int, node: str = "n1") -> RuntimeFile:
    return RuntimeFile(EvidenceKind.STACKS, STACK * (rank + 1), rank, node)


@dataclass
class Service:
    """requests: that are handed out. sent: (query, body) of each dump. refuses: rank -> status. away: from then on."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    sent: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    refuses: dict[int, int] = field(default_factory=dict)
    away: bool = False
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/api/v1")
        if self.away:
            return httpx.Response(503, json={"detail": "away"})
        if path == "/evidence-requests/claim":
            body = json.loads(request.content)
            self.claims.append(body)
            handed, self.requests = self.requests[: body["limit"]], self.requests[body["limit"] :]
            return httpx.Response(200, json=handed)
        if path.endswith("/evidence"):
            query = dict(request.url.params)
            if refusal := self.refuses.get(int(query["rank"])):
                return httpx.Response(refusal, json={"detail": "not readable"})
            self.sent.append((query, zstandard.decompress(request.content)))
            self.arrived.set()
        if path.endswith("/result"):
            self.results[path.split("/")[2]] = json.loads(request.content)["result"]
            self.heard.set()
        return httpx.Response(204)


def collector(service: Service, scheduler: MemoryScheduler, turns: int = 1000) -> EvidenceCollector[Any]:
    """turns: how often it may pause before the test has gone wrong."""
    left = iter(range(turns))

    async def pause(seconds: float) -> None:
        next(left)
        await asyncio.sleep(0)

    http = httpx.AsyncClient(transport=httpx.MockTransport(service.answer), base_url="http://diagnoser.test")
    return EvidenceCollector(ApiClient(http, pause), MemoryCluster(scheduler))


async def run_until_told(service: Service, agent: EvidenceCollector[Any]) -> None:
    task = asyncio.create_task(agent.run())
    told = asyncio.create_task(service.heard.wait())
    await asyncio.wait({task, told}, timeout=120.0, return_when=asyncio.FIRST_COMPLETED)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_request_is_claimed_collected_sent_and_reported() -> None:
    """Each dump with its kind, rank and node; all but the last say that more follow; the result counts them."""
    service = Service([REQUEST])
    scheduler = MemoryScheduler(dumps=[stacks(0), NotCollected("n2: py-spy is not installed"), stacks(1, "n2")])
    await run_until_told(service, collector(service, scheduler))
    assert service.claims[0] == {"cluster": "lab", "limit": evidence.REQUESTS_AT_ONCE, "wait": claims.CLAIM_SECONDS}
    assert sorted(query["rank"] for query, _ in service.sent[:-1]) == ["0", "1"]
    assert all(query["more"] == "true" for query, _ in service.sent[:-1])
    assert service.sent[-1] == ({"kind": "stacks", "rank": "0", "node": "n1"}, STACK)
    assert service.results == {"01": "stacks: 2; n2: py-spy is not installed"}


async def test_a_dump_that_the_service_refuses_holds_up_no_other() -> None:
    """It is named in the result."""
    service = Service(refuses={0: 400, 2: 413})
    scheduler = MemoryScheduler(dumps=[stacks(0), stacks(1), stacks(2)])
    await collector(service, scheduler).answer(REQUEST)
    assert [query["rank"] for query, _ in service.sent] == ["1", "1"]
    assert "stacks: 1" in service.results["01"]
    assert service.results["01"].count("was refused: not readable") == 2


@pytest.mark.parametrize(
    ("job", "result"), [("other-7", "no job of this cluster"), ("memory-seven", "nothing was collected")]
)
async def test_a_request_that_yields_nothing_is_reported_too(job: str, result: str) -> None:
    """A job of somewhere else, and one without dumps: nobody needs to ask again."""
    service = Service()
    await collector(service, MemoryScheduler()).answer(REQUEST | {"job": job})
    assert result in service.results["01"]
    assert service.sent == []


async def test_while_the_scheduler_is_away_the_request_stays_open() -> None:
    """No result: its lease ends, and an agent collects then."""
    service, scheduler = Service(), MemoryScheduler(dumps=[stacks(0)], away=1)
    agent = collector(service, scheduler)
    await agent.answer(REQUEST)
    assert service.results == {}
    await agent.answer(REQUEST)
    assert service.results == {"01": "stacks: 1"}


async def test_an_agent_that_dies_leaves_the_request_to_be_done_again() -> None:
    """Nothing of it is kept: the next one collects and sends everything anew."""
    service, scheduler = Service(), MemoryScheduler(dumps=[stacks(0)], hangs=True)
    dying = asyncio.create_task(collector(service, scheduler).answer(REQUEST))
    await asyncio.wait_for(service.arrived.wait(), 120.0)
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    assert service.results == {}
    scheduler.hangs = False
    await collector(service, scheduler).answer(REQUEST)
    assert (scheduler.collected, service.results) == (2, {"01": "stacks: 1"})


async def test_collecting_ends_before_the_lease() -> None:
    """What there is until then is sent and reported."""
    service, scheduler = Service(), MemoryScheduler(dumps=[stacks(0)], hangs=True)
    await collector(service, scheduler).answer(REQUEST | {"lease_seconds": 0.5})
    assert service.results["01"].startswith("stacks: 1; ended after")
    assert "more" not in service.sent[-1][0]


async def test_few_requests_at_a_time() -> None:
    """While that many are under way, no others are claimed."""
    many = [REQUEST | {"id": str(number)} for number in range(10)]
    service, scheduler = Service(many), MemoryScheduler(hangs=True)
    task = asyncio.create_task(collector(service, scheduler, turns=50).run())
    await asyncio.wait({task})
    assert scheduler.collected == evidence.REQUESTS_AT_ONCE
    assert len(service.claims) == 1
    assert isinstance(task.exception(), RuntimeError), "the test's own end of pauses"


async def test_a_token_that_is_refused_ends_the_duty() -> None:
    """And with it the agent, which says so, as for plans."""
    transport = httpx.MockTransport(lambda request: httpx.Response(401))
    http = httpx.AsyncClient(transport=transport, base_url="http://diagnoser.test")
    agent = EvidenceCollector(ApiClient(http, lambda seconds: asyncio.sleep(0)), MemoryCluster(MemoryScheduler()))
    with pytest.raises(Denied):
        await agent.run()


async def test_a_service_that_is_away_is_asked_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one of before these requests, which answers 404, as well; the duty never ends for it."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > 20:
            raise asyncio.CancelledError

    http = httpx.AsyncClient(
        transport=httpx.MockTransport(lambda request: httpx.Response(404)), base_url="http://diagnoser.test"
    )
    agent = EvidenceCollector(ApiClient(http, pause), MemoryCluster(MemoryScheduler()))
    monkeypatch.setattr("random.uniform", lambda least, most: (least + most) / 2)
    with suppress(asyncio.CancelledError):
        await agent.run()
    assert pauses[:3] == [0.5, 1.0, 2.0]
    assert max(pauses) == claims.LONGEST_WAIT


@pytest.mark.parametrize(
    "claimed", [{}, REQUEST | {"reason": "other"}, REQUEST | {"since": "x"}, REQUEST | {"lease_seconds": None}]
)
async def test_a_request_that_cannot_be_read_ends_nothing(claimed: dict[str, Any]) -> None:
    """A newer service may ask for what this agent does not know."""
    service = Service()
    await collector(service, MemoryScheduler()).answer(claimed)
    assert service.results == {}


@pytest.mark.parametrize(
    ("pattern", "root", "parts"),
    [
        ("/shared/dumps/{job}/_dump_*", "/shared/dumps", ["47", "_dump_*"]),
        ("/s/{user}/{job}-x/n*/r?", "/s", ["ida", "47-x", "n*", "r?"]),
        ("/{job}/d", "/", ["47", "d"]),
    ],
)
def test_a_pattern_is_a_folder_of_the_operator_and_names_below_it(pattern: str, root: str, parts: list[str]) -> None:
    """What is below may be the job's."""
    parsed = DumpPattern.parse(pattern, ("job", "user"))
    assert parsed.of({"job": "47", "user": "ida"}) == (root, parts)


@pytest.mark.parametrize(
    "pattern",
    ["dumps/{job}", "/d/_dump_*", "/d/../{job}", "/d//{job}", "/d/{job}/{0}", "/d/{job", "/d/{job}/{rank}", "/{job}"],
)
def test_a_pattern_that_could_mean_other_jobs_files_is_refused(pattern: str) -> None:
    """As are fields that nobody fills in."""
    with pytest.raises(BadInput):
        DumpPattern.parse(pattern, ("job", "user"))


@pytest.mark.parametrize("user", ["..", "a/b", "*", "", "a\0"])
def test_a_value_is_never_more_than_one_name(user: str) -> None:
    """Names of users come from outside."""
    pattern = DumpPattern.parse("/s/{user}/{job}/x", ("job", "user"))
    with pytest.raises(BadInput):
        pattern.of({"job": "47", "user": user})
    assert DumpPattern.parse("/s/{job}/x", ("job", "user")).of({"job": "47", "user": user})


def test_files_on_nodes_need_the_switch() -> None:
    """A program reads them."""
    with pytest.raises(BadInput, match="--collect-evidence"):
        evidence.options((), ("/local/{job}/d",), ("job",), programs=False)
    assert not evidence.options((), (), ("job",), programs=False).any


async def collected(folder: Path, uid: int = UID, since: float = 0.0, until: float = 9e12) -> list[Collected]:
    """Of the job 47, whose dumps lie in a folder with its number."""
    pattern = DumpPattern.parse(f"{folder}/{{job}}/_dump_*", ("job",))
    window = LaunchWindow({"job": "47"}, uid, since, until)
    return [found async for found in evidence.read_dumps([pattern], window)]


def dump(folder: Path, name: str = "_dump_3", data: bytes = RECORDER, job: str = "47") -> Path:
    path = folder / job / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


async def test_dumps_of_the_launch_are_read(tmp_path: Path) -> None:
    """The kind by their content, the rank by their name; those of other launches, and of other jobs, are not."""
    dump(tmp_path)
    dump(tmp_path, "_dump_4", b"")
    dump(tmp_path, "other_5")
    dump(tmp_path, "_dump_1", job="48")
    os.utime(dump(tmp_path, "_dump_0"), (50.0, 50.0))
    os.utime(dump(tmp_path, "_dump_12", STACK), (150.0, 150.0))
    recent = [RuntimeFile(EvidenceKind.FLIGHT_RECORDER, RECORDER, 3)]
    assert await collected(tmp_path, since=200.0) == recent
    assert await collected(tmp_path, since=100.0, until=200.0) == [RuntimeFile(EvidenceKind.STACKS, STACK, 12)]
    (nameless,) = await collected(tmp_path / "no")
    assert nameless == NotCollected(f"{tmp_path}/no: No such file or directory")


async def test_a_dump_that_names_no_rank_is_not_sent(tmp_path: Path) -> None:
    """Except an answer of NCCL RAS, and tables of a debug server, which are of the whole job."""
    tables = debug_tables_of([("barrier", (0, 1), "")]).encode()
    dump(tmp_path, "_dump_x")
    dump(tmp_path, "_dump_ras", b"Ranks of the communicator")
    dump(tmp_path, "_dump_20261122_174438.txt", tables)
    assert set(await collected(tmp_path)) == {
        NotCollected(f"{tmp_path}/47/_dump_x: its name ends in no rank"),
        RuntimeFile(EvidenceKind.RAS, b"Ranks of the communicator"),
        RuntimeFile(EvidenceKind.FLIGHT_RECORDER, tables),
    }


async def test_links_lead_nowhere(tmp_path: Path) -> None:
    """A tenant may put one in place of a dump, or of the job's folder; the operator's own root may be one."""
    secret = tmp_path / "secret"
    secret.write_bytes(RECORDER)
    (tmp_path / "dumps" / "47").mkdir(parents=True)
    (tmp_path / "dumps" / "47" / "_dump_0").symlink_to(secret)
    (tmp_path / "dumps" / "47" / "_dump_1").symlink_to("/etc/shadow")
    found = await collected(tmp_path / "dumps")
    assert [one.why.rpartition(": ")[2] for one in found if isinstance(one, NotCollected)] == ["not a plain file"] * 2
    assert len(found) == 2
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "47").symlink_to(tmp_path / "dumps" / "47")
    assert await collected(tmp_path / "linked") == []
    dump(tmp_path / "dumps", "_dump_2")
    (tmp_path / "root").symlink_to(tmp_path / "dumps")
    assert RuntimeFile(EvidenceKind.FLIGHT_RECORDER, RECORDER, 2) in await collected(tmp_path / "root")


async def test_what_is_no_plain_file_is_not_opened(tmp_path: Path) -> None:
    """A FIFO without a writer would hold the agent for ever."""
    (tmp_path / "47" / "_dump_1").mkdir(parents=True)
    os.mkfifo(tmp_path / "47" / "_dump_0")
    async with asyncio.timeout(120.0):
        found = await collected(tmp_path)
    assert [one.why.rpartition(": ")[2] for one in found if isinstance(one, NotCollected)] == ["not a plain file"] * 2


async def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    """By the owner; where nobody knows the owner, a file with a second name may be somebody else's."""
    first = dump(tmp_path)
    assert await collected(tmp_path, uid=UID + 1) == [NotCollected(f"{first}: not a file of the job's user")]
    assert len(await collected(tmp_path, uid=-1)) == 1
    os.link(first, tmp_path / "second")
    assert await collected(tmp_path, uid=-1) == [NotCollected(f"{first}: it has a second name")]


async def test_files_are_bounded_in_size_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A huge one is not read at all, though it costs no disk; the others are."""
    huge = dump(tmp_path, "_dump_0")
    with huge.open("r+b") as file:
        file.truncate(1 << 40)
    dump(tmp_path, "_dump_1")
    dump(tmp_path, "_dump_2")
    monkeypatch.setattr(evidence, "Bounds", lambda: Bounds(files=1))
    big, read, over = await collected(tmp_path)
    assert big == NotCollected(f"{huge}: larger than 32 MiB")
    assert isinstance(read, RuntimeFile)
    assert over == NotCollected(f"{tmp_path}/47/_dump_2: more than is read at one time")


def test_the_entries_of_a_folder_are_bounded(tmp_path: Path) -> None:
    """Whoever owns the folder can fill it."""
    for number in range(50):
        dump(tmp_path, f"_dump_{number}")
    bounds = Bounds()
    bounds.entries = 10
    assert len(list(evidence_runner.dump_files(str(tmp_path), ["47", "*"], UID, 0.0, 9e12, bounds))) == 10


def test_the_program_is_one_file_for_the_pythons_of_nodes() -> None:
    """It is sent as text: nothing of this project, and nothing newer than Python 3.7."""
    source = Path(evidence_runner.__file__).read_text("utf-8")
    tree = ast.parse(source, feature_version=(3, 7))
    names = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    names += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def packed(kind: str, data: bytes, rank: int = 0, name: str = "") -> str:
    text = base64.b64encode(zlib.compress(data)).decode()
    return json.dumps({"kind": kind, "rank": rank, "name": name, "data": text})


def test_what_a_node_prints_is_hostile() -> None:
    """Lines that are none of ours are named, and those beside them count."""
    bomb = packed("stacks", b"\0" * (evidence_runner.FILE_BYTES + 1))
    lines = [
        "motd",
        "7",
        "[]",
        packed("stacks", STACK, 1),
        packed("virus", b"x"),
        packed("stacks", STACK, 1 << 40),
        bomb,
    ]
    lines += ['{"note": "' + "y" * 9999 + '"}', packed("file", RECORDER, name="/l/_dump_5"), '{"kind": "stacks"}']
    found = list(evidence.parse_output("n1", "\n".join(lines), Bounds()))
    sent = [one for one in found if isinstance(one, RuntimeFile)]
    assert sent == [
        RuntimeFile(EvidenceKind.STACKS, STACK, 1, "n1"),
        RuntimeFile(EvidenceKind.FLIGHT_RECORDER, RECORDER, 5, "n1"),
    ]
    assert len(found) - len(sent) == 8
    assert all(len(one.why) < 300 for one in found if isinstance(one, NotCollected))


PY_SPY = """#!/bin/sh
# Says which process it was asked about, as py-spy does.
echo "$@" >> "{log}"
echo "Process $4: python"
echo "Thread $4 (idle): \\"MainThread\\""
echo "    all_reduce (t.py:4)"
"""
NCCLRAS = """#!/bin/sh
# Of an NCCL that knows no JSON.
echo "$@" >> "{log}"
case "$*" in *json*) echo "unrecognized option" >&2; exit 1 ;; esac
echo "Job summary: 1 communicator"
"""


@contextmanager
def processes(*variables: dict[str, str]) -> Iterator[list[int]]:
    """Python processes that sleep, each with these variables."""
    started = [
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={"SLURM_JOB_ID": JOB, **own})
        for own in variables
    ]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


def run_program(tools: Path, job: str = JOB) -> list[Collected]:
    window = LaunchWindow({"job": job}, UID, 0.0)
    words = evidence.program([], window, job, ras=True)
    done = subprocess.run(
        (sys.executable, *words[1:]),
        capture_output=True,
        timeout=100,
        check=True,
        env={"PATH": f"{tools}:/usr/bin:/bin"},
    )
    return list(evidence.parse_output("n1", done.stdout.decode(), Bounds()))


def dumps_of(found: Iterable[Collected], kind: EvidenceKind) -> list[RuntimeFile]:
    return [dump for dump in found if isinstance(dump, RuntimeFile) and dump.kind is kind]


def tool(tools: Path, name: str, text: str) -> Path:
    tools.mkdir(exist_ok=True)
    (tools / name).write_text(text.format(log=tools / f"{name}.log"))
    (tools / name).chmod(0o755)
    return tools / f"{name}.log"


def test_the_ranks_of_the_job_are_asked_and_nobody_else(tmp_path: Path) -> None:
    """Its Python processes by their RANK: not the launcher, whose rank in that variable is another; not other jobs."""
    log = tool(tmp_path, "py-spy", PY_SPY)
    trainer = {"RANK": "4", "LOCAL_RANK": "0"}
    others = {"RANK": "4", "SLURM_PROCID": "1"}, {**trainer, "SLURM_JOB_ID": "9"}, {"SLURM_PROCID": "7"}
    with processes(trainer, *others, {"RANK": "5", "LOCAL_RANK": "1"}) as pids:
        found = run_program(tmp_path)
    stacks_found = {file.rank: file for file in dumps_of(found, EvidenceKind.STACKS)}
    assert sorted(stacks_found) == [4, 5]
    [looks] = dumps_of(found, EvidenceKind.ACTIVITY)
    assert looks.rank == 4, "the looks of another pod of the node are of other ranks"
    assert [(look.rank, look.is_at_work) for look in parse_activity(looks.data)] == [(4, False), (5, False)]
    assert stacks_found[4].data.startswith(f"Process {pids[0]}: ".encode())
    assert {line.split()[1] for line in log.read_text().splitlines()} == {"--nonblocking"}
    assert [one.why for one in found if isinstance(one, NotCollected)] == ["n1: ncclras is not installed"]


def test_ranks_may_be_known_by_slurm_alone(tmp_path: Path) -> None:
    """Tasks of a step, not the batch script that started it; without py-spy the result says what to install."""
    tool(tmp_path, "py-spy", PY_SPY)
    batch, task = {"SLURM_PROCID": "0"}, {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}
    with processes(batch, task) as pids:
        [stack] = dumps_of(run_program(tmp_path), EvidenceKind.STACKS)
        (tmp_path / "py-spy").unlink()
        notes = [one.why for one in run_program(tmp_path) if isinstance(one, NotCollected)]
    assert (stack.rank, stack.data.split()[1]) == (0, f"{pids[1]}:".encode())
    assert "n1: py-spy is not installed" in notes
    assert "n1: no Python process of a rank was found" in [
        one.why for one in run_program(tmp_path) if isinstance(one, NotCollected)
    ]


def test_a_worker_of_a_rank_is_not_taken_for_it(tmp_path: Path) -> None:
    """Workers of a data loader have the variables of the process that started them."""
    tool(tmp_path, "py-spy", PY_SPY)
    fork = "import os, time; os.fork(); time.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, "-c", fork], env={"SLURM_JOB_ID": JOB, "RANK": "0"}, start_new_session=True
    )
    try:
        until(lambda: len(evidence_runner.job_processes(JOB)) == 2, "both are there")
        [stack] = dumps_of(run_program(tmp_path), EvidenceKind.STACKS)
    finally:
        os.killpg(process.pid, 9)
        process.wait()
    assert stack.data.startswith(f"Process {process.pid}: ".encode())


def test_nccl_ras_is_asked_on_this_machine_only(tmp_path: Path) -> None:
    """At the port that the job chose; as text where it knows no JSON."""
    log = tool(tmp_path, "ncclras", NCCLRAS)
    with processes({"RANK": "0", "NCCL_RAS_ADDR": "10.1.2.3:9"}, {"RANK": "1", "NCCL_RAS_ADDR": "localhost:28029"}):
        [answer] = dumps_of(run_program(tmp_path), EvidenceKind.RAS)
    assert answer == RuntimeFile(EvidenceKind.RAS, b"Job summary: 1 communicator\n", -1, "n1")
    assert log.read_text().splitlines() == ["-v -t 5 -p 28029 -f json", "-v -t 5 -p 28029"]


def test_a_program_that_hangs_or_floods_is_ended() -> None:
    """With what it started; what it printed until then is kept within its bound."""
    code, data = evidence_runner.output_of(["sh", "-c", "echo begun; sleep 600"], 1.0, 100)
    assert (code, data) == (None, b"begun\n")
    code, data = evidence_runner.output_of(["yes"], 60.0, 100)
    assert (code, len(data)) == (None, 100)
    assert evidence_runner.output_of(["no-such-program-here"], 1.0, 100)[0] == 127
