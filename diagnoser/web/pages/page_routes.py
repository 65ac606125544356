"""The pages: the list of diagnoses, the API's description."""

from collections.abc import Mapping
from typing import Annotated, TypeVar
from urllib.parse import urlencode

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError

from diagnoser.model import FeedbackVerdict
from diagnoser.model.queries import Facets
from diagnoser.model.sorting import NEWEST
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.model.views import ListName
from diagnoser.web.api.diagnoses import DiagnosisQuery, find, page
from diagnoser.web.api.feedback import NewFeedback, store_feedback
from diagnoser.web.api.views import WITHIN
from diagnoser.web.http.authentication import Caller, may_read
from diagnoser.web.http.dependencies import Core, Live, Scoped
from diagnoser.web.http.routing import Router
from diagnoser.web.pages.column_order import ColumnOrder
from diagnoser.web.pages.forms import Pressed, see_other
from diagnoser.web.pages.rendering import Pages
from diagnoser.web.pages.views import list_url, views_of

router = Router(include_in_schema=False, dependencies=[Depends(may_read)])

FILTERS = ("q", "category", "type", "outcome", "job", "node", "within", "cluster", "family", "decided_by")
WITHOUT_FIELD = ("cluster", "family", "decided_by")
"""Filters that are chosen among the facets only."""


async def pages_of(request: Request, caller: Caller, live: Live) -> Pages:
    pages: Pages = request.app.state.pages
    return pages.signed_in(caller, await live.unplaced_count(), await live.attention())


Drawn = Annotated[Pages, Depends(pages_of)]


Query = TypeVar("Query", bound=BaseModel)


def page_query(model: type[Query], request: Request) -> Query:
    """What the address of a page asks for. Empty form fields and names that others added to it mean nothing; raises
    RequestValidationError for a value that cannot be."""
    given = {name: value for name, value in request.query_params.items() if value and name in model.model_fields}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


@router.get("/diagnoses")
async def index(request: Request, core: Core, pages: Drawn) -> Response:
    """The list of diagnoses. Empty form fields mean no filter."""
    params = {name: value for name, value in request.query_params.items() if value}
    now = core.clock()
    if "q" in params:  # what is searched for by words comes in the order of time
        params.pop("sort", None)
    query = _query(params, now)
    records, after = await page(core.store, query, now)
    facets = await core.store.diagnoses.facets(query.where(now))
    filters = {name: params[name] for name in FILTERS if name in params}
    order = ColumnOrder("/diagnoses", filters, query.order, NEWEST, is_fixed=bool(query.q))
    return pages.draw(
        "index.html",
        records=records,
        filters=filters,
        first_page="cursor" not in params,
        order=order,
        next_url=order.page(after),
        facets=_facet_links(facets, order.chosen),
        counted=0 if facets.is_complete else facets.limit,
        chosen={name: filters[name] for name in WITHOUT_FIELD if name in filters},
        categories=list(Category),
        types=list(FailureType),
        outcomes=list(Outcome),
        within=list(WITHIN),
        base_url=core.config.base_url or str(request.base_url).rstrip("/"),
        saved=await views_of(core, ListName.DIAGNOSES, order.chosen, query),
    )


@router.post("/diagnoses/confirm")
async def confirm(form: Pressed, scope: Scoped) -> Response:
    """Confirms those that are selected, or none of them where one may not be, then shows the list as it was."""
    chosen = dict.fromkeys(form.texts("diagnosis"))
    for made in chosen:
        await find(scope.core.store, made)
    for made in chosen:
        await store_feedback(scope, form.caller, made, NewFeedback(verdict=FeedbackVerdict.CONFIRMED))
    return see_other(list_url(ListName.DIAGNOSES, form))


@router.get("/docs")
async def docs(request: Request, pages: Drawn) -> Response:
    """The API as its OpenAPI document describes it, rendered without any script."""
    return pages.draw("docs.html", api=request.app.openapi())


def _facet_links(facets: Facets, filters: Mapping[str, str]) -> dict[str, list[tuple[str, int, str]]]:
    """Facet -> value, count, and the address that adds it to the filters; for a value that is chosen, that drops it."""
    links: dict[str, list[tuple[str, int, str]]] = {}
    for name, counts in sorted(facets.counts.items()):
        for value, count in counts:
            others = {key: chosen for key, chosen in filters.items() if key != name}
            wanted = others if filters.get(name) == value else {**others, name: value}
            links.setdefault(name, []).append((value, count, "/diagnoses?" + urlencode(wanted)))
    return links


def _query(params: dict[str, str], now: float) -> DiagnosisQuery:
    names = {name: value for name, value in params.items() if name in DiagnosisQuery.model_fields}
    if params.get("within") in WITHIN:
        names["since"] = str(now - WITHIN[params["within"]])
    try:
        return DiagnosisQuery.model_validate(names)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None
