"""What a proposed rule must stand before anybody sees it: pure tests, each with what it found.

A rule can change a verdict only where it hits. So history is held against its hits, and replayed only where there are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.learning import rule_registry, template_rules
from diagnoser.learning.rule_context import LabelledCase, is_same_shape
from diagnoser.model import Diagnosis, Evidence, Line, Signature, Stream, ValidationResult
from diagnoser.model.errors import RuleFaults
from diagnoser.model.taxonomy import Category, FailureType, category_of
from diagnoser.model.work import DiagnosisRecord
from diagnoser.retrieval import signature
from diagnoser.rules.engine import Engine
from diagnoser.rules.examples import check
from diagnoser.rules.schema import Maturity, Role, Rule, RuleSet

_SHOWN = 160
_NO_FAILURE = frozenset({Category.NONE, Category.UNKNOWN})


class ValidationCheck(StrEnum):
    COMPILES = "compiles"
    SPECIFIC = "specific"
    EXAMPLES = "its_examples"
    OWN_CASE = "own_case"
    SHIPPED = "examples_of_other_rules"
    HEALTHY = "healthy_logs"
    OTHERS = "other_types"
    REPLAY = "confirmed_cases"


def compiles(id: str, text: str, kind: str, rival: Rule | None = None) -> tuple[ValidationResult, RuleSet | None]:
    """Check that the rule file is valid and claims no more than a learned rule may.

    rival: the one rule that it may override.
    """
    try:
        ruleset = rule_registry.parse(text)
    except RuleFaults as faults:
        return ValidationResult(ValidationCheck.COMPILES, False, "; ".join(map(str, faults.faults))[:500]), None
    (rule,) = ruleset.rules
    wrong = list(_overreach(rule, id, kind, rival))
    if wrong:
        return ValidationResult(ValidationCheck.COMPILES, False, "; ".join(wrong)), None
    return ValidationResult(ValidationCheck.COMPILES, True, "a rule file, RE2, with anchors and examples"), ruleset


def _overreach(rule: Rule, id: str, kind: str, rival: Rule | None) -> Iterator[str]:
    yield from _wrong_nature(rule, id, kind, rival)
    if kind == FailureType.COMPLETED and not _narrows(rule, rival):
        yield "a learned rule for a line that is no failure only narrows the rule that took it for one"
    if "all" in rule.explains:
        yield "a learned rule does not explain everything"
    if set(rule.overrides) - ({rival.id} if rival else set()):
        yield "a learned rule overrides only the rule whose verdict was corrected"


def _narrows(rule: Rule, rival: Rule | None) -> bool:
    if rival is None:
        return False
    return bool(rule.overrides)


def _wrong_nature(rule: Rule, id: str, kind: str, rival: Rule | None) -> Iterator[str]:
    role, wanted = Role.ROOT, kind
    if rival and kind == FailureType.COMPLETED:
        role, wanted = Role.BENIGN, rival.type
    if (rule.id, rule.type) != (id, wanted):
        yield f"must be {id} for {wanted}"
    if (rule.role, rule.maturity, rule.action) != (role, Maturity.SANDBOX, None):
        yield f"a learned rule is a {role} in sandbox, without an action of its own"


def specific(rule: Rule, line: str) -> ValidationResult:
    """The words must decide: on a line reduced to an anchor the rule must not hit, unless the anchor says enough."""
    for anchor in rule.anchors:
        if not template_rules.worth(anchor)[0]:
            why = f"the anchor {anchor!r} has only words that any failure prints"
            return ValidationResult(ValidationCheck.SPECIFIC, False, why)
    for anchor in rule.anchors:
        if signature.is_telling(Signature(anchor)):
            continue
        if _hits(Engine(RuleSet((rule,), "")), (_only(anchor, line),)):
            why = f"the pattern takes any line that holds {anchor!r}"
            return ValidationResult(ValidationCheck.SPECIFIC, False, why)
    return ValidationResult(ValidationCheck.SPECIFIC, True, "anchors and patterns name what this failure says")


def _only(anchor: str, line: str) -> str:
    """The line with every letter outside the anchor replaced by q; the anchor alone where the line lacks it."""
    head, _, tail = line.partition(anchor)
    return _blank(head) + anchor + _blank(tail)


def _blank(text: str) -> str:
    return "".join("q" if char.isalpha() else char for char in text)


def its_examples(ruleset: RuleSet, analyzer: LogAnalyzer) -> ValidationResult:
    """The rule passes its own examples as every rule file must, after the compressor ran with the rule's anchors."""
    faults = check(Engine(ruleset), analyzer.with_rules(ruleset).evidence_of)
    why = "; ".join(fault.message for fault in faults)
    return ValidationResult(ValidationCheck.EXAMPLES, not faults, why or "all examples hold")


