"""The policy table: verdict -> action, mode and reason. The first row that applies decides, and can explain itself."""

import hashlib
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from diagnoser import documents
from diagnoser.errors import Fault, RuleFaults
from diagnoser.model import Advice, AttemptKey, Diagnosis, Mode, Plan, PlanState
from diagnoser.taxonomy import Action, Category, FailureType


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class When(_Strict):
    """Conditions of a row; an absent one holds."""

    types: tuple[FailureType, ...] = ()
    categories: tuple[Category, ...] = ()
    node: Literal["named", "unnamed"] | None = None
    confidence_min: Annotated[float, Field(ge=0, le=1)] = 0.0
    maturity: Literal["stable"] | None = None
    hinted: tuple[Action, ...] = ()


class Row(_Strict):
    id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]
    when: When
    action: Action | Literal["hinted"]
    mode: Mode | None = None


class Defaults(_Strict):
    mode: Mode = Mode.OBSERVE
    expires_minutes: Annotated[int, Field(ge=1)] = 60


class Table(_Strict):
    version: Literal[1]
    defaults: Defaults
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Case:
    """What the table looks at. hint: the action that the deciding rule asks for, if any."""

    type: FailureType
    category: Category
    confidence: float
    node_named: bool
    stable: bool
    hint: Action | None = None


@dataclass(frozen=True)
class Policy:
    """A policy table that is known to be whole. ``hash`` names exactly this table."""

    table: Table
    hash: str

    def advise(self, case: Case) -> Advice:
        row = self._row(case)
        action = case.hint if row.action == "hinted" else row.action
        return Advice(action or Action.NONE, row.id)

    def explain(self, case: Case) -> list[tuple[str, str]]:
        """Each row up to the one that applies, with why it does not hold ("" for the one that does)."""
        told = []
        for row in self.table.rows:
            why = _why_not(row.when, case)
            told.append((row.id, why))
            if not why:
                break
        return told

    def plan(self, id: str, attempt: AttemptKey, diagnosis: Diagnosis, now: float) -> Plan | None:
        """The plan for a diagnosis, None when nothing is to be done. ``id`` must be new."""
        action = diagnosis.recovery.action
        if action is Action.NONE:
            return None
        nodes = tuple(suspect.node for suspect in diagnosis.nodes[:1]) if action is Action.CORDON_AND_RESUBMIT else ()
        mode = self._mode(diagnosis.recovery.reason)
        states = {Mode.OBSERVE: PlanState.ADVISED, Mode.APPROVE: PlanState.WAITING, Mode.ACT: PlanState.SENT}
        return Plan(
            id=id,
            key=_plan_key(attempt, action, nodes),
            job=attempt.job,
            attempt=attempt.number,
            action=action,
            nodes=nodes,
            mode=mode,
            state=states[mode],
            reason=diagnosis.recovery.reason,
            created=now,
            expires=now + 60.0 * self.table.defaults.expires_minutes,
        )

    def _row(self, case: Case) -> Row:
        return next(row for row in self.table.rows if not _why_not(row.when, case))

    def _mode(self, row_id: str) -> Mode:
        row = next((row for row in self.table.rows if row.id == row_id), None)
        return (row.mode if row else None) or self.table.defaults.mode


def load(path: str, text: str) -> Policy:
    """The policy of a file. Raises RuleFaults with every fault."""
    table, faults = documents.read(path, text, Table)
    if table is not None:
        faults += _table_faults(path, text, table)
    if table is None or faults:
        raise RuleFaults(faults)
    return Policy(table, hashlib.sha256(text.encode()).hexdigest()[:16])


def _table_faults(path: str, text: str, table: Table) -> list[Fault]:
    faults, seen = [], set[str]()
    for index, row in enumerate(table.rows):
        if row.id in seen:
            faults.append(Fault(path, documents.locate(text, "rows", index), f"row '{row.id}' appears twice"))
        if row.action == "hinted" and not row.when.hinted:
            faults.append(
                Fault(path, documents.locate(text, "rows", index), f"row '{row.id}' needs a condition 'hinted'")
            )
        seen.add(row.id)
    if table.rows[-1].when != When():
        at = documents.locate(text, "rows", len(table.rows) - 1)
        faults.append(Fault(path, at, "the last row must hold always (when: {}), so that every verdict has an action"))
    return faults


def _why_not(when: When, case: Case) -> str:
    """The first condition that does not hold, in words; "" when all hold."""
    named = "named" if case.node_named else "unnamed"
    checks = (
        (not when.types or case.type in when.types, f"type is {case.type}"),
        (not when.categories or case.category in when.categories, f"category is {case.category}"),
        (when.node is None or when.node == named, f"the node is {named}"),
        (
            case.confidence >= when.confidence_min,
            f"confidence {case.confidence:.2f} is below {when.confidence_min:.2f}",
        ),
        (when.maturity is None or case.stable, "the verdict does not come from a stable rule"),
        (not when.hinted or case.hint in when.hinted, f"the rule asks for {case.hint or 'nothing'}"),
    )
    return next((why for holds, why in checks if not holds), "")


def _plan_key(attempt: AttemptKey, action: Action, nodes: tuple[str, ...]) -> str:
    text = "\0".join((attempt.job, str(attempt.number), action, *nodes))
    return "plan-" + hashlib.sha256(text.encode()).hexdigest()[:24]
