"""`python -m tests.calibrate DATE`: writes `rules/calibration.yaml` anew from the labelled logs.

Rules are written with the labelled logs in sight, so their share of right verdicts there is better than elsewhere. A
second, pessimistic sample corrects for that: each case whose deciding rule decides cases of one source only (a folder
and a framework) is diagnosed once more without that rule, as a case of a new source would be that nobody wrote a rule
for. A kind's confidence is the smoothed share over both samples, the second one counted twice.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import ClassVar

import yaml

from diagnoser.accuracy import scoring
from diagnoser.accuracy.scoring import Label
from diagnoser.diagnosis import pipeline
from diagnoser.diagnosis.pipeline import RuleKnowledge
from diagnoser.model import Evidence, Facts
from diagnoser.rules.calibration import Calibration
from diagnoser.rules.engine import Engine, Hit
from tests import accuracy_bars
from tests.corpus import CORPUS
from tools.real_runs import measure
from tools.real_runs.cases import read_labels

TABLE = Path(__file__).resolve().parents[1] / "rules" / "calibration.yaml"
FLOOR, FEW, HEURISTIC, NOTHING, SANDBOX, LEARNED = 0.3, 8, 0.7, 0.1, 0.5, 0.9
"""Confidence below which the answer is unknown; how many cases of the prior smooth a kind that was seldom seen;
the priors of heuristics and of verdicts that nothing was found; what a sandbox rule (untested: even odds) and a learned
one (as much as a confirmed failure) may say at most."""
MOST_SURE = 0.99
"""Some hundred logs do not prove more."""
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
    source: tuple[str, str]


def main(date: str) -> None:
    analyzer = accuracy_bars.load()
    engine = _Without(analyzer.knowledge.engine.ruleset)
    recording = _Recording(made=date, cases=0, floor=0.0, default=1.0, sandbox=1.0, learned=1.0, kinds={})
    knowledge = replace(analyzer.knowledge, engine=engine, calibration=recording)
    logs = [
        (folder.name, label, analyzer.read(BytesIO((folder / f"{label.id}.log").read_bytes())).evidence)
        for folder in (*(CORPUS / name for name in accuracy_bars.FOLDERS), measure.SAMPLES)
        for label in map(scoring.label_of, read_labels(folder))
    ]
    first = [_sample(knowledge, *log) for log in logs]
    again = list(_again(knowledge, engine, logs, first))
    samples = [*first, *again, *again]
    TABLE.write_text(HEAD + yaml.safe_dump(_table(date, len(first), samples), sort_keys=False), "utf-8")


def _again(
    knowledge: RuleKnowledge, engine: _Without, logs: list[tuple[str, Label, Evidence]], first: list[_Sample]
) -> Iterator[_Sample]:
    sources: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for sample in first:
        sources[sample.by].add(sample.source)
    for log, sample in zip(logs, first, strict=True):
        alone = sample.by.startswith("rule:") and len(sources[sample.by]) == 1
        engine.forgotten = sample.by if alone else ""
        yield _sample(knowledge, *log)


def _sample(knowledge: RuleKnowledge, folder: str, label: Label, evidence: Evidence) -> _Sample:
    diagnosis = pipeline.diagnose(evidence, Facts(), knowledge)
    right, source = scoring.score_case(label, diagnosis).type, (folder, label.origin.get("framework", ""))
    return _Sample(label, _Recording.asked[-1], diagnosis.decided_by, right, source)


def _table(date: str, cases: int, samples: list[_Sample]) -> dict[str, object]:
    kinds: dict[str, list[bool]] = defaultdict(list)
    for sample in samples:
        kinds[sample.kind].append(sample.right)
    mean = sum(sample.right for sample in samples) / len(samples)
    priors = {"rule": mean, "no": NOTHING}
    return {
        "made": date,
        "cases": cases,
        "floor": FLOOR,
        "default": round(mean, 3),
        "sandbox": SANDBOX,
        "learned": LEARNED,
        "kinds": {
            kind: min(MOST_SURE, round(_smoothed(right, priors.get(re.split(r"[._]", kind)[0], HEURISTIC)), 3))
            for kind, right in sorted(kinds.items())
        },
    }


def _smoothed(right: list[bool], prior: float) -> float:
    """As if ``FEW`` more cases had come out like the prior: the mean for rules, a cautious guess for heuristics."""
    return (sum(right) + FEW * prior) / (len(right) + FEW)


if __name__ == "__main__":
    main(sys.argv[1])
