"""Filter Rules: patterns that know routine lines, one YAML file for each family, examples mandatory.

The idea is the paper's (section 6.1 of "Characterization of Large Language Model Development in the Datacenter"): what
a Filter Rule knows as routine needs no words. A filter never hides a line that carries a rule's anchor.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import re2
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from diagnoser import documents
from diagnoser.errors import Fault, RuleFaults

Text = Annotated[str, StringConstraints(min_length=1)]


class Examples(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    match: Annotated[tuple[Text, ...], Field(min_length=1)]
    no_match: Annotated[tuple[Text, ...], Field(min_length=1)]


class Filter(BaseModel):
    """One kind of routine line.

    patterns: RE2, any of them, searched in the line without terminal codes and launcher prefixes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]
    title: Text
    patterns: Annotated[tuple[Text, ...], Field(min_length=1)]
    examples: Examples


class FilterFile(BaseModel):
    """A file of Filter Rules: what one family of software prints when all is well."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    family: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]
    filters: Annotated[tuple[Filter, ...], Field(min_length=1)]


@dataclass(frozen=True)
class FilterSet:
    """All filters as (``<family>/<id>``, pattern), in order. ``hash`` names exactly this set."""

    patterns: tuple[tuple[str, str], ...] = ()
    hash: str = ""


def parse_filters(files: Mapping[str, str]) -> FilterSet:
    """A filter set from path -> text. Raises RuleFaults with every fault of every file."""
    patterns: list[tuple[str, str]] = []
    faults: list[Fault] = []
    taken: set[str] = set()
    for path, text in sorted(files.items()):
        shape, found = documents.read(path, text, FilterFile)
        faults += found
        for number, one in enumerate(shape.filters if shape else ()):
            name = f"{shape.family}/{one.id}" if shape else ""
            if name in taken:
                faults.append(Fault(path, documents.locate(text, "filters", number, "id"), f"'{name}' is taken"))
            taken.add(name)
            faults += _faults(path, text, number, one)
            patterns += [(name, pattern) for pattern in one.patterns]
    if faults:
        raise RuleFaults(faults)
    digest = hashlib.sha256("\0".join(f"{path}\0{text}" for path, text in sorted(files.items())).encode())
    return FilterSet(tuple(patterns), digest.hexdigest()[:16])


def _faults(path: str, text: str, number: int, one: Filter) -> list[Fault]:
    options = re2.Options()
    options.log_errors = False
    compiled = []
    faults = []
    for index, pattern in enumerate(one.patterns):
        try:
            compiled.append(re2.compile(pattern, options))
        except re2.error as error:
            line = documents.locate(text, "filters", number, "patterns", index)
            faults.append(Fault(path, line, f"{one.id}: not an RE2 expression: {error}"))
    if faults:
        return faults

    def hit(example: str) -> bool:
        return any(pattern.search(example) for pattern in compiled)

    for kind, examples, wanted in (("match", one.examples.match, True), ("no_match", one.examples.no_match, False)):
        for index, example in enumerate(examples):
            if hit(example) != wanted:
                line = documents.locate(text, "filters", number, "examples", kind, index)
                faults.append(Fault(path, line, f"{one.id}: must {'' if wanted else 'not '}match: {example}"))
    return faults
