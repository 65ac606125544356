"""Plain HTML forms behind the buttons of pages, protected against requests from other sites.

A browser adds the password (Basic authentication) to requests that a foreign page triggers as well. So a form is
accepted only when the browser states that it comes from a page of this service: by Sec-Fetch-Site, or where that is
not sent (plain HTTP on a name that is not localhost) by Origin.
"""

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

from fastapi import Depends, Request

from diagnoser.model.access import Credential, Scope
from diagnoser.model.errors import BadInput, OutOfScope
from diagnoser.web.authentication import Caller, check_scope

FIELD_LENGTH, TEXT_LENGTH = 2000, 16_000
"""Characters of a line, and of all lines of a field."""
FIELDS_LIMIT = 10


class Form:
    """The fields of a form that was sent, and who sent it. fields: as they were sent, see ``line_of``, ``lines_of``."""

    def __init__(self, fields: Mapping[str, str], caller: Credential) -> None:
        self.fields = fields
        self.caller = caller

    def text(self, name: str) -> str:
        return line_of(self.fields.get(name, ""))


def lines_of(text: str) -> tuple[str, ...]:
    """The lines of a field that are not blank; what cannot be printed becomes a blank."""
    return tuple(line for part in text[:TEXT_LENGTH].splitlines() if (line := line_of(part)))


async def pressed(request: Request, caller: Caller) -> Form:
    """Raises OutOfScope for a form of another site or a read-only token, Denied without a token, BadInput."""
    _check_origin(request)
    check_scope(caller, Scope.OPERATE)
    return Form(_fields(await request.body()), caller)


Pressed = Annotated[Form, Depends(pressed)]


def _check_origin(request: Request) -> None:
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin", "")
    ours = site == "same-origin" if site else urlsplit(origin).netloc == request.headers.get("host", "")
    if not ours:
        raise OutOfScope("This can only be pressed on a page of this service.")


def _fields(body: bytes) -> dict[str, str]:
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_LIMIT)
    except (ValueError, UnicodeDecodeError):
        raise BadInput("the form cannot be read") from None
    return {name: values[0] for name, values in fields.items()}


def line_of(text: str) -> str:
    """A field of one line; what cannot be printed becomes a blank."""
    return "".join(char if char.isprintable() else " " for char in text).strip()[:FIELD_LENGTH]
