"""Self-consistency: several answers to one question, and a verdict only where two agree (Wang et al., ICLR 2023)."""

from collections.abc import Sequence

from diagnoser.llm.evidence import Checked

SAMPLES = 3
"""Most answers that are asked for."""
AGREE = 2
"""Answers that must name the same type and node."""


def agreed(answers: Sequence[Checked]) -> tuple[Checked, ...]:
    """The answers to the first claim (type and node) that enough of them share; () while there is none."""
    for answer in answers:
        agreeing = tuple(other for other in answers if _claim(other) == _claim(answer))
        if len(agreeing) >= AGREE:
            return agreeing
    return ()


def answers_wanted(answers: Sequence[Checked], asked: int) -> int:
    """How many more samples to ask for: 0 once two agree, or when two can no longer agree."""
    if agreed(answers):
        return 0
    if not asked:
        return AGREE
    more = SAMPLES - asked
    return min(1, more) if len(answers) + more >= AGREE else 0


def split(answers: Sequence[Checked]) -> str:
    """What the answers say, for the person who has to decide: ``gpu_lost on gpu-3; network_error``."""
    claims = dict.fromkeys(_claim(answer) for answer in answers)
    return "; ".join(f"{kind} on {node}" if node else str(kind) for kind, node in claims)


def _claim(checked: Checked) -> tuple[str, str | None]:
    return checked.answer.type, checked.answer.node
