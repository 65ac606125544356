"""Keeps a list of objects up to date: one list, then a watch from there; when the server forgot, a list again."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import structlog

from diagnoser.agent.kubernetes import fields
from diagnoser.agent.kubernetes.kube import Gone, Kube
from diagnoser.model.errors import BadInput, OutOfScope, Unavailable

WATCH_SECONDS = 240
SILENCE_SECONDS = 300.0
SHORTEST_WAIT, LONGEST_WAIT = 1.0, 30.0
ABSENT_SECONDS = 300.0
"""How often to look again for a kind that the cluster does not serve, or that we may not read."""
LINE_BYTES = 16 << 20

log = structlog.get_logger()


@dataclass(slots=True)
class Reflector:
    """One resource, in one namespace or in all. put: an object that is there. drop: one that is no more.

    ready: set once it has been listed, or is known to be absent. version: where the watch goes on.
    """

    kube: Kube
    path: str
    put: Callable[[dict[str, Any]], None]
    drop: Callable[[dict[str, Any]], None]
    query: Mapping[str, str] = field(default_factory=dict)
    known: dict[str, dict[str, Any]] = field(default_factory=dict)
    version: str = ""
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self) -> None:
        """For ever. The server may be away, forget old versions, or not serve this kind."""
        wait = SHORTEST_WAIT
        while True:
            try:
                if not self.version:
                    await self._list()
                await self._watch()
                wait = SHORTEST_WAIT
            except Gone as error:
                log.info("watch_begins_anew", path=self.path, why=str(error))
                self.version = ""
            except OutOfScope as error:
                self.ready.set()
                self.version = ""
                log.info("not_watched", path=self.path, why=str(error))
                await asyncio.sleep(ABSENT_SECONDS)
            except (Unavailable, BadInput) as error:
                log.warning("watch_failed", path=self.path, why=str(error), again_in=wait)
                await asyncio.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT)

    async def _list(self) -> None:
        """List anew; what is not in the list any more was deleted while nobody watched."""
        seen: dict[str, dict[str, Any]] = {}
        version = ""
        async for page in self.kube.pages(self.path, self.query):
            version = fields.text(page["metadata"], "resourceVersion")
            for item in fields.entries(page, "items"):
                seen[item["metadata"]["uid"]] = _identity(item)
                self._put(item)
        for uid, identity in self.known.items():
            if uid not in seen:
                self.drop(identity)
        self.known, self.version = seen, version
        self.ready.set()

    async def _watch(self) -> None:
        query = {
            **self.query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        async with self.kube.stream(self.path, query, SILENCE_SECONDS) as answer:
            if answer.status_code == 410:
                raise Gone("the version is too old")
            if answer.status_code == 404:
                raise OutOfScope("HTTP 404")
            if answer.status_code != 200:  # with 403 too: we could list it, and a server that starts refuses everything
                raise Unavailable(f"HTTP {answer.status_code}")
            async for line in _lines(answer.aiter_bytes()):
                self._take(_event(line))

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, item = event.get("type"), dict(fields.section(event, "object"))
        if kind == "ERROR":
            if item.get("code") == 410:
                raise Gone(fields.text(item, "message"))
            raise Unavailable(f"the watch of {self.path} failed: {str(item.get('message'))[:200]}")
        meta = item["metadata"]
        self.version = str(meta["resourceVersion"])
        if kind == "DELETED":
            self.known.pop(meta["uid"], None)
            self.drop(item)
        elif kind in ("ADDED", "MODIFIED"):
            self.known[meta["uid"]] = _identity(item)
            self._put(item)

    def _put(self, item: dict[str, Any]) -> None:
        """One object of an unexpected form must not end the watch of all others."""
        try:
            self.put(item)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("object_not_read", path=self.path, name=item["metadata"].get("name"), why=repr(error)[:200])


def _event(line: bytes) -> dict[str, Any]:
    try:
        event: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise Unavailable(f"the watch gave a line that is not JSON: {error}") from None
    return event


def _identity(item: Mapping[str, Any]) -> dict[str, Any]:
    """Enough to know an object by when it is found to be gone."""
    meta = item["metadata"]
    return {"metadata": {name: meta[name] for name in ("uid", "name", "namespace") if name in meta}}


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines. Raises BadInput for one that never ends."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES:
            raise BadInput("an object of the watch is larger than any may be")
        for line in whole:
            if line.strip():
                yield line
