"""Credentials of one cluster or tenant over HTTP, with the real intake: they change what is theirs, in their name."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from diagnoser.ingest import Batch, IngestReceipt, RecordDefaults
from diagnoser.ingest.job_access import JobSender
from diagnoser.ingest.protocols.protocol import BodyFormat
from diagnoser.ingest.service import IngestService
from diagnoser.model import AttemptKey, BreakerState, Job, Mode, PlanState, TransitionResult
from diagnoser.model.access import Credential, Owner, Scope, StoredToken, hash_of
from diagnoser.observability.metrics import Metrics
from diagnoser.web.http.authenticator import FAILURES, FRESH_SECONDS
from tests.rule_files import ANALYZER
from tests.serving import ECC, NOW, Web, save, serving
from tests.unit.test_web_plans import planned

CREDENTIALS = (
    Credential("admin", Scope.ADMIN),
    Credential("agent-east", Scope.AGENT, cluster="east"),
    Credential("agent-west", Scope.AGENT, cluster="west"),
    Credential("shipper-east", Scope.INGEST, cluster="east"),
    Credential("shipper-west", Scope.INGEST, cluster="west"),
    Credential("shipper", Scope.INGEST),
    Credential("maria", Scope.OPERATE),
    Credential("tom", Scope.OPERATE, cluster="west"),
    Credential("jo", Scope.OPERATE, tenant="vision"),
    Credential("old", Scope.READ, expires=NOW + 60, created=NOW - 60),
)
TEXT = {"content-type": "text/plain"}
NDJSON = {"content-type": "application/x-ndjson"}


@dataclass
class Clock:
    now: float = NOW

    def __call__(self) -> float:
        return self.now


class Intake:
    """The real intake over the store of the test, which is there only once the application is."""

    service: IngestService

    async def parse_body(self, body: bytes, format: BodyFormat, defaults: RecordDefaults, received: float) -> Batch:
        return await self.service.parse_body(body, format, defaults, received)

    async def accept_batch(
        self, batch: Batch, protocol: str, defaults: RecordDefaults, received: float, sender: JobSender | None = None
    ) -> IngestReceipt:
        return await self.service.accept_batch(batch, protocol, defaults, received, sender)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def web(tmp_path: Path, clock: Clock) -> AsyncIterator[Web]:
    """A service with ``CREDENTIALS``: the secret of each is its name."""
    intake = Intake()
    async with serving(tmp_path, clock=clock, ingest=intake) as made:
        for credential in CREDENTIALS:
            await made.store.tokens.add(StoredToken(credential, hash_of(credential.name)))
        intake.service = IngestService(made.store.logs, ANALYZER.compressor, Metrics(CollectorRegistry()))
        task = asyncio.create_task(intake.service.run())
        yield made
        task.cancel()


async def post(web: Web, who: str, path: str, body: dict[str, Any] | bytes, **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {who}"} | more.pop("headers", {})
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    return await web.client.post("/api/v1" + path, headers=headers, **content, **more)


async def lines(web: Web, who: str, body: bytes = b"step 1\n", headers: dict[str, str] = TEXT, **query: Any) -> Any:
    """Status and body of the answer to a batch of lines."""
    answer = await post(web, who, "/logs", body, headers=headers, params=query)
    return answer.status_code, answer.json() if answer.content else {}


async def stored(web: Web, jobs: Sequence[str]) -> list[int]:
    """Number of stored deltas of each job."""
    return [len(await web.store.logs.pieces(AttemptKey(job, 1))) for job in jobs]


async def cluster_of(web: Web, id: str) -> str:
    job = await web.store.jobs.find(id)
    assert job is not None
    return job.cluster


async def test_lines_are_taken_from_the_cluster_of_the_job(web: Web) -> None:
    """A job that nobody registered belongs to who ships its first lines; afterwards the other cluster gets 403."""
    assert await lines(web, "shipper-east", job="j") == (204, {})
    assert await cluster_of(web, "j") == "east"
    status, problem = await lines(web, "shipper-west", b"forged\n", job="j")
    assert (status, problem["detail"]) == (
        403,
        "the job 'j' belongs to the cluster 'east', and the token 'shipper-west' to 'west'",
    )
    assert await stored(web, ["j"]) == [1]
    assert await lines(web, "agent-east", job="j") == (204, {})
    assert await lines(web, "shipper", job="j") == (204, {})


async def test_lines_of_a_registered_job_are_taken_from_its_cluster_only(web: Web) -> None:
    """Whoever ships first."""
    await web.store.jobs.register(Job("j", cluster="east", nodes=("n1",), created=NOW))
    assert (await lines(web, "shipper-west", job="j"))[0] == 403
    assert await stored(web, ["j"]) == [0]


async def test_records_of_foreign_jobs_are_refused_one_by_one(web: Web) -> None:
    """One label that a tenant chose must not stop the lines of everybody on the node: the others are stored."""
    await web.store.jobs.register(Job("theirs", cluster="west", created=NOW))
    body = b'{"job": "ours", "message": "a"}\n{"job": "theirs", "message": "b"}\n{"job": "theirs", "message": "c"}\n'
    status, receipt = await lines(web, "shipper-east", body, NDJSON)
    assert (status, receipt["lines"], receipt["rejected"]) == (200, 1, 2)
    assert "belongs to the cluster 'west'" in receipt["errors"][0]
    assert await stored(web, ["ours", "theirs"]) == [1, 0]
    assert (await lines(web, "shipper-east", b'{"job": "theirs", "message": "b"}\n', NDJSON))[0] == 403


async def test_documents_of_foreign_jobs_are_refused_by_item(web: Web) -> None:
    """Also where nothing else was in the request: on another status shippers would send it again and again."""
    await web.store.jobs.register(Job("theirs", cluster="west", created=NOW))
    ours, theirs = (b'{"create":{}}\n{"job":"%b","message":"a"}\n' % job for job in (b"ours", b"theirs"))
    for body, statuses in ((ours + theirs, [201, 400]), (theirs, [400])):
        headers = NDJSON | {"authorization": "Bearer shipper-east"}
        answer = await web.client.post("/_bulk", content=body, headers=headers)
        items = [item["create"] for item in answer.json()["items"]]
        assert (answer.status_code, [item["status"] for item in items]) == (200, statuses)
        assert "belongs to the cluster 'west'" in items[-1]["error"]["reason"]
    assert await stored(web, ["ours", "theirs"]) == [1, 0]


async def test_a_kernels_messages_come_from_an_agent(web: Web) -> None:
    """In syslog as in any other format: a shipper of jobs hears that its lines of the node are refused."""
    body = b"<3>Nov 22 20:00:00 n1 kernel: NVRM: Xid 79\n<11>Nov 22 20:00:00 n1 train[7]: step 1\n"
    status, receipt = await lines(web, "shipper-east", body, {"content-type": "application/syslog"}, job="j")
    assert (status, receipt["lines"], receipt["rejected"]) == (200, 1, 1)
    assert "scope 'agent'" in receipt["errors"][0]
    query = {"job": "j", "cluster": "east"}
    assert await lines(web, "agent-east", body, {"content-type": "application/syslog"}, **query) == (204, {})


async def test_a_batch_that_names_many_jobs_is_settled_in_one_go(web: Web) -> None:
    """Jobs are assigned together, and the errors of a receipt are bounded."""
    for number in range(40):
        await web.store.jobs.register(Job(f"west-{number}", cluster="west", created=NOW))
    records = (f'{{"job": "{side}-{number}", "message": "x"}}\n' for number in range(40) for side in ("east", "west"))
    status, receipt = await lines(web, "shipper-east", "".join(records).encode(), NDJSON)
    assert (status, receipt["lines"], receipt["rejected"], len(receipt["errors"])) == (200, 40, 40, 10)
    assert await cluster_of(web, "east-39") == "east"


@pytest.mark.parametrize("who", ["shipper", "shipper-east", "agent-west"])
async def test_a_nodes_own_log_comes_from_the_agent_of_its_cluster(web: Web, who: str) -> None:
    """Not from who may only ship lines of jobs, and not from another cluster's agent, in either format."""
    record = b'{"message": "Xid 79", "source": "kernel", "node": "n1", "cluster": "east"}\n'
    assert (await lines(web, who, b"Xid 79\n", source="kernel", node="n1", cluster="east"))[0] == 403
    assert (await lines(web, who, record, NDJSON))[0] == 403
    assert (await lines(web, "agent-east", record, NDJSON))[0] == 204


