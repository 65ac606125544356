"""Common part of the node checks of all schedulers: groups run beside each other, each with a result."""

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from diagnoser.agent.cluster import CheckResults, CommandAttempt
from diagnoser.agent.nodes import NodeRecord, is_down

GROUPS_AT_ONCE = 64
DETAIL_LENGTH = 500
_SECONDS = re.compile(r"\bseconds[\"' :=]+([0-9]+(?:\.[0-9]+)?)")

RunGroup = Callable[[int, Sequence[str], list[CommandAttempt]], Awaitable[tuple[bool, str, float]]]
"""(place among the groups, nodes, where to add what was run) -> (passed, what was printed, seconds it took). Raises
Unavailable when the group could not be started: that says nothing about its nodes."""


async def run_groups(
    groups: Sequence[Sequence[str]], nodes: Mapping[str, NodeRecord], run_group: RunGroup
) -> CheckResults:
    """A group with a node that is down has failed. Raises Unavailable."""
    turn, attempts = asyncio.Semaphore(GROUPS_AT_ONCE), list[CommandAttempt]()

    async def result(place: int, group: Sequence[str]) -> dict[str, Any]:
        down = [name for name in group if is_down(name, nodes)]
        if down:
            return {"nodes": list(group), "ok": False, "seconds": 0.0, "detail": f"{', '.join(down)} is down"}
        async with turn:
            passed, output, seconds = await run_group(place, group, attempts)
        measured, detail = map(float, _SECONDS.findall(output)), ""  # by the program itself
        if not passed:
            detail = output[-DETAIL_LENGTH:]
        took = round(max(measured, default=seconds), 3)
        return {"nodes": list(group), "ok": passed, "seconds": took, "detail": detail}

    return CheckResults(await asyncio.gather(*itertools.starmap(result, enumerate(groups))), attempts)
