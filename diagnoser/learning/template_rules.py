"""A rule from the shape of one line: what varies becomes a wildcard, what is said stays. Pure, and without a model."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from diagnoser.learning.rule_context import RuleContext
from diagnoser.model import Signature, expressions
from diagnoser.model.errors import BadInput
from diagnoser.retrieval import hashing, signature
from diagnoser.rules.schema import Match, Maturity, Role, Rule, Specificity

_LENGTH, _ANCHOR = 240, 60
_LEAST_ANCHOR = 6
_BESIDE = 20
"""Lines within which the neighbour of a root must stand."""
_FALLBACK = "all ranks finished the step"

# What varies from run to run -> what takes its place. Order matters: a path holds numbers.
_VARYING: tuple[tuple[str, str], ...] = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?", r"\S+(?: \S+)?"),
    (r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?", r"[\d:.,]+"),
    (r"[a-z][a-z0-9+.-]*://[^\s'\"]+", r"[^\s'\"]+"),
    (r"<[a-z-]+>", r"\S+"),
    (r"(?:/[\w.@+=~<>-]+){2,}/?", r"[^\s'\":]+"),
    (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", r"[0-9a-fA-F-]+"),
    (r"\b0x[0-9a-fA-F]+\b|\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}\b", r"[0-9a-fA-Fx]+"),
    (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b", r"[\w.:-]+"),
    (r"\b[a-z]+(?:[-.][a-z0-9]+)*-\d+[a-z0-9.-]*\b", r"[\w.:-]+"),
    (r"\d+(?:\.\d+)*", r"[\d.]+"),
)
_SPLIT = re.compile("|".join(f"({pattern})" for pattern, _ in _VARYING))
_CODED = re.compile(r"(?i)(?:errno|error|err|code|status|s?xid|signal|exit|rc|ret|returned)[ :=(#\[]*$")
"""Words before a number that says what went wrong: such a number stays in the pattern."""
_SPECIAL = re.compile(r"([\\.^$|()\[\]{}*+?])")
_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True, slots=True)
class RuleDraft:
    """What a writer decides about a rule; the rest follows from its context."""

    title: str
    anchors: tuple[str, ...]
    patterns: tuple[str, ...]
    unless: tuple[str, ...] = ()
    mitigation: str = ""
    near: "Neighbour | None" = None


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A line beside the root that tells its failure from others with the same message. pattern: of its shape."""

    text: str
    pattern: str


def from_shape(context: RuleContext) -> RuleDraft | None:
    """None where the line says nothing specific.

    Where the line reads as the examples of the rule that a person corrected, a line beside it must be there as well.
    """
    shape = _shape(context.line)
    if shape is None:
        return None
    title, anchor, pattern = shape
    near = _neighbour(context, pattern)
    return RuleDraft(title[:120], (anchor,), (pattern,), mitigation=context.mitigation, near=near)


def _shape(line: str) -> tuple[str, str, str] | None:
    """(words, anchor, pattern) of a line, None where it says nothing specific."""
    parts = _parts(line[:_LENGTH])
    words, literals, pattern = "", list[str](), ""
    for text, wild in parts:
        if wild:
            words, pattern = words + "...", pattern + wild
        else:
            literals.append(text)
            words, pattern = words + text, pattern + re.sub(r"\s+", r"\\s+", _SPECIAL.sub(r"\\\1", text))
    anchor = max(map(_anchor, literals), key=worth, default="")
    if len(anchor) < _LEAST_ANCHOR:
        return None
    if not worth(anchor)[0]:
        return None
    if not signature.is_telling(Signature(" ".join(literals))):
        return None
    return " ".join(words.split()), anchor, pattern


def _neighbour(context: RuleContext, pattern: str) -> Neighbour | None:
    """The most telling line beside the root, where only the surroundings can narrow the corrected rule."""
    if context.rival is None:
        return None
    if not any(_hits(pattern, text) for text in example_lines(context.rival)):
        return None
    usual = set(map(hashing.normalised, (context.line, *context.healthy)))
    neighbour, most = None, (-1, -1)
    for text in context.around:
        shape = _shape(text)
        if shape is None:
            continue
        if hashing.normalised(text) in usual:
            continue
        _, anchor, beside_pattern = shape
        if worth(anchor) > most:
            neighbour, most = Neighbour(text, beside_pattern), worth(anchor)
    return neighbour


