"""`python -m tests.calibrate DATE`: writes `rules/calibration.yaml` anew from the labelled logs.

Rules are written with the labelled logs in sight, so their share of right verdicts there is better than elsewhere. A
second, pessimistic sample corrects for that: each case whose deciding rule decides no other case is diagnosed once more
without that rule. A kind's confidence is the smoothed share over both samples.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import ClassVar

import yaml

from diagnoser import evaluation, pipeline
from diagnoser.evaluation import Label
from diagnoser.model import Evidence, Facts
from diagnoser.pipeline import Knowledge
from diagnoser.rules.confidence import Calibration
from diagnoser.rules.engine import Engine, Hit
from tests import bars
from tests.corpus import CORPUS

TABLE = Path(__file__).resolve().parents[1] / "rules" / "calibration.yaml"
FLOOR, FEW = 0.3, 8
"""Confidence below which the answer is unknown; how many cases of the mean smooth a kind that was seldom seen."""
HEAD = "# Share of right verdicts by kind of verdict on the labelled logs; made by `python -m tests.calibrate`.\n"


class _Recording(Calibration):
    """Notes which kind of verdict each diagnosis was."""

    asked: ClassVar[list[str]] = []

    def of(self, kind: str) -> float:
        self.asked.append(kind)
        return self.default


class _Without(Engine):
    """An engine that may be told to forget one rule."""

    forgotten = ""

    def match(self, evidence: Evidence) -> tuple[Hit, ...]:
        return tuple(hit for hit in super().match(evidence) if f"rule:{hit.rule.id}" != self.forgotten)


@dataclass(frozen=True, slots=True)
class _Sample:
    label: Label
    kind: str
    by: str
    right: bool


def main(date: str) -> None:
    reader = bars.load()
    engine = _Without(reader.knowledge.engine.ruleset)
    recording = _Recording(made=date, cases=0, floor=0.0, default=1.0, kinds={})
    knowledge = replace(reader.knowledge, engine=engine, calibration=recording)
    logs = [
        (label, reader.read(BytesIO((CORPUS / folder / f"{label.id}.log").read_bytes())).evidence())
        for folder in bars.FOLDERS
        for label in bars.labels(folder)
    ]
    first = [_sample(knowledge, label, evidence) for label, evidence in logs]
    samples = [*first, *_again(knowledge, engine, logs, first)]
    TABLE.write_text(HEAD + yaml.safe_dump(_table(date, len(first), samples), sort_keys=False), "utf-8")


def _again(
    knowledge: Knowledge, engine: _Without, logs: list[tuple[Label, Evidence]], first: list[_Sample]
) -> Iterator[_Sample]:
    decided = Counter(sample.by for sample in first)
    for (label, evidence), sample in zip(logs, first, strict=True):
        alone = sample.by.startswith("rule:") and decided[sample.by] == 1
        engine.forgotten = sample.by if alone else ""
        yield _sample(knowledge, label, evidence)


def _sample(knowledge: Knowledge, label: Label, evidence: Evidence) -> _Sample:
    diagnosis = pipeline.diagnose(evidence, Facts(), knowledge)
    return _Sample(label, _Recording.asked[-1], diagnosis.decided_by, evaluation.judge(label, diagnosis).type)


def _table(date: str, cases: int, samples: list[_Sample]) -> dict[str, object]:
    kinds: dict[str, list[bool]] = defaultdict(list)
    for sample in samples:
        kinds[sample.kind].append(sample.right)
    mean = sum(sample.right for sample in samples) / len(samples)
    return {
        "made": date,
        "cases": cases,
        "floor": FLOOR,
        "default": round(mean, 3),
        "kinds": {kind: round(_smoothed(right, mean), 3) for kind, right in sorted(kinds.items())},
    }


def _smoothed(right: list[bool], mean: float) -> float:
    """As if ``FEW`` more cases had come out like the mean of all kinds."""
    return (sum(right) + FEW * mean) / (len(right) + FEW)


if __name__ == "__main__":
    main(sys.argv[1])
