"""Groups findings that read the same: one failure often prints the same line on hundreds of ranks."""

from collections.abc import Iterable
from dataclasses import dataclass

from diagnoser.model import Diagnosis, Rejected, Symptom
from diagnoser.model.taxonomy import FailureType

RANGES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class DiagnosisGroup:
    """Findings of one type and reason. text: the first of them. lines: their numbers, as ``25-38, 50``."""

    type: FailureType
    count: int
    lines: str
    text: str
    why: str = ""


def followed(verdict: Diagnosis) -> list[DiagnosisGroup]:
    """Symptoms of the root cause by type, in the order of the log."""
    return _grouped(verdict.symptoms)


def not_it(verdict: Diagnosis) -> list[DiagnosisGroup]:
    """Rejected candidates by type and reason, without the symptoms."""
    symptoms = {(one.line, one.text) for one in verdict.symptoms}
    return _grouped(one for one in verdict.rejected if (one.line, one.text) not in symptoms)


def ranges(numbers: Iterable[int]) -> str:
    """``1, 2, 3, 7`` -> ``1-3, 7`` (with an en dash), cut after ``RANGES_SHOWN``."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    shown = [f"{low}" if low == high else f"{low}\u2013{high}" for low, high in found[:RANGES_SHOWN]]
    return ", ".join(shown) + (f" and {len(found) - RANGES_SHOWN} more" if len(found) > RANGES_SHOWN else "")


def _grouped(found: Iterable[Symptom | Rejected]) -> list[DiagnosisGroup]:
    groups: dict[tuple[FailureType, str], list[Symptom | Rejected]] = {}
    for one in sorted(found, key=lambda one: one.line):
        groups.setdefault((one.type, one.why if isinstance(one, Rejected) else ""), []).append(one)
    return [
        DiagnosisGroup(kind, len(members), ranges(one.line for one in members), members[0].text, why)
        for (kind, why), members in groups.items()
    ]
