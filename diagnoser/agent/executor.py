"""Carries out one plan on any cluster: look, take the next step, report it, look again."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Generic, TypeVar

import structlog

from diagnoser.agent import confirmation, node_query
from diagnoser.agent.api_client import ApiClient, ClaimedPlan
from diagnoser.agent.cluster import Attempts, Cluster, CommandAttempt, Done, Held, NextStep, NodeQuestion, Run, S, Wait
from diagnoser.agent.node_query import Commands
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.plan_spec import PlanSpec, known_types
from diagnoser.agent.repair_evidence import RepairEvidence
from diagnoser.agent.state_file import AgentState, JobCheckpoint
from diagnoser.model import LOSS_SERIES, ProofKind
from diagnoser.model.errors import BadInput, Conflict, Denied, DiagnoserError, NotFound, Unavailable
from diagnoser.model.taxonomy import Action, Outcome
from diagnoser.recovery.node_query import NO_QUERIES, SITE_CHECK, NodeQueryTable

HEARTBEAT_SECONDS = 15.0
LEASE_SHARE = 0.75
"""Of a lease that was not renewed, how much an executor uses: clocks of replicas differ, and one of them may take it
for over."""
LOOK_SECONDS = 0.5
UNCLEAR_SECONDS = 2.0
"""Wait before the look after a command that got no answer: it may still be under way."""
GIVE_UP_SECONDS = 300.0
"""How long the cluster may be away, or make no progress, before a plan counts as not reached."""
GIVE_UP_HELD_SECONDS = 1800.0
"""The same for a held job, which nobody else would launch again."""
RUNNING_SECONDS = 15.0
"""How long a job that failed may take to end by itself before its plan is refused: it often prints why it fails
moments before."""
PERSON_SECONDS = 5.0
NOT_CARRIED_OUT = frozenset({"refused", "expired", "superseded", "held"})
"""States of a plan after which nobody will launch its job again."""
PROOF_KINDS = frozenset(ProofKind)
"""What can prove that a node is at fault. A kind that this agent does not know proves nothing."""
DETAIL_LENGTH = 1900
ATTEMPTS_KEPT = 100

log = structlog.get_logger()
T = TypeVar("T")


@dataclass(slots=True)
class PlanExecution:
    """One plan while it is carried out. deadline: on the clock, when the plan expires. drained: its nodes that are out
    for its reason. reports: whether the plan is still ours to report about. ran_on: nodes on which the job was seen.
    ends_running: whether the plan ends a launch that runs: one that hangs, or whose loss diverged. confirmation: what
    its nodes answered when they were asked whether they are at fault, None before that. evidence: what was kept of what
    a repair destroys, None before that."""

    claimed: ClaimedPlan
    spec: PlanSpec
    deadline: float
    drained: tuple[str, ...] = ()
    attempts: Attempts = field(default_factory=Attempts)
    reports: bool = True
    ran_on: frozenset[str] = frozenset()
    ends_running: bool = False
    confirmation: str | None = None
    evidence: str | None = None

    @property
    def started(self) -> bool:
        if self.attempts:
            return True
        return bool(self.claimed.plan.get("steps"))


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """Outcome of a node check. detail: for people. finished: whether it came to an end."""

    faulty: tuple[str, ...]
    detail: str
    finished: bool


Decide = Callable[[PlanExecution, Mapping[str, NodeRecord], S], NextStep]


@dataclass(frozen=True, slots=True)
class Executor(Generic[S]):
    """clock: seconds that only grow. now: seconds since the epoch. dry: change nothing. commands: that may be run on a
    node to ask it, by the id of their query. state: what was seen of each job while it ran. queries: what answers of
    nodes prove."""

    client: ApiClient
    cluster: Cluster[S]
    name: str
    clock: Callable[[], float]
    now: Callable[[], float]
    dry: bool = False
    commands: Commands = field(default_factory=dict)
    state: AgentState = field(default_factory=AgentState)
    queries: NodeQueryTable = NO_QUERIES

    async def carry_out(self, claimed: ClaimedPlan) -> Done | None:
        """Carry out a plan, and report how it ended; None when another agent has it. Raises Unavailable when the
        service is away: the lease then runs out, and whoever takes over goes on from what the cluster shows."""
        plan = claimed.plan
        if plan["action"] == Action.CHECK_AND_RESUBMIT and plan["id"] not in self.state.checks:
            self.state.checks.append(plan["id"])
        try:
            await self._report(claimed, "progress")  # the answer to the claim may have come after its lease was over
            end = await self._with_lease(claimed, self._execute(claimed))
            state, fields = "not_reached", {"requeued": end.requeued, "drained": end.drained}
            if end.reached:
                state = "reached"
            if end.refused:
                fields["refused"] = end.refused
            await self._report(claimed, state, detail=end.detail[:DETAIL_LENGTH], **fields)
        except (Conflict, NotFound) as error:
            log.warning("plan_taken_away", plan=plan["id"], why=str(error))
            return None
        log.info(f"plan_{state}", plan=plan["id"], detail=end.detail)
        return end

    async def _with_lease(self, claimed: ClaimedPlan, work: Coroutine[Any, Any, T]) -> T:
        """Do the work, and cancel it as soon as somebody else has the plan. Raises Conflict or NotFound then."""
        tasks = task, heartbeat = asyncio.create_task(work), asyncio.create_task(self._heartbeat(claimed))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if heartbeat.done():
                heartbeat.result()
            return await task
        finally:
            task.cancel()
            heartbeat.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _heartbeat(self, claimed: ClaimedPlan) -> None:
        """Renew the lease while a step takes long. Raises Unavailable once the service has been away for so long that
        another agent may hold the plan."""
        renewed = self.clock()
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            asked = self.clock()
            try:
                async with asyncio.timeout(renewed + LEASE_SHARE * claimed.lease - asked):
                    await self._report(claimed, "progress")
                renewed = asked
            except Unavailable as error:
                log.warning("heartbeat_failed", plan=claimed.plan["id"], why=str(error))
            except TimeoutError:
                raise Unavailable("the lease may be over, and the service does not answer") from None

    async def _execute(self, claimed: ClaimedPlan) -> Done:
        verdict = await self._verdict(claimed.plan["diagnosis"])
        try:
            spec = self.cluster.spec(claimed.plan, str(verdict.get("type", "unknown")))
        except BadInput as error:
            return Done(False, str(error))
        if refusal := refuse_unproven(claimed.plan):
            return refusal
        execution = PlanExecution(claimed, spec, self.clock() + claimed.seconds)
        execution.ends_running = verdict.get("outcome") == Outcome.HUNG or verdict.get("decided_by") == LOSS_SERIES
        try:
            if spec.action is Action.CHECK_AND_RESUBMIT:
                end = await self._check_and_relaunch(execution)
            else:
                end = await self._relaunch(execution)
        except (BadInput, Denied, _GaveUp) as error:
            end = Done(False, str(error))
        detail = "; ".join(filter(None, (end.detail, execution.confirmation, execution.evidence)))
        return replace(end, detail=detail, drained=execution.drained)

    async def _verdict(self, diagnosis: str) -> Mapping[str, Any]:
        """Get the diagnosis that the plan follows from; empty where it is gone."""
        try:
            return await self.client.diagnosis(diagnosis)
        except (NotFound, BadInput):
            return {}

    async def _check_and_relaunch(self, execution: PlanExecution) -> Done:
        """Check the job's nodes. Whatever becomes of that, a job that was held for it is launched again."""
        held = await self._step_to_end(execution, lambda e, _, state: self.cluster.hold(e.spec, state, e.attempts))
        if isinstance(held, Done) and not execution.started:
            return held
        try:
            if isinstance(held, Done):
                return await self._launched_before(execution, held)
            check = await self._check(execution, held.nodes)
            refusal = refuse_foreign(execution.spec.job, check.faulty, execution.ran_on)
            execution.spec = replace(execution.spec, nodes=() if refusal else check.faulty)
            end = await self._relaunch(execution)
        finally:
            await self.cluster.free(execution.spec)
        if refusal:
            return replace(
                refusal, detail=f"{refusal.detail} but to launch it again: {end.detail}", requeued=end.requeued
            )
        return Done(end.reached and check.finished, f"{check.detail}; {end.detail}", end.requeued)

    async def _launched_before(self, execution: PlanExecution, held: Done) -> Done:
        """Say how a plan ended whose job cannot be held: an agent that died behind its last command has launched it, if
        the check has its verdict. held: why it cannot."""
        answer = await self._next_round(execution, ())
        if "verdict" not in answer:
            return held
        end = await self._relaunch(execution)
        return replace(end, detail=f"node check: {answer['verdict']['reason']}; {end.detail}")

    async def _relaunch(self, execution: PlanExecution) -> Done:
        """Cordon the plan's nodes, then launch the job again. ``refuse_foreign`` is the third gate before a node
        goes."""

        def decide(execution: PlanExecution, nodes: Mapping[str, NodeRecord], state: S) -> NextStep:
            still_in = [node for node in execution.spec.nodes if node not in execution.drained]
            if refusal := refuse_foreign(execution.spec.job, still_in, execution.ran_on):
                return refusal
            spec = execution.spec
            if execution.started:  # it is finished, also where the cluster was made smaller meanwhile
                spec = replace(spec, nodes=tuple(node for node in spec.nodes if node in nodes))
            step = cordon_step(self.cluster, spec, nodes, execution.attempts)
            if step:
                return step
            return self.cluster.relaunch(execution.spec, state, execution.attempts)

        end = await self._step_to_end(execution, decide)
        assert isinstance(end, Done), "a launch ends in a report"
        return end

    def _seen(self, job: str) -> frozenset[str]:
        """List the nodes where this agent saw the job: after a requeue the scheduler shows only where it runs now."""
        return frozenset(chain.from_iterable(known.all_nodes for known in self._launches(job)))

    def _launches(self, job: str) -> list[JobCheckpoint]:
        return [known for known in self.state.jobs.values() if known.job == job]

    async def _step_to_end(self, execution: PlanExecution, decide: Decide[S]) -> Done | Held:
        """Take step by step until there is none left. Raises _GaveUp.

        decide: says the next step, from what the cluster shows.
        """
        begun = progress = self.clock()
        limit = GIVE_UP_SECONDS
        while True:
            nodes, state = await self._observe(execution.spec, progress + limit)
            limit = GIVE_UP_HELD_SECONDS if state.held else GIVE_UP_SECONDS
            execution.drained = _drained(execution.spec, nodes)
            execution.ran_on |= frozenset(state.nodes) | self._seen(execution.spec.job)
            step = decide(execution, nodes, state)
            if isinstance(step, Run) and self._still_runs(execution, state):
                step = self._wait_for_end(execution.spec.job, begun)
            if isinstance(step, Done | Held):
                return step
            gathered = execution.confirmation, execution.evidence
            refusal = await self._refusal(execution, step)
            if refusal is not None:
                return refusal
            await self._keep_evidence(execution, step)
            if (execution.confirmation, execution.evidence) != gathered:
                progress = self.clock()  # it took minutes: somebody may have drained the node, or launched the job
                continue
            pause = await self._take(execution, step)
            if pause is None:
                progress, pause = self.clock(), 0.0
            elif self.clock() > progress + limit:
                raise _GaveUp(_given_up(step, limit, state.held))
            await asyncio.sleep(pause)

    async def _refusal(self, execution: PlanExecution, step: Run | Wait) -> Done | None:
        """Say why the step must not be taken; None where it may be. A plan that was begun is finished, but for a cordon
        that the node does not confirm."""
        is_started = execution.started
        if not is_started and self.clock() > execution.deadline:
            return Done(False, "the plan expired before its first step")
        if isinstance(step, Wait):
            return None
        if self.dry:
            return Done(False, f"dry run; the next command would be: {step.command.line}")
        if not is_started:
            refusal = await self._refuse_bad_checkpoint(execution)
            if refusal is not None:
                return refusal
        if not step.cordons:
            return None
        return await self._refuse_unconfirmed(execution)

    def _still_runs(self, execution: PlanExecution, state: S) -> bool:
        """Tell whether the job runs although it does not hang, and this agent did not see its launch end. What is under
        way is finished."""
        if execution.started:
            return False
        if execution.ends_running:
            return False
        if not self.cluster.running(execution.spec, state):
            return False
        ended = [known.attempt for known in self._launches(execution.spec.job) if known.ended]
        return max(ended, default=0) < execution.spec.attempt

    def _wait_for_end(self, job: str, since: float) -> NextStep:
        if self.clock() < since + RUNNING_SECONDS:
            return Wait(f"{job} still runs")
        why = f"the scheduler shows that {job} still runs, and it does not hang; nothing was done"
        return Done(False, why, refused="still_running")

    async def _refuse_unconfirmed(self, execution: PlanExecution) -> Done | None:
        """Ask the nodes whether they are at fault, once for a plan, and refuse to take out one whose own log does not
        confirm what was shipped of it. Nodes of a check have been asked already."""
        spec, table = execution.spec, self.queries
        if execution.confirmation is not None:
            return None
        if spec.action is Action.CHECK_AND_RESUBMIT:
            return None
        nodes = confirmation.unconfirmed_nodes(execution.claimed.plan, spec.nodes)
        if not nodes:
            return None
        types, since, answers = known_types(spec.failure_type), 0.0, list[Mapping[str, Any]]()
        execution.confirmation = ""
        if self.cluster.can_ask:
            since = confirmation.evidence_since(await self.client.job(spec.job), spec.attempt)
            answers += await self._ask(execution, node_query.questions_from_table(table, types, nodes))
        refusal, execution.confirmation = confirmation.judge(table, types, nodes, answers, since)
        return refusal

    async def _keep_evidence(self, execution: PlanExecution, step: Run | Wait) -> None:
        """Collect evidence once for a plan, before its first step that destroys any: a launch that hangs is ended by
        its first command, and a node goes to repair once it is cordoned."""
        spec, ends_launch = execution.spec, execution.ends_running and not execution.started
        if isinstance(step, Wait):
            return
        if execution.evidence is not None:
            return
        if not (step.cordons or ends_launch):
            return
        keeper = RepairEvidence(self.client, self.cluster, self.queries)
        notes = []
        if ends_launch:
            notes.append(await keeper.of_hang(spec, self.now()))
        if step.cordons:
            notes.append(await keeper.of_nodes(spec, spec.nodes))
        execution.evidence = "; ".join(filter(None, notes))

    async def _refuse_bad_checkpoint(self, execution: PlanExecution) -> Done | None:
        """Refuse to go back to a checkpoint that was reported bad since the claim; None when it was not. A plan that
        is under way is finished: a job that was stopped for its launch must not stay down."""
        if execution.spec.action is not Action.ROLLBACK_AND_RESUBMIT:
            return None
        plan = await self.client.plan(execution.claimed.plan["id"])
        if plan.get("reason") != "bad_checkpoint":
            return None
        return Done(False, f"{plan['history'][-1]['why']}; nothing was done", refused="bad_checkpoint")

    async def _observe(self, spec: PlanSpec, until: float) -> tuple[Mapping[str, NodeRecord], S]:
        """Look at the cluster. Raises _GaveUp, and Denied for what will not pass."""
        return await self._while_away(
            lambda: asyncio.gather(self.cluster.nodes(spec.nodes), self.cluster.job(spec)), until
        )

    async def _while_away(self, work: Callable[[], Awaitable[T]], until: float) -> T:
        """Call ``work`` again while the cluster is away or its answer cannot be read. Raises _GaveUp."""
        while True:
            try:
                return await work()
            except (Unavailable, BadInput) as error:
                if self.clock() > until:
                    raise _GaveUp(f"the scheduler does not answer: {error}") from None
                log.warning("scheduler_away", why=str(error))
                await asyncio.sleep(LOOK_SECONDS * 4)

    async def _take(self, execution: PlanExecution, step: Run | Wait) -> float | None:
        """Run the step's command. Returns the seconds until the next look; None once it is clear how the command went.
        One without an answer may have arrived: only another look tells."""
        if isinstance(step, Wait):
            return LOOK_SECONDS
        try:
            attempt = await self.cluster.run(step.command)
        except Unavailable as error:
            log.warning("command_failed", line=step.command.line, why=str(error))
            return UNCLEAR_SECONDS
        log.info("command", line=step.command.line, exit_code=attempt.code, output=attempt.output)
        is_repeated = execution.attempts[-1:] == (attempt,)
        if attempt.code is not None:
            execution.attempts = Attempts((*execution.attempts[-ATTEMPTS_KEPT:], attempt))
        if execution.reports and not is_repeated:
            drained = []
            if step.cordons and attempt.code == 0:
                drained.append(step.cordons)
            await self._report(execution.claimed, "progress", steps=self._steps([attempt]), drained=drained)
        if attempt.is_final:
            return None
        if attempt.code is None:
            return UNCLEAR_SECONDS
        return LOOK_SECONDS

    async def _check(self, execution: PlanExecution, only: Collection[str]) -> CheckOutcome:
        """only: nodes to check, empty for all."""
        claimed = execution.claimed
        plan, token, vouched = claimed.plan["id"], claimed.token, self.cluster.check_is_vouched
        try:
            answer = await self._next_round(execution, only)
            while "verdict" not in answer:
                if answer.get("queries"):
                    allowed, refused = node_query.allowed_questions(answer["queries"], self.commands)
                    answers = [*await self._ask(execution, allowed), *refused]
                    answer = await self.client.checked(plan, token, answer["round"], answers=answers)
                    continue
                if not self.cluster.can_check:
                    return CheckOutcome((), "the nodes were not checked: this agent was started without --check", False)
                run_round = partial(self.cluster.check, execution.spec, answer)
                results = await self._while_away(run_round, self.clock() + GIVE_UP_SECONDS)
                await self._report(claimed, "progress", steps=self._steps(results.attempts))
                answer = await self.client.checked(plan, token, answer["round"], results.results, vouched=vouched)
            left_out = await self._left_out(claimed.plan["job"], only)
        except (BadInput, Denied, Unavailable, _GaveUp) as error:
            return CheckOutcome((), f"the nodes were not checked: {error}", False)
        verdict = answer["verdict"]
        detail = f"node check: {verdict['reason']}"
        if left_out:
            detail += f"; other jobs run on {left_out}, which the check left alone"
        return CheckOutcome(tuple(verdict["faulty"]), detail, self.cluster.can_check or bool(verdict["faulty"]))

    async def _next_round(self, execution: PlanExecution, only: Collection[str]) -> dict[str, Any]:
        """Ask what the check needs next, with what this agent can do. A verdict stays as it is."""
        return await self.client.check(
            execution.claimed.plan["id"],
            execution.claimed.token,
            sorted(only),
            queries=self.cluster.can_ask and bool(self.commands),
            site_check=SITE_CHECK in self.commands,
            pairs=self.cluster.can_check,
        )

    async def _left_out(self, id: str, only: Collection[str]) -> str:
        """Names of the job's nodes that were not checked. only: those that were, empty for all."""
        if not only:
            return ""
        job = await self.client.job(id) or {"nodes": ()}
        return ", ".join(sorted(set(job["nodes"]).difference(only)))

    async def _ask(self, execution: PlanExecution, questions: Sequence[NodeQuestion]) -> Sequence[Mapping[str, Any]]:
        if not questions:
            return ()
        ask = partial(self.cluster.ask, execution.spec, questions)
        results = await self._while_away(ask, self.clock() + GIVE_UP_SECONDS)
        await self._report(execution.claimed, "progress", steps=self._steps(results.attempts))
        return results.answers

    async def restore_held_jobs(self) -> None:
        """Launch jobs again, unchanged, that were held for a check whose plan nobody will carry out any more: a person
        refused it after the check, or it expired. Never ends."""
        while True:
            for plan in tuple(self.state.checks):
                with suppress(Unavailable):  # it is asked for again
                    if await self._is_over(plan):
                        self.state.checks.remove(plan)
            await self.client.pause(PERSON_SECONDS)

    async def _is_over(self, id: str) -> bool:
        """Tell whether a plan with a check is over; the job that it held is launched again by then."""
        try:
            plan = await self.client.plan(id)
        except (NotFound, BadInput):  # there is no such plan
            return True
        try:
            if plan["state"] in NOT_CARRIED_OUT:
                spec = replace(self.cluster.spec(plan, "unknown"), nodes=())
                execution = PlanExecution(ClaimedPlan(plan, "", math.inf, 0.0), spec, math.inf, reports=False)
                await self._step_to_end(execution, lambda e, _, state: self.cluster.put_back(e.spec, state, e.attempts))
        except (BadInput, Denied, _GaveUp) as error:
            log.warning("job_not_put_back", plan=id, why=str(error))
        return plan["state"] not in ("sent", "waiting")

    async def _report(self, claimed: ClaimedPlan, state: str, **fields: Any) -> None:
        await self.client.report(claimed.plan["id"], {"token": claimed.token, "state": state, **fields})

    def _steps(self, attempts: Iterable[CommandAttempt]) -> list[dict[str, object]]:
        return [
            {"command": run.command.line[:10_000], "exit_code": run.code, "output": run.output, "time": self.now()}
            for run in attempts
        ]


