"""Plain HTML forms behind the buttons of pages, protected against requests from other sites.

A browser adds the password (Basic authentication), and now and then the cookie of a session, to requests that a foreign
page triggers as well. So a form is accepted only when the browser states that it comes from a page of this service: by
Sec-Fetch-Site, or where that is not sent (plain HTTP on a name that is not localhost) by Origin.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response

from diagnoser.model.access import Credential, Scope
from diagnoser.model.errors import BadInput, OutOfScope
from diagnoser.model.lines import printable
from diagnoser.web.http.authentication import Caller, check_scope
from diagnoser.web.http.dependencies import Live

FIELD_LENGTH, TEXT_LENGTH = 2000, 16_000
"""Characters of a line, and of all lines of a field."""
FIELDS_LIMIT = 64
"""A page of plans can be decided about at once."""


@dataclass(frozen=True, slots=True)
class Form:
    fields: Mapping[str, Sequence[str]]
    caller: Credential

    def text(self, name: str) -> str:
        """Of one line; "" where it was not sent."""
        return line_of(next(iter(self.fields.get(name, ())), ""))

    def unread(self) -> dict[str, str]:
        """The first text of each field as it was sent: see ``line_of`` and ``lines_of``."""
        return {name: values[0] for name, values in self.fields.items()}

    def texts(self, name: str) -> list[str]:
        """Of a field that may be there several times."""
        return list(map(line_of, self.fields.get(name, ())))


def lines_of(text: str) -> tuple[str, ...]:
    """The lines of a field that are not blank; what cannot be printed becomes a blank."""
    return tuple(line for part in text[:TEXT_LENGTH].splitlines() if (line := line_of(part)))


async def pressed(request: Request, caller: Caller, live: Live) -> Form:
    """Raises OutOfScope for a form of another site or a read-only token, Denied without a token, BadInput."""
    check_origin(request)
    check_scope(caller, Scope.OPERATE)
    live.attention.forget()
    return Form(_fields(await request.body()), caller)


Pressed = Annotated[Form, Depends(pressed)]


async def filled_in(request: Request) -> dict[str, str]:
    """The fields of a form of our own that anybody may send, as they were typed: one may be a password. Raises
    OutOfScope for one of another site, BadInput."""
    check_origin(request)
    return {name: values[0] for name, values in _fields(await request.body()).items()}


FilledIn = Annotated[dict[str, str], Depends(filled_in)]


def check_origin(request: Request) -> None:
    """Raises OutOfScope for what does not come from a page of this service."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin", "")
    ours = site == "same-origin" if site else urlsplit(origin).netloc == request.headers.get("host", "")
    if not ours:
        raise OutOfScope("This can only be pressed on a page of this service.")


def _fields(body: bytes) -> dict[str, list[str]]:
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_LIMIT)
    except (ValueError, UnicodeDecodeError):
        raise BadInput("the form cannot be read") from None
    return fields


def see_other(page: str) -> Response:
    """Show a page after a press, so that a reload does not repeat it."""
    return RedirectResponse(page, status_code=303)


def places_of(error: RequestValidationError) -> list[str]:
    """Fields that are wrong, in the order in which they were found to be."""
    places: list[str] = []
    for problem in error.errors():
        places += map(str, problem["loc"])
    return places


def line_of(text: str) -> str:
    """A field of one line; what cannot be printed becomes a blank."""
    return printable(text).strip()[:FIELD_LENGTH]
