"""A confirmed failure as far as a rule is written from it: its root line, what followed, and what healthy logs say.

Rules are exported and shared. So everything that may become part of one is pseudonymized first: secrets masked, hosts
by aliases.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import re2

from diagnoser.llm.question import nodes_of
from diagnoser.llm.view import Pseudonymizer
from diagnoser.model.diagnosis import LIKELY_LINE, Diagnosis
from diagnoser.model.evidence import Evidence, Line, Template
from diagnoser.model.feedback import Feedback, FeedbackVerdict, Signature
from diagnoser.model.jobs import Facts
from diagnoser.model.taxonomy import Category, FailureType, category_of
from diagnoser.model.work import DiagnosisRecord
from diagnoser.redaction.redact import Redactor
from diagnoser.retrieval import hashing, signature
from diagnoser.rules.schema import Blame, Rule, RuleSet

LONGEST = 400
"""Characters of a line that a rule is written from, and of an example."""
_MENDED, _MOST = 600, 8
_ROUTINE = 3
"""Times that a failed run must have printed a line before it counts as routine."""
_PLACEHOLDER = re.compile(r"<[a-z]+(?: [a-z]+)+>")
_HOST = re2.compile(r"\b[a-z]+(?:[-.][a-z0-9]+)*-[0-9]+[a-z0-9.-]*\b")
_VERSION = re2.compile(r"-[0-9]+\.[0-9]")
_SILENCE = Feedback("", "", 0.0, FeedbackVerdict.CONFIRMED, "")
_FOLLOWED = frozenset({"explained by the root", "came after the root"})


@dataclass(frozen=True, slots=True)
class LabelledCase:
    """A stored attempt. known_type: its cause by a person's feedback, else by the verdict. printed: a line of each
    shape that its log has, also of those of which the evidence has only a template."""

    record: DiagnosisRecord
    facts: Facts
    evidence: Evidence
    printed: tuple[str, ...] = ()

    @property
    def known_type(self) -> FailureType:
        return known_type(self.record)


@dataclass(frozen=True, slots=True)
class RuleContext:
    """What a rule is written from; all text is pseudonymized. healthy: lines of logs in which nothing was wrong.

    type: of the failure that the line shows; where it shows none, of the one that the rival takes it for.
    around: lines just before and after the root, in their order. alias: prefix of machine names. rival: the rule whose
    verdict a person corrected. benign: the run did not fail, and the line only looks like a failure.
    """

    type: FailureType
    line: str
    around: tuple[str, ...]
    healthy: tuple[str, ...]
    explains: tuple[FailureType, ...]
    blame: Blame
    mitigation: str
    alias: str
    rival: Rule | None = None
    benign: bool = False


def known_type(record: DiagnosisRecord) -> FailureType:
    """The cause as people named it last, else by the verdict; a guess names none."""
    by_rules = FailureType.UNKNOWN if record.diagnosis.is_undecided else record.diagnosis.type
    return _said_of(record).type or by_rules


def root_of(case: LabelledCase) -> Line | None:
    """The kept line that shows the cause: the one that a person named, else the verdict's but for a guess, else the
    only complaint that says something specific."""
    feedback, root = _said_of(case.record), case.record.diagnosis.root_cause
    if feedback.root_line:
        return signature.line_named(case.evidence, feedback, root)
    if root is None or case.record.diagnosis.decided_by == LIKELY_LINE:
        return _only_complaint(case.evidence)
    return signature.root_line(case.evidence, root)


def _only_complaint(evidence: Evidence) -> Line | None:
    complaints = []
    for line in signature.complaints(evidence):
        if signature.is_telling(Signature(hashing.normalised(line.body))):
            complaints.append(line)
    return complaints[0] if len(complaints) == 1 else None


def overruled(case: LabelledCase, rules: RuleSet) -> Rule | None:
    """The rule that decided the case, where a person named another cause."""
    verdict = case.record.diagnosis
    if case.known_type is verdict.type:
        return None
    for rule in rules.rules:
        if verdict.decided_by == f"rule:{rule.id}":
            return rule
    return None


def is_same_shape(here: str, there: str) -> bool:
    """Whether two lines differ only in what varies from run to run."""
    return hashing.normalised(here) == hashing.normalised(there)


def from_case(
    case: LabelledCase, root: Line, healthy: Iterable[str], redact: Redactor, rival: Rule | None = None
) -> RuleContext:
    """healthy: pseudonymized lines, in any order; those most like the root line are kept. rival: see ``overruled``."""
    pseudonyms = _pseudonymizer(case, redact)
    line = hidden(root.body, pseudonyms)
    diagnosis = case.record.diagnosis
    advice = _said_of(case.record).comment or diagnosis.mitigation
    kind, explains, benign = case.known_type, _explains(diagnosis, case.known_type, root, rival), False
    if rival and case.known_type is FailureType.COMPLETED:
        kind, explains, benign = rival.type, (), True
    return RuleContext(
        type=kind,
        line=line,
        around=tuple(hidden(neighbour.body, pseudonyms) for neighbour in _around(case.evidence.lines, root)),
        healthy=nearest(line, (*healthy, *routine(case, redact, root))),
        explains=explains,
        blame=_blame(case, root),
        mitigation=hidden(advice, pseudonyms)[:_MENDED],
        alias=pseudonyms.hosts.prefix,
        rival=rival,
        benign=benign,
    )


def routine(case: LabelledCase, redact: Redactor, root: Line | None = None) -> list[str]:
    """Lines that this run printed repeatedly, pseudonymized; of a failed run only those before its root."""
    pseudonyms = _pseudonymizer(case, redact)
    lines = []
    for template in case.evidence.templates:
        if _was_before(template, root):
            for sample in template.samples[:1]:
                lines.append(hidden(sample, pseudonyms))
    return lines


def _was_before(template: Template, root: Line | None) -> bool:
    """Whether lines of a template are routine before the root, or may come anywhere where there is none."""
    if root is None:
        return True
    if template.count < _ROUTINE:
        return False
    stream, last = template.last
    if stream != root.stream:
        return False
    return last < root.number


def hidden(text: str, pseudonyms: Pseudonymizer) -> str:
    """``text`` pseudonymized, with placeholders that are one word each. What only looks like a host is masked too.

    Masked before it is cut: half a secret no longer looks like one.
    """
    masked = _PLACEHOLDER.sub(lambda match: match.group().replace(" ", "-"), pseudonyms.hide(text))
    prefix = pseudonyms.hosts.prefix
    aliased = str(_HOST.sub(lambda match: _unnamed(match[0], prefix), masked))
    return aliased[:LONGEST].strip()


def _unnamed(word: str, prefix: str) -> str:
    if word.startswith(prefix):
        return word
    if _VERSION.search(word):
        return word
    return f"{prefix}0"


def nearest(line: str, others: Iterable[str], most: int = 3) -> tuple[str, ...]:
    """The other lines that look most like ``line``, the nearest first, without repetitions."""
    own_vector = _vector(line)
    by_shape: dict[str, str] = {}
    for text in others:
        if text == line:
            continue
        if text.strip():
            by_shape[hashing.normalised(text)] = text
    ranked = sorted(by_shape.values(), key=lambda text: (-float(_vector(text) @ own_vector), text))
    return tuple(ranked[:most])


def feedback_on(record: DiagnosisRecord) -> Feedback | None:
    """The latest feedback."""
    return next(iter(record.feedback), None)


def _said_of(record: DiagnosisRecord) -> Feedback:
    """The latest feedback; one that names nothing where there is none."""
    return feedback_on(record) or _SILENCE


def _vector(text: str) -> hashing.Vector:
    return hashing.vector({"": (hashing.normalised(text), 1.0)})


def _pseudonymizer(case: LabelledCase, redact: Redactor) -> Pseudonymizer:
    texts = [line.text for line in case.evidence.lines]
    for template in case.evidence.templates:
        texts += template.samples
    return Pseudonymizer(redact, nodes_of(case.evidence, case.facts), "\n".join(texts))


def _around(lines: Sequence[Line], root: Line) -> list[Line]:
    around = []
    for line in lines:
        if line.stream != root.stream:
            continue
        if 0 < abs(line.number - root.number) <= 10:
            around.append(line)
    return around[:20]


def _explains(diagnosis: Diagnosis, own: FailureType, root: Line, rival: Rule | None) -> tuple[FailureType, ...]:
    """List the types that came with this failure, after its root; and what the corrected rule knows to follow from its
    line.
    """
    followed = [symptom.type for symptom in diagnosis.symptoms]
    for match in diagnosis.rejected:
        if match.line <= root.number:
            continue
        if match.why in _FOLLOWED:
            followed.append(match.type)
    if cause := diagnosis.root_cause:
        if cause.line > root.number:
            followed.append(diagnosis.type)
        if rival and cause.line == root.number:
            followed += map(FailureType, filter("all".__ne__, rival.explains))
    others = dict.fromkeys(filter(_is_failure, followed))
    others.pop(own, None)
    return tuple(others)[:_MOST]


def _is_failure(kind: FailureType) -> bool:
    return category_of(kind) not in (Category.NONE, Category.UNKNOWN)


def _blame(case: LabelledCase, root: Line) -> Blame:
    """The line blames the rank that prints it only where that rank's node is known to be the culprit."""
    if category_of(case.known_type) is not Category.INFRASTRUCTURE:
        return Blame.NONE
    culprit = ""
    for suspect in case.record.diagnosis.nodes[:1]:
        culprit = suspect.node
    culprit = _said_of(case.record).node or culprit
    if not culprit:
        return Blame.NONE
    node = root.node or case.facts.job.rank_nodes.get(root.rank) or case.evidence.rank_nodes.get(root.rank)
    return Blame.SELF if node == culprit else Blame.NONE