def own_case(rule: Rule, root: Line, verdict: Diagnosis) -> ValidationResult:
    """verdict: on the rule's own case, with the rule in force. Any line of the root's shape is as good: other ranks
    print the same."""
    if rule.role is Role.BENIGN and category_of(verdict.type) in _NO_FAILURE:
        return ValidationResult(ValidationCheck.OWN_CASE, True, "no failure is left in its case")
    why = f"its case is decided by {verdict.decided_by} as {verdict.type}"
    if cause := verdict.root_cause:
        right = (verdict.type, verdict.decided_by) == (rule.type, f"rule:{rule.id}")
        if right and is_same_shape(cause.text, root.text):
            return ValidationResult(ValidationCheck.OWN_CASE, True, f"decides its case by line {cause.line}")
        why += f" at line {cause.line}"
    return ValidationResult(ValidationCheck.OWN_CASE, False, why)


def shipped_examples(rule: Rule, bodies: Sequence[tuple[str, Evidence]]) -> ValidationResult:
    """bodies: examples of other rules and filters, each with the id of its rule. A rule for a line that is no failure
    takes none, not even from the rule that it narrows: that would put it out of force."""
    engine, may_take = Engine(RuleSet((rule,), "")), rule.overrides
    if rule.role is Role.BENIGN:
        may_take = ()
    taken = 0
    for name, evidence in bodies:
        if not engine.match(evidence):
            continue
        if name not in may_take:
            return ValidationResult(ValidationCheck.SHIPPED, False, f"hits an example of {name}")
        taken += 1
    if not rule.overrides:
        return ValidationResult(ValidationCheck.SHIPPED, True, f"no hit in {len(bodies)} examples")
    whose, own = ", ".join(rule.overrides), sum(name in rule.overrides for name, _ in bodies)
    why = f"no hit in {len(bodies) - own} examples of others; takes {taken} of {own} from {whose}"
    return ValidationResult(ValidationCheck.SHIPPED, True, why)


def foreign_examples(analyzer: LogAnalyzer, rule: Rule) -> list[tuple[str, Evidence]]:
    """Examples that this rule must not hit: what filters know as routine, counter-examples of the site's rules, and
    their examples of other types. Those of a rule that it overrides it may hit, but not its counter-examples."""
    cases = [(f"the filter {name}", _evidence((text,))) for name, text in analyzer.filters.examples]
    for other in analyzer.knowledge.engine.ruleset.rules:
        if not _may_share_examples(rule, other):
            for text in template_rules.example_texts(other):
                cases.append((other.id, _evidence(text.split("\n"))))
        against = f"{other.id}, one against it" if other.id in rule.overrides else other.id
        for text in other.examples.no_match:
            cases.append((against, _evidence(text.split("\n"))))
    return cases


def _may_share_examples(rule: Rule, other: Rule) -> bool:
    """Whether a rule may hit what another one is for: both name the same failure."""
    if other.type is not rule.type:
        return False
    return Role.BENIGN not in (other.role, rule.role)


def hits(rule: Rule, evidence: Evidence) -> list[str]:
    """Lines of a log that the rule hits, including routine ones, of which only samples are kept."""
    samples = list[str]()
    for template in evidence.templates:
        samples += (template.text, *template.samples)
    engine = Engine(RuleSet((rule,), ""))
    return _lines_hit(engine, evidence) + _hits(engine, samples)


def _hits(engine: Engine, texts: Sequence[str]) -> list[str]:
    return _lines_hit(engine, _evidence(texts))


def _lines_hit(engine: Engine, evidence: Evidence) -> list[str]:
    return [evidence.lines[hit.line].text for hit in engine.match(evidence)]


def _survived(rule: Rule, evidence: Evidence, root: Line) -> int:
    """Number of a line like the root that was followed by further steps of the training, 0 where there is none."""
    last = max((point.line for point in evidence.progress if point.line < root.number), default=0)
    engine = Engine(RuleSet((rule,), ""))
    for hit in engine.match(evidence):
        if evidence.lines[hit.line].number < last:
            return evidence.lines[hit.line].number
    for template in evidence.templates:
        stream, number = template.first
        if stream != root.stream:
            continue
        if number >= last:
            continue  # no step of the training came after it
        if _hits(engine, (template.text, *template.samples)):
            return number
    return 0


