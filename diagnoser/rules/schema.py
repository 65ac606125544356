"""The shape of a rule file, `rules/<category>/<id>.yaml`, and the set made of all of them.

Path and content agree (as in Sigma and semgrep-rules): the folder is the category of the type, the file name is the id.
A rule and its proof are one thing: examples of both kinds are mandatory.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import cached_property
from itertools import chain
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, StringConstraints

from diagnoser.model import Anchor, expressions, yaml_loader
from diagnoser.model.errors import Fault, RuleFaults
from diagnoser.model.taxonomy import Action, FailureType, category_of
from diagnoser.model.yaml_loader import Model, StrictModel

PatternText = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
_DIGITS = str.maketrans("", "", "0123456789")
_GROUPS = ("rank", "node", "gpu")
_TYPES = tuple(FailureType)


SeverityName = Literal["debug", "info", "warning", "error", "critical", "none"]


class Role(StrEnum):
    """What a matching line is in the story of a failure."""

    ROOT = "root"  # can be the cause itself
    SYMPTOM = "symptom"  # what other ranks or layers print because of a cause; root only when nothing explains it
    WRAPPER = "wrapper"  # repeats or carries an inner error (elastic summary, CalledProcessError around a launcher)
    TEARDOWN = "teardown"  # printed while the job is being taken down
    BENIGN = "benign"  # looks like an error and is none


class Blame(StrEnum):
    """Whom the line speaks of."""

    SELF = "self"  # the rank and node that print it
    PEER = "peer"  # the other side, named by the line or not
    NONE = "none"  # nobody by itself
    ALL = "all"  # something shared: storage, a service, the script


class Specificity(IntEnum):
    """How exactly a line names its failure; rule files write the names in lower case."""

    WORD = 1  # words that many failures share, or any exception of a class that says nothing
    CLASS = 2  # the class of an exception and nothing of its message
    FAMILY = 3  # one of many messages of one kind
    MESSAGE = 4  # one message of one program
    CODE = 5  # a message with an error code or proper name that means this and nothing else


def _level(name: object) -> Specificity:
    levels = {level.name.lower(): level for level in Specificity}
    if name not in levels:
        raise ValueError(f"must be one of {', '.join(levels)}")
    return levels[str(name)]


class Maturity(StrEnum):
    """How far a rule is trusted. It has no default: whoever writes a rule says so."""

    SANDBOX = "sandbox"  # on trial: names a cause with low confidence and leads to no action but a notice
    STABLE = "stable"


class Match(StrictModel):
    """A log excerpt (one or more lines) in which the rule must hit, and what it must extract."""

    text: PatternText
    rank: int | None = None
    node: str | None = None
    gpu: str | None = None


class RuleExamples(StrictModel):
    match: Annotated[tuple[PatternText | Match, ...], Field(min_length=1)]
    no_match: Annotated[tuple[PatternText, ...], Field(min_length=1)]


class TextExamples(StrictModel):
    """Lines that the patterns of a table's row must match, and lines that they must not."""

    match: Annotated[tuple[PatternText, ...], Field(min_length=1)]
    no_match: Annotated[tuple[PatternText, ...], Field(min_length=1)]


class PatternRow(StrictModel):
    """A row of a table of patterns, with its proof."""

    patterns: Annotated[tuple[PatternText, ...], Field(min_length=1)]
    examples: TextExamples


class Near(StrictModel):
    """A condition on the surroundings: some kept line within ``lines`` lines before or after matches a pattern."""

    patterns: Annotated[tuple[PatternText, ...], Field(min_length=1)]
    lines: Annotated[int, Field(ge=1, le=1000)] = 50


_Watched = tuple[tuple[str, ...], tuple[str, ...], bool]
Lists = Mapping[str, tuple[FailureType, ...]]
"""Named lists of types that ``explains`` may name."""


class _ListFile(StrictModel):
    version: Literal[1]
    lists: dict[Annotated[str, StringConstraints(pattern=r"^[a-z_]+$")], tuple[FailureType, ...]]


