"""Two tenants in one service: neither sees or changes anything of the other, on any route that there is.

The routes come from the application itself. One with a path parameter that nobody has described here fails the test.
"""

import asyncio
import html
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts
from sqlalchemy import select

from diagnoser.adapters.sql.tables import metadata
from diagnoser.model import AttemptKey, Event, EventKind, Feedback, Job, own_job_id
from diagnoser.model.access import Scope, Token, Viewer
from diagnoser.model.queries import LearnedRuleQuery
from diagnoser.web.api.incidents import IncidentQuery
from diagnoser.web.pages.diagnosis_list import FILTERS
from diagnoser.web.server import create
from tests.canaries import CLUSTER, COMMON, SHARED_NODE, Stored, block, filled, store_everything
from tests.serving import NOW, SCRIPT, Web, save, serving, store_log
from tests.thorough import THOROUGH

PARAMETERS = {
    "attempt": ("1",),
    "number": ("1",),
    "index": ("logs",),
    "id": ("job", "diagnosis", "plan", "incident", "rule"),
    "node": ("node",),
    "cluster": ("breaker",),
    "scope": ("breaker",),
    "key": ("effect",),
    "request_id": ("request",),
    "format": ("csv", "json"),
}
"""Path parameter -> the kinds of things that it may name, or its value. Add the parameters of new routes."""
VALUES = {"job": ("{word}-job",), "node": ("{word}-node", SHARED_NODE), "family": ("{word}",), "assignee": ("{word}",)}
"""Query parameter -> what it is tried with; others with a word of both tenants, and with an id of the other one."""
FORM = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
BODIES: dict[str, Any] = {
    "/feedback": {"verdict": "confirmed"},
    "/events": {"kind": "checkpoint", "step": 7},
    "/assign": {"assignee": "maria"},
    "/jobs": {"id": "{job}", "name": "taken"},
    "/claim": {"executor": "e", "cluster": CLUSTER},
    "/report": {"executor": "e", "token": "t", "state": "reached"},
}
"""End of a path -> a body that is right for it; others get an empty object."""
OF_NO_JOB = ("/static", "/docs", "/openapi.json", "/client.pyz")
"""Large, and the same for everybody: they are made from the code alone."""


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    """Streams end at once: it is stopping."""
    stopping = asyncio.Event()
    stopping.set()
    tokens = (Token("admin", "admin", Scope.ADMIN),)
    async with serving(tmp_path, stopping=stopping, tokens=tokens) as made:
        yield made


@pytest.fixture
async def tenants(web: Web) -> tuple[Stored, Stored]:
    return await store_everything(web.store, "zqred", 1), await store_everything(web.store, "zqblue", 2)


def routes(web: Web, methods: set[str]) -> list[tuple[str, str, Any]]:
    found = iter_route_contexts(create(web.services).routes)
    every = [(method, route.path or "", route) for route in found for method in route.methods or ()]
    return [one for one in every if one[0] in methods and not one[1].startswith(OF_NO_JOB)]


def paths(template: str, stored: Stored) -> Iterator[str]:
    """The path for each thing of this tenant that its parameter may name."""
    name = re.search(r"\{(\w+)(?::path)?\}", template)
    if name is None:
        yield template
        return
    kinds = ("job",) if "/jobs/{id}" in template else PARAMETERS.get(name[1])  # any other name would be a new job
    assert kinds, f"{template}: say in PARAMETERS what {{{name[1]}}} names, so that the other tenant's can be tried"
    for kind in kinds:
        for value in stored.ids.get(kind, (kind,))[:2]:
            yield from paths(template.replace(name[0], quote(value, safe=""), 1), stored)


def query_names(dependant: Dependant | None) -> set[str]:
    """Of a route and of what it depends on; of one that reads the request by itself, whatever pages are asked."""
    if dependant is None:
        return set()
    names = {*FILTERS, *IncidentQuery.model_fields, "after"} if dependant.request_param_name else set()
    for parameter in dependant.query_params:
        model = getattr(parameter.field_info, "annotation", None)
        names |= set(getattr(model, "model_fields", {})) or {parameter.alias}
    return names.union(*map(query_names, dependant.dependencies))


