"""Pages of those who run the service: who is alerted of what, people, tokens, and the settings in force.

What only a file or the environment can say is shown as theirs, and nothing here changes it.
"""

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Depends, Query
from fastapi.responses import Response

from diagnoser.adapters.passwords import new_secret
from diagnoser.model.access import Credential, Scope, StoredToken, hash_of
from diagnoser.model.alerts import AlertKind
from diagnoser.model.credentials import new_credential
from diagnoser.model.errors import BadInput, Conflict
from diagnoser.model.people import Role, UserChange
from diagnoser.model.shown_settings import Origin
from diagnoser.notifications.routing import EVERYONE, OWNER, AlertRow, AlertTable
from diagnoser.planning.alert_preview import preview_alert
from diagnoser.web.http.access import check_whole_service
from diagnoser.web.http.authentication import Caller, check_scope, may_audit
from diagnoser.web.http.dependencies import Core, Plans
from diagnoser.web.http.routing import Router
from diagnoser.web.pages.forms import Form, Pressed, see_other
from diagnoser.web.pages.rendering import Drawn, Pages

CHANGES: Mapping[str, UserChange] = {
    "disable": UserChange(disabled=True),
    "enable": UserChange(disabled=False),
    **{role.value: UserChange(role=role) for role in Role},
}
"""What the buttons beside a person do."""

router = Router(include_in_schema=False)

Id = Annotated[str, Query(max_length=200)]


async def may_administer(caller: Caller) -> None:
    """Raises Denied or OutOfScope."""
    check_scope(caller, Scope.ADMIN)
    check_whole_service(caller)


async def administers(form: Pressed) -> Form:
    """A form that only an admin of the whole service may send. Raises OutOfScope."""
    await may_administer(form.caller)
    return form


async def sends_tests(form: Pressed) -> Form:
    """A form of somebody who may see all alerts. Raises OutOfScope."""
    await may_audit(form.caller)
    return form


AdminForm = Annotated[Form, Depends(administers)]


@router.get("/alert-routing", dependencies=[Depends(may_audit)])
async def alert_routing(core: Core, plans: Plans, pages: Drawn, diagnosis: Id = "", test: Id = "") -> Response:
    """diagnosis: what would be sent about it is shown. test: key of the message of a test that was sent."""
    planner = plans.commands.planner
    routing, preview = planner.alerts, None
    if diagnosis_id := diagnosis.strip().rpartition("/")[2]:
        preview = await preview_alert(core.store, diagnosis_id, routing, planner.redact, core.config.base_url)
    tests = await core.store.outbox.messages([test]) if test else []
    return pages.draw(
        "alert_routing.html",
        table=routing.table,
        rows=[(row, told_words(row)) for row in routing.table.rows],
        testable=[*routing.receivers, *_places(routing.table)],
        preview=preview,
        test=next(iter(tests), None),
        origin=next((setting for setting in core.config.settings if setting.name == "alerts.yaml"), None),
    )


@router.post("/alert-routing/test")
async def send_test(form: Annotated[Form, Depends(sends_tests)], core: Core, plans: Plans) -> Response:
    """Puts a test into the outbox, as every alert goes, and shows what becomes of it."""
    receiver = form.text("receiver")
    if receiver.partition(":")[0] not in plans.commands.planner.alerts.receivers:
        raise BadInput(f"no receiver {receiver[:80]!r} is configured")
    message = plans.commands.planner.test_alert(receiver, core.clock())
    await core.store.outbox.add(message, audited=True)
    plans.outbox.notify()
    return see_other("/alert-routing?" + urlencode({"test": message.key}))


@router.get("/people", dependencies=[Depends(may_administer)])
async def people_page(core: Core, pages: Drawn) -> Response:
    return pages.draw("people.html", users=await core.store.users.list_all(), roles=list(Role))


