"""What all pages share: the template engine with its filters, the error page, and how a page is asked for."""

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BaseModel, ValidationError

from diagnoser.model.access import Credential, Scope
from diagnoser.model.people import Person
from diagnoser.model.queries import Attention
from diagnoser.ports import Clock
from diagnoser.web.http.authentication import Caller, may_read
from diagnoser.web.http.dependencies import Live
from diagnoser.web.http.problems import Problem
from diagnoser.web.http.routing import Router
from diagnoser.web.pages.column_order import filled, picked
from diagnoser.wording import words
from diagnoser.wording.summaries import summary

HERE = Path(__file__).parents[1]
STATIC = HERE / "static"
TEMPLATES = HERE / "templates"
QUIET = Attention()


@dataclass(frozen=True, slots=True)
class Pages:
    """Draws the templates. All log text is autoescaped: no template marks text as safe.

    has_model: whether a model answers questions.
    caller: whose page it is: it says so, and shows buttons only to who may press them; None for anybody's.
    unplaced: streams that belong to no job; the navigation leads to them while there are any.
    attention: what the badges of the navigation show.
    """

    clock: Clock
    has_model: bool
    caller: Credential | None = None
    unplaced: int = 0
    attention: Attention = QUIET

    def draw(self, template: str, status: int = 200, **values: object) -> HTMLResponse:
        caller = self.caller
        decides = administers = False
        if caller is not None:
            decides = caller.scope.covers(Scope.OPERATE)
            administers = caller.scope.covers(Scope.ADMIN) and caller.viewer.sees_all
        text = (
            templates()
            .get_template(template)
            .render(
                now=self.clock(),
                caller=caller,
                is_person=isinstance(caller, Person),
                decides=decides,
                administers=administers,
                has_model=self.has_model,
                unplaced=self.unplaced,
                attention=self.attention,
                **values,
            )
        )
        return HTMLResponse(text, status, headers={"Cache-Control": "no-store"})

    def error(self, request: Request, problem: Problem) -> HTMLResponse:
        return self.draw("error.html", problem.status, problem=problem, path=request.url.path)


@cache
def templates() -> Environment:
    """The engine of this process: it compiles a template at its first use."""
    engine = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    engine.filters.update(words.FILTERS, summary=summary)
    engine.globals["static"] = urls = dict[str, str]()
    for file in STATIC.iterdir():  # with a hash of the content, so that browsers never show an old version
        urls[file.name] = f"/static/{file.name}?v={hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"
    return engine


async def pages_of(request: Request, caller: Caller, live: Live) -> Pages:
    pages: Pages = request.app.state.pages
    return replace(pages, caller=caller, unplaced=await live.unplaced_count(), attention=await live.attention())


Drawn = Annotated[Pages, Depends(pages_of)]
Query = TypeVar("Query", bound=BaseModel)


def page_query(model: type[Query], request: Request, **instead: str) -> Query:
    """What the address of a page asks for. Empty form fields and names that others added to it mean nothing; raises
    RequestValidationError for a value that cannot be. instead: values in place of those of the address."""
    asked = filled({**request.query_params, **instead})
    given = picked(asked, model.model_fields)
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


def reading_pages() -> Router:
    """Routes of pages for whoever may read, which the API's document leaves out."""
    return Router(include_in_schema=False, dependencies=[Depends(may_read)])
