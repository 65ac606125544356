"""What is learned from a confirmed failure without a model: ``python -m tools.bench.learning``.

Of each labelled case the shipped rule that decides it is taken away, the cause is confirmed with its line, and a rule
is written from the shape of that line. It must decide its case, and hit no healthy log and no case of another type.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from diagnoser.accuracy.scoring import Label
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.learning import rule_context, template_rules, validation
from diagnoser.learning.rule_context import LabelledCase
from diagnoser.model import AttemptKey, Evidence, Facts, Feedback, FeedbackVerdict
from diagnoser.model.taxonomy import Category, FailureType, category_of
from diagnoser.model.work import DiagnosisRecord
from diagnoser.redaction.redact import redact
from diagnoser.rules.engine import Engine
from diagnoser.rules.schema import Rule, RuleSet
from tests import accuracy_bars
from tests.corpus import CORPUS

FOLDER = "dev"


@dataclass(frozen=True, slots=True)
class Learned:
    """One case and the rule that came of it. rule: None where the line says too little."""

    label: Label
    rule: Rule | None
    decides: bool = False


def learned(analyzer: LogAnalyzer, label: Label, evidence: Evidence) -> Learned | None:
    """None where there is no cause, or no kept line that shows it."""
    kind = FailureType(label.type)
    root = next((line.number for line in evidence.lines if line.number in label.root_lines), None)
    if root is None or category_of(kind) in (Category.NONE, Category.UNKNOWN):
        return None
    known = analyzer.diagnose_with_node_logs(evidence, Facts()).decided_by
    left = _with(analyzer, [rule for rule in analyzer.knowledge.engine.ruleset.rules if f"rule:{rule.id}" != known])
    said = Feedback("", "", 0.0, FeedbackVerdict.CORRECTED, "label", kind, root)
    verdict = left.diagnose_with_node_logs(evidence, Facts())
    case = LabelledCase(DiagnosisRecord("", AttemptKey("j"), 1, 0.0, True, verdict, None, (said,)), Facts(), evidence)
    line = rule_context.root_of(case)
    assert line is not None, "a kept line has that number"
    given = rule_context.from_case(case, line, (), redact)
    draft = template_rules.from_shape(given)
    if draft is None:
        return Learned(label, None)
    _, ruleset = validation.compiles("learned_it", template_rules.rule_text("learned_it", given, draft), label.type)
    if ruleset is None or not validation.specific(ruleset.rules[0], line.body).passed:
        return Learned(label, None)
    (rule,) = ruleset.rules
    told = _with(left, [*left.knowledge.engine.ruleset.rules, rule]).diagnose_with_node_logs(evidence, Facts())
    return Learned(label, rule, told.decided_by == "rule:learned_it")


def _with(analyzer: LogAnalyzer, rules: Sequence[Rule]) -> LogAnalyzer:
    return replace(analyzer, knowledge=replace(analyzer.knowledge, engine=Engine(RuleSet(tuple(rules), ""))))


def count(
    found: Sequence[Learned], cases: Sequence[tuple[Label, Evidence]], healthy: Sequence[Evidence]
) -> Counter[str]:
    """Rules by what became of them, and the other cases of their type that those which pass would know."""
    counted: Counter[str] = Counter(cases=len(found))
    for one in found:
        if one.rule is None:
            continue
        rule, own = one.rule, one.label
        hit = [label for label, evidence in cases if label.id != own.id and validation.hits(rule, evidence)]
        clean = not any(validation.hits(rule, evidence) for evidence in healthy)
        others = any(label.type != own.type for label in hit)
        passes = one.decides and clean and not others
        counted.update(
            written=1,
            decide=one.decides,
            hit_healthy=not clean,
            hit_other_types=others,
            **{"pass": passes, "know_another": passes and bool(hit)},
        )
    return counted


def main() -> int:
    if not CORPUS.is_dir():
        print("labelled logs absent: nothing to measure")  # noqa: T201
        return 0
    analyzer = accuracy_bars.load()
    cases = [(label, _read(analyzer, CORPUS / FOLDER / f"{label.id}.log")) for label in accuracy_bars.labels(FOLDER)]
    healthy = [_read(analyzer, log) for log in sorted((CORPUS / "normal").glob("*.log"))]
    found = [one for label, evidence in cases if (one := learned(analyzer, label, evidence))]
    told = ", ".join(f"{name} {number}" for name, number in count(found, cases, healthy).items())
    print(f"{told}; {len(healthy)} healthy logs")  # noqa: T201
    return 0


def _read(analyzer: LogAnalyzer, log: Path) -> Evidence:
    with log.open("rb") as opened:
        return analyzer.read(opened).evidence


if __name__ == "__main__":
    sys.exit(main())
