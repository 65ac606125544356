"""Carries out one plan: look at the cluster, do the next step, report it, look again."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from diagnoser.agent import lease
from diagnoser.agent.kubernetes import records, steps, wanted
from diagnoser.agent.kubernetes.check import Check
from diagnoser.agent.kubernetes.kube import Kube
from diagnoser.agent.kubernetes.records import NodeRecord, Workload
from diagnoser.agent.kubernetes.steps import Do, Next, PodSeen, Tried, View
from diagnoser.agent.kubernetes.wanted import Wanted
from diagnoser.agent.plan import End, Ready, Wait
from diagnoser.agent.service import Order, Service
from diagnoser.model.errors import BadInput, Conflict, Denied, DiagnoserError, NotFound, Unavailable
from diagnoser.model.taxonomy import Action

LOOK_SECONDS = 0.5
PATIENCE_SECONDS = 300.0
"""How long pods may take to end, or the API server may be away, before a plan counts as not reached."""
STORED_SECONDS = 1800.0
"""The same while the workload is only there as a copy: nobody else would launch it again."""
PERSON_SECONDS = 5.0
LET_GO = frozenset({"refused", "expired", "superseded", "held"})
"""States of a plan after which nobody will launch its workload again."""
DETAIL_LENGTH = 1900
TRIED_KEPT = 100

log = structlog.get_logger()

Decide = Callable[[Wanted, View, list[Tried]], Next]


@dataclass(slots=True)
class Work:
    """One plan while it is carried out. deadline: on the clock, when the plan expires."""

    order: Order
    want: Wanted
    deadline: float
    tried: list[Tried] = field(default_factory=list)

    @property
    def begun(self) -> bool:
        return bool(self.tried or self.order.plan.get("steps"))


@dataclass(frozen=True, slots=True)
class Executor:
    """pods_of: pods of a workload, as the watch knows them. launch_of: number of its present launch. clock: seconds
    that only grow. now: seconds since the epoch. dry: change nothing."""

    service: Service
    kube: Kube
    check: Check | None
    cluster: str
    name: str
    pods_of: Callable[[tuple[str, str, str]], tuple[PodSeen, ...]]
    launch_of: Callable[[Workload], Awaitable[int]]
    clock: Callable[[], float]
    now: Callable[[], float]
    dry: bool = False

    async def carry_out(self, order: Order) -> End | None:
        """Reports how it ended; None when the plan is ours no more. Raises Unavailable when the service is away: the
        lease then runs out, and whoever takes over goes on from what the cluster shows."""
        try:
            end = await lease.keep(self.service, order, self._end_of(order))
            state = "reached" if end.reached else "not_reached"
            await self._report(order, state, detail=end.detail[:DETAIL_LENGTH], requeued=end.requeued)
        except (Conflict, NotFound) as error:
            log.warning("plan_taken_away", plan=order.plan["id"], why=str(error))
            if order.plan["action"] == Action.CHECK_AND_RESUBMIT:
                await self._let_go(order)
            return None
        log.info(f"plan_{state}", plan=order.plan["id"], detail=end.detail)
        return end

    async def _end_of(self, order: Order) -> End:
        try:
            work = await self._work(order)
            if work.want.action is Action.CHECK_AND_RESUBMIT:
                return await self._check_and_relaunch(work)
            return _ended(await self._settle(work, _relaunch))
        except (BadInput, Denied, _GaveUp) as error:
            return End(False, str(error))

    async def _work(self, order: Order) -> Work:
        """Raises BadInput."""
        cause = await lease.kind(self.service, order)
        want = wanted.wanted(order.plan, self.cluster, cause, self.name)
        return Work(order, want, self.clock() + order.seconds)

    async def _check_and_relaunch(self, work: Work) -> End:
        """Whatever becomes of the check, a workload that was held for it is launched again."""
        held = await self._settle(work, steps.hold)
        if isinstance(held, End):
            return held
        faulty, told, checked = await self._checked(work)
        work.want = replace(work.want, nodes=faulty)
        end = _ended(await self._settle(work, _relaunch))
        return End(end.reached and checked, f"{told}; {end.detail}", end.requeued)

    async def _settle(self, work: Work, decide: Decide) -> End | Ready:
        """Step by step until there is none left. Raises _GaveUp."""
        begun, limit = self.clock(), PATIENCE_SECONDS
        while True:
            view = await self._view(work.want, begun + limit)
            limit = STORED_SECONDS if view.stored else PATIENCE_SECONDS
            step = decide(work.want, view, work.tried)
            if isinstance(step, End | Ready):
                return step
            if not work.begun and self.clock() > work.deadline:
                return End(False, "the plan expired before its first step")
            if self.clock() > begun + limit:
                raise _GaveUp(_given_up(work.want, view, step, limit))
            if isinstance(step, Do) and self.dry:
                return End(False, f"dry run; the next request would be: {step.line}")
            if not isinstance(step, Do) or await self._do(work, step):
                await asyncio.sleep(LOOK_SECONDS)

    async def _view(self, want: Wanted, until: float) -> View:
        """How the cluster looks; waits for a server that is away. Raises _GaveUp, and BadInput or Denied for what will
        not pass."""
        while True:
            try:
                return await self._looked(want)
            except Unavailable as error:
                if self.clock() > until:
                    raise _GaveUp(f"the API server does not answer: {error}") from None
                log.warning("api_server_away", why=str(error))
                await asyncio.sleep(LOOK_SECONDS * 4)

    async def _looked(self, want: Wanted) -> View:
        work, stored, *nodes = await asyncio.gather(
            self.kube.get(want.path),
            self.kube.get(f"{want.copies}/{want.copy}"),
            *(self.kube.get(f"/api/v1/nodes/{name}") for name in want.nodes),
        )
        known: dict[str, NodeRecord] = {found["metadata"]["name"]: records.node(found) for found in nodes if found}
        launch = await self.launch_of(records.workload(want.kind, work)) if work else 0
        pods = self.pods_of((want.kind.word, want.namespace, want.name))
        return View(work, launch, stored, known, pods)

    async def _do(self, work: Work, step: Do) -> bool:
        """Whether to wait a little before the next look. A request that did not get through is made again."""
        try:
            answer = await self.kube.ask(step.method, step.path, step.body)
        except Unavailable as error:
            log.warning("request_failed", line=step.line, why=str(error))
            return True
        log.info("request", line=step.line, answer=answer.told)
        tried = Tried(step, answer.code, answer.told)
        again = bool(work.tried) and (work.tried[-1].step, work.tried[-1].code) == (step, answer.code)
        work.tried = [*work.tried[-TRIED_KEPT:], tried]
        drained = [step.drains] if step.drains and answer.ok else []
        if not again:
            await self._report(work.order, "progress", steps=[self._step(tried)], drained=drained)
        return not answer.ok

    async def _checked(self, work: Work) -> tuple[tuple[str, ...], str, bool]:
        """(faulty nodes, what to tell, whether the check came to an end)."""
        if self.check is None:
            return (), "the nodes were not checked: this agent was started without --check", False
        order = work.order
        try:
            stored = await self.kube.get(f"{work.want.copies}/{work.want.copy}")
            found = await self.service.check(order.plan["id"], order.token)
            while "verdict" not in found:
                run = await self.check.run(work.want, stored or {}, found)
                await self._report(order, "progress", steps=[self._step(one) for one in run.asked])
                found = await self.service.checked(order.plan["id"], order.token, found["round"], run.results)
        except (BadInput, Denied, Unavailable) as error:
            return (), f"the nodes were not checked: {error}", False
        verdict = found["verdict"]
        return tuple(verdict["faulty"]), f"node check: {verdict['reason']}", True

    async def _report(self, order: Order, state: str, **fields: Any) -> None:
        await lease.report(self.service, order, state, **fields)

    def _step(self, tried: Tried) -> Mapping[str, object]:
        code = 0 if tried.code < 400 else tried.code
        return {"command": tried.step.line[:10_000], "exit_code": code, "output": tried.told, "time": self.now()}

    async def _let_go(self, order: Order) -> None:
        """The rails may want a person's word after a check. Should that be no, the workload that was held runs again
        as it was."""
        while (state := (await self.service.plan(order.plan["id"]))["state"]) == "waiting":
            await self.service.pause(PERSON_SECONDS)
        if state not in LET_GO:
            return
        want = replace(wanted.wanted(order.plan, self.cluster, "unknown", self.name), nodes=())
        while isinstance(step := steps.put_back(want, await self._view(want, self.clock() + PATIENCE_SECONDS), []), Do):
            answer = await self.kube.ask(step.method, step.path, step.body)
            log.info("request", line=step.line, answer=answer.told)
            if not answer.ok and answer.code not in (404, *steps.PASSING):
                return
            await asyncio.sleep(LOOK_SECONDS)


class _GaveUp(DiagnoserError):
    """The cluster took too long."""


def _relaunch(want: Wanted, view: View, tried: list[Tried]) -> Next:
    return steps.cordon(want, view, tried) or steps.relaunch(want, view, tried)


def _given_up(want: Wanted, view: View, step: Do | Wait, seconds: float) -> str:
    copy = f"; a copy of the workload is in the ConfigMap {want.namespace}/{want.copy}" if view.stored else ""
    return f"gave up after {seconds:.0f} s: {step.line if isinstance(step, Do) else step.why}{copy}"


def _ended(found: End | Ready) -> End:
    assert isinstance(found, End), "a launch ends in a report"
    return found
