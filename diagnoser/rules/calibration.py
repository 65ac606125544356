"""How often a verdict of a kind was right on labelled logs: the confidence that a diagnosis states.

The table is data (``rules/calibration.yaml``), made by ``tests/accuracy_bars.py --calibrate`` and stored with its date.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from diagnoser.model import yaml_loader
from diagnoser.model.errors import RuleFaults

LEARNED = 0.9
"""A learned rule says no more than a confirmed incident does: its like was not measured on labelled logs."""
LEARNED_PREFIX = "learned_"

Probability = Annotated[float, Field(ge=0, le=1)]


class Calibration(BaseModel):
    """kinds: kind of verdict (see ``kind``) -> share that was right. floor: below it the answer is ``unknown``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    made: str
    cases: int
    floor: Probability
    default: Probability
    kinds: dict[str, Probability]

    def of(self, kind: str) -> float:
        return self.kinds.get(kind, self.default)


def bounded(sure: float, decided_by: str) -> float:
    """``sure``, or less where a learned rule decided."""
    return min(sure, LEARNED) if decided_by.startswith(f"rule:{LEARNED_PREFIX}") else sure


def load(path: str, text: str) -> Calibration:
    """Raises RuleFaults with every fault of the file."""
    table, faults = yaml_loader.read(path, text, Calibration)
    if table is None:
        raise RuleFaults(faults)
    return table


def kind(decided_by: str, role: str, specificity: int, rivals: int) -> str:
    """The bin of a verdict: who decided, in what role, how exact, and whether another root contradicts it.

    rivals: open root candidates of another type.
    """
    exact = "exact" if specificity >= 60 else "family" if specificity > 30 else "class"
    who = "rule" if decided_by.startswith("rule:") else decided_by.partition(":")[2]
    return f"{who}.{role}.{exact}.{'contested' if rivals else 'alone'}"
