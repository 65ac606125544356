"""Answers the service when it asks what the ranks of a command do that may hang: their stacks, dumps and activity.

Only the processes of the command itself are looked at, and by a program of its own: whatever that meets, or a service
that does not answer, costs the command nothing. Clients on other nodes answer for their own ranks.
"""

from __future__ import annotations

import base64
import glob
import gzip
import json
import os
import random
import sys
import threading
import time
import zlib
from dataclasses import dataclass
from typing import Any, Callable, Collection, Iterator, Mapping
from urllib.parse import quote

from diagnoser.client import evidence_runner
from diagnoser.client.launch import nodes_of_job
from diagnoser.client.service import Service, Unreachable, UsageError
from diagnoser.client.shipper import Shipper

STACKS_VARIABLE = "DIAGNOSER_STACKS"
"""Tells the ranks in which folder they may write their stacks."""
SILENCE_SECONDS = 8.0
"""Without output, until the service is asked for the first time: it suspects nothing sooner."""
PAUSE_PART = 0.125
"""Pause between two questions, as a part of the silence, within the next two bounds."""
SHORTEST_PAUSE, LONGEST_PAUSE = 2.0, 30.0
REFUSED_PAUSE = 300.0
"""After an answer that is no list of requests."""
PROGRAM_SECONDS = 15.0
"""For one program that the collector starts."""
COLLECTOR_SECONDS = 60.0
OUTPUT_BYTES = 32 << 20
"""Of the collector, packed."""
DUMPS_SECONDS, DUMPS_MAX, DUMPS_BYTES = 10.0, 256, 64 << 20
"""For the dumps of a run that has failed."""
CLOCKS = 60.0
"""Seconds by which the clocks of the service and of this machine may differ."""


@dataclass(frozen=True)
class Finding:
    """What the collector found. kind: as the service calls it. rank: one that it is of."""

    kind: str
    rank: int
    data: bytes


@dataclass(eq=False)
class EvidenceResponder:
    """Asks for requests about one launch while its command prints nothing, and answers them.

    pid: of the command. stacks: folder for the stacks that ranks write themselves, "" for none. last_output: when the
    command has printed last, by the clock.
    """

    service: Service
    shipper: Shipper
    pid: int
    stacks: str
    last_output: Callable[[], float]
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._answered: set[str] = set()
        self.ranks: set[int] = set()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def step(self) -> float:
        """Ask once, if the command is silent. Seconds until there may be something to do."""
        silence = self.clock() - self.last_output()
        if silence < SILENCE_SECONDS:
            return SILENCE_SECONDS - silence
        if self.shipper.attempt is None:
            return SILENCE_SECONDS
        try:
            answer = self.service.get(_path(self.shipper) + "evidence-requests")
            requests = answer.json()
            if answer.status != 200 or not isinstance(requests, list):
                return REFUSED_PAUSE
            for newest in requests[:1]:
                if newest["id"] not in self._answered:
                    self._answer(float(newest["since"]))
                    self._answered.add(newest["id"])
                    return LONGEST_PAUSE  # however often it asks
        except (Unreachable, UsageError):
            return LONGEST_PAUSE
        return min(max(PAUSE_PART * silence, SHORTEST_PAUSE), LONGEST_PAUSE)

    def _run(self) -> None:
        """For ever."""
        pause = SILENCE_SECONDS
        while True:
            time.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 -- the clients of a job fall silent together
            try:
                pause = self.step()
            except Exception:  # a fault of ours is nothing to the command
                pause = REFUSED_PAUSE

    def _answer(self, since: float) -> None:
        """Send what is found; the service judges the run with the last of it."""
        latest = None
        for finding in collect(self.pid, since - CLOCKS, self.stacks):
            self.ranks.add(finding.rank)
            if latest is not None:
                _post(self.service, self.shipper, latest, more=True)
            latest = finding
        if latest is not None:
            _post(self.service, self.shipper, latest)