async def test_an_agent_need_not_name_its_cluster(web: Web) -> None:
    """Its credential does."""
    record = b'{"message": "Xid 79", "source": "kernel", "node": "n1"}\n'
    assert (await lines(web, "agent-east", record, NDJSON))[0] == 204
    assert (await post(web, "agent-east", "/jobs", {"id": "j"})).json()["cluster"] == "east"
    node = await post(web, "agent-east", "/nodes/n1/events", {"kind": "cordoned", "by": "person"})
    assert node.json()["cluster"] == "east"


async def test_jobs_are_registered_by_their_own_cluster(web: Web) -> None:
    """Neither under the name of another one, nor where another one has registered them."""
    assert (await post(web, "agent-west", "/jobs", {"id": "j", "cluster": "east"})).status_code == 403
    assert (await post(web, "agent-east", "/jobs", {"id": "j", "cluster": "east", "nodes": ["n1"]})).status_code == 200
    assert (await post(web, "agent-west", "/jobs", {"id": "j", "nodes": ["n9"]})).status_code == 403
    job = await web.store.jobs.find("j")
    assert job is not None and (job.cluster, job.nodes) == ("east", ("n1",))


async def test_events_are_reported_by_the_jobs_own_cluster(web: Web) -> None:
    """A foreign credential ends no attempt; nor does it say anything of a node."""
    exit_ = {"kind": "exit", "code": 1}
    assert (await post(web, "shipper-east", "/jobs/j/events", exit_)).status_code == 200
    assert (await post(web, "shipper-west", "/jobs/j/events", exit_)).status_code == 403
    node = {"kind": "down", "by": "diagnoser", "cluster": "east"}
    assert (await post(web, "agent-west", "/nodes/n1/events", node)).status_code == 403
    assert await web.store.nodes.marks("") == []


