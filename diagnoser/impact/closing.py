"""Says of a failure whether it was dealt with without a person, and otherwise what a person was needed for."""

from collections.abc import Mapping
from enum import StrEnum

from diagnoser.model import AttemptOutcome, Mode, PlanReason, PlanState
from diagnoser.model.taxonomy import Category


class Closing(StrEnum):
    """How a failure ended, or why it took a person."""

    AUTOMATIC = "automatic"  # the plan was carried out, and never waited for anybody
    POLICY = "policy"  # the policy advises only, or asks for approval
    NO_PROOF = "no_proof"  # nothing proves that the node is at fault
    UNKNOWN = "unknown"  # the cause is not known, or nothing was planned
    REPAIR = "repair"  # only a person can repair it: an error in the script, a broken machine
    GUARDRAIL = "guardrail"  # retries spent, the breaker, a cap, a person at work on the node
    NOT_REACHED = "not_reached"  # it was tried and did not work, or nobody carried it out in time
    OPEN = "open"  # it failed less than a day ago, and its job is not launched again yet


CLOSING_WORDS: Mapping[Closing, str] = {
    Closing.AUTOMATIC: "without a person",
    Closing.POLICY: "the policy asks for a person",
    Closing.NO_PROOF: "nothing proves that the node is at fault",
    Closing.UNKNOWN: "the cause is not known",
    Closing.REPAIR: "only a person can repair it",
    Closing.GUARDRAIL: "a guardrail stopped the plan",
    Closing.NOT_REACHED: "the plan was not carried out",
    Closing.OPEN: "still open",
}

_R, _C = PlanReason, Closing
_BY_REASON: Mapping[str, Closing] = {
    **dict.fromkeys((_R.OBSERVE, _R.NEEDS_APPROVAL), _C.POLICY),
    **dict.fromkeys((_R.FOREIGN_NODE, _R.ONE_LOOK, _R.ALLOCATION_UNKNOWN), _C.NO_PROOF),
    **dict.fromkeys((_R.UNPROVEN, _R.SUSPECTED_AGAIN, _R.NOT_CONFIRMED), _C.NO_PROOF),
    _R.FOR_A_PERSON: _C.REPAIR,
    **dict.fromkeys((_R.SAME_STEP, _R.RETRIES_SPENT, _R.NODE_AGAIN, _R.REQUEUE_CAP, _R.PLACE_FAILS), _C.GUARDRAIL),
    **dict.fromkeys((_R.WRONG_EVICTION, _R.BREAKER, _R.TENANT_CAP, _R.HANG_AGAIN), _C.GUARDRAIL),
    **dict.fromkeys((_R.PERSON_HANDLES_NODE, _R.BAD_CHECKPOINT, _R.ON_PROBATION), _C.GUARDRAIL),
    **dict.fromkeys((_R.ATTEMPT_CLOSED, _R.STILL_RUNNING), _C.GUARDRAIL),
}
"""What a reason says by itself. The others tell how a plan went on, not why a person was needed."""
_MAY_MOVE = frozenset[str | None]({PlanState.WAITING, PlanState.SENT, None})


def closing_of(outcome: AttemptOutcome, *, is_down: bool) -> Closing:
    """Classify a failure. is_down: it failed less than a day ago, and its job is not launched again yet."""
    if outcome.state == PlanState.REACHED and not outcome.has_waited:
        return Closing.AUTOMATIC
    if is_down and outcome.state in _MAY_MOVE:
        return Closing.OPEN
    if outcome.category == Category.UNKNOWN:
        return Closing.UNKNOWN
    if outcome.state is None:
        return Closing.UNKNOWN
    return _need(outcome)


def _need(outcome: AttemptOutcome) -> Closing:
    """Say what a person was needed for where the plan was not carried out by itself."""
    if outcome.is_vouched:
        return Closing.NO_PROOF
    by_reason = _BY_REASON.get(outcome.reason or "")
    if by_reason:
        return by_reason
    if not outcome.has_waited:
        return Closing.NOT_REACHED
    if outcome.mode == Mode.ACT:
        return Closing.GUARDRAIL  # the policy would have acted: something else made it wait
    return Closing.POLICY
