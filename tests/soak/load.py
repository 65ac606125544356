"""Shippers, failures, people who look at pages, and browsers that wait for news, all at once."""

import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, cycle

import httpx

from tools.bench import logs

SENDERS = 8
"""Ranks; each prints into a job of its own until that fails."""
LINES = 100
LOG = 1 << 17
"""Bytes; a rank prints them again and again."""
VIEWERS = 2
STREAMS = 3
PAGES = (
    "/", "/jobs", "/diagnoses", "/nodes", "/recovery", "/rules", "/accuracy", "/unplaced", "/search?q=cuda", "/metrics",
    "/readyz", "/api/v1/diagnoses", "/api/v1/jobs", "/api/v1/incidents",
)  # fmt: skip
LISTENED_SECONDS = 15.0
FAILURE = b"RuntimeError: CUDA error: an illegal memory access was encountered\n"
_NO_TLS = ssl.create_default_context()
"""Made once: httpx would read all certificates for each client."""


@dataclass
class Load:
    """url: of the service. name: of its jobs. requests: of a rank until its job fails. pause: seconds between two
    requests of a rank. reading: so many times as long a person waits between two pages. listened: seconds until a
    browser leaves. enough: how often what is done before those who do it leave; without it they go on. done: how often
    what was done. errors: answers that should not come; 429 and 503 ask to come again.
    """

    url: str
    pause: float
    name: str = "run"
    requests: int = 40
    listened: float = LISTENED_SECONDS
    reading: float = 10.0
    enough: Mapping[str, int] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """The attempt that one browser follows is known from now on."""
        with self._client() as client:
            self._ask(client, "POST", f"/api/v1/logs?job={self.name}-0-0&attempt=1&source=launcher", b"launching\n")

    def ship(self, rank: int, stopping: threading.Event) -> None:
        lines = logs.steady(LOG, 1, seed=rank).splitlines(keepends=True)
        bodies = [b"".join(lines[at : at + LINES]) for at in range(0, len(lines) - LINES, LINES)]
        with self._client() as client:
            for number in count():
                job = f"{self.name}-{rank}-{number // self.requests}"
                at = number % self.requests
                if stopping.wait(self.pause):
                    return
                query = f"job={job}&attempt=1&rank={rank}&node=gpu-{rank:03}&offset={at * LINES}"
                self._ask(client, "POST", f"/api/v1/logs?{query}", bodies[number % len(bodies)])
                self.done["requests"] += 1
                if at == self.requests - 1:
                    self._fail(client, job)
                if self.has_enough("requests", "failures"):
                    return

    def look(self, viewer: int, stopping: threading.Event) -> None:
        for page in cycle(PAGES[viewer:] + PAGES[:viewer]):
            if stopping.wait(self.reading * self.pause):
                return
            with self._client() as client:  # each time a new connection
                self._ask(client, "GET", page)
                self._look_closer(client)
            self.done["pages"] += 1
            if self.has_enough("pages"):
                return

    def listen(self, number: int, stopping: threading.Event) -> None:
        """Open a live stream, hear a little, and go away without a word, again and again."""
        path = "/api/v1/live" if number else f"/api/v1/jobs/{self.name}-0-0/attempts/1/log/live"
        while not (stopping.wait(self.pause) or self.has_enough("streams")):
            until = time.monotonic() + self.listened
            with self._client() as client, suppress(httpx.TransportError), client.stream("GET", path) as answer:
                self._check(answer, path)
                self.done["streams"] += 1
                for _ in answer.iter_lines():
                    if stopping.is_set() or time.monotonic() > until:
                        break

    def has_enough(self, *kinds: str) -> bool:
        return bool(self.enough) and all(self.done[kind] >= self.enough[kind] for kind in kinds)

    def _fail(self, client: httpx.Client, job: str) -> None:
        self._ask(client, "POST", f"/api/v1/logs?job={job}&attempt=1&source=stderr", FAILURE)
        self._ask(client, "POST", f"/api/v1/jobs/{job}/events", b'{"kind": "exit", "code": 1}', "application/json")
        self.done["failures"] += 1

    def _look_closer(self, client: httpx.Client) -> None:
        """The newest diagnosis, and the log below it."""
        items = client.get("/api/v1/diagnoses?limit=1").json().get("items", [])
        for item in items:
            self._ask(client, "GET", f"/diagnoses/{item['id']}")
            self._ask(client, "GET", f"/jobs/{item['job']}/attempts/{item['attempt']}/log")

    def _ask(self, client: httpx.Client, method: str, path: str, body: bytes = b"", kind: str = "text/plain") -> None:
        with suppress(httpx.TransportError):
            self._check(client.request(method, path, content=body, headers={"content-type": kind}), path)

    def _check(self, answer: httpx.Response, path: str) -> None:
        if answer.status_code in (429, 503):
            self.done["asked to come again"] += 1
        elif answer.status_code >= 400:
            self.errors.append(f"{answer.status_code} {path}")

    def _client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, verify=_NO_TLS)


@contextmanager
def running(load: Load) -> Iterator[Load]:
    load.begin()
    stopping = threading.Event()
    work: Sequence[tuple[Callable[[int, threading.Event], None], int]] = (
        (load.ship, SENDERS),
        (load.look, VIEWERS),
        (load.listen, STREAMS),
    )
    threads = [threading.Thread(target=do, args=(number, stopping)) for do, times in work for number in range(times)]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
