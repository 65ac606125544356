"""Checks the name by which a request calls this service, so that no foreign name can stand for it in a browser."""

from collections.abc import Collection
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from diagnoser.web.http.problems import Problem, as_json

LOOPBACK_NAMES = frozenset({"localhost"})
SHOWN = 100


class AllowedHosts:
    """Answers 421 to a request whose Host is none of ``names``, before anything else looks at it.

    names: lower case; ``*.example`` stands for the names below ``example``, ``*`` for any. IP addresses are always
    allowed: nobody can point one elsewhere. So is a request of HTTP/1.0 without a Host, which no browser sends.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self.app = app
        self.names = LOOPBACK_NAMES | {name for name in names if not name.startswith("*")}
        self.suffixes = tuple(name[1:] for name in names if name.startswith("*"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = self.app
        if problem := self._objection(scope):
            app = as_json(problem)
        await app(scope, receive, send)

    def _objection(self, scope: Scope) -> Problem | None:
        if scope["type"] != "http":
            return None
        given = Headers(scope=scope).getlist("host")
        if not given and scope["http_version"] == "1.0":
            return None
        if len(given) != 1:
            return Problem(title="Bad input", status=400, detail="A request must have one Host header.")
        name = _without_port(given[0])
        if name in self.names or name.endswith(self.suffixes) or _is_address(name):
            return None
        detail = f"This service is not called {given[0][:SHOWN]!r}: add the name to DIAGNOSER_ALLOWED_HOSTS if it is."
        return Problem(title="Misdirected Request", status=421, detail=detail)


def _without_port(host: str) -> str:
    """The name in lower case; an IPv6 address without its brackets."""
    name = host.partition(":")[0]
    if host.startswith("["):
        name = host[1:].partition("]")[0]
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
