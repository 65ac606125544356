"""Self-consistency: a verdict only where two answers name the same type (Wang et al., ICLR 2023).

Where they do not, or where they contradict the rules, equal samples say little: one more question shows the claims with
their lines and asks to choose.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from diagnoser.llm.evidence import Checked
from diagnoser.model.taxonomy import FailureType

NameT = TypeVar("NameT", str, int)

SAMPLES = 3
"""Most answers to the first question that are asked for."""
AGREE = 2
"""Answers that must name the same type. Nodes may differ: what they do not share is left out."""


def agreed(answers: Sequence[Checked]) -> tuple[Checked, ...]:
    """The answers to the first type that enough of them share; () while there is none."""
    for answer in answers:
        agreeing = of_type(answers, answer.answer.type)
        if len(agreeing) >= AGREE:
            return agreeing
    return ()


def of_type(answers: Sequence[Checked], kind: FailureType) -> tuple[Checked, ...]:
    return tuple(answer for answer in answers if answer.answer.type is kind)


def answers_wanted(answers: Sequence[Checked], asked: int) -> int:
    """Say how many more samples to ask for: 0 once there are two usable ones, or when there can no longer be."""
    if not asked:
        return AGREE
    missing = AGREE - len(answers)
    if missing > SAMPLES - asked:
        return 0
    return max(0, missing)


def shared(names: Iterable[NameT | None]) -> NameT | None:
    """The name that answers give, where all that give one give the same."""
    given = {name for name in names if name is not None}
    return given.pop() if len(given) == 1 else None


def split(answers: Sequence[Checked]) -> str:
    """What the answers say, for the person who has to decide: ``gpu_lost on gpu-3; network_error``."""
    claims: dict[str, None] = {}
    for checked in answers:
        kind, node = checked.answer.type, checked.answer.node
        claims[f"{kind} on {node}" if node else str(kind)] = None
    return "; ".join(claims)
