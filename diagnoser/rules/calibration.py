"""How often a verdict of a kind was right on labelled logs: the confidence that a diagnosis states.

The table is data (``rules/calibration.yaml``), made by ``python -m tests.calibrate`` and stored with its date.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from diagnoser.model import yaml_loader
from diagnoser.rules.schema import Maturity, Specificity

LEARNED_PREFIX = "learned_"

Probability = Annotated[float, Field(ge=0, le=1)]


class Calibration(BaseModel):
    """kinds: kind of verdict (see ``verdict_kind``) -> share that was right. floor: below it the answer is ``unknown``.

    sandbox, learned: the highest confidence that a sandbox rule and an active learned rule may state: neither was
    measured on labelled logs, but a learned one has been confirmed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    made: str
    cases: int
    floor: Probability
    default: Probability
    sandbox: Probability
    learned: Probability
    kinds: dict[str, Probability]

    def of(self, kind: str) -> float:
        return self.kinds.get(kind, self.default)

    def bounded(self, confidence: float, decided_by: str, maturity: Maturity | None) -> float:
        """``confidence``, or less where the rule that decided was not measured."""
        if decided_by.startswith(f"rule:{LEARNED_PREFIX}"):
            return min(confidence, self.learned)
        if maturity is Maturity.SANDBOX:
            return min(confidence, self.sandbox)
        return confidence


def load(path: str, text: str) -> Calibration:
    """Raises RuleFaults with every fault of the file."""
    table, faults = yaml_loader.read(path, text, Calibration)
    return yaml_loader.sound(table, faults)


def verdict_kind(decided_by: str, role: str, specificity: Specificity, rivals: int) -> str:
    """The bin of a verdict: who decided, in which role, how exactly, and whether another root contradicts it.

    rivals: open root candidates of another type.
    """
    decider, _, name = decided_by.partition(":")
    if decider != "rule":
        decider = name
    return f"{decider}.{role}.{specificity.name.lower()}.{'contested' if rivals else 'alone'}"