@router.post("/people")
async def change_person(form: AdminForm, core: Core) -> Response:
    """Another role, or disabled and enabled. Nobody locks themselves out."""
    name, change = form.text("name"), CHANGES.get(form.text("decision"))
    if change is None:
        raise BadInput("the decision must be disable, enable, viewer, operator or admin")
    if name == form.caller.name:
        raise Conflict("another admin has to change your own account")
    await core.store.users.change(name, change, core.clock())
    return see_other("/people")


@router.get("/tokens", dependencies=[Depends(may_administer)])
async def tokens_page(core: Core, pages: Drawn) -> Response:
    return await _draw_tokens(core, pages)


@router.post("/tokens")
async def create_token(form: AdminForm, core: Core, pages: Drawn) -> Response:
    """Its secret stands on this answer and nowhere else."""
    names = ("name", "cluster", "tenant", "expires")
    name, cluster, tenant, expires = map(form.text, names)
    try:
        scope = Scope(form.text("scope"))
    except ValueError:
        raise BadInput("choose what the token may do") from None
    secret, credential = new_secret(), new_credential(name, scope, cluster, tenant, expires, core.clock())
    await core.store.tokens.add(StoredToken(credential, hash_of(secret)))
    return await _draw_tokens(core, pages, credential, secret)


@router.post("/tokens/revoke")
async def revoke_token(form: AdminForm, core: Core) -> Response:
    """Both of its secrets stop working, within five seconds on every replica."""
    name = form.text("name")
    if name == form.caller.name:
        raise Conflict("this token is your own: revoke it with another one")
    await core.store.tokens.revoke(name, core.clock())
    return see_other("/tokens")


@router.get("/settings", dependencies=[Depends(may_administer)])
async def settings_page(core: Core, pages: Drawn) -> Response:
    shown = core.config.settings
    return pages.draw(
        "settings.html",
        files=[setting for setting in shown if setting.origin in (Origin.SITE_FILE, Origin.SHIPPED_FILE)],
        given=[setting for setting in shown if setting.origin is Origin.GIVEN],
        defaults=[setting for setting in shown if setting.origin is Origin.DEFAULT],
    )


_HAPPENED: Mapping[AlertKind, str] = {
    AlertKind.FAILURE: "a job failed",
    AlertKind.DECISION: "a plan needs a person",
    AlertKind.RECOVERED: "a job runs again",
    AlertKind.ESCALATION: "somebody escalated an incident",
    AlertKind.BLIND_SPOT: "the service cannot see something",
    AlertKind.METRIC: "a running job is stuck or slow",
    AlertKind.SCORE_DROP: "a checkpoint scores worse",
}


def told_words(row: AlertRow) -> tuple[str, str]:
    """When a row applies and who is told then, in words."""
    when = [f"{name} {' or '.join(values)}".strip() for name, values in _conditions(row) if values]
    named = {EVERYONE: "every receiver", OWNER: "the owner of the job"}
    who = [named.get(entry, entry) for entry in row.to]
    return "; ".join(when) or "anything else", ", ".join(who) or "nobody"


def _conditions(row: AlertRow) -> list[tuple[str, list[str]]]:
    when = row.when
    plain = [
        ("", [_HAPPENED[kind] for kind in when.kinds]),
        ("the category is", [category.value for category in when.categories]),
        ("the cause is", [kind.value.replace("_", " ") for kind in when.types]),
        ("the cluster is", list(when.clusters)),
    ]
    return [*plain, *((f"the label {name} is", list(values)) for name, values in when.labels.items())]


def _places(table: AlertTable) -> list[str]:
    """Receivers that the table names with a place, each of which can be tested."""
    named = set[str]()
    for row in table.rows:
        named.update(name for name in row.to if ":" in name)
    return sorted(named)


async def _draw_tokens(core: Core, pages: Pages, made: Credential | None = None, secret: str = "") -> Response:
    """made, secret: of a token that was just made."""
    now = core.clock()
    listed = [(token.credential, token.fault(token.hash, now)) for token in await core.store.tokens.list_all()]
    is_first = not listed and not await core.store.users.has_users()
    return pages.draw("tokens.html", tokens=listed, made=made, secret=secret, scopes=list(Scope), is_first=is_first)