def _evidence(texts: Sequence[str]) -> Evidence:
    return Evidence(tuple(Line(Stream(), number, text, text) for number, text in enumerate(texts, 1)))


@dataclass(slots=True)
class RuleHistory:
    """Counts what a rule does to stored attempts, one by one.

    disputed: attempts that only the overridden rule decided.
    """

    rule: Rule
    diagnose: Callable[[LabelledCase, bool], Diagnosis]
    healthy: int = 0
    others: int = 0
    confirmed: int = 0
    improved: int = 0
    disputed: int = 0
    against: dict[ValidationCheck, str] = field(default_factory=dict)

    def own(self, case: LabelledCase, root: Line) -> None:
        """Its own case before it failed: what the run printed and then trained on is printed in health."""
        if self.rule.role is Role.BENIGN:
            return
        if number := _survived(self.rule, case.evidence, root):
            self._fail(ValidationCheck.HEALTHY, f"its own run printed such a line ({number}) and trained on")

    def completed(self, case: LabelledCase) -> None:
        self.healthy += 1
        if self.rule.role is not Role.BENIGN:  # what a healthy run prints is no failure, as the rule says
            self._expect_no_hit(ValidationCheck.HEALTHY, case)

    def of_other_type(self, case: LabelledCase) -> None:
        """What the overridden rule said, and no person confirmed, is what is in dispute."""
        if self._is_in_dispute(case.record):
            self.disputed += bool(hits(self.rule, case.evidence))
            return
        self.others += 1
        if self.rule.role is Role.BENIGN:
            self._expect_same(ValidationCheck.OTHERS, case)
        else:
            self._expect_no_hit(ValidationCheck.OTHERS, case)

    def _is_in_dispute(self, record: DiagnosisRecord) -> bool:
        if record.feedback:
            return False
        return record.diagnosis.decided_by.removeprefix("rule:") in self.rule.overrides

    def a_confirmed(self, case: LabelledCase) -> None:
        self.confirmed += 1
        self._expect_same(ValidationCheck.REPLAY, case)

    def _expect_same(self, gate: ValidationCheck, case: LabelledCase) -> None:
        """The verdict with and without the rule; a change counts as good only if it yields the known type."""
        if not hits(self.rule, case.evidence):
            return
        before, after = self.diagnose(case, False), self.diagnose(case, True)
        if (before.type, before.root_cause) == (after.type, after.root_cause):
            return
        if _is_right(after, case) and not _is_right(before, case):
            self.improved += 1
            return
        self._fail(gate, f"{_name(case)} would become {after.type} instead of {before.type}")

    def gates(self) -> tuple[ValidationResult, ...]:
        passes = {
            ValidationCheck.HEALTHY: f"no hit in {self.healthy} completed attempts",
            ValidationCheck.OTHERS: f"no hit in {self.others} attempts of other types",
            ValidationCheck.REPLAY: f"no verdict of {self.confirmed} confirmed cases gets worse",
        }
        if self.disputed:
            passes[ValidationCheck.OTHERS] += f"; {self.disputed} that nobody judged would change"
        if self.improved:
            passes[ValidationCheck.REPLAY] += f", {self.improved} become right"
        results = []
        for gate, reason in passes.items():
            results.append(ValidationResult(gate, gate not in self.against, self.against.get(gate, reason)))
        return tuple(results)

    def _expect_no_hit(self, gate: ValidationCheck, case: LabelledCase) -> None:
        if lines := hits(self.rule, case.evidence) or _hits(Engine(RuleSet((self.rule,), "")), case.printed):
            self._fail(gate, f"hits {_name(case)}: {lines[0][:_SHOWN]}")

    def _fail(self, gate: ValidationCheck, reason: str) -> None:
        self.against.setdefault(gate, reason)


def _is_right(verdict: Diagnosis, case: LabelledCase) -> bool:
    """A run that did not fail is right where no failure is named."""
    if case.known_type is FailureType.COMPLETED:
        return category_of(verdict.type) in _NO_FAILURE
    return verdict.type is case.known_type


def _name(case: LabelledCase) -> str:
    return f"{case.record.attempt.job}/{case.record.attempt.number} ({case.known_type})"


def passed(gates: Sequence[ValidationResult]) -> bool:
    return all(gate.passed for gate in gates)


def masked(gates: Sequence[ValidationResult], mask: Callable[[str], str]) -> tuple[ValidationResult, ...]:
    return tuple(replace(gate, reason=mask(gate.reason)) for gate in gates)