def send_left_dumps(
    service: Service, shipper: Shipper, ranks: Collection[int], environment: Mapping[str, str], since: float
) -> None:
    """Send the flight recorders that the ranks of a command have left which has failed. Raises Unreachable.

    ranks: those that were seen below the command. Where none was, all count, unless the job has other nodes.
    environment: of the command, which names the files.
    since: seconds since the epoch; older files are of an earlier launch.
    """
    if shipper.attempt is None or shipper.failure or (not ranks and nodes_of_job(environment) > 1):
        return
    deadline = time.monotonic() + DUMPS_SECONDS
    for rank, data in left_dumps(environment, since):
        if time.monotonic() > deadline:
            return
        if not ranks or rank in ranks:
            _post(service, shipper, Finding("flight-recorder", rank, data), more=True)


def _path(shipper: Shipper) -> str:
    return "/jobs/{}/attempts/{}/".format(quote(shipper.launch.job, safe=""), shipper.attempt)


def _post(service: Service, shipper: Shipper, finding: Finding, *, more: bool = False) -> None:
    """What the service refuses is left out."""
    query: dict[str, object] = {"kind": finding.kind, "rank": finding.rank}
    if shipper.launch.node:
        query["node"] = shipper.launch.node
    if more:
        query["more"] = "true"
    headers = {"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}
    service.request("POST", _path(shipper) + "evidence", query, gzip.compress(finding.data, 1), headers)


def collect(pid: int, since: float, stacks: str = "") -> Iterator[Finding]:
    """Look at the ranks of a command; what they do comes last.

    pid: of the command.
    since: seconds since the epoch; dumps that are older are of an earlier launch.
    stacks: as of ``EvidenceResponder``.
    """
    asked = {
        "below": pid,
        "dumps": [],
        "since": since,
        "until": 1e12,
        "stacks": True,
        "answers": stacks,
        "ras": True,
        "seconds": PROGRAM_SECONDS,
    }
    program = [sys.executable, "-I", "-c", _source(), json.dumps(asked)]
    _, output = evidence_runner.output_of(program, COLLECTOR_SECONDS, OUTPUT_BYTES)
    for line in output.splitlines():
        try:
            yield from _findings(json.loads(line.decode("utf-8")))
        except (ValueError, KeyError, TypeError, zlib.error):
            continue  # cut off, or a warning of Python


def left_dumps(environment: Mapping[str, str], since: float) -> Iterator[tuple[int, bytes]]:
    """Give rank and content of the flight recorders that were written since, where the environment names them."""
    bounds = evidence_runner.Bounds(DUMPS_MAX, DUMPS_BYTES)
    for prefix in {environment.get(name, "") for name in evidence_runner.DUMP_VARIABLES}:
        folder, name = os.path.split(prefix)
        if not os.path.isabs(folder):
            continue
        pattern = [glob.escape(name) + "*"]
        for file in evidence_runner.dump_files(folder, pattern, os.getuid(), since, float("inf"), bounds):
            rank = file.path[len(prefix) :]
            if file.data and evidence_runner.is_number(rank, 7):
                yield int(rank), file.data


def _source() -> str:
    """Read the program, which may lie within an archive."""
    loader: Any = evidence_runner.__loader__
    source: str = loader.get_source(evidence_runner.__name__)
    return source


def _findings(line: Mapping[str, Any]) -> Iterator[Finding]:
    """Read a line of the collector; a note is no finding. Activity is split by rank: each file is of one place, and
    clients on the same node must not replace each other's."""
    if "note" in line:
        return
    kind, data = str(line["kind"]), zlib.decompress(base64.b64decode(line["data"]))
    if kind != "activity":
        yield Finding(kind, int(line["rank"]), data)
        return
    for rank, look in json.loads(data.decode("utf-8"))["activity"].items():
        yield Finding(kind, int(rank), json.dumps({"activity": {rank: look}}).encode())
