"""The shape of a rule file, `rules/<category>/<id>.yaml`, and the set made of all of them.

Path and content agree (as in Sigma and semgrep-rules): the folder is the category of the type, the file name is the id.
A rule and its proof are one thing: examples of both kinds are mandatory.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, StringConstraints

from diagnoser.model import Anchor, expressions, yaml_loader
from diagnoser.model.errors import Fault, RuleFaults
from diagnoser.model.taxonomy import Action, FailureType, category_of
from diagnoser.model.yaml_loader import StrictModel

PatternText = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
_DIGITS = str.maketrans("", "", "0123456789")
_GROUPS = ("rank", "node", "gpu")


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


class Near(StrictModel):
    """A condition on the surroundings: some kept line within ``lines`` lines before or after matches a pattern."""

    patterns: Annotated[tuple[PatternText, ...], Field(min_length=1)]
    lines: Annotated[int, Field(ge=1, le=1000)] = 50


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

    @cached_property
    def anchors(self) -> tuple[Anchor, ...]:
        """What the compressor's gate must let through."""
        fatal: dict[str, bool] = {}
        for rule in self.rules:
            for text in rule.anchors:
                fatal[text] = fatal.get(text, False) or rule.role is Role.ROOT
        return tuple(Anchor(text, is_fatal) for text, is_fatal in sorted(fatal.items()))

    @cached_property
    def watched(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...], bool], ...]:
        """(anchors, patterns, whether it names a root) of every rule, for the compressor's gate. Lines of benign rules
        need not be kept: they have no patterns here. The patterns of a ``near`` come without anchors.
        """
        nears = [near for rule in self.rules for near in (rule.near, rule.not_near) if near]
        return tuple(
            (rule.anchors, () if rule.role is Role.BENIGN else rule.patterns, rule.role is Role.ROOT)
            for rule in self.rules
        ) + tuple(((), near.patterns, False) for near in nears)


def load_lists(path: str, text: str) -> Lists:
    """The named lists of ``explains.yaml``. Raises RuleFaults with every fault."""
    table, faults = yaml_loader.read(path, text, _ListFile)
    for name in table.lists if table else ():
        if name == "all" or name in set(FailureType):
            faults.append(Fault(path, yaml_loader.locate(text, "lists", name), f"'{name}' has a meaning already"))
    if table is None or faults:
        raise RuleFaults(faults)
    return table.lists


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
        faults += _faults(path, text, rule, lists, tested=tested)
        if rule.id in rules:
            faults.append(Fault(path, yaml_loader.locate(text, "id"), f"id '{rule.id}' is taken by another rule"))
        rules[rule.id] = rule.model_copy(update={"explains": _expanded(rule.explains, lists)})
    if faults:
        raise RuleFaults(faults)
    types = "\0".join(f"{name} {' '.join(kinds)}" for name, kinds in sorted(lists.items()))
    digest = hashlib.sha256("\0".join([*(f"{path}\0{text}" for path, text in sorted(files.items())), types]).encode())
    return RuleSet(tuple(rules[key] for key in sorted(rules)), digest.hexdigest()[:16], lists)


def _expanded(explains: Iterable[FailureType | str], lists: Lists) -> tuple[FailureType | str, ...]:
    """Types in place of the lists' names, each once, in order."""
    return tuple(dict.fromkeys(kind for name in explains for kind in lists.get(name, (name,))))


def joined(own: RuleSet, learned: RuleSet) -> RuleSet:
    """Both sets as one, with a hash of its own. A learned rule never replaces the site's own rule of the same id."""
    rules = {rule.id: rule for rule in (*learned.rules, *own.rules)}
    digest = hashlib.sha256(f"{own.hash}\0{learned.hash}".encode())
    return RuleSet(tuple(rules[key] for key in sorted(rules)), digest.hexdigest()[:16], own.lists)


def _faults(path: str, text: str, rule: Rule, lists: Lists, *, tested: bool) -> list[Fault]:
    def locate(*where: str | int) -> int:
        return yaml_loader.locate(text, *where)

    pattern_faults = [] if tested else _pattern_faults(rule)
    faults = [Fault(path, locate(*where), message) for where, message in pattern_faults]
    if path != f"{category_of(rule.type)}/{rule.id}.yaml":
        faults.append(Fault(path, locate("id"), f"must be named {category_of(rule.type)}/{rule.id}.yaml"))
    for index, kind in enumerate(rule.explains):
        if not isinstance(kind, FailureType) and kind not in ("all", *lists):
            names = ", ".join(["'all'", *lists])
            faults.append(Fault(path, locate("explains", index), f"'{kind}' is not a failure type, nor one of {names}"))
    for index, anchor in enumerate(rule.anchors):
        if len(anchor.translate(_DIGITS).strip()) < 3:
            faults.append(Fault(path, locate("anchors", index), "must have three characters beside digits"))
    return faults


def _pattern_faults(rule: Rule) -> list[tuple[tuple[str | int, ...], str]]:
    lists = {"patterns": rule.patterns, "unless": rule.unless, "frames": rule.frames}
    faults: list[tuple[tuple[str | int, ...], str]] = []
    for name, patterns in lists.items():
        faults += [((name, i), why) for i, pattern in enumerate(patterns) if (why := not_re2(pattern))]
    for name, near in (("near", rule.near), ("not_near", rule.not_near)):
        patterns = near.patterns if near else ()
        faults += [((name, "patterns", i), why) for i, pattern in enumerate(patterns) if (why := not_re2(pattern))]
    return faults


def not_re2(pattern: str) -> str:
    """Why ``pattern`` is not a usable RE2 expression, or ""."""
    return expressions.fault(pattern, _GROUPS)
