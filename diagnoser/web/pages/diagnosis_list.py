"""The page of diagnoses, where several can be confirmed at once; and the API's description."""

from operator import itemgetter

from fastapi import Request
from fastapi.responses import Response

from diagnoser.model import FeedbackVerdict
from diagnoser.model.sorting import NEWEST
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.model.views import ListName
from diagnoser.web.api.diagnoses import DiagnosisQuery, find, page
from diagnoser.web.api.feedback import NewFeedback, store_feedback
from diagnoser.web.api.views import WITHIN
from diagnoser.web.http.dependencies import Core, Scoped
from diagnoser.web.pages.column_order import ColumnOrder, filled, picked
from diagnoser.web.pages.forms import Pressed, see_other
from diagnoser.web.pages.rendering import Drawn, page_query, reading_pages
from diagnoser.web.pages.views import list_url, views_of

router = reading_pages()

FILTERS = ("q", "category", "type", "outcome", "job", "node", "within", "cluster", "family", "decided_by")
WITHOUT_FIELD = ("cluster", "family", "decided_by")
"""Filters that are chosen among the facets only."""


@router.get("/diagnoses")
async def index(request: Request, core: Core, pages: Drawn) -> Response:
    """The list of diagnoses. Empty form fields mean no filter."""
    params = filled(request.query_params)
    instead = dict[str, str]()
    if "q" in params:  # what is searched for by words comes in the order of time
        instead["sort"] = ""
    if params.get("within") in WITHIN:
        instead["since"] = str(core.clock() - WITHIN[params["within"]])
    query = page_query(DiagnosisQuery, request, **instead)
    records, after = await page(core.store, query)
    facets = await core.store.diagnoses.facets(query.where())
    filters = picked(params, FILTERS)
    order = ColumnOrder("/diagnoses", filters, query.order, NEWEST, is_fixed=bool(query.q))
    return pages.draw(
        "index.html",
        records=records,
        filters=filters,
        first_page="cursor" not in params,
        order=order,
        next_url=order.page(after),
        facets=sorted(filter(itemgetter(1), facets.counts.items())),
        counted=0 if facets.is_complete else facets.limit,
        chosen=picked(filters, WITHOUT_FIELD),
        categories=list(Category),
        types=list(FailureType),
        outcomes=list(Outcome),
        within=list(WITHIN),
        base_url=core.config.url_for(request),
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
