"""Common part of the node checks of all schedulers: groups run beside each other, each with a result."""

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from diagnoser.agent.cluster import CheckResults, CommandAttempt
from diagnoser.agent.nodes import NodeRecord, is_down
from diagnoser.model.errors import Unavailable

GROUPS_AT_ONCE = 64
DETAIL_LENGTH = 500
_SECONDS = re.compile(r"\bseconds[\"' :=]+([0-9]+(?:\.[0-9]+)?)")

RunGroup = Callable[[int, Sequence[str], list[CommandAttempt]], Awaitable[tuple[bool, str, float]]]
"""(place among the groups, nodes, where to add what was run) -> (passed, what was printed, seconds it took). Raises
Unavailable when the group could not be started: that says nothing about its nodes."""


async def run_groups(asked: Mapping[str, Any], nodes: Mapping[str, NodeRecord], run_group: RunGroup) -> CheckResults:
    """asked: a round, as the service gives it. A group with a node that is down has failed. Raises Unavailable, also
    where that node is the partner by which a later round judges the first node of the group."""
    turn, attempts = asyncio.Semaphore(GROUPS_AT_ONCE), list[CommandAttempt]()

    async def result(place: int, group: Sequence[str]) -> dict[str, Any]:
        down = [name for name in group if is_down(name, nodes)]
        if down and is_later(asked) and group[0] not in down:
            raise Unavailable(f"{', '.join(down)}, by which {group[0]} was to be judged, is down")
        if down:
            return {"nodes": list(group), "ok": False, "seconds": 0.0, "detail": f"{', '.join(down)} is down"}
        async with turn:
            passed, output, seconds = await run_group(place, group, attempts)
        measured, detail = map(float, _SECONDS.findall(output)), ""  # by the program itself
        if not passed:
            detail = output[-DETAIL_LENGTH:]
        took = round(max(measured, default=seconds), 3)
        return {"nodes": list(group), "ok": passed, "seconds": took, "detail": detail}

    return CheckResults(await asyncio.gather(*itertools.starmap(result, enumerate(asked["pairs"]))), attempts)


def is_later(asked: Mapping[str, Any]) -> bool:
    """Tell whether a round tests nodes with partners that have passed: only the first node of a group is judged."""
    return bool(asked.get("round", 1) > 1)
