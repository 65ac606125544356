"""Groups findings that read the same: one failure often prints the same line on hundreds of ranks."""

from collections.abc import Iterable
from dataclasses import dataclass

from diagnoser.model import Diagnosis, Rejected, Symptom
from diagnoser.model.number_runs import runs_of
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


def not_it(verdict: Diagnosis) -> list[DiagnosisGroup]:
    """Rejected candidates by type and reason, without the symptoms."""
    symptoms = {(finding.line, finding.text) for finding in verdict.symptoms}
    return grouped(finding for finding in verdict.rejected if (finding.line, finding.text) not in symptoms)


def ranges(numbers: Iterable[int]) -> str:
    """``1, 2, 3, 7`` -> ``1-3, 7`` (with an en dash), cut after ``RANGES_SHOWN``."""
    runs = runs_of(sorted(set(numbers)))
    labels = []
    for low, high in runs[:RANGES_SHOWN]:
        labels.append(f"{low}" if low == high else f"{low}\u2013{high}")
    if len(runs) > RANGES_SHOWN:
        return f"{', '.join(labels)} and {len(runs) - RANGES_SHOWN} more"
    return ", ".join(labels)


def grouped(findings: Iterable[Symptom | Rejected]) -> list[DiagnosisGroup]:
    """By type and reason, in the order of the log."""
    groups: dict[tuple[FailureType, str], list[Symptom | Rejected]] = {}
    for finding in sorted(findings, key=lambda finding: finding.line):
        why = finding.why if isinstance(finding, Rejected) else ""
        groups.setdefault((finding.type, why), []).append(finding)
    merged = []
    for (kind, why), members in groups.items():
        lines = ranges(finding.line for finding in members if finding.line > 0)
        merged.append(DiagnosisGroup(kind, len(members), lines, members[0].text, why))
    return merged
