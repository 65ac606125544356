"""Runs the groups of a node check: one job of ``srun`` a group, on exactly its nodes."""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diagnoser.agent.slurm.commands import ABSENT, Done, Runner
from diagnoser.agent.slurm.records import NodeRecord
from diagnoser.model.errors import Unavailable

GROUPS_AT_ONCE = 64
START_SECONDS = 60.0
FIRST_PORT, PORTS = 29_600, 2_000
NOT_BEGUN = re.compile(
    r"Unable to allocate resources|Unable to confirm allocation|Unable to create step|Invalid job id"
)
"""srun's words when the program has not been started: they say nothing about the nodes."""


@dataclass(frozen=True, slots=True)
class Check:
    """command: the program and its arguments, as it is called on the nodes."""

    runner: Runner
    command: tuple[str, ...]

    async def run(
        self, groups: Sequence[Sequence[str]], nodes: Mapping[str, NodeRecord], seconds: float, reservation: str
    ) -> tuple[list[dict[str, Any]], list[Done]]:
        """(result of each group, commands that were run). reservation: that the nodes are kept by, "" for none.

        Raises Unavailable when Slurm would not start a group.
        """
        turn = asyncio.Semaphore(GROUPS_AT_ONCE)

        async def one(place: int, group: Sequence[str]) -> tuple[dict[str, Any], Done | None]:
            gone = [name for name in group if name not in nodes or nodes[name].down]
            if gone:
                return _result(group, False, 0.0, f"{', '.join(gone)} is down"), None
            async with turn:
                begun = time.monotonic()
                done = await self.runner(self._srun(place, group, nodes, seconds, reservation), seconds + START_SECONDS)
                return _judged(group, done, time.monotonic() - begun), done

        found = await asyncio.gather(*(one(place, group) for place, group in enumerate(groups)))
        return [result for result, _ in found], [done for _, done in found if done]

    def _srun(
        self, place: int, group: Sequence[str], nodes: Mapping[str, NodeRecord], seconds: float, reservation: str
    ) -> tuple[str, ...]:
        gpus = min(nodes[name].gpus for name in group)
        address = nodes[group[0]].address or group[0]
        variables = f"MASTER_ADDR={address},MASTER_PORT={FIRST_PORT + place % PORTS},PATH"
        options = (
            "--job-name=diagnoser-check",
            f"--nodelist={','.join(group)}",
            f"--nodes={len(group)}",
            f"--ntasks-per-node={gpus or 1}",
            f"--immediate={START_SECONDS:.0f}",
            f"--time={int(seconds // 60) + 1}",
            "--kill-on-bad-exit=1",
            "--exclusive",
            f"--export={variables}",
        )
        kept = (f"--reservation={reservation}",) if reservation else ()
        return ("srun", *options, *kept, *((f"--gres=gpu:{gpus}",) if gpus else ()), *self.command)


def _judged(group: Sequence[str], done: Done, seconds: float) -> dict[str, Any]:
    if done.code == ABSENT or (done.code and NOT_BEGUN.search(done.error)):
        raise Unavailable(f"Slurm did not start the check of {', '.join(group)}: {done.told}")
    own = re.findall(r"\bseconds[\"' :=]+([0-9.]+)", done.output)
    measured = max((float(value) for value in own), default=seconds)
    return _result(group, done.code == 0, measured, "" if done.code == 0 else done.told[-500:])


def _result(group: Sequence[str], ok: bool, seconds: float, detail: str) -> dict[str, Any]:
    return {"nodes": list(group), "ok": ok, "seconds": round(seconds, 3), "detail": detail}
