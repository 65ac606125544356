"""Carries out one plan: look at the cluster, do the next step, report it, look again."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from diagnoser.agent import lease
from diagnoser.agent.plan import End, Ready, Wait
from diagnoser.agent.service import Order, Service
from diagnoser.agent.slurm import steps
from diagnoser.agent.slurm.check import Check
from diagnoser.agent.slurm.commands import COMMAND_SECONDS, Done, Slurm
from diagnoser.agent.slurm.steps import Do, Next, Tried, View, Wanted
from diagnoser.model.errors import BadInput, Conflict, DiagnoserError, NotFound, Unavailable
from diagnoser.model.taxonomy import Action

LOOK_SECONDS = 0.5
UNCLEAR_SECONDS = 2.0
"""Wait before the look after a command that got no answer: it may be under way yet."""
PATIENCE_SECONDS = 300.0
"""How long Slurm may take to clean up, or be away, before a plan counts as not reached."""
PERSON_SECONDS = 5.0
LET_GO = frozenset({"refused", "expired", "superseded", "held"})
"""States of a plan after which nobody will release its job."""
DETAIL_LENGTH = 1900
AWAY = re.compile(
    r"Unable to contact slurm controller|slurmrestd is away|Socket timed out|Connection refused|"
    r"Zero Bytes were transmitted"
)
"""Slurm's words when a command did not reach the controller: it is run again when the controller is back."""

log = structlog.get_logger()

Decide = Callable[["Work", View], Next]


@dataclass(slots=True)
class Work:
    """One plan while it is carried out. deadline: on the clock, when the plan expires. drained: of its nodes, by us."""

    order: Order
    want: Wanted
    deadline: float
    drained: tuple[str, ...] = ()
    tried: list[Tried] = field(default_factory=list)

    @property
    def begun(self) -> bool:
        return bool(self.tried or self.order.plan.get("steps"))


