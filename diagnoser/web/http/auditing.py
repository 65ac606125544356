"""Every call that may change something leaves an entry in the audit log.

The store writes entries itself, in the transaction of each change (``ports.audit``). Here is what they are written in
the name of, and the entry of a call that had no effect in the store or was refused.
"""

from http import HTTPStatus

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diagnoser.ingest.protocols import path_ends
from diagnoser.model.audit import AuditEntry, AuditResult
from diagnoser.model.recent import Recent
from diagnoser.ports import AuditedCall, auditing
from diagnoser.web.http.authentication import client_address
from diagnoser.web.http.services import CoreServices

MUTATING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
ANSWERED = ("/login/oidc/callback",)
"""Paths where GET changes something, because a browser is sent there: a sign-in at the identity provider."""
ASKING = ("/logs", "/api/v1/rules/try", "/slack/events")
QUESTIONS = "/ask"
"""Paths where POST asks for an analysis and changes nothing, and how those of questions about failures end."""
POLLING = ("/api/v1/plans/claim", "/api/v1/evidence-requests/claim", "/api/v1/uncordons/claim")
"""Paths that agents ask again and again: what is handed out is written down, that nothing was is not."""
REFUSED_SECONDS = 60.0
"""The same refusal of the same caller is written down once in so many seconds, by each process."""
REMEMBERED = 1_000


def is_audited(method: str, path: str, unaudited: tuple[str, ...]) -> bool:
    """unaudited: ends of paths that take in log lines: thousands of requests a second, whose lines are their own
    record."""
    if method not in MUTATING:
        return path in ANSWERED
    return path not in ASKING and not path.endswith((QUESTIONS, *unaudited))


class AuditedCalls:
    """Plain ASGI: the handler runs in the context that is set here. A success reaches the caller after its entry is
    durable, never before."""

    def __init__(self, app: ASGIApp, core: CoreServices) -> None:
        self.app = app
        self._core = core
        self._unaudited = path_ends()
        self._refused = Recent[tuple[str, ...], float](REMEMBERED)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_audited(scope["method"], scope["path"], self._unaudited):
            await self.app(scope, receive, send)
            return
        address = client_address(Request(scope))
        with auditing(AuditedCall(f"{scope['method']} {scope['path']}", self._core.clock(), address)) as call:

            async def noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    await self._answered(scope, call, message["status"])
                await send(message)

            try:
                await self.app(scope, receive, noted)
            except Exception:
                await self._add(call, scope, AuditResult.FAILED, "the fault is in the service's log")
                raise

    async def _answered(self, scope: Scope, call: AuditedCall, status: int) -> None:
        if status < HTTPStatus.BAD_REQUEST:
            if not call.entries and scope["path"] not in POLLING:
                await self._add(call, scope, AuditResult.DONE, "")
        elif self._is_news(call, status):
            why = call.fault or HTTPStatus(status).phrase
            await self._add(call, scope, AuditResult.REFUSED, f"{status}: {why}")

    def _is_news(self, call: AuditedCall, status: int) -> bool:
        """Not for what was refused unseen: who is throttled may not fill the log instead."""
        if call.actor is None:
            return False
        if status in (HTTPStatus.TOO_MANY_REQUESTS, *range(500, 600)):
            return False
        key = (call.actor.name, call.address, call.action, str(status))
        if call.time - self._refused.get(key, float("-inf")) < REFUSED_SECONDS:
            return False
        self._refused[key] = call.time
        return True

    async def _add(self, call: AuditedCall, scope: Scope, result: AuditResult, detail: str) -> None:
        """Nothing for a caller whom nobody knows: guesses are counted, and would fill the log."""
        if call.actor is None:
            return
        object_id = "/".join(map(str, scope.get("path_params", {}).values()))
        await self._core.store.audit.add(AuditEntry(call.time, call.actor, call.action, "", object_id, result, detail))