class Rule(StrictModel):
    """One family of messages.

    anchors: literals; a line without any of them cannot match (the compressor's gate looks for them).
    patterns: RE2, any of them, searched in the line's body (no terminal codes, no launcher prefixes). Named groups
        ``rank``, ``node`` and ``gpu`` are extracted.
    unless: RE2 searched in the same body; one hit vetoes the match.
    frames: RE2; the line must belong to a traceback one of whose ``File "...", line N, in f`` frames matches.
    near, not_near: conditions on the lines around.
    severity: levels, one of which the program must give the record of the line; ``none``: the line is of no record.
    explains: types that this failure causes elsewhere in the same attempt, or ``all``. A file may also name lists of
        ``explains.yaml``; ``load`` replaces them by their types.
    overrides: ids of rules that do not decide where this one hits: neither on its line nor as another cause.
    specificity: the more exact of two matches on one line wins, as does the more exact of two roots at one time.
    action: what to do, when it differs from what the policy table says for the type.
    """

    id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]
    title: PatternText
    type: FailureType
    role: Role
    blame: Blame = Blame.NONE
    maturity: Maturity
    anchors: Annotated[tuple[PatternText, ...], Field(min_length=1)]
    patterns: Annotated[tuple[PatternText, ...], Field(min_length=1)]
    unless: tuple[PatternText, ...] = ()
    frames: tuple[PatternText, ...] = ()
    near: Near | None = None
    not_near: Near | None = None
    severity: tuple[SeverityName, ...] = ()
    explains: tuple[Annotated[FailureType | str, Field(union_mode="left_to_right")], ...] = ()
    overrides: tuple[Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")], ...] = ()
    specificity: Annotated[
        Specificity, BeforeValidator(_level), PlainSerializer(lambda level: level.name.lower(), return_type=str)
    ]
    action: Action | None = None
    mitigation: PatternText
    reference: str = ""
    examples: RuleExamples


@dataclass(frozen=True)
class RuleSet:
    """All rules, in the order of their ids. ``hash`` names exactly this set; it is stored with every diagnosis.

    lists: the named lists that ``explains`` of a rule may refer to.
    """

    rules: tuple[Rule, ...]
    hash: str
    lists: Lists = field(default_factory=dict)

    def without(self, disabled: Collection[str]) -> "RuleSet":
        """The set without the rules of these ids, with a hash of its own."""
        if not disabled:
            return self
        rules = tuple(rule for rule in self.rules if rule.id not in disabled)
        return RuleSet(rules, _hash((self.hash, *sorted(disabled))), self.lists)

    @cached_property
    def anchors(self) -> tuple[Anchor, ...]:
        """What the compressor's gate must let through."""
        texts, fatal = set[str](), set[str]()
        for rule in self.rules:
            texts.update(rule.anchors)
            if rule.role is Role.ROOT:
                fatal.update(rule.anchors)
        return tuple(Anchor(text, text in fatal) for text in sorted(texts))

    @cached_property
    def watched(self) -> "tuple[_Watched, ...]":
        """(anchors, patterns, whether it names a root) of every rule, for the compressor's gate. Lines of benign rules
        need not be kept: they have no patterns here. The patterns of a ``near`` come without anchors.
        """
        own, nears = list[_Watched](), list[_Watched]()
        for rule in self.rules:
            patterns = () if rule.role is Role.BENIGN else rule.patterns
            own.append((rule.anchors, patterns, rule.role is Role.ROOT))
            for near in filter(None, (rule.near, rule.not_near)):
                nears.append(((), near.patterns, False))
        return (*own, *nears)


def load_lists(path: str, text: str) -> Lists:
    """The named lists of ``explains.yaml``. Raises RuleFaults with every fault."""
    table, faults = yaml_loader.read(path, text, _ListFile)
    for name in table.lists if table else ():
        if name in {"all", *FailureType}:
            faults.append(Fault(path, yaml_loader.locate(text, "lists", name), f"'{name}' has a meaning already"))
    return yaml_loader.sound(table, faults).lists


def load(files: Mapping[str, str], lists: Lists | None = None, *, tested: bool = False) -> RuleSet:
    """A rule set from ``<category>/<id>.yaml`` -> text. Raises RuleFaults with every fault of every file.

    tested: each pattern is known to be one of RE2. To compile all of them takes a quarter of the time.
    """
    lists = lists or {}
    rules: dict[str, Rule] = {}
    faults: list[Fault] = []
    for path, text in sorted(files.items()):
        rule, read_faults = yaml_loader.read(path, text, Rule)
        faults += read_faults
        if rule is None:
            continue
        mistakes = list(_mistakes(path, rule, lists, tested=tested))
        if rule.id in rules:
            mistakes.append((("id",), f"id '{rule.id}' is taken by another rule"))
        faults += located_faults(path, text, mistakes)
        rules[rule.id] = rule.model_copy(update={"explains": _expanded(rule.explains, lists)})
    if faults:
        raise RuleFaults(faults)
    types = "\0".join(f"{name} {' '.join(kinds)}" for name, kinds in sorted(lists.items()))
    return RuleSet(_by_id(rules), _hash((*chain.from_iterable(sorted(files.items())), types)), lists)


def _by_id(rules: Mapping[str, Rule]) -> tuple[Rule, ...]:
    return tuple(rules[key] for key in sorted(rules))


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _expanded(explains: Iterable[FailureType | str], lists: Lists) -> tuple[FailureType | str, ...]:
    """Types in place of the lists' names, each once, in order."""
    return tuple(dict.fromkeys(kind for name in explains for kind in lists.get(name, (name,))))


def joined(site: RuleSet, learned: RuleSet) -> RuleSet:
    """Both sets as one, with a hash of its own. A learned rule never replaces the site's rule of the same id."""
    rules = {rule.id: rule for rule in (*learned.rules, *site.rules)}
    return RuleSet(_by_id(rules), _hash((site.hash, learned.hash)), site.lists)


Mistake = tuple[tuple[str | int, ...], str]
"""Where in a file something is wrong, and what."""


def located_faults(path: str, text: str, mistakes: Iterable[Mistake]) -> list[Fault]:
    """The mistakes with the lines of the file's ``text`` in which they are."""
    return [Fault(path, yaml_loader.locate(text, *where), message) for where, message in mistakes]


def load_table(
    path: str, text: str, shape: type[Model], mistakes: Callable[[Model], Iterable[Mistake]], *, tested: bool = False
) -> Model:
    """A table of the rules. Raises RuleFaults with every fault of the file.

    mistakes: finds what the shape alone does not show, as patterns that cannot be used.
    tested: the file is known to have none.
    """

    def faults(table: Model) -> list[Fault]:
        return [] if tested else located_faults(path, text, mistakes(table))

    return yaml_loader.load(path, text, shape, faults)


def _mistakes(path: str, rule: Rule, lists: Lists, *, tested: bool) -> Iterator[Mistake]:
    """What is wrong with a rule beyond its shape."""
    if not tested:
        yield from _pattern_mistakes(rule)
    name = f"{category_of(rule.type)}/{rule.id}.yaml"
    if path != name:
        yield ("id",), f"must be named {name}"
    names = ("all", *lists, *_TYPES)
    for index, kind in enumerate(rule.explains):
        if kind not in names:
            known = ", ".join(["'all'", *lists])
            yield ("explains", index), f"'{kind}' is not a failure type, nor one of {known}"
    for index, anchor in enumerate(rule.anchors):
        if len(anchor.translate(_DIGITS).strip()) < 3:
            yield ("anchors", index), "must have three characters beside digits"


def _pattern_mistakes(rule: Rule) -> Iterator[Mistake]:
    yield from pattern_mistakes(("patterns",), rule.patterns)
    yield from pattern_mistakes(("unless",), rule.unless)
    yield from pattern_mistakes(("frames",), rule.frames)
    for name, near in (("near", rule.near), ("not_near", rule.not_near)):
        if near:
            yield from pattern_mistakes((name, "patterns"), near.patterns)


def pattern_mistakes(where: tuple[str | int, ...], patterns: Iterable[str]) -> Iterator[Mistake]:
    """The patterns of a list that cannot be used. where: the list in its file."""
    for index, pattern in enumerate(patterns):
        why = not_re2(pattern)
        if why:
            yield (*where, index), why


def row_mistakes(where: tuple[str | int, ...], patterns: Iterable[str]) -> Iterator[Mistake]:
    """The same for a row whose patterns the file does not list one by one."""
    for _, why in pattern_mistakes((), patterns):
        yield where, why


def example_mistakes(examples: TextExamples, says: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """(``match`` or ``no_match``, text) of each example that does not hold. says: whether the table matches a text."""
    for name, wanted in (("match", True), ("no_match", False)):
        for text in getattr(examples, name):
            if says(text) is not wanted:
                yield name, text


def not_re2(pattern: str) -> str:
    """Why ``pattern`` is not a usable RE2 expression, or ""."""
    return expressions.fault(pattern, _GROUPS)
