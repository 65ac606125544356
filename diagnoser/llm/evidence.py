"""Checks what a model claims against the log: a claim without a line to prove it is cut."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from diagnoser.dialects.host_places import hosts_in
from diagnoser.llm.answer import Answer, Quote
from diagnoser.llm.view import Pseudonymizer, plain
from diagnoser.model import Line
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.model.taxonomy import FailureType, category_of

QUOTE_LENGTH = 4
"""Fewest bytes of a quote: a shorter one proves nothing."""
_TELLING = 24
"""Bytes from which a quote tells its line by itself, where the number beside it is wrong."""
_ELLIPSIS = re.compile(r"\.{3,}|\N{HORIZONTAL ELLIPSIS}")
_HEAD = re.compile(r"^\s*\d{1,9}(?: [\w.:-]{1,80}){0,2}\| ?")
"""What the view prints before a line: its number, its source, its rank or node."""
_SIGNS = re.compile(r"[\W_]+")
_RUN = 7
_WORD = re.compile(r"[\w-]+")
_LINK = re.compile(r"(?i)\b(?:[a-z][a-z0-9+.-]{1,15}://|www\.)\S+")
DOUBT = 0.8
"""Factor on the confidence for each claim that does not hold."""


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What claims are checked against.

    lines: number shown to the model -> line. nodes, ranks: those of the job, by their true names; ranks is empty when
    none are known. instructions: what the model was told, which it must not repeat. all_nodes: whether
    ``nodes`` are all nodes of the job; of a log alone they may not be, and a node counts that a cited line names.
    results: lines that tools showed from outside the log: tool -> number -> line.
    """

    lines: Mapping[int, Line]
    nodes: Collection[str]
    ranks: Collection[int]
    pseudonyms: Pseudonymizer
    instructions: str = ""
    all_nodes: bool = True
    results: Mapping[str, Mapping[int, Line]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checked:
    """What is left of an answer, in the site's own names.

    lines: the cited lines that hold, in the model's order. confidence: the model's, less for each claim that was cut.
    """

    answer: Answer
    lines: tuple[Line, ...]
    confidence: float
    notes: tuple[str, ...]


def check(answer: Answer, context: CheckContext) -> Checked:
    """Keep the cited lines that exist and contain their quote, and a node or rank only if it is the job's.

    An answer that names no cause needs no proof. Raises ModelFailed(evidence_not_found) when the first citation, which
    the model calls the decisive one, does not hold.
    """
    cited = [_cited_line(cite, context) for cite in answer.cited]
    decisive = next(iter(cited), None)
    if decisive is None and names_cause(answer):
        raise ModelFailed(ModelFailure.NO_EVIDENCE, "the decisive line does not say what the model quotes")
    proven = tuple(dict.fromkeys(filter(None, cited)))
    node = _known_node(_true_node(answer, context), _nodes(context, proven))
    changes: dict[str, object] = {
        "node": node,
        "mitigation": for_people(answer.mitigation, context),
        "reasoning": for_people(answer.reasoning, context),
        "tells_apart": for_people(answer.tells_apart, context),
    }
    faults = []
    for fault, correction in _wrong_claims(answer, context, cited.count(None), node):
        faults.append(fault)
        changes |= correction
    return Checked(answer.model_copy(update=changes), proven, answer.confidence * DOUBT ** len(faults), tuple(faults))


def _wrong_claims(
    answer: Answer, context: CheckContext, unproven: int, node: str | None
) -> Iterator[tuple[str, dict[str, object]]]:
    """(fault, fields to replace) of each claim that does not hold.

    unproven: how many cited lines do not hold.
    node: the answer's, if it is one of the job.
    """
    if _repeats(answer.mitigation, context.instructions):
        yield "the model repeated its instructions instead of advice", {"mitigation": ""}
    if unproven:
        yield f"{unproven} cited lines do not say what the model quotes", {}
    if answer.node is not None and node is None:
        yield "the model named a node that is not of this job", {}
    if answer.rank is not None and context.ranks and answer.rank not in context.ranks:
        yield "the model named a rank that is not of this job", {"rank": None}
    if answer.category is not category_of(answer.type):
        yield f"the model put {answer.type} under {answer.category}", {"category": category_of(answer.type)}


def accept_unchecked(answer: Answer, context: CheckContext) -> Checked:
    """The answer without the check, for measuring what the check is worth: lines that exist, names as they are."""
    lines = tuple(context.lines[cite.line] for cite in answer.cited if not cite.source and cite.line in context.lines)
    return Checked(answer.model_copy(update={"node": _true_node(answer, context)}), lines, answer.confidence, ())


def names_cause(answer: Answer) -> bool:
    """Whether it says what happened; that a person or a limit ended the run counts too."""
    return answer.type is not FailureType.UNKNOWN


def cited_lines(cited: Sequence[Quote], context: CheckContext) -> tuple[Line, ...]:
    return tuple(dict.fromkeys(filter(None, (_cited_line(cite, context) for cite in cited))))


def _cited_line(cite: Quote, context: CheckContext) -> Line | None:
    """The line that says what is quoted: that of the cited number, else the only one with so telling a quote.

    A line that a tool showed counts only where the citation names the tool: else its numbers would mean two lines.
    """
    lines, parts = context.results.get(cite.source, {}) if cite.source else context.lines, _quoted(cite.quote)
    line = lines.get(cite.line)
    length = len("".join(parts).encode())
    if length < QUOTE_LENGTH:
        return None
    if line and _says(line, parts, context):
        return line
    if length < _TELLING:
        return None
    sought = _quoted(context.pseudonyms.reveal(cite.quote))
    same = {line.text: line for line in lines.values() if _holds(sought, line.text)}
    if len(same) != 1:
        return None
    return same.popitem()[1]


def _says(line: Line, parts: Sequence[str], context: CheckContext) -> bool:
    """Whether a line holds the parts of a quote, as it was printed or as the model saw it."""
    if _holds(parts, line.text):
        return True
    return _holds(parts, context.pseudonyms.hide(line.text))


def _quoted(quote: str) -> tuple[str, ...]:
    """The pieces of a quote between its ellipses."""
    return tuple(filter(None, map(_normal, _ELLIPSIS.split(_HEAD.sub("", plain(quote))))))


def _holds(parts: Sequence[str], text: str) -> bool:
    """Whether a line says the pieces in this order; case, blanks and punctuation do not count."""
    rest = _normal(plain(text))
    for part in parts:
        _, match, rest = rest.partition(part)
        if not match:
            return False
    return True


def _normal(text: str) -> str:
    return _SIGNS.sub(" ", text.casefold()).strip()


def _nodes(context: CheckContext, cited: Sequence[Line]) -> Collection[str]:
    if context.all_nodes:
        return context.nodes
    nodes = set(context.nodes)
    for line in cited:
        nodes.update(hosts_in(line.text))
    return nodes


def _known_node(name: str | None, nodes: Collection[str]) -> str | None:
    """The job's own spelling of a node, be it short or full; None for a node that is not the job's."""
    if name is None or name in nodes:
        return name
    if name.replace(".", "").isdecimal():
        return None
    alike = [node for node in nodes if node.partition(".")[0] == name.partition(".")[0]]
    return alike[0] if len(alike) == 1 else None


def _true_node(answer: Answer, context: CheckContext) -> str | None:
    return context.pseudonyms.reveal(answer.node) if answer.node else None


def for_people(text: str, context: CheckContext) -> str:
    """The model's words on one line, with true names, secrets masked and no links to follow."""
    return context.pseudonyms.redact(context.pseudonyms.reveal(without_links(" ".join(plain(text).split()))))


def without_links(text: str) -> str:
    """``text`` without anything that a page or a chat would make clickable."""
    return _LINK.sub("<link>", text)


def _repeats(text: str, instructions: str) -> bool:
    """Whether ``_RUN`` words in a row are copied from the instructions."""
    return not _runs(instructions).isdisjoint(_runs(text))


def _runs(text: str) -> set[str]:
    words = _WORD.findall(text.lower())
    return {" ".join(words[start : start + _RUN]) for start in range(len(words) - _RUN + 1)}