async def test_plans_are_carried_out_by_the_agent_of_their_cluster(web: Web) -> None:
    """Another one can neither claim them nor, with the token of the claim, report on them or continue their check."""
    await web.store.jobs.register(Job("j", cluster="east", created=NOW))
    await planned(web, cluster="east")
    ask = {"executor": "slurm", "cluster": "east"}
    assert (await post(web, "agent-west", "/plans/claim", ask)).status_code == 403
    assert (await post(web, "agent-west", "/plans/claim", {"executor": "slurm"})).status_code == 204
    claimed = await post(web, "agent-east", "/plans/claim", {"executor": "slurm"})
    token = {"token": claimed.json()["token"]}
    for path, body in (
        ("report", token | {"state": "reached"}),
        ("check/next", token),
        ("check/results", token | {"round": 1, "results": []}),
    ):
        assert (await post(web, "agent-west", f"/plans/plan-j/{path}", body)).status_code == 404
    done = await post(web, "agent-east", "/plans/plan-j/report", token | {"state": "reached"})
    assert done.json()["state"] == "reached"


@pytest.mark.parametrize("decision", ["approve", "refuse"])
async def test_plans_are_decided_by_the_people_they_belong_to(web: Web, decision: str) -> None:
    """By no person of another cluster or tenant, over the API and on the page; and in their own name."""
    await web.store.jobs.register(Job("j", cluster="east", tenant="speech", created=NOW))
    await planned(web, mode=Mode.APPROVE, cluster="east", tenant="speech")
    form = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
    for stranger in ("tom", "jo"):
        assert (await post(web, stranger, f"/plans/plan-j/{decision}", {"by": "maria"})).status_code == 404
        page = f"/plans/plan-j/decide?decision={decision}"
        content = f"decision={decision}&by=maria".encode()
        answer = await web.client.post(page, content=content, headers=form, auth=("maria", stranger))
        assert answer.status_code == 404
    answer = await post(web, "maria", f"/plans/plan-j/{decision}", {"by": "the president", "comment": "fine"})
    assert answer.json()["history"][-1]["by"] == "maria"
    assert "president" not in answer.text


async def test_a_tenant_decides_about_its_own_plans(web: Web) -> None:
    """The scheduler says whose a job is."""
    await web.store.jobs.register(Job("j", tenant="vision", created=NOW))
    await planned(web, mode=Mode.APPROVE, tenant="vision")
    assert (await post(web, "jo", "/plans/plan-j/approve", {})).json()["state"] == PlanState.SENT


async def test_feedback_is_in_the_name_of_the_credential(web: Web) -> None:
    """Whatever the request says; people of another cluster or tenant say nothing."""
    made = (await save(web.store, "j", ECC)).id
    said = {"verdict": "confirmed", "by": "the president", "comment": "checked"}
    for stranger in ("tom", "jo"):
        assert (await post(web, stranger, f"/diagnoses/{made}/feedback", said)).status_code == 404
    (one,) = (await post(web, "maria", f"/diagnoses/{made}/feedback", said)).json()["feedback"]
    assert (one["by"], one["comment"]) == ("maria", "checked")


