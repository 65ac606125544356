"""The service's plan API as an HTTP double: hands out given plans, and keeps what the agent says."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.receiver import Receiver, running

ENDS = ("reached", "not_reached")


class Plans(Receiver):
    """plans: by id, in the order they are handed out; one that has not ended is handed out again to who asks anew.

    said: (path, body) of every other request. nodes: of each job. checks: whether a node check begins, of one round in
    which every node is a group and passes; pairs: of another one; without either the breaker is open, and the plan
    waits for a person at once. outcome: of the verdicts that plans follow from.
    """

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.plans: dict[str, dict[str, Any]] = {}
        self.said: list[tuple[str, Any]] = []
        self.held: set[str] = set()
        self.pairs: list[list[str]] = []
        self.claims = 0
        self.nodes: list[str] = []
        self.checks = False
        self.outcome = "hung"
        self.lock = threading.Lock()

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, id: str, job: str, action: str = "cordon_and_resubmit", **fields: Any) -> None:
        plan = {"id": id, "job": job, "attempt": 1, "action": action, "nodes": [], "steps": [], "rollback": None}
        later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        proofs = [{"node": node, "kind": "scheduler"} for node in fields.get("nodes", ())]
        self.plans[id] = {**plan, "proofs": proofs, "expires": later, "diagnosis": "d1", "state": "sent", **fields}

    def free(self) -> None:
        """The leases have run out."""
        self.held.clear()

    def answer_to(self, path: str, body: Any) -> tuple[int, Any]:
        with self.lock:
            if path == "/api/v1/plans/claim":
                return self._claimed()
            self.said.append((path, body))
            parts = path.split("/")
            if parts[3] == "jobs" and len(parts) == 5:
                return 200, {"id": parts[4], "nodes": self.nodes}
            if parts[3] == "plans" and parts[-1] == "next" and self.pairs:
                return 200, {"round": 1, "pairs": self.pairs, "timeout_seconds": 180.0}
            if parts[-1] == "next" and self.checks:
                groups = [[node] for node in body.get("nodes") or self.nodes]
                return 200, {"round": 1, "pairs": groups, "timeout_seconds": 180.0}
            if parts[-1] == "results":
                faulty = [node for result in body["results"] if not result["ok"] for node in result["nodes"]]
                return 200, {"round": 1, "timeout_seconds": 180.0, "verdict": {"faulty": faulty, "reason": "tested"}}
            if parts[-1] == "next" and body.get("pairs") is False:
                return 200, {"round": 1, "timeout_seconds": 180.0, "verdict": {"faulty": [], "reason": "--check"}}
            if parts[3] == "plans" and parts[-1] == "next":
                self.plans[parts[4]]["state"] = "waiting"
                return 409, {"detail": "the breaker is open"}
            if parts[3] == "plans" and len(parts) == 5:
                return 200, self.plans[parts[4]]
            if parts[3] == "plans" and parts[-1] == "report":
                return self._reported(self.plans[parts[4]], body)
            return 200, {"type": "ecc_error", "outcome": self.outcome}

    def ended(self, id: str) -> dict[str, Any] | None:
        plan = self.plans[id]
        return plan if plan["state"] in ENDS else None

    def _claimed(self) -> tuple[int, Any]:
        self.claims += 1
        free = [plan for plan in self.plans.values() if plan["state"] == "sent" and plan["id"] not in self.held]
        if not free:
            return 204, None
        self.held.add(free[0]["id"])
        return 200, {"plan": free[0], "token": "t", "lease_seconds": 60.0}

    def _reported(self, plan: dict[str, Any], body: Any) -> tuple[int, Any]:
        plan["steps"] += body.get("steps", [])
        if body["state"] in ENDS:
            plan |= {name: body.get(name, "") for name in ("state", "detail", "requeued")}
        return 200, plan


class _Handler(BaseHTTPRequestHandler):
    server: Plans

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        is_json = self.headers.get("content-type", "").startswith("application/json")
        path = self.path.split("?")[0]
        if path == "/api/v1/uncordons/claim":  # nobody asks for a node back
            self._tell(200, [])
        else:
            self._tell(*self.server.answer_to(path, json.loads(raw) if is_json else (self.path, raw)))

    def do_GET(self) -> None:
        if self.path.startswith("/api/v1/plans?"):  # a dry run looks what is not handed out
            self._tell(200, {"items": []})
            return
        self._tell(*self.server.answer_to(self.path, None))

    def _tell(self, status: int, answer: Any) -> None:
        body = b"" if answer is None else json.dumps(answer).encode()
        if status == 204:
            threading.Event().wait(0.2)  # a short long poll
        self.send_response_only(status)
        self.send_header("date", format_datetime(datetime.now(UTC), usegmt=True))
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def plans() -> Iterator[Plans]:
    found = Plans()
    with running(found):
        yield found