def example_lines(rule: Rule) -> list[str]:
    """The lines in which a rule must hit, by its own examples."""
    lines = list[str]()
    for text in example_texts(rule):
        lines += text.split("\n")
    return lines


def example_texts(rule: Rule) -> list[str]:
    return [example.text if isinstance(example, Match) else example for example in rule.examples.match]


def rule_text(id: str, context: RuleContext, draft: RuleDraft) -> str:
    """The rule file. Role, maturity, type and examples are not the writer's to choose."""
    rule: dict[str, Any] = {
        "id": id,
        "title": draft.title,
        "type": str(context.type),
        "role": str(Role.BENIGN if context.benign else Role.ROOT),
        "blame": str(context.blame),
        "maturity": str(Maturity.SANDBOX),
        "anchors": list(draft.anchors),
        "patterns": list(draft.patterns),
        "unless": list(draft.unless),
        "near": {"patterns": [draft.near.pattern], "lines": _BESIDE} if draft.near else "",
        "explains": list(map(str, context.explains)),
        "overrides": [context.rival.id] if context.rival else [],
        "specificity": Specificity.MESSAGE.name.lower(),
        "mitigation": draft.mitigation or _mitigation(context),
        "examples": {
            "match": [_example(context.line, draft.near)],
            "no_match": list(_counter_examples(context, draft.patterns)),
        },
    }
    fields = {name: value for name, value in rule.items() if value not in ([], "")}
    return str(yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=110))


def _mitigation(context: RuleContext) -> str:
    if context.benign:
        return f"A person said that this line is no failure ({context.type}): nothing is to be done."
    return f"A person named this line as the cause ({context.type}): look at it first."


def _example(line: str, near: Neighbour | None) -> str:
    if near is None:
        return line
    return f"{near.text}\n{line}"


def _counter_examples(context: RuleContext, patterns: Sequence[str]) -> tuple[str, ...]:
    """Healthy lines that look alike and do not match. One that does match is not hidden here: the gates report it."""
    unmatched = tuple(text for text in context.healthy if not any(_hits(pattern, text) for pattern in patterns))
    return unmatched or (_FALLBACK,)


def _hits(pattern: str, text: str) -> bool:
    try:
        return expressions.compiled(pattern).search(text) is not None
    except BadInput:
        return False


def _parts(line: str) -> list[tuple[str, str]]:
    """(text, what takes its place or "" where it stays), without what varies at both ends."""
    parts: list[tuple[str, str]] = []
    end = 0
    for match in _SPLIT.finditer(line):
        if match.lastindex == len(_VARYING) and _CODED.search(line[: match.start()]):
            continue
        if match.start() > end:
            parts.append((line[end : match.start()], ""))
        parts.append((match.group(), _VARYING[(match.lastindex or 1) - 1][1]))
        end = match.end()
    parts.append((line[end:], ""))
    worded = []
    for number, (text, wild) in enumerate(parts):
        if wild:
            continue
        if _WORD.search(text):
            worded.append(number)
    if not worded:
        return []
    core = parts[worded[0] : worded[-1] + 1]
    core[0] = (core[0][0].lstrip(" ])>}:-|,."), core[0][1])
    core[-1] = (core[-1][0].rstrip(" [(<{:-|,"), core[-1][1])
    return core


def _anchor(text: str) -> str:
    """The part of a literal piece that every line must contain: without digits, in whole words."""
    best = max(map(str.strip, re.split(r"\d+|\s{2,}", text)), key=worth)
    if len(best) <= _ANCHOR:
        return best
    return best[:_ANCHOR].rpartition(" ")[0] or best[:_ANCHOR]


def worth(text: str) -> tuple[int, int]:
    """Measure how specific an anchor is: words that not every failure prints, then its length."""
    own_words = 0
    for word in _WORD.findall(text.casefold()):
        if len(word) > 2:
            own_words += word not in signature.COMMON
    return own_words, len(text)