def seen(text: str, other: Stored, *said: str) -> set[str]:
    """What the text tells of the other tenant, beside what the request said itself."""
    plain = html.unescape(unquote(text))
    for word in sorted(filter(None, said), key=len, reverse=True):
        plain = plain.replace(unquote(word), "")
    return {name for name in secrets(other) if name in plain}


def secrets(stored: Stored) -> set[str]:
    return stored.names - set(stored.ids["incident"])


async def get(web: Web, path: str, secret: str, **more: Any) -> Any:
    headers = {"authorization": f"Bearer {secret}", **more.pop("headers", {})}
    return await web.client.get(path, headers=headers, **more)


async def test_no_route_shows_anything_of_another_tenant(web: Web, tenants: tuple[Stored, Stored]) -> None:
    """Pages, lists, searches, facets, images, exports and streams: by each name that the other tenant has, and by
    one's own, where lists of both would stand."""
    red, blue = tenants
    leaks, shown = [], set()
    for caller, named, other in ((red, blue, blue), (blue, blue, red)):
        for _, template, _ in routes(web, {"GET"}):
            for path in paths(template, named):
                answer = await get(web, path, caller.token(Scope.READ), headers={"last-event-id": "0"})
                said = path.split("/") if named is other else ()
                leaks += [(caller.word, path, name) for name in seen(answer.text, other, *said)]
                shown |= {template} if caller.word in answer.text else set()
                assert answer.status_code < 500 or path == "/readyz", (path, answer.text)
    assert not leaks
    assert len(shown) >= 20, "the pages are empty: nothing was tried"


async def test_no_query_finds_anything_of_another_tenant(web: Web, tenants: tuple[Stored, Stored]) -> None:
    """Each parameter that a route has, with what the other tenant's things are called, or with a word of both: the two
    take turns, and thorough tests try both everywhere."""
    own, other = tenants
    leaks, turn = [], 0
    for _, template, route in routes(web, {"GET"}):
        path = next(paths(template, own))
        for name in sorted(query_names(getattr(route, "dependant", None))):
            values = VALUES.get(name, (COMMON, other.ids["diagnosis"][0]))
            turn += 1
            for value in values if THOROUGH else values[turn % len(values) :][:1]:
                asked = value.format(word=other.word)
                answer = await get(web, path, own.token(Scope.READ), params={name: asked})
                leaks += [(path, name, asked, found) for found in seen(answer.text, other, asked)]
                assert answer.status_code < 500 or path == "/readyz", (path, name, asked, answer.text)
    assert not leaks


async def test_who_sees_all_sees_both(web: Web, tenants: tuple[Stored, Stored]) -> None:
    """Else the tests above prove nothing: the words of both are on most routes."""
    both = set()
    for _, template, _ in routes(web, {"GET"}):
        for stored in tenants:
            for path in paths(template, stored):
                answer = await get(web, path, "admin", headers={"last-event-id": "0"})
                both |= {(template, stored.word)} if stored.word in answer.text else set()
                if answer.status_code == 200:
                    break
    for stored in tenants:
        assert len([template for template, word in both if word == stored.word]) >= 25


async def rows(web: Web) -> dict[str, set[str]]:
    """All that is stored, but for when tokens were used."""
    async with web.store.db.reading() as connection:
        return {
            name: {repr(tuple(row)) for row in await connection.execute(select(table))}
            for name, table in metadata.tables.items()
            if name != "tokens"
        }