def refuse_unproven(plan: Mapping[str, Any]) -> Done | None:
    """Refuse a plan that names a node without a proof of a known kind against it; None when each has one."""
    proven = {proof["node"] for proof in plan.get("proofs", ()) if proof.get("kind") in PROOF_KINDS}
    unproven = [node for node in plan["nodes"] if node not in proven]
    if not unproven:
        return None
    why = f"the plan has no proof ({', '.join(ProofKind)}) that {', '.join(unproven)} is at fault; nothing was done"
    return Done(False, why, refused="unproven")


def refuse_foreign(job: str, nodes: Iterable[str], ran_on: Collection[str]) -> Done | None:
    """Refuse to take out a node where the job never ran; None when there is no such node. The agent asks its own
    scheduler: whatever made the service plan this, the node is not touched.
    """
    foreign = [node for node in nodes if node not in ran_on]
    if not foreign:
        return None
    if not ran_on:
        why = "neither the scheduler nor this agent knows where the job ran; nothing was done"
        return Done(False, why, refused="allocation_unknown")
    why = f"the scheduler did not give {', '.join(foreign)} to {job}; nothing was done"
    return Done(False, why, refused="foreign_node")


def cordon_step(
    cluster: Cluster[S], spec: PlanSpec, nodes: Mapping[str, NodeRecord], attempts: Attempts
) -> Run | Done | None:
    """Take the plan's nodes out; None when all are out. A node that is cordoned already is left as it is."""
    unknown = [name for name in spec.nodes if name not in nodes]
    if unknown:
        return Done(False, f"the cluster has no node {', '.join(unknown)}; nothing was done")
    for name in spec.nodes:
        command = cluster.cordon(spec, nodes[name])
        step = attempts.unless_refused(command, f"{name} could not be cordoned")
        if isinstance(step, Done):
            return step
        if nodes[name].cordoned:
            continue
        if not attempts.succeeded(command):
            return Run(command, cordons=name)
    return None


def _drained(spec: PlanSpec, nodes: Mapping[str, NodeRecord]) -> tuple[str, ...]:
    """Read from the cluster, so that it also holds where a report was lost."""
    drained = []
    for name in spec.nodes:
        node = nodes.get(name)
        if node is None:
            continue
        if not node.cordoned:
            continue
        if node.reason == spec.reason:
            drained.append(name)
    return tuple(drained)


def _given_up(step: Run | Wait, seconds: float, held: str) -> str:
    """Say what did not come in time. held: where the job is kept while only an agent can bring it back."""
    waited = step.reason if isinstance(step, Wait) else f"{step.command.line} did not get through"
    return "; ".join(filter(None, (f"gave up after {seconds:.0f} s: {waited}", held)))


class _GaveUp(DiagnoserError):
    """The cluster took too long."""
