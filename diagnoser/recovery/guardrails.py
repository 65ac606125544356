"""Checks a new plan: whether its nodes are proven to be at fault, the retry history, what people did, and the breaker.

A guardrail only ever makes a plan more careful. Each one that changes a plan leaves its reason on it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from diagnoser.model import (
    AttemptKey,
    BreakerState,
    ClusterHistory,
    HangLook,
    Mode,
    NodeEventKind,
    Plan,
    PlanReason,
    PlanState,
    TransitionResult,
)
from diagnoser.model.taxonomy import Action
from diagnoser.recovery import breaker, node_returns, retry_history, trust
from diagnoser.recovery.incidents import PLACE_SECONDS, shared_place
from diagnoser.recovery.plan_states import (
    ACTING,
    CORDONS,
    DIAGNOSER,
    OPEN,
    RUNNABLE,
    launched_nothing,
    was_refused,
    with_note,
    with_state,
)
from diagnoser.recovery.policy import Policy, plan_key

_NAMED = 4
"""Most ranks that a reason names."""
_R = PlanReason
_EXPLAINED: dict[str, str] = {
    _R.OBSERVE: "the policy only advises here",
    _R.NEEDS_APPROVAL: "the policy asks for a person's approval",
    _R.ACT: "the policy lets this be done without approval",
    _R.FOR_A_PERSON: "only a person can do this",
}
"""Where no guardrail changed the plan: why it begins as it does."""


@dataclass(frozen=True, slots=True)
class _Case:
    """earlier: plans for other attempts that failed in the same way. same_attempt: plans for this one."""

    policy: Policy
    history: ClusterHistory
    earlier: tuple[Plan, ...]
    now: float
    same_attempt: tuple[Plan, ...] = ()

    @property
    def last(self) -> Plan | None:
        return next(reversed(self.earlier), None)


_Rail = Callable[[Plan, _Case], Plan | None]
"""The plan to store instead, or None when this guardrail does not object."""


def apply_guardrails(policy: Policy, plan: Plan, history: ClusterHistory, now: float) -> TransitionResult:
    """The plan that is stored for a new diagnosis: ``plan``, a more careful one, or an earlier one that stands."""
    same_attempt = tuple(past for past in history.past if (past.job, past.attempt) == (plan.job, plan.attempt))
    acted = next(filter(retry_history.has_launched, same_attempt), None)
    if acted:
        return TransitionResult(acted)  # nothing is done twice for one failure
    case = _Case(policy, history, tuple(retry_history.failures(plan, history.past)), now, same_attempt)
    guarded, trips = _run_rails(plan, case)
    guarded = _with_new_key(guarded, same_attempt)
    twin = next((past for past in same_attempt if past.key == guarded.key), None)
    if twin:
        return TransitionResult(twin)
    others = []
    why = "a later diagnosis of the same failure planned something else"
    for past in filter(_gives_way, same_attempt):
        others.append(with_state(past, PlanState.SUPERSEDED, _R.LATER_DIAGNOSIS, by=DIAGNOSER, why=why, now=now))
    if guarded.reason == _R.WRONG_EVICTION and case.last:
        others.append(
            with_note(case.last, by=DIAGNOSER, why="it failed again right after: the wrong node went", now=now)
        )
    return TransitionResult(guarded, others=tuple(others), trips=trips)


def _gives_way(past: Plan) -> bool:
    """Tell whether a later plan for the same attempt replaces this one: nobody acts on it, or has done anything."""
    return launched_nothing(past) if past.state is PlanState.HELD else past.state in OPEN


def _run_rails(plan: Plan, case: _Case) -> tuple[Plan, tuple[BreakerState, ...]]:
    if plan.action not in RUNNABLE:
        return _with_change(plan, _explained(plan), case.now), ()
    for rail in _RAILS:
        changed = rail(plan, case)
        if changed is None:
            continue
        if changed.action is plan.action:
            return changed, ()
        if changed.action not in CORDONS:
            return changed, ()
        plan = changed  # an escalation to another action still has to pass the breaker
    if not plan.history:
        plan = _with_change(plan, _explained(plan), case.now)
    return limited(_cooled(plan, case), case.policy, case.history, case.now)


def _attempt_closed(plan: Plan, case: _Case) -> Plan | None:
    """A person's refusal ends the matter for this attempt, and so does a later attempt that completed: what a later
    verdict says informs people, who may still approve after a refusal."""
    refused = next((past for past in case.same_attempt if was_refused(past)), None)
    if refused:
        why = f"a person refused plan {refused.id} for this attempt: nothing is done without a person's approval"
        return _waiting(plan, _R.ATTEMPT_CLOSED, why, case)
    if case.history.completed > plan.attempt:
        why = f"attempt {case.history.completed} of the job completed since: nothing is left to do"
        return with_state(plan, PlanState.ADVISED, _R.ATTEMPT_CLOSED, by=DIAGNOSER, why=why, now=case.now)
    return None


def _proven(plan: Plan, case: _Case) -> Plan | None:
    """The first of the three gates before a node goes. Advice that nobody acts on stays, with the missing proof."""
    objection = trust.why_not_removable(plan, plan.allocation)
    if objection is None:
        return None
    reason, why = objection
    if reason is _R.FOREIGN_NODE:
        suspects = tuple(node for node in plan.suspects if node in plan.allocation)
        return _check_instead(replace(plan, suspects=suspects), reason, f"{why}: the job's own nodes are checked", case)
    if reason is _R.ALLOCATION_UNKNOWN:
        return _held(replace(plan, nodes=(), suspects=()), reason, why, case)  # whoever forges a launch names no node
    if plan.mode is Mode.OBSERVE:
        return _with_change(plan, why, case.now, reason)
    return _check_instead(replace(plan, unproven_suspects=plan.unproven), reason, why, case)


def _wrong_eviction(plan: Plan, case: _Case) -> Plan | None:
    last, minutes = case.last, case.policy.table.ledger.wrong_eviction_minutes
    if last is None:
        return None
    if last.state is not PlanState.REACHED:
        return None
    if not last.drained:
        return None
    if retry_history.progressed_since(plan, last):
        return None
    if case.now - last.history[-1].time > 60.0 * minutes:
        return None
    if last.check:
        drained = ", ".join(last.drained)
        return _held(plan, _R.WRONG_EVICTION, f"it failed again right after the node check took out {drained}", case)
    why = f"it failed again right after {_were(last.drained)} taken out: the nodes are checked"
    return _check_instead(plan, _R.WRONG_EVICTION, why, case)


def _same_step(plan: Plan, case: _Case) -> Plan | None:
    if case.last is None:
        return None
    if not retry_history.same_step(plan, case.last):
        return None
    why = f"it failed the same way at step {plan.progress[1]:.0f} twice: another launch would end there again"
    return _held(plan, _R.SAME_STEP, why, case)


def _retries(plan: Plan, case: _Case) -> Plan | None:
    limit = case.policy.retries(plan.row)
    if plan.relaunches is not None:
        limit = min(limit, plan.relaunches)
    of_job = retry_history.launches_of_job(plan, case.history.past)
    spent = max(
        retry_history.launches_without_progress(plan, case.earlier),
        retry_history.launches_without_progress(plan, of_job),
    )
    if spent < limit:
        return None
    why = f"{_launches(spent)} without progress since this failure; the limit is {limit}"
    return _held(plan, _R.RETRIES_SPENT, why, case)


def _repeat_eviction(plan: Plan, case: _Case) -> Plan | None:
    """Ask for repair instead of another eviction, and for a check instead of yet another launch on the same suspect."""
    limit, past = case.policy.table.ledger.node_evictions, case.history.past
    repeated = [node for node in plan.nodes if retry_history.evictions(plan, node, past) >= limit]
    if repeated:
        why = f"{_were(repeated)} taken out {limit} times or more for this failure before: repair comes first"
        return _waiting(plan, _R.NODE_AGAIN, why, case)
    if plan.action is not Action.RESUBMIT:
        return None
    if not plan.suspects:
        return None
    suspect = plan.suspects[0]
    if retry_history.seen_on(plan, suspect, past) < limit:
        return None
    why = f"{suspect} was suspected {limit} times or more for this failure before: the nodes are checked"
    return _check_instead(plan, _R.NODE_AGAIN, why, case)


def _on_probation(plan: Plan, case: _Case) -> Plan | None:
    """A node that was given back within the day and is suspected again is checked, where one alone would not be."""
    if plan.action is not Action.RESUBMIT:
        return None
    for suspect in plan.suspects:
        mark = case.history.marks.get(suspect)
        if mark is None or suspect not in plan.allocation:
            continue
        if node_returns.is_on_probation(mark, case.now):
            hours = (case.now - mark.time) / retry_history.HOUR
            why = f"{suspect} was given back {hours:.0f} h ago and is suspected again: the nodes are checked"
            return _check_instead(plan, _R.ON_PROBATION, why, case)
    return None


def _in_failing_place(plan: Plan, case: _Case) -> Plan | None:
    """Several nodes of one switch or rack are proven to be at fault within minutes: the place is checked by one plan,
    and no more of its nodes go without a person."""
    if plan.action not in CORDONS:
        return None
    about = plan.nodes or plan.suspects
    if not about:
        return None
    recent, places = _recent_of_others(case), case.history.places
    failing = set[str]()
    for old in recent:
        failing.update(proof.node for proof in old.proofs)
    place = shared_place(about[0], failing, places)
    if not place:
        return None
    seen = _seen_failing(place, failing.union(plan.nodes), places)
    if any(_checks(old, place, places) for old in recent):
        return _waiting(plan, _R.PLACE_FAILS, f"{seen}, and another plan checks it", case)
    if plan.action is Action.CHECK_AND_RESUBMIT:
        return None
    suspected = replace(plan, unproven_suspects=plan.nodes)
    return _check_instead(suspected, _R.PLACE_FAILS, f"{seen}: its nodes are checked", case)


def _recent_of_others(case: _Case) -> list[Plan]:
    """The plans of other attempts within the time in which failures of one place are one."""
    since = case.now - PLACE_SECONDS
    return [old for old in case.history.past if old.created > since and old not in case.same_attempt]


def _seen_failing(place: str, failing: Collection[str], places: Mapping[str, Sequence[str]]) -> str:
    """Say how many nodes of the place failed."""
    count = sum(place in places.get(node, ()) for node in failing)
    return f"{count} nodes of {place.replace(':', ' ')} failed within {PLACE_SECONDS / 60:.0f} minutes"


def _checks(plan: Plan, place: str, places: Mapping[str, Sequence[str]]) -> bool:
    """Tell whether a plan checks a node of the place, or did."""
    if plan.action is not Action.CHECK_AND_RESUBMIT or plan.state not in ACTING:
        return False
    return any(place in places.get(node, ()) for node in (*plan.suspects, *plan.nodes))


def _handled_by_person(plan: Plan, case: _Case) -> Plan | None:
    theirs = breaker.handled_by_people(plan.nodes, case.history, case.now, case.policy.table.ledger.person_hours)
    if not theirs:
        return None
    kinds = {mark.kind for mark in theirs.values()}
    if kinds == {NodeEventKind.CORDONED} and set(theirs) == set(plan.nodes):
        why = f"{_were(theirs)} cordoned by a person already: nothing is left to do but to launch the job again"
        return _with_change(_with_action(plan, Action.RESUBMIT), why, case.now, _R.PERSON_HANDLES_NODE)
    return _held(plan, _R.PERSON_HANDLES_NODE, f"a person is handling {', '.join(theirs)}", case)


def _requeue_cap(plan: Plan, case: _Case) -> Plan | None:
    cap = case.policy.table.ledger.requeues_per_hour
    count = retry_history.launches_last_hour(case.history.past, plan.cluster, case.now)
    if count < cap:
        return None
    return _waiting(
        plan, _R.REQUEUE_CAP, f"{_launches(count)} on {plan.cluster} within the hour; the limit is {cap}", case
    )


def _tenant_requeue_cap(plan: Plan, case: _Case) -> Plan | None:
    """Before the cluster's: one tenant's failures must not spend the launches of all."""
    cap = case.policy.table.ledger.tenant_requeues_per_hour
    own = (past for past in case.history.past if past.tenant == plan.tenant)
    count = retry_history.launches_last_hour(own, plan.cluster, case.now)
    if count < cap:
        return None
    whose = f"of tenant {plan.tenant}" if plan.tenant else "of no known tenant"
    return _waiting(plan, _R.TENANT_CAP, f"{_launches(count)} {whose} within the hour; the limit is {cap}", case)


def _hang_again(plan: Plan, case: _Case) -> Plan | None:
    """A running launch is ended without a person once an hour at most: where it hangs again, a person looks."""
    if plan.look is None:
        return None
    launched = filter(
        retry_history.has_launched, (*retry_history.launches_of_job(plan, case.history.past), *case.earlier)
    )
    if not any(past.created > case.now - retry_history.HOUR for past in launched):
        return None
    return _waiting(plan, _R.HANG_AGAIN, "it was launched again within the hour: a person looks first", case)


def _looked_at_twice(plan: Plan, case: _Case) -> Plan | None:
    """What ends a running launch without a person: two looks of agents at its ranks, which agree."""
    if plan.look is None:
        return None
    if any(past.look and plan.look.agrees_with(past.look) for past in case.same_attempt):
        return None
    why = f"agents saw {_stuck_ranks(plan.look)} stuck once: a second look has to agree"
    return _waiting(plan, _R.ONE_LOOK, why, case)


def _stuck_ranks(look: HangLook) -> str:
    ranks = ", ".join(str(rank) for rank, _ in look.suspects[:_NAMED])
    return f"rank {ranks}" if len(look.suspects) == 1 else f"ranks {ranks}"


_RAILS: tuple[_Rail, ...] = (
    _proven,
    _attempt_closed,
    _wrong_eviction,
    _same_step,
    _retries,
    _repeat_eviction,
    _on_probation,
    _in_failing_place,
    _handled_by_person,
    _tenant_requeue_cap,
    _requeue_cap,
    _hang_again,
    _looked_at_twice,
)


def limited(plan: Plan, policy: Policy, history: ClusterHistory, now: float) -> tuple[Plan, tuple[BreakerState, ...]]:
    """Stop only a plan that would act by itself: one that waits for a person still needs approval anyway."""
    if plan.action not in CORDONS:
        return plan, ()
    if plan.state is not PlanState.SENT:
        return plan, ()
    limits, waiting = policy.table.breaker, partial(with_state, plan, PlanState.WAITING, by=DIAGNOSER, now=now)
    if over := breaker.over_tenant_share(limits, plan, plan.nodes, history, now):
        return waiting(_R.TENANT_CAP, why=over), ()
    if tripped := history.open.intersection(breaker.scopes(plan)):
        return waiting(_R.BREAKER, why=f"the breaker of {', '.join(sorted(tripped))} is open"), ()
    if not plan.nodes:
        return plan, ()  # a check names its nodes later, and asks the breaker then
    trip = breaker.decide_trip(limits, plan, plan.nodes, history, now)
    if trip is None:
        return plan, ()
    return waiting(_R.BREAKER, why=trip.reason), (trip,)


def _cooled(plan: Plan, case: _Case) -> Plan:
    """No executor may begin before the cool-down after the last launch is over."""
    wait = case.policy.cool_down(plan.row)
    if case.last is None:
        return plan
    if plan.state is not PlanState.SENT:
        return plan
    free_at = case.last.created + wait
    if not wait:
        return plan
    if free_at <= case.now:
        return plan
    cooled = replace(plan, not_before=free_at, expires=plan.expires + free_at - case.now)
    why = f"waits {free_at - case.now:.0f} s more after the last launch"
    return with_note(cooled, by=DIAGNOSER, why=why, now=case.now)


def _with_change(plan: Plan, why: str, now: float, reason: PlanReason | None = None) -> Plan:
    return with_state(plan, plan.state, reason or PlanReason(plan.reason), by=DIAGNOSER, why=why, now=now)


def _explained(plan: Plan) -> str:
    return _EXPLAINED.get(plan.reason, plan.reason.replace("_", " "))


def _launches(count: int) -> str:
    return "1 launch" if count == 1 else f"{count} launches"


def _were(nodes: Collection[str]) -> str:
    return f"{', '.join(nodes)} was" if len(nodes) == 1 else f"{', '.join(nodes)} were"


def _with_action(plan: Plan, action: Action) -> Plan:
    """Give the plan another action, on no named node."""
    return replace(plan, action=action, nodes=(), key=plan_key(AttemptKey(plan.job, plan.attempt), action, ()))


def _check_instead(plan: Plan, reason: PlanReason, why: str, case: _Case) -> Plan:
    """Check the nodes before the job is launched again. The plan then names none that goes."""
    return _with_change(_with_action(plan, Action.CHECK_AND_RESUBMIT), why, case.now, reason)


def _held(plan: Plan, reason: PlanReason, why: str, case: _Case) -> Plan:
    """Keep the plan from acting, and alert people. In observe mode it was advice anyway."""
    return _stopped(plan, PlanState.HELD, reason, why, case)


def _waiting(plan: Plan, reason: PlanReason, why: str, case: _Case) -> Plan:
    return _stopped(plan, PlanState.WAITING, reason, why, case)


def _stopped(plan: Plan, state: PlanState, reason: PlanReason, why: str, case: _Case) -> Plan:
    if plan.mode is Mode.OBSERVE:
        state = PlanState.ADVISED
    return with_state(plan, state, reason, by=DIAGNOSER, why=why, now=case.now)


def _with_new_key(plan: Plan, same_attempt: Collection[Plan]) -> Plan:
    """Give the plan another key where the same plan came to nothing: an executor refused it because the job still ran,
    a diagnosis in between planned something else, or it waited for the second look that this one follows. The earlier
    one stays in the history, and the webhook gets this one too."""
    passed = {_R.STILL_RUNNING, _R.LATER_DIAGNOSIS}
    if plan.state is PlanState.SENT:
        passed.add(_R.ONE_LOOK)
    earlier = sum(past.key.startswith(plan.key) and past.reason in passed for past in same_attempt)
    return replace(plan, key=f"{plan.key}-{earlier + 1}") if earlier else plan
