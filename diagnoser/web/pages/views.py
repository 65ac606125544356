"""The buttons that save a view of a list and delete it."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from fastapi.responses import Response
from pydantic import BaseModel, ValidationError

from diagnoser.model.errors import BadInput
from diagnoser.model.views import ListName
from diagnoser.web.api.views import PATHS, NewView, checked_query, delete_view, save_view, view_url
from diagnoser.web.http.dependencies import Core
from diagnoser.web.http.routing import Router
from diagnoser.web.pages.forms import Form, Pressed, see_other

router = Router(include_in_schema=False)


@router.post("/views")
async def press(form: Pressed, core: Core) -> Response:
    """Saves or deletes, then shows the list: what was saved, or as it was."""
    try:
        listed = ListName(form.text("list"))
    except ValueError:
        raise BadInput("the list must be diagnoses, incidents or jobs") from None
    if form.text("decision") == "delete":
        await delete_view(core, form.caller, listed, form.text("name"))
        return see_other(list_url(listed, form))
    try:
        new = NewView(list=listed, name=form.text("name"), query=form.text("query"))
    except ValidationError:
        raise BadInput("A view needs a name of at most 80 characters.") from None
    return see_other(view_url(await save_view(core, form.caller, new)))


def list_url(listed: ListName, form: Form) -> str:
    """The list as it was when a button on it was pressed."""
    query = form.text("query")
    return f"{PATHS[listed]}?{checked_query(listed, query)}" if query else PATHS[listed]


async def views_of(core: Core, listed: ListName, filters: Mapping[str, str], query: BaseModel) -> dict[str, Any]:
    """What a page needs to show the views of its list: views: each with its address. query: the filters that are set.
    shown: name of the view that has just these, "" for none. export: what stands behind the ? of a download.

    filters: those that are set, as the page writes them.
    query: the same as the API knows them.
    """
    views, chosen = await core.store.views.of_list(listed), urlencode(sorted(filters.items()))
    return {
        "listed": listed,
        "views": [(view, view_url(view)) for view in views],
        "query": chosen,
        "shown": next((view.name for view in views if view.query == chosen), ""),
        "export": urlencode(query.model_dump(mode="json", exclude_defaults=True, exclude={"cursor", "limit"})),
    }
