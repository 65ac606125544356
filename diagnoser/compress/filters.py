"""Filter Rules: patterns of routine lines, one YAML file for each family, examples mandatory.

The idea is the paper's (section 6.1 of "Characterization of Large Language Model Development in the Datacenter"): what
a Filter Rule knows as routine needs no words. A filter never hides a line that carries a rule's anchor.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import re2
from pydantic import Field, StringConstraints

from diagnoser.compress.line_masking import blurred
from diagnoser.compress.pattern_masking import blur
from diagnoser.model import expressions, yaml_loader
from diagnoser.model.errors import BadInput, Fault, RuleFaults
from diagnoser.model.yaml_loader import StrictModel
from diagnoser.structure.progress import FIELDS

Text = Annotated[str, StringConstraints(min_length=1)]


class FilterExamples(StrictModel):
    match: Annotated[tuple[Text, ...], Field(min_length=1)]
    no_match: Annotated[tuple[Text, ...], Field(min_length=1)]


class Filter(StrictModel):
    """One kind of routine line.

    patterns: RE2, any of them, searched in the line without terminal codes and launcher prefixes. A number counts as
    one digit and a gap as one blank there (``blur``), so no pattern can tell one number from another.
    """

    id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]
    title: Text
    patterns: Annotated[tuple[Text, ...], Field(min_length=1)]
    examples: FilterExamples


class FilterDialect(Filter):
    """A site's own progress line. patterns have named groups: step, loss, grad_norm, step_seconds, tokens_per_second,
    checkpoint.
    """


class FilterFile(StrictModel):
    """A file of Filter Rules: what one family of software prints when all is well, and how it tells its progress."""

    family: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]
    filters: tuple[Filter, ...] = ()
    progress: tuple[FilterDialect, ...] = ()


@dataclass(frozen=True)
class FilterSet:
    """patterns: all filters as (``<family>/<id>``, pattern), in order. progress: patterns of a site's own dialects.
    hash: names exactly this set. examples: lines that are routine, as (``<family>/<id>``, text).
    """

    patterns: tuple[tuple[str, str], ...] = ()
    progress: tuple[str, ...] = ()
    hash: str = ""
    examples: tuple[tuple[str, str], ...] = ()


def parse_filters(files: Mapping[str, str], *, tested: bool = False) -> FilterSet:
    """Read a filter set from path -> text. Raises RuleFaults with every fault of every file.

    tested: each pattern is known to compile and to fit its examples.
    """
    rules: list[tuple[str, str, Filter]] = []
    faults: list[Fault] = []
    names: set[str] = set()
    for path, text in sorted(files.items()):
        file, file_faults = yaml_loader.read(path, text, FilterFile)
        faults += file_faults
        if file is None:
            continue
        if not file.filters and not file.progress:
            faults.append(Fault(path, 1, "has neither filters nor progress"))
        for key, number, rule in _rules_of(file):
            name = f"{file.family}/{rule.id}"
            if name in names:
                faults.append(Fault(path, yaml_loader.locate(text, key, number, "id"), f"'{name}' is taken"))
            if not tested:
                faults += _faults(path, text, key, number, rule)
            names.add(name)
            rules.append((name, key, rule))
    if faults:
        raise RuleFaults(faults)
    return _filter_set(rules, _hash(files))


def _filter_set(rules: Sequence[tuple[str, str, Filter]], set_hash: str) -> FilterSet:
    """Put the rules of all files together. rules: (name, the key that it stands under, rule)."""
    patterns, dialects, examples = list[tuple[str, str]](), list[str](), list[tuple[str, str]]()
    for name, key, rule in rules:
        if key == "filters":
            patterns += product((name,), rule.patterns)
        else:
            dialects += rule.patterns
        examples += product((name,), rule.examples.match)
    return FilterSet(tuple(patterns), tuple(dialects), set_hash, tuple(examples))


def _hash(files: Mapping[str, str]) -> str:
    contents = "\0".join(f"{path}\0{text}" for path, text in sorted(files.items()))
    return hashlib.sha256(contents.encode()).hexdigest()[:16]


def _rules_of(file: FilterFile) -> Iterator[tuple[str, int, Filter]]:
    """(the key that it stands under, its place there, rule) of each rule of a file."""
    for number, rule in enumerate(file.filters):
        yield "filters", number, rule
    for number, rule in enumerate(file.progress):
        yield "progress", number, rule


def _faults(path: str, text: str, key: str, number: int, rule: Filter) -> list[Fault]:
    faults = []
    for index, pattern in enumerate(rule.patterns):
        line = yaml_loader.locate(text, key, number, "patterns", index)
        try:
            groups = set(expressions.compiled(pattern).groupindex)
        except BadInput as error:
            faults.append(Fault(path, line, f"{rule.id}: {error}"))
            continue
        if key == "progress" and not set() < groups <= set(FIELDS):
            faults.append(Fault(path, line, f"{rule.id}: name groups among {', '.join(FIELDS)}"))
    return faults or _example_faults(path, text, key, number, rule)


def _any_finds(patterns: Iterable[Any], text: str) -> bool:
    return any(pattern.search(text) for pattern in patterns)


def _example_faults(path: str, text: str, key: str, number: int, rule: Filter) -> list[Fault]:
    """Examples that a pattern or its blur gets wrong."""
    exact = list(map(re2.compile, rule.patterns))
    blurs = list(map(re2.compile, map(blur, rule.patterns)))
    faults = []
    for kind, examples, wanted in (("match", rule.examples.match, True), ("no_match", rule.examples.no_match, False)):
        for index, example in enumerate(examples):
            blur_text = blurred(example.encode()).decode("utf-8", "replace")
            if {_any_finds(exact, example), _any_finds(blurs, blur_text)} != {wanted}:
                negation = "" if wanted else "not "
                message = f"{rule.id}: must {negation}match, whatever its numbers: {example}"
                faults.append(Fault(path, yaml_loader.locate(text, key, number, "examples", kind, index), message))
    return faults