async def change(web: Web, method: str, path: str, secret: str, job: str) -> int:
    """The status of a request that is right but for whose it is."""
    headers = {"authorization": f"Bearer {secret}"}
    if not path.startswith(("/api/", "/loki", "/v1", "/elasticsearch", "/_bulk", "/logs")):
        content = b"decision=approve&verdict=confirmed&comment=x"
        return (await web.client.request(method, path, headers=headers | FORM, content=content)).status_code
    if path.endswith("/evidence"):
        query = {"kind": "stacks", "rank": "0", "node": SHARED_NODE}
        return (await web.client.request(method, path, headers=headers, params=query, content=b"x")).status_code
    if path == "/api/v1/logs":
        text = {"content-type": "text/plain"}
        return (await web.client.post(path, headers=headers | text, params={"job": job}, content=b"x\n")).status_code
    body: dict[str, Any] = next((body for end, body in BODIES.items() if path.endswith(end)), {})
    body = {name: value.replace("{job}", job) if isinstance(value, str) else value for name, value in body.items()}
    return (await web.client.request(method, path, headers=headers, json=body)).status_code


async def test_no_route_changes_anything_of_another_tenant(web: Web, tenants: tuple[Stored, Stored]) -> None:
    """Whatever the scope; the answer is that there is no such thing, or that it is not for a tenant at all. What is
    said under another's id is of one's own job."""
    own, other = tenants
    before = await rows(web)
    for method, template, _ in routes(web, {"POST", "PUT", "PATCH", "DELETE"}):
        for path in paths(template, other):
            for scope in (Scope.INGEST, Scope.OPERATE, Scope.AGENT):
                status = await change(web, method, path, own.token(scope), other.ids["job"][0])
                names_own_job = template.endswith("/jobs/{id}/events") and scope is not Scope.OPERATE
                if "{" in template and "_bulk" not in template and not names_own_job:
                    assert status in (400, 403, 404), (method, path, scope, status)
    for table, after in (await rows(web)).items():
        assert before[table] <= after, table
        said = after - before[table] if table != "audit_log" else set()  # that holds what was asked for in vain
        for name in (own_job_id(job, own.word) for job in other.ids["job"]):  # its own jobs of those ids
            said = {row.replace(name, "") for row in said}
        assert not [row for row in said if other.word in row], table


@pytest.mark.parametrize(
    ("route", "kind", "scope", "ours"),
    [
        ("/api/v1/diagnoses/{}/feedback", "diagnosis", Scope.OPERATE, (200,)),
        ("/api/v1/plans/{}/approve", "plan", Scope.OPERATE, (200, 409)),
        ("/api/v1/plans/{}/refuse", "plan", Scope.OPERATE, (200,)),
        ("/plans/{}/decide", "plan", Scope.OPERATE, (303, 409)),
        ("/diagnoses/{}/feedback", "diagnosis", Scope.OPERATE, (303,)),
    ],
)
async def test_a_tenant_changes_its_own(
    web: Web, tenants: tuple[Stored, Stored], route: str, kind: str, scope: Scope, ours: tuple[int, ...]
) -> None:
    """The same request is done for one's own thing, and for the other tenant's there is no such thing."""
    own, other = tenants
    for stored, expected in ((other, (404,)), (own, ours)):
        path = route.format(stored.ids[kind][0])
        assert await change(web, "POST", path, own.token(scope), stored.ids["job"][0]) in expected


async def test_lines_under_another_tenants_id_are_of_ones_own_job(web: Web) -> None:
    """Also under one that nobody uses, or that belongs to nobody: an id that no agent gave the tenant is its own."""
    red, blue = Viewer(tenant="red"), Viewer(tenant="blue")
    access = web.services.intake.job_access
    sender = Token("x", "y", Scope.INGEST).credential
    ours, theirs = replace(sender, tenant="red"), replace(sender, tenant="blue")
    await web.store.jobs.register(Job("reds", tenant="red", created=NOW))
    await web.store.jobs.add_event(AttemptKey("of-nobody"), Event(EventKind.STARTED, NOW))
    ids = ["new", "reds", "of-nobody"]
    assert await access.names(ours, ids) == {"new": "new~of~red", "reds": "reds", "of-nobody": "of-nobody~of~red"}
    assert await access.names(theirs, ids) == {job: f"{job}~of~blue" for job in ids}
    for caller, viewer in ((ours, red), (theirs, blue)):
        names = (await access.names(caller, ids)).values()
        assert await access.refused(caller, list(names)) == {}
        assert {job for job in names if await web.store.scoped_to(viewer).jobs.find(job)} == set(names)
    assert await web.store.scoped_to(red).jobs.find("of-nobody") is None


