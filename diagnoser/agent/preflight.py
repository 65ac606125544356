"""Asks nodes whether a job may begin there: this one before a launch, or any by their names.

Before a launch (a prolog, an init container) only quick queries are run, within seconds, and a node that passed is not
asked again within the hour. What cannot be had proves nothing: the launch goes on. Only a proven fault counts, and
whether it stops the launch is for the site to say.
"""

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from diagnoser.agent import node_query
from diagnoser.agent.cluster import NodeQuestion
from diagnoser.model import QueryResult, QueryState
from diagnoser.recovery.node_query import NodeQueryTable

ALL_SECONDS, QUERY_SECONDS = 3.5, 3.0
"""For all quick queries together, and for each: with the start of the program a launch waits five seconds at most."""
HOUR = 3600.0
CACHE = Path("/run/diagnoser/preflight")
NO_FAILURE = ()
"""None asks here: only what proves a fault whatever failed counts."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """results: of the queries that were run; none where the node passed within the hour."""

    node: str
    results: tuple[QueryResult, ...] = ()
    is_cached: bool = False

    @property
    def faults(self) -> list[QueryResult]:
        return self._in(QueryState.PROVES)

    @property
    def words(self) -> str:
        """One line for a person, and for the log of the launch."""
        if self.is_cached:
            return f"{self.node}: passed within the hour"
        if self.faults:
            shown = "; ".join(f"{fault.query}: {fault.text[:200]}" for fault in self.faults)
            return f"{self.node}: FAULT, {shown}"
        passed = [result.query for result in self._in(QueryState.PROVES_NOTHING)]
        missing = [result.query for result in self._in(QueryState.NOT_AVAILABLE)]
        without = f" (no answer: {', '.join(missing)})" if missing else ""
        if not passed:
            return f"{self.node}: nothing could be asked, the launch goes on{without}"
        return f"{self.node}: no fault by {', '.join(passed)}{without}"

    def _in(self, state: QueryState) -> list[QueryResult]:
        return [result for result in self.results if result.state is state]


def check_this_node(table: NodeQueryTable, node: str, cache: Path = CACHE) -> Preflight:
    """Ask this node the quick queries, unless it passed within the hour."""
    passed = cache / f"{node.replace('/', '_')}.{int(time.time() // HOUR)}"
    if _is_trusted(passed):
        return Preflight(node, is_cached=True)
    questions = [NodeQuestion(node, query.id, query.argv, QUERY_SECONDS) for query in table.queries if query.quick]
    answers = node_query.parse_answers(node, _run(questions), questions)
    checked = Preflight(node, tuple(node_query.judge_answers(table, answers, NO_FAILURE, since=0.0)))
    if not checked.faults and any(result.state is QueryState.PROVES_NOTHING for result in checked.results):
        # A folder that cannot be written means that the node is asked again.
        with suppress(OSError):
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            for old in cache.glob(f"{passed.stem}.*"):
                old.unlink(missing_ok=True)
            passed.touch(mode=0o600)
    return checked


def _run(questions: Sequence[NodeQuestion]) -> str:
    """Give what the program printed until its time was over."""
    try:
        done = subprocess.run(  # noqa: S603 -- no shell, and only commands of the table
            node_query.program(questions), capture_output=True, timeout=ALL_SECONDS, check=False
        )
        return done.stdout.decode("utf-8", "replace")
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode("utf-8", "replace")
    except OSError as error:
        return f"{error}"


def _is_trusted(passed: Path) -> bool:
    """Tell whether the mark was made by this user: a job must not vouch for its node."""
    try:
        mark, folder = passed.lstat(), passed.parent.stat()
    except OSError:
        return False
    if {mark.st_uid, folder.st_uid} != {os.geteuid()}:
        return False
    return not folder.st_mode & 0o022