@dataclass(frozen=True, slots=True)
class Executor:
    """user: whom Slurm knows this process as. folder: for batch scripts. clock: seconds that only grow.

    now: seconds since the epoch. dry: change nothing.
    """

    service: Service
    slurm: Slurm
    check: Check | None
    cluster: str
    user: str
    folder: Path
    clock: Callable[[], float]
    now: Callable[[], float]
    dry: bool = False

    async def carry_out(self, order: Order) -> End | None:
        """Reports how it ended; None when the plan is ours no more. Raises Unavailable when the service is away: the
        lease then runs out, and whoever takes over goes on from what the cluster shows."""
        try:
            end = await lease.keep(self.service, order, self._end_of(order))
            requeued = steps.job_id(self.cluster, int(end.requeued)) if end.requeued else ""
            state = "reached" if end.reached else "not_reached"
            told = {"detail": end.detail[:DETAIL_LENGTH], "requeued": requeued, "drained": end.drained}
            await self._report(order, state, **told)
        except (Conflict, NotFound) as error:
            log.warning("plan_taken_away", plan=order.plan["id"], why=str(error))
            if order.plan["action"] == Action.CHECK_AND_RESUBMIT:
                await self._let_go(order)
            return None
        log.info(f"plan_{state}", plan=order.plan["id"], detail=end.detail)
        return end

    async def _end_of(self, order: Order) -> End:
        try:
            want = steps.wanted(order.plan, self.cluster, await lease.kind(self.service, order))
        except BadInput as error:
            return End(False, str(error))
        work = Work(order, want, self.clock() + order.seconds)
        try:
            end = await self._carried_out(work)
        except _GaveUp as error:
            end = End(False, str(error))
        return replace(end, drained=work.drained)

    async def _carried_out(self, work: Work) -> End:
        if work.want.action is Action.CHECK_AND_RESUBMIT:
            return await self._check_and_relaunch(work)
        return _ended(await self._settle(work, self._relaunch))

    async def _check_and_relaunch(self, work: Work) -> End:
        """Whatever becomes of the check, a job that was held for it runs again."""
        held = await self._settle(work, lambda work, view: steps.hold(work.want, view, work.tried, self.user))
        if isinstance(held, End):
            return held
        try:
            faulty, told, checked = await self._checked(work)
            work.want = replace(work.want, nodes=faulty)
            end = _ended(await self._settle(work, self._relaunch))
        finally:
            name = steps.reservation(work.want)
            await self.slurm.runner(("scontrol", "delete", f"reservationname={name}"), COMMAND_SECONDS)
        return End(end.reached and checked, f"{told}; {end.detail}", end.requeued)

    def _relaunch(self, work: Work, view: View) -> Next:
        script = str(self.folder / f"{work.want.job}.sh")
        return steps.drain(work.want, view, work.tried) or steps.relaunch(work.want, view, work.tried, script)

    async def _settle(self, work: Work, decide: Decide) -> End | Ready:
        """Step by step until there is none left. Raises _GaveUp."""
        patience = self.clock() + PATIENCE_SECONDS
        while True:
            view = await self._view(work.want, patience)
            step, work.drained = decide(work, view), steps.ours(work.want, view)
            if isinstance(step, End | Ready):
                return step
            if not work.begun and self.clock() > work.deadline:
                return End(False, "the plan expired before its first step")
            if isinstance(step, Do) and self.dry:
                return End(False, f"dry run; the next command would be: {Done(step.command, None).line}")
            if isinstance(step, Do) and await self._do(work, step):
                patience = self.clock() + PATIENCE_SECONDS
                continue
            if self.clock() > patience:
                raise _GaveUp(f"gave up after {PATIENCE_SECONDS:.0f} s: {_waited(step)}")
            await asyncio.sleep(LOOK_SECONDS if isinstance(step, Wait) else UNCLEAR_SECONDS)

    async def _view(self, want: Wanted, patience: float) -> View:
        """How the cluster looks; waits for a controller that is away. Raises _GaveUp."""
        while True:
            try:
                jobs, nodes = await asyncio.gather(self.slurm.jobs(), self.slurm.nodes())
                break
            except (Unavailable, BadInput) as error:
                if self.clock() > patience:
                    raise _GaveUp(f"the scheduler does not answer: {error}") from None
                log.warning("scheduler_away", why=str(error))
                await asyncio.sleep(LOOK_SECONDS * 4)
        job = jobs.get(want.job)
        copies = (one for one in jobs.values() if one.comment == want.comment and one.number != want.job)
        copy = next((one for one in copies if job is None or one.uid == job.uid), None)
        return View(job, copy, nodes)

    async def _do(self, work: Work, step: Do) -> bool:
        """Whether it is clear how the command went. One without an answer may have arrived: only another look tells."""
        done = await self.slurm.runner(step.command, COMMAND_SECONDS)
        log.info("command", line=done.line, exit_code=done.code, output=done.told)
        clear = done.code == 0 or (done.code is not None and not AWAY.search(done.told))
        if clear:
            work.tried.append(Tried(step.command, done.code, done.told))
        drained = [step.drains] if step.drains and done.code == 0 else []
        await self._report(work.order, "progress", steps=[self._step(done)], drained=drained)
        return clear

    async def _checked(self, work: Work) -> tuple[tuple[str, ...], str, bool]:
        """(faulty nodes, what to tell, whether the check came to an end)."""
        if self.check is None:
            return (), "the nodes were not checked: this agent was started without --check", False
        order = work.order
        try:
            found = await self.service.check(order.plan["id"], order.token)
            while "verdict" not in found:
                nodes = await self.slurm.nodes()
                limit = float(found["timeout_seconds"])
                results, ran = await self.check.run(found["pairs"], nodes, limit, await self._reserved(work.want))
                await self._report(order, "progress", steps=[self._step(done) for done in ran])
                found = await self.service.checked(order.plan["id"], order.token, found["round"], results)
        except (BadInput, Unavailable) as error:
            return (), f"the nodes were not checked: {error}", False
        verdict = found["verdict"]
        return tuple(verdict["faulty"]), f"node check: {verdict['reason']}", True

    async def _reserved(self, want: Wanted) -> str:
        """Name of the reservation of the nodes, "" when there is none."""
        name = steps.reservation(want)
        done = await self.slurm.runner(("scontrol", "show", "reservation", name), COMMAND_SECONDS)
        return name if done.code == 0 else ""

    async def _report(self, order: Order, state: str, **fields: Any) -> None:
        await lease.report(self.service, order, state, **fields)

    def _step(self, done: Done) -> dict[str, object]:
        return {"command": done.line[:10_000], "exit_code": done.code, "output": done.told, "time": self.now()}

    async def _let_go(self, order: Order) -> None:
        """The rails may want a person's word after a check. Should that be no, the job that was held runs again."""
        while (state := (await self.service.plan(order.plan["id"]))["state"]) == "waiting":
            await self.service.pause(PERSON_SECONDS)
        if state not in LET_GO:
            return
        job = (await self.slurm.jobs()).get(steps.job_number(self.cluster, order.plan["job"]))
        if job and job.held and job.state == "PENDING" and job.attempt > order.plan["attempt"]:
            done = await self.slurm.runner(("scontrol", "release", str(job.number)), COMMAND_SECONDS)
            log.info("command", line=done.line, exit_code=done.code, output=done.told)


class _GaveUp(DiagnoserError):
    """Slurm took too long."""


def _waited(step: Do | Wait) -> str:
    return step.why if isinstance(step, Wait) else f"no answer to {Done(step.command, None).line}"


def _ended(found: End | Ready) -> End:
    assert isinstance(found, End), "a launch ends in a report"
    return found