async def test_the_news_are_the_tenants_own(web: Web, tenants: tuple[Stored, Stored]) -> None:
    """Also for readers that have been there for long."""
    own, other = tenants
    view = web.services.scopes.scoped_to(Viewer(tenant=own.word))
    assert {news.attempt.job for news in await view.core.store.diagnoses.news("", 100)} < secrets(own)
    position = await view.live.news.position()
    await web.store.jobs.register(Job("theirs", tenant=other.word, created=NOW))
    await web.store.jobs.register(Job("ours", tenant=own.word, created=NOW))
    await save(web.store, "theirs", SCRIPT, created=NOW + 1)
    await save(web.store, "ours", SCRIPT, created=NOW + 2)
    await asyncio.sleep(1.1)  # the feed looks once a second
    assert [news.attempt.job for news in (await view.live.news.since(position))[1]] == ["ours"]


async def test_an_incident_of_both_shows_each_its_own_part(web: Web, tenants: tuple[Stored, Stored]) -> None:
    """One bad node, one incident for the operators; a tenant counts and reads its own failures only."""
    (shared,) = set(tenants[0].ids["incident"]) & set(tenants[1].ids["incident"])
    whole = await web.store.incidents.find(shared)
    assert whole is not None and (whole.failures, whole.jobs, whole.node) == (2, 2, SHARED_NODE)
    for stored in tenants:
        view = web.store.scoped_to(Viewer(tenant=stored.word))
        part = await view.incidents.find(shared)
        assert part is not None and (part.failures, part.jobs, part.node) == (1, 1, SHARED_NODE)
        assert stored.word in part.line and part.diagnosis in stored.ids["diagnosis"]
        assert (part.history, part.assignee, part.state) == ((), "", whole.state)
        assert [record.id for record in await view.incidents.failures(shared, "", 9)] == [part.diagnosis]


async def test_what_a_tenant_taught_is_told_to_no_other(web: Web, tenants: tuple[Stored, Stored]) -> None:
    """Neither on pages nor to the model, however alike the failures are; those of no known tenant may use all."""
    learned = web.services.scopes.whole.confirmed_failures
    records = {}
    for stored in tenants:
        taught, asked = [await web.store.diagnoses.find(one) for one in stored.ids["diagnosis"]]
        assert taught is not None and asked is not None
        await learned.learn(taught, filled(Feedback, stored.word, id=f"{taught.id}x", diagnosis=taught.id))
        records[stored.word] = asked
    for word, record in records.items():
        near = await learned.similar(record, 10)
        assert {one.confirmed.tenant for one in near} == {word}
        told = " ".join((await learned.describe_similar(record)).confirmed_failures)
        assert told and not any(other in told for other in records if other != word)
    await web.store.jobs.register(Job("of-nobody", created=NOW))
    of_nobody = await save(web.store, "of-nobody", SCRIPT, created=NOW + 9)
    await store_log(web.store, of_nobody.attempt, block("zqred", "shared-node"))
    assert {one.confirmed.tenant for one in await learned.similar(of_nobody, 10)} == set(records)
    rules = {rule.tenant for rule in await web.store.rules.page(LearnedRuleQuery(filters=True), "", 10)}
    assert rules == {stored.word for stored in tenants}


SHARED_PARTS = frozenset({"clock", "config", "metrics", "make_id", "redact", "stopping"})
"""Parts of a scope that hold nothing of a tenant."""


async def test_each_part_that_reads_is_narrowed_or_holds_nothing(web: Web) -> None:
    """Whoever adds a part has to say which."""
    whole, scope = web.services.scopes.whole, web.services.scopes.scoped_to(Viewer(tenant="red"))
    assert scope.confirmed_failures is not whole.confirmed_failures
    for group in ("core", "logs", "live"):
        wide, narrow = getattr(whole, group), getattr(scope, group)
        for field in fields(wide):
            is_narrowed = getattr(narrow, field.name) is not getattr(wide, field.name)
            assert is_narrowed != (field.name in SHARED_PARTS), field.name
