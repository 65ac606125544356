"""Saved views: the filters of a list under a name, shared by everybody."""

from collections.abc import Mapping
from typing import Annotated, Self
from urllib.parse import parse_qsl, urlencode

from fastapi import Query, Response
from pydantic import BaseModel, StringConstraints, ValidationError

from diagnoser.model.access import Credential
from diagnoser.model.errors import BadInput, NotFound
from diagnoser.model.views import ListName, SavedView
from diagnoser.web.api.diagnoses import DiagnosisQuery
from diagnoser.web.api.incidents import IncidentQuery
from diagnoser.web.api.jobs import RunQuery
from diagnoser.web.api.params import Moment
from diagnoser.web.http.access import check_every_tenant
from diagnoser.web.http.authentication import OPERATE, READ, Caller
from diagnoser.web.http.dependencies import Core
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import Answer, ApiRouter, Schema, StrictSchema

VIEWS_LIMIT = 100
"""Of one list: they stand on its page."""
QUERY_LENGTH = 2_000
WITHIN = {"1h": 3600.0, "24h": 86_400.0, "7d": 604_800.0, "30d": 2_592_000.0}
"""What the filter by age is called, in seconds."""
PATHS: Mapping[ListName, str] = {ListName.DIAGNOSES: "/diagnoses", ListName.INCIDENTS: "/", ListName.JOBS: "/jobs"}
_MODELS: Mapping[ListName, type[BaseModel]] = {
    ListName.DIAGNOSES: DiagnosisQuery,
    ListName.INCIDENTS: IncidentQuery,
    ListName.JOBS: RunQuery,
}
_PLACES = frozenset({"cursor", "limit", "since", "since_id"})
"""Where in a list somebody was is no part of a view."""

router = ApiRouter("views")

ViewName = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, pattern=r"^[^\x00-\x1f\x7f]{1,80}$")]

Listed = Annotated[ListName, Query(alias="list", description="Of which list")]


class NewView(StrictSchema):
    """query: the filters, as they stand in the address of the list: `category=script&within=7d`."""

    list: ListName
    name: ViewName
    query: Annotated[str, StringConstraints(max_length=QUERY_LENGTH)]


class ViewShape(Answer):
    """by: whoever saved it last. url: the page that shows it."""

    list: ListName
    name: str
    query: str
    by: str
    created: Moment
    url: str

    @classmethod
    def from_view(cls, view: SavedView, base_url: str) -> Self:
        return cls.filled_from(view, list=view.listed, url=base_url + view_url(view))


class ViewList(Schema):
    """By name."""

    items: list[ViewShape]


@router.get("/views", dependencies=READ, summary="List saved views")
async def index(listed: Listed, core: Core) -> ViewList:
    views = await core.store.views.of_list(listed)
    return ViewList(items=[ViewShape.from_view(view, core.config.base_url) for view in views])


@router.post("/views", dependencies=OPERATE, summary="Save a view")
async def create(body: NewView, core: Core, caller: Caller) -> ViewShape:
    """One of the same name is replaced. Views are everybody's, so no credential of one tenant makes them."""
    return ViewShape.from_view(await save_view(core, caller, body), core.config.base_url)


@router.delete("/views", dependencies=OPERATE, status_code=204, responses=answers(404), summary="Delete a saved view")
async def delete(listed: Listed, name: Annotated[ViewName, Query()], core: Core, caller: Caller) -> Response:
    await delete_view(core, caller, listed, name)
    return Response(status_code=204)


async def save_view(core: Core, caller: Credential, new: NewView) -> SavedView:
    """Raises BadInput, OutOfScope."""
    check_every_tenant(caller)
    view = SavedView(new.list, new.name, checked_query(new.list, new.query), caller.name, core.clock())
    await core.store.views.save(view, VIEWS_LIMIT)
    return view


async def delete_view(core: Core, caller: Credential, listed: ListName, name: str) -> None:
    """Raises NotFound, OutOfScope."""
    check_every_tenant(caller)
    if not await core.store.views.delete(listed, name):
        raise NotFound(f"there is no view {name!r} of the list of {listed}")


def checked_query(listed: ListName, query: str) -> str:
    """The filters in order, without where in the list somebody was. Raises BadInput for what is no filter."""
    try:
        given = dict(parse_qsl(query.removeprefix("?"), max_num_fields=40))
    except ValueError:
        raise BadInput("query: it cannot be read") from None
    chosen = {name: value for name, value in sorted(given.items()) if name not in _PLACES}
    filters = dict(chosen)
    within = filters.pop("within", "")
    known = tuple(WITHIN) if listed is ListName.DIAGNOSES else ()
    if within not in ("", *known):
        raise BadInput(f"query: within must be one of {', '.join(WITHIN)}, of diagnoses only")
    try:
        _MODELS[listed].model_validate(filters)
    except ValidationError as error:
        fault = error.errors()[0]
        raise BadInput(f"query: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
    if not chosen:
        raise BadInput("query: a view needs a filter")
    return urlencode(chosen)


def view_url(view: SavedView) -> str:
    return f"{PATHS[view.listed]}?{view.query}"
