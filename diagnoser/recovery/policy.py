"""The policy table: verdict -> action, mode and reason. The first row that applies decides; ``explain`` says why."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Literal, TypeVar

from pydantic import Field, StringConstraints

from diagnoser.model import (
    WAITING_RANKS,
    Advice,
    AttemptKey,
    Diagnosis,
    HangLook,
    Mode,
    Plan,
    PlanReason,
    PlanState,
    Rollback,
    StuckPlace,
    yaml_loader,
)
from diagnoser.model.errors import Fault
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome, category_of
from diagnoser.model.yaml_loader import StrictModel
from diagnoser.recovery.breaker import BreakerLimits
from diagnoser.recovery.plan_states import RUNNABLE

T = TypeVar("T")


class PolicyCondition(StrictModel):
    """Conditions of a row; one that is not given always holds."""

    types: tuple[FailureType, ...] = ()
    categories: tuple[Category, ...] = ()
    node: Literal["named", "unnamed"] | None = None
    confidence_min: Annotated[float, Field(ge=0, le=1)] = 0.0
    confidence_below: Annotated[float, Field(ge=0, le=1)] | None = None
    maturity: Literal["sandbox", "stable"] | None = None
    hinted: tuple[Action, ...] = ()
    stuck: StuckPlace | None = None
    labels: dict[str, tuple[str, ...]] = Field(default_factory=dict)


_Minutes = Annotated[float, Field(ge=0)]


class PolicyRow(StrictModel):
    id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]
    when: PolicyCondition
    action: Action | Literal["hinted"]
    mode: Mode | None = None
    retries: Annotated[int, Field(ge=0)] | None = None
    cool_down_minutes: _Minutes | None = None


class PolicyDefaults(StrictModel):
    """Defaults of the rows."""

    mode: Mode = Mode.OBSERVE
    expires_minutes: Annotated[int, Field(ge=1)] = 60
    retries: Annotated[int, Field(ge=0)] = 3
    cool_down_minutes: _Minutes = 0


class RetryPolicy(StrictModel):
    """Rails on launching again."""

    node_evictions: Annotated[int, Field(ge=1)] = 2
    requeues_per_hour: Annotated[int, Field(ge=1)] = 30
    tenant_requeues_per_hour: Annotated[int, Field(ge=1)] = 10
    wrong_eviction_minutes: _Minutes = 30
    person_hours: Annotated[float, Field(ge=0)] = 24


class NodeCheckPolicy(StrictModel):
    """Time that one all-gather of the node check may take."""

    timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 180


class PolicyTable(StrictModel):
    version: Literal[1]
    defaults: PolicyDefaults
    ledger: RetryPolicy = RetryPolicy()
    breaker: BreakerLimits = BreakerLimits()
    check: NodeCheckPolicy = NodeCheckPolicy()
    rows: Annotated[tuple[PolicyRow, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class PolicyCase:
    """Facts that the table looks at.

    stable, sandbox: maturity of the deciding rule; both false without one. hint: the action that it asks for, if any.
    stuck: what agents saw stuck in a run that hangs. labels: of the job.
    """

    type: FailureType
    category: Category
    confidence: float
    node_named: bool
    stable: bool
    hint: Action | None = None
    sandbox: bool = False
    stuck: StuckPlace | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


def case_of(diagnosis: Diagnosis, labels: Mapping[str, str] | None = None) -> PolicyCase:
    """Pick what the table looks at of a diagnosis that is stored or printed.

    That is what the rules say where a judged failure decided and left the action to them.
    """
    grounds = diagnosis.grounds
    if diagnosis.precedent and diagnosis.precedent.keeps_action:
        before = diagnosis.precedent.before
        diagnosis = replace(
            diagnosis, type=before.type, category=category_of(before.type), confidence=before.confidence
        )
    return PolicyCase(
        type=diagnosis.type,
        category=diagnosis.category,
        confidence=diagnosis.confidence,
        node_named=grounds.node_named,
        stable=grounds.stable,
        sandbox=grounds.sandbox,
        hint=grounds.hint,
        stuck=grounds.stuck,
        labels=labels or {},
    )


@dataclass(frozen=True)
class Policy:
    """A validated policy table. ``hash`` names exactly this table."""

    table: PolicyTable
    hash: str

    def advise(self, case: PolicyCase) -> Advice:
        row = next(row for row in self.table.rows if not _why_not(row.when, case))
        if row.action == "hinted":
            return Advice(case.hint or Action.NONE, row.id)
        return Advice(row.action, row.id)

    def explain(self, case: PolicyCase) -> list[tuple[str, str]]:
        """Give each row up to the one that applies, with why it does not hold ("" for the one that does)."""
        reasons = []
        for row in self.table.rows:
            why = _why_not(row.when, case)
            reasons.append((row.id, why))
            if not why:
                break
        return reasons

    def plan(
        self,
        id: str,
        attempt: AttemptKey,
        diagnosis: Diagnosis,
        now: float,
        mode: Mode | None = None,
        *,
        is_running: bool = False,
    ) -> Plan | None:
        """Make the plan for a diagnosis, None when nothing is to be done. ``id`` must be new.

        mode: overrides the table's. is_running: nobody said that the attempt has ended.
        """
        action = diagnosis.recovery.action
        if action is Action.NONE:
            return None
        suspects = tuple(suspect.node for suspect in diagnosis.nodes)
        nodes: tuple[str, ...] = ()
        rollback = None
        if action is Action.CORDON_AND_RESUBMIT:
            nodes = suspects[:1]
        if action is Action.ROLLBACK_AND_RESUBMIT:
            rollback = diagnosis.rollback
        plan = Plan(
            id=id,
            key=plan_key(attempt, action, nodes),
            job=attempt.job,
            attempt=attempt.number,
            action=action,
            nodes=nodes,
            mode=Mode.OBSERVE,
            state=PlanState.ADVISED,
            reason="",
            created=now,
            expires=now + 60.0 * self.table.defaults.expires_minutes,
            row=diagnosis.recovery.reason,
            suspects=suspects,
            rollback=rollback,
            look=_look(diagnosis) if is_running else None,
        )
        chosen = mode_for(diagnosis, mode or self.mode(plan.row), is_running=is_running)
        return in_mode(plan, chosen)

    def retries(self, row_id: str) -> int:
        """Count how often a job may be launched again after the same failure without progress."""
        return _or_default(self._row_by_id(row_id).retries, self.table.defaults.retries)

    def cool_down(self, row_id: str) -> float:
        """Seconds between two launches after the same failure."""
        minutes = self._row_by_id(row_id).cool_down_minutes
        return 60.0 * _or_default(minutes, self.table.defaults.cool_down_minutes)

    @property
    def acts(self) -> bool:
        """Whether any row lets a plan act without a person."""
        return any(self.mode(row.id) is Mode.ACT for row in self.table.rows)

    def mode(self, row_id: str) -> Mode:
        return _or_default(self._row_by_id(row_id).mode, self.table.defaults.mode)

    def _row_by_id(self, row_id: str) -> PolicyRow:
        """A row that leaves all to the defaults where the table has none of this id (any more)."""
        return next((row for row in self.table.rows if row.id == row_id), _NO_ROW)


_NO_ROW = PolicyRow(id="none", when=PolicyCondition(), action=Action.NONE)


def _or_default(value: T | None, default: T) -> T:
    return value if value is not None else default


_INITIAL = {
    Mode.OBSERVE: (PlanState.ADVISED, PlanReason.OBSERVE),
    Mode.APPROVE: (PlanState.WAITING, PlanReason.NEEDS_APPROVAL),
    Mode.ACT: (PlanState.SENT, PlanReason.ACT),
}


def mode_for(diagnosis: Diagnosis, mode: Mode, *, is_running: bool) -> Mode:
    """Choose ``mode``, or a milder one: what follows from a model's word, from dumps of ranks, or from the silence of a
    running attempt waits for a person. Unless agents saw who holds up the others: then a second look decides."""
    if mode is not Mode.ACT:
        return mode
    decider = diagnosis.decided_by
    if diagnosis.precedent:
        decider = diagnosis.precedent.before.decided_by
    if decider.startswith("llm:"):
        return Mode.APPROVE
    if is_running and diagnosis.outcome is Outcome.HUNG:
        return Mode.ACT if _look(diagnosis) else Mode.APPROVE
    if decider == WAITING_RANKS:
        return Mode.APPROVE
    return Mode.ACT


def _look(diagnosis: Diagnosis) -> HangLook | None:
    """What agents saw of a run that hangs, for a later look to agree with."""
    if diagnosis.hang is None or diagnosis.outcome is not Outcome.HUNG:
        return None
    return diagnosis.hang.look


def in_mode(plan: Plan, mode: Mode) -> Plan:
    """A new plan in the state its mode begins with. An action that only a person can take never waits for approval."""
    state, reason = _INITIAL[mode]
    if plan.action not in RUNNABLE:
        state, reason = PlanState.ADVISED, PlanReason.FOR_A_PERSON
    return replace(plan, mode=mode, state=state, reason=reason.value)


def load(path: str, text: str) -> Policy:
    """Read the policy of a file. Raises RuleFaults with every fault."""
    table = yaml_loader.load(path, text, PolicyTable, partial(_table_faults, path, text))
    return Policy(table, hashlib.sha256(text.encode()).hexdigest()[:16])


def _table_faults(path: str, text: str, table: PolicyTable) -> list[Fault]:
    faults, seen = [], set[str]()
    for index, row in enumerate(table.rows):
        if row.id in seen:
            faults.append(Fault(path, yaml_loader.locate(text, "rows", index), f"row '{row.id}' appears twice"))
        if row.action == "hinted" and not row.when.hinted:
            faults.append(
                Fault(path, yaml_loader.locate(text, "rows", index), f"row '{row.id}' needs a condition 'hinted'")
            )
        seen.add(row.id)
    if table.rows[-1].when != PolicyCondition():
        line, why = yaml_loader.locate(text, "rows", len(table.rows) - 1), "so that every verdict has an action"
        faults.append(Fault(path, line, f"the last row must hold always (when: {{}}), {why}"))
    return faults


def _why_not(when: PolicyCondition, case: PolicyCase) -> str:
    """Say the first condition that does not hold; "" when all hold."""
    return next((why for holds, why in _conditions(when, case) if not holds), "")


def _conditions(when: PolicyCondition, case: PolicyCase) -> Iterator[tuple[bool, str]]:
    """Whether each condition of a row holds, and what is otherwise where it does not. What a row leaves out holds."""
    if when.types:
        yield case.type in when.types, f"type is {case.type}"
    if when.categories:
        yield case.category in when.categories, f"category is {case.category}"
    named = "named" if case.node_named else "unnamed"
    yield when.node in (None, named), f"the node is {named}"
    sure = f"confidence {case.confidence:.2f} is"
    yield case.confidence >= when.confidence_min, f"{sure} below {when.confidence_min:.2f}"
    if when.confidence_below is not None:
        yield case.confidence < when.confidence_below, f"{sure} not below {when.confidence_below:.2f}"
    maturities = {None: True, "stable": case.stable, "sandbox": case.sandbox}
    yield maturities[when.maturity], f"the verdict does not come from a {when.maturity} rule"
    if when.hinted:
        yield case.hint in when.hinted, f"the rule asks for {case.hint or 'nothing'}"
    yield when.stuck in (None, case.stuck), f"agents saw {case.stuck or 'nothing'} stuck"
    for label, values in when.labels.items():
        yield case.labels.get(label) in values, f"label {label} is {case.labels.get(label, 'not set')}"


def plan_key(attempt: AttemptKey, action: Action, nodes: tuple[str, ...], rollback: Rollback | None = None) -> str:
    """Name the same attempt, action, nodes and checkpoint alike: an open plan gives way where another is chosen."""
    parts = [attempt.job, str(attempt.number), action, *nodes]
    if rollback and rollback.checkpoint:
        parts.append(rollback.checkpoint)
    return "plan-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
