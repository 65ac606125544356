"""What a learned Filter Rule must stand. First each pattern alone, for a rule is as good as the patterns that are left;
then the rule, against everything that is known to matter. Pure.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any

import re2

from diagnoser.compress import Digest, learned_filters, parse_filters
from diagnoser.compress.learned_filters import Known
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.model import Anchor, Facts, Mark, ValidationResult
from diagnoser.model.errors import RuleFaults
from diagnoser.model.taxonomy import Category, category_of
from diagnoser.rules.schema import Match, Role, RuleSet

MOST = 24
"""Patterns of one rule."""
_LONGEST = 400
_WORD = re.compile(r"[^\W\d_]+")
_OPEN = re.compile(r"\.[*+]|\[\\s\\S\][*+]|\.\{\d*,\d*\}")
_OTHER_DIGITS = str.maketrans("0123456789", "7418529630")
_SHOWN = 120


class Test(StrEnum):
    """The gates, in their order."""

    COMPILES = "compiles"
    OWN_LINES = "own_lines"
    ANCHORED = "anchored_lines"
    ROOTS = "root_lines"
    SHIPPED = "examples_of_other_rules"
    FAMILY = "logs_of_the_family"


def fault(pattern: str, lines: Sequence[str]) -> str:
    """Why a pattern cannot be used for any of these lines, or ""."""
    if not 0 < len(pattern) <= _LONGEST:
        return f"has {len(pattern)} characters"
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        return f"not an RE2 expression: {error}"[:200]

    def hits(text: str) -> bool:
        return compiled.search(text) is not None

    own = [line for line in lines if hits(line)]
    if not own:
        return "matches none of the lines that it is written for"
    if any(not hits(line.translate(_OTHER_DIGITS)) for line in own):
        return "depends on certain numbers"
    return _vague(pattern, own, hits)


def _vague(pattern: str, own: Iterable[str], hits: Callable[[str], bool]) -> str:
    """A pattern must ask for words of its line: two of them, and one in its second half where it takes anything."""
    for line in own:
        words = list(_WORD.finditer(line))
        if any(hits(_only(line, [word])) for word in words) or hits(_only(line, [])):
            return "takes lines that share one word with it"
        if _OPEN.search(pattern) and len(words) > 1 and hits(_only(line, words[: len(words) // 2])):
            return "takes whatever follows its first words"
    return ""


def _only(line: str, kept: Sequence[re.Match[str]]) -> str:
    """The line with all letters but those of the kept words made meaningless."""
    spans = [word.span() for word in kept]
    return "".join(
        char if not char.isalpha() or any(low <= at < high for low, high in spans) else "q"
        for at, char in enumerate(line)
    )


def read(id: str, text: str) -> Known:
    """The rule of a file. Raises RuleFaults, also where the file holds anything else."""
    found = parse_filters({f"{id}.yaml": text})
    return Known(id, tuple(pattern for _, pattern in found.patterns))


def compiles(id: str, text: str) -> tuple[ValidationResult, Known | None]:
    try:
        rule = read(id, text)
    except RuleFaults as faults:
        return ValidationResult(Test.COMPILES, False, "; ".join(map(str, faults.faults))[:500]), None
    if not 0 < len(rule.patterns) <= MOST:
        return ValidationResult(Test.COMPILES, False, f"{len(rule.patterns)} patterns"), None
    return ValidationResult(Test.COMPILES, True, f"{len(rule.patterns)} patterns in RE2, with examples that hold"), rule


def own_lines(rule: Known, lines: Sequence[str]) -> ValidationResult:
    """Each pattern is still right by itself, and the rule knows some of its lines."""
    wrong = [f"{pattern[:_SHOWN]} {why}" for pattern in rule.patterns if (why := fault(pattern, lines))]
    count = sum(map(rule.takes, lines))
    return ValidationResult(
        Test.OWN_LINES, not wrong and count > 0, "; ".join(wrong) or f"knows {count} of {len(lines)} lines"
    )


def roots(rule: Known, lines: Sequence[str]) -> ValidationResult:
    """lines: root lines of verdicts and what people named."""
    return _untouched(Test.ROOTS, rule, lines, "root lines of stored verdicts")


def shipped(rule: Known, ruleset: RuleSet) -> ValidationResult:
    """What the rules are proven by is never routine."""
    texts = [
        line
        for one in ruleset.rules
        if one.role is not Role.BENIGN and category_of(one.type) is not Category.NONE
        for match in one.examples.match
        for line in (match.text if isinstance(match, Match) else match).split("\n")
    ]
    return _untouched(Test.SHIPPED, rule, texts, "lines of examples")


def anchored(rule: Known, digests: Sequence[Digest], holds: Callable[[str], bool]) -> ValidationResult:
    """No line of the family's logs that carries an anchor or a word of trouble, or stands in a traceback.

    holds: whether a message carries an anchor, also one that no rule matches as it stands.
    """
    lines = [line.body for digest in digests for line in digest.lines if line.mark >= Mark.SEVERITY]
    for digest in digests:
        texts = [text for stat in digest.delta.shapes.values() for text in learned_filters.samples(stat)]
        lines += [text for text in texts if rule.takes(text) and holds(text)]
    return _untouched(Test.ANCHORED, rule, lines, "lines that say something by themselves")


def carries(anchors: tuple[Anchor, ...], text: str) -> bool:
    """Whether a message holds the literal of any anchor."""
    return _literals(anchors).search(text) is not None


@lru_cache(maxsize=4)
def _literals(anchors: tuple[Anchor, ...]) -> Any:
    options = re2.Options()
    options.max_mem = 64 << 20
    return re2.compile("|".join(re2.escape(anchor.text) for anchor in anchors) or r"[^\s\S]", options)


def family(rule: Known, changed: Sequence[str], logs: int) -> ValidationResult:
    """changed: attempts of the family whose verdict becomes another one with the rule in force."""
    why = f"changes the verdict of {', '.join(changed)}" if changed else f"no verdict of {logs} attempts changes"
    return ValidationResult(Test.FAMILY, not changed, why)


def same_verdict(reader: LogAnalyzer, digest: Digest, rules: Sequence[Known], facts: Facts) -> bool:
    """Whether a log is diagnosed alike with the rules in force."""
    before = reader.diagnose(digest.evidence(), facts)
    after = reader.diagnose(type(digest)(learned_filters.known(digest.delta, rules)).evidence(), facts)
    told = [(one.outcome, one.type, one.root_cause, one.recovery, one.nodes) for one in (before, after)]
    return told[0] == told[1]


def _untouched(test: Test, rule: Known, lines: Sequence[str], what: str) -> ValidationResult:
    hit = next((line for line in lines if rule.takes(line)), None)
    return ValidationResult(test, hit is None, f"hits {hit[:_SHOWN]}" if hit else f"no hit in {len(lines)} {what}")
