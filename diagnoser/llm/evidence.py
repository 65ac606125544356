"""Checks what a model claims against the log: a claim without a line to prove it is cut."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from diagnoser.llm.answer import Answer
from diagnoser.llm.view import Pseudonymizer, plain
from diagnoser.model import Line
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.model.taxonomy import FailureType, category_of

QUOTE_LENGTH = 4
"""Bytes that a quote needs at least: less proves nothing."""
_RUN = 7
_WORD = re.compile(r"[\w-]+")
_LINK = re.compile(r"(?i)\b(?:[a-z][a-z0-9+.-]{1,15}://|www\.)\S+")
DOUBT = 0.8
"""What is left of the confidence for each claim that does not hold."""


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What claims are held against.

    lines: number shown to the model -> line. nodes, ranks: those of the job, by their true names; ranks empty when
    nothing is known of them. instructions: what the model was told, which it must not repeat.
    """

    lines: Mapping[int, Line]
    nodes: Collection[str]
    ranks: Collection[int]
    pseudonyms: Pseudonymizer
    instructions: str = ""


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

    An answer that names no cause needs no proof. Raises ModelFailed(evidence_not_found) when no citation holds.
    """
    held = _held(answer, context)
    if not held and names_cause(answer):
        raise ModelFailed(ModelFailure.NO_EVIDENCE, "none of the cited lines says what the model quotes")
    said = answer.model_copy(update={"node": _node(answer, context), "mitigation": _told(answer.mitigation, context)})
    faults = []
    if _repeats(answer.mitigation, context.instructions):
        faults.append("the model repeated its instructions instead of advice")
        said = said.model_copy(update={"mitigation": ""})
    if len(held) < len(answer.cited):
        faults.append(f"{len(answer.cited) - len(held)} cited lines do not say what the model quotes")
    if said.node is None and answer.node is not None:
        faults.append("the model named a node that is not of this job")
    if answer.rank is not None and context.ranks and answer.rank not in context.ranks:
        faults.append("the model named a rank that is not of this job")
        said = said.model_copy(update={"rank": None})
    if answer.category is not category_of(answer.type):
        faults.append(f"the model put {answer.type} under {answer.category}")
        said = said.model_copy(update={"category": category_of(answer.type)})
    return Checked(said, held, answer.confidence * DOUBT ** len(faults), tuple(faults))


def trusted(answer: Answer, context: CheckContext) -> Checked:
    """The answer without the check, for measuring what the check is worth: lines that exist, names as they are."""
    held = tuple(context.lines[cite.line] for cite in answer.cited if cite.line in context.lines)
    node = context.pseudonyms.hosts.show(answer.node) if answer.node else None
    return Checked(answer.model_copy(update={"node": node}), held, answer.confidence, ())


def names_cause(answer: Answer) -> bool:
    """Whether it says what happened; also that somebody or a limit ended the run."""
    return answer.type is not FailureType.UNKNOWN


def _held(answer: Answer, context: CheckContext) -> tuple[Line, ...]:
    found = (context.lines.get(cite.line) for cite in answer.cited)
    pairs = zip(answer.cited, found, strict=True)
    return tuple(line for cite, line in pairs if line is not None and _holds(cite.quote, line, context.pseudonyms))


def _holds(quote: str, line: Line, pseudonyms: Pseudonymizer) -> bool:
    """The model saw the line pseudonymized, so the quote is held against that as well."""
    words = _words(quote)
    shown = (line.text, pseudonyms.hide(line.text))
    return len(words.encode()) >= QUOTE_LENGTH and any(words in _words(text) for text in shown)


def _words(text: str) -> str:
    return " ".join(plain(text).split())


def _node(answer: Answer, context: CheckContext) -> str | None:
    node = context.pseudonyms.hosts.show(answer.node) if answer.node else None
    return node if node in context.nodes else None


def _told(text: str, context: CheckContext) -> str:
    """The model's words for people: one line, true names, secrets masked, no links to follow."""
    shown = without_links(_words(text))
    return context.pseudonyms.redact(context.pseudonyms.hosts.show(shown))


def without_links(text: str) -> str:
    """``text`` with nothing in it that a page or a chat makes clickable."""
    return _LINK.sub("<link>", text)


def _repeats(text: str, instructions: str) -> bool:
    """Whether some words in a row are those of the instructions."""
    own = _runs(instructions)
    return any(run in own for run in _runs(text))


def _runs(text: str) -> set[str]:
    words = _WORD.findall(text.lower())
    return {" ".join(words[at : at + _RUN]) for at in range(len(words) - _RUN + 1)}
