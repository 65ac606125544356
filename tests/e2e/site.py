"""Every page of the service over one set of data: what the tests of all pages and the screenshots share.

The data is what a bad night leaves: failures of all kinds, a hang, a job that runs and one that fell silent, plans that
wait, a tripped breaker, rules on trial, long names and hostile text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from diagnoser.model import (
    Advice,
    AttemptKey,
    BreakerState,
    CheckpointPhase,
    Event,
    EventKind,
    Job,
    LineBlock,
    Mode,
    NodeEventKind,
    Rollback,
    RootCause,
    Stream,
)
from diagnoser.model.queries import UNRESOLVED, IncidentFilter
from diagnoser.model.taxonomy import Action, FailureType
from diagnoser.model.work import DiagnosisRecord
from diagnoser.recovery import incidents as rules
from tests.serving import ECC, HOSTILE, NOW, Web, fill, save, store_log, verdict
from tests.unit.test_web_accuracy import REPLAY
from tests.unit.test_web_evaluations import fill_evaluation
from tests.unit.test_web_incidents import trip
from tests.unit.test_web_jobs_list import TRAINING, prints
from tests.unit.test_web_nodes import happens
from tests.unit.test_web_plans import planned
from tests.unit.test_web_rules import OTHER, RULE
from tests.unit.test_worker_score_alerts import scored

KEY = AttemptKey("llm-70b-pretrain", 2)
LONG = "a-job-with-quite-a-long-name-as-schedulers-make-them-" + "0123456789" * 6
DIVERGED = "llm-13b-diverged"
PAGES: Mapping[str, Sequence[str]] = {
    "/": ("/", "/?muted=true", "/?state=acknowledged", "/?state=resolved", "/?sort=-failures"),
    "/accuracy": ("/accuracy",),
    "/alert-routing": ("/alert-routing", "/alert-routing?diagnosis={ecc}"),
    "/audit": ("/audit", "/audit?within=7d"),
    "/diagnoses": ("/diagnoses", "/diagnoses?q=error&node=hgx-04", "/diagnoses?q=zzyzx", "/diagnoses?sort=-type"),
    "/diagnoses/{id}": (
        "/diagnoses/{ecc}",
        "/diagnoses/{unsure}",
        "/diagnoses/{done}",
        "/diagnoses/{long}",
        "/diagnoses/{diverged}",
    ),
    "/docs": ("/docs",),
    "/evaluations": ("/evaluations", "/evaluations?suite=weekly"),
    "/evaluations/{id}": ("/evaluations/r1",),
    "/impact": ("/impact", "/impact?within=7d&cluster=nowhere"),
    "/incidents/{id}": ("/incidents/{incident}",),
    "/jobs": ("/jobs", "/jobs?state=silent", "/jobs?sort=job"),
    "/jobs/{id}": ("/jobs/llm-70b-pretrain", "/jobs/trains", "/jobs/" + LONG, "/jobs/" + DIVERGED),
    "/jobs/{id}/attempts/{attempt}/changes": ("/jobs/llm-70b-pretrain/attempts/2/changes",),
    "/jobs/{id}/attempts/{attempt}/hang": ("/jobs/llm-70b-pretrain/attempts/1/hang",),
    "/jobs/{id}/attempts/{attempt}/lines": (
        "/jobs/llm-70b-pretrain/attempts/2/lines",
        "/jobs/llm-70b-pretrain/attempts/2/lines?q=step",
    ),
    "/jobs/{id}/attempts/{attempt}/log": (
        "/jobs/llm-70b-pretrain/attempts/2/log",
        "/jobs/llm-70b-pretrain/attempts/2/log?q=step&level=error",
    ),
    "/jobs/{id}/attempts/{number}/search": ("/jobs/llm-70b-pretrain/attempts/2/search?q=seam",),
    "/login": ("/login",),
    "/nodes": ("/nodes", "/nodes?sort=node", "/nodes?out=true&cluster=default&q=hgx"),
    "/nodes/{node}": ("/nodes/hgx-04",),
    "/people": ("/people",),
    "/recovery": ("/recovery",),
    "/rules": ("/rules",),
    "/rules/workbench": ("/rules/workbench", "/rules/workbench?patterns=seam"),
    "/search": ("/search", "/search?q=hgx"),
    "/settings": ("/settings",),
    "/tokens": ("/tokens",),
    "/unplaced": ("/unplaced",),
}
"""Route -> addresses that show it; names in braces are those that ``fill_site`` returns."""
ERRORS = {"/jobs/no-such-job": 404, "/diagnoses?since=yesterday": 400}
NO_PAGES = frozenset(
    {
        "/account",  # of somebody who signed in
        "/accuracy/series.svg",
        "/client.pyz",
        "/elasticsearch",
        "/elasticsearch/",
        "/elasticsearch/_license",
        "/healthz",
        "/diagnoses/{id}/post-mortem.md",
        "/incidents/{id}/post-mortem.md",
        "/jobs/{id}/attempts/{number}/series.json",
        "/jobs/{id}/attempts/{number}/series.svg",
        "/livez",
        "/login/oidc",
        "/login/oidc/callback",
        "/login/token",
        "/logs",
        "/metrics",
        "/openapi.json",
        "/readyz",
    }
)
"""What a browser can get and a person does not look at by itself."""


def page_routes(app: FastAPI) -> set[str]:
    """Paths of the routes that draw a page."""
    got = {route.path for route in iter_route_contexts(app.routes) if route.methods and "GET" in route.methods}
    return {path for path in got if path and not path.startswith("/api/")} - NO_PAGES


def addresses(names: Mapping[str, str]) -> list[str]:
    return [address.format(**names) for shown in PAGES.values() for address in shown]


async def fill_site(web: Web) -> dict[str, str]:
    """Ids by the names that ``PAGES`` uses."""
    store = web.store
    records = await fill(store)
    seam = "ValueError: " + "seam" * 500
    long = await save(
        store,
        LONG,
        verdict(FailureType.VALUE_ERROR, root_cause=RootCause(14, seam, rank=5, node="n" * 200)),
        created=NOW - 30,
    )
    for number in range(60):
        await save(store, f"sweep-{number:03d}", ECC, created=NOW - 40_000 - 600 * number)
    await _print_logs(web)
    await store.jobs.register(Job("trains", cluster="east", nodes=("hgx-20", "hgx-21"), framework="megatron"))
    for number, node in enumerate(("hgx-04", "hgx-11", "gpu-" + "x" * 80)):
        await happens(web, node, NodeEventKind.CORDONED, NOW - 3_000 * (number + 1), HOSTILE)
    await happens(web, "hgx-12", NodeEventKind.RESUMED, NOW - 90, "memory replaced")
    for number, job in enumerate(("waits", "waits-too")):
        await planned(web, job, Mode.APPROVE, created=NOW - 300 * (number + 1))
    why = "3 of 16 nodes were taken out within one hour; the limit is 2"
    await trip(web, BreakerState("east", tripped=True, reason=why, time=NOW - 300))
    for rule in (RULE, OTHER):
        await store.rules.propose(rule)
    await store.cases.add_replay(REPLAY)
    await store.cases.add_replay(replace(REPLAY, time=NOW - 60, ruleset="cd34"))
    await scored(store, [0.41, 0.52, 0.55, 0.61, 0.60, 0.30, 0.64])
    await fill_evaluation(web)
    incident, *_ = await store.incidents.page(IncidentFilter(UNRESOLVED.states, node="hgx-04"), "", 9)
    for act, one in zip(
        (rules.acknowledged, rules.resolved), await store.incidents.page(UNRESOLVED, "", 2), strict=True
    ):
        await store.incidents.change(one.id, partial(act, by="ida", comment="seen <b>twice</b>", now=NOW - 20))
    answer = await web.client.post(f"/api/v1/diagnoses/{records['oom'].id}/feedback", json={"verdict": "confirmed"})
    assert answer.status_code == 200, answer.text
    ids = {name: record.id for name, record in records.items()}
    diverged = await fill_diverged(web)
    return ids | {"long": long.id, "incident": incident.id, "diverged": diverged.id}


async def fill_diverged(web: Web) -> DiagnosisRecord:
    """A run of ten minutes whose loss broke at step 500, with checkpoints of every state."""
    key, begin = AttemptKey(DIVERGED), NOW - 800
    await web.store.jobs.register(Job(DIVERGED, nodes=("hgx-30",), framework="megatron", created=begin), 1)
    losses = ("nan" if step >= 500 else f"{5 - step / 200:.4f}" for step in range(601))
    lines = [
        f"2026-09-21 14:{step // 60:02d}:{step % 60:02d} step {step}/1000 loss: {loss}"
        for step, loss in enumerate(losses)
    ]
    await prints(web, DIVERGED, "".join(line + "\n" for line in lines), NOW - 200)
    staged, durable, verified, bad = CheckpointPhase
    for step, phases in {
        100: (staged, durable, verified),
        200: (staged, durable, verified),
        300: (staged, durable, bad),
        400: (staged, durable, verified),
        450: (durable,),
        520: (staged, durable),
        600: (staged,),
    }.items():
        for number, phase in enumerate(phases):
            event = Event(
                EventKind.CHECKPOINT,
                begin + step + 12 * number,
                step=step,
                path=f"/ckpt/step_{step}",
                phase=phase,
                blocked_ms=2_400.0 if step == 450 else 1_000.0,
                bytes=68 << 30,
                finite=None if step == 600 else step < 500,
                just_in_time=step == 450,
                reason="step_300/model.pt: checksum" if phase is bad else "",
            )
            await web.store.jobs.add_event(key, event)
    back = Rollback("/ckpt/step_400", 400, 500, 600, verified=True)
    advice = Advice(Action.ROLLBACK_AND_RESUBMIT, "go_back_to_a_healthy_checkpoint")
    root = RootCause(501, lines[500])
    found = verdict(FailureType.LOSS_DIVERGENCE, rollback=back, recovery=advice, root_cause=root)
    return await save(web.store, DIVERGED, found, created=NOW - 150, plan=True)


async def _print_logs(web: Web) -> None:
    for rank in range(16):
        stream = Stream("stdout", f"hgx-{rank // 8 + 4:02d}", rank)
        steps = [f"2026-09-21 14:{n // 60:02d}:{n % 60:02d} step {n} of rank {rank}" for n in range(200)]
        last = [HOSTILE, "ValueError: seam " + "x" * 900] if rank == 3 else ["waiting for the others"]
        data = "".join(line + "\n" for line in (*steps, *last)).encode()
        await store_log(web.store, KEY, LineBlock(stream, data, received=NOW - 100))
    await prints(web, "trains", TRAINING)
    await prints(web, "quiet", TRAINING, NOW - 3_600)