async def test_what_concerns_all_is_decided_by_who_is_bound_to_none(web: Web) -> None:
    """A breaker by people of its cluster; rules and outgoing messages by those of no single one."""
    await planned(web, cluster="west")
    trips = tuple(BreakerState(scope, True, NOW, "3 nodes") for scope in ("west", "west:gpu"))
    await web.store.plans.change("plan-j", lambda plan: TransitionResult(plan, trips=trips))
    note = {"comment": "two bad GPUs", "by": "the president"}
    assert (await post(web, "jo", "/breakers/west/reset", note)).status_code == 403
    assert (await post(web, "tom", "/breakers/east/reset", note)).status_code == 403
    assert (await post(web, "tom", "/breakers/west:gpu/reset", note)).json()["by"] == "tom"
    assert (await post(web, "maria", "/breakers/west/reset", note)).json()["by"] == "maria"
    for path in ("/rules/learned_x/promote", "/effects/k/retry"):
        for who, status in (("tom", 403), ("jo", 403), ("maria", 404)):
            assert (await post(web, who, path, {})).status_code == status


async def test_a_token_ends(web: Web, clock: Clock) -> None:
    """At its expiry, and within seconds of being revoked."""

    async def look(who: str) -> tuple[int, str]:
        answer = await web.client.get("/api/v1/diagnoses", headers={"authorization": f"Bearer {who}"})
        return answer.status_code, answer.json().get("detail", "")

    assert (await look("old"))[0] == 200
    clock.now += 60
    assert await look("old") == (401, "The token 'old' has expired.")
    await web.store.tokens.revoke("maria", clock.now)
    clock.now += FRESH_SECONDS
    assert await look("maria") == (401, "The token 'maria' was revoked.")


async def test_a_rotated_token_overlaps(web: Web, clock: Clock) -> None:
    """Both secrets work, in the same name, until the old one ends; the use of each is stored."""
    await web.store.tokens.rotate("maria", hash_of("maria-2"), None, now=clock.now, overlap=3600.0)
    made = (await save(web.store, "j", ECC)).id
    for secret in ("maria", "maria-2"):
        await post(web, secret, f"/diagnoses/{made}/feedback", {"verdict": "confirmed"})
    shown = (await post(web, "maria-2", f"/diagnoses/{made}/feedback", {"verdict": "confirmed"})).json()
    assert {one["by"] for one in shown["feedback"]} == {"maria"}
    (token,) = (token for token in await web.store.tokens.list_all() if token.credential.name == "maria")
    assert (token.credential.last_used, token.old_used) == (clock.now, clock.now)
    clock.now += 3600
    assert (await post(web, "maria", f"/diagnoses/{made}/feedback", {"verdict": "confirmed"})).status_code == 401
    assert (await post(web, "maria-2", f"/diagnoses/{made}/feedback", {"verdict": "confirmed"})).status_code == 200


async def test_guessing_is_throttled_for_the_address_alone(web: Web, clock: Clock) -> None:
    """429 says when to try again, on pages too; a right token passes all the while."""
    statuses = [(await post(web, f"guess-{number}", "/jobs", {"id": "j"})).status_code for number in range(FAILURES)]
    assert statuses == [401] * FAILURES
    clock.now += 15
    late = await post(web, "guess", "/jobs", {"id": "j"})
    page = await web.client.get("/", auth=("", "guess"))
    assert (late.status_code, late.headers["retry-after"], page.status_code) == (429, "45", 429)
    assert "www-authenticate" not in page.headers
    assert (await post(web, "agent-east", "/jobs", {"id": "j"})).status_code == 200
    clock.now += 45
    assert (await post(web, "guess", "/jobs", {"id": "j"})).status_code == 401


async def test_the_cluster_of_a_job_is_not_asked_for_with_each_batch(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines cost no read of the job; after a minute its cluster is looked up again."""
    asked = []
    assign = web.store.jobs.assign_owner

    async def counted(ids: Any, owner: Owner, now: float) -> dict[str, Owner]:
        asked.append(list(ids))
        return await assign(ids, owner, now)

    monkeypatch.setattr(web.store.jobs, "assign_owner", counted)
    for _ in range(5):
        assert (await lines(web, "shipper-east", job="j"))[0] == 204
    assert asked == [["j"]]
