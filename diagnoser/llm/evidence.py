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
"""Fewest bytes of a quote: a shorter one proves nothing."""
_RUN = 7
_WORD = re.compile(r"[\w-]+")
_LINK = re.compile(r"(?i)\b(?:[a-z][a-z0-9+.-]{1,15}://|www\.)\S+")
DOUBT = 0.8
"""Factor on the confidence for each claim that does not hold."""


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What claims are checked against.

    lines: number shown to the model -> line. nodes, ranks: those of the job, by their true names; ranks is empty when
    none are known. instructions: what the model was told, which it must not repeat.
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
    proven = _proven_lines(answer, context)
    if not proven and names_cause(answer):
        raise ModelFailed(ModelFailure.NO_EVIDENCE, "none of the cited lines says what the model quotes")
    node = _true_node(answer, context)
    changes = {"node": node if node in context.nodes else None, "mitigation": _for_people(answer.mitigation, context)}
    faults = []
    if _repeats(answer.mitigation, context.instructions):
        faults.append("the model repeated its instructions instead of advice")
        changes["mitigation"] = ""
    if len(proven) < len(answer.cited):
        faults.append(f"{len(answer.cited) - len(proven)} cited lines do not say what the model quotes")
    if changes["node"] is None and answer.node is not None:
        faults.append("the model named a node that is not of this job")
    if answer.rank is not None and context.ranks and answer.rank not in context.ranks:
        faults.append("the model named a rank that is not of this job")
        changes["rank"] = None
    if answer.category is not category_of(answer.type):
        faults.append(f"the model put {answer.type} under {answer.category}")
        changes["category"] = category_of(answer.type)
    return Checked(answer.model_copy(update=changes), proven, answer.confidence * DOUBT ** len(faults), tuple(faults))


def accept_unchecked(answer: Answer, context: CheckContext) -> Checked:
    """The answer without the check, for measuring what the check is worth: lines that exist, names as they are."""
    lines = tuple(context.lines[cite.line] for cite in answer.cited if cite.line in context.lines)
    return Checked(answer.model_copy(update={"node": _true_node(answer, context)}), lines, answer.confidence, ())


def names_cause(answer: Answer) -> bool:
    """Whether it says what happened; that a person or a limit ended the run counts too."""
    return answer.type is not FailureType.UNKNOWN


def _proven_lines(answer: Answer, context: CheckContext) -> tuple[Line, ...]:
    cited = ((cite.quote, context.lines.get(cite.line)) for cite in answer.cited)
    return tuple(line for quote, line in cited if line is not None and _says(line, quote, context.pseudonyms))


def _says(line: Line, quote: str, pseudonyms: Pseudonymizer) -> bool:
    """The model saw the line pseudonymized, so the quote may come from that form too."""
    words = _words(quote)
    texts = (line.text, pseudonyms.hide(line.text))
    return len(words.encode()) >= QUOTE_LENGTH and any(words in _words(text) for text in texts)


def _words(text: str) -> str:
    return " ".join(plain(text).split())


def _true_node(answer: Answer, context: CheckContext) -> str | None:
    return context.pseudonyms.reveal(answer.node) if answer.node else None


def _for_people(text: str, context: CheckContext) -> str:
    """The model's words on one line, with true names, secrets masked and no links to follow."""
    return context.pseudonyms.redact(context.pseudonyms.reveal(without_links(_words(text))))


def without_links(text: str) -> str:
    """``text`` without anything that a page or a chat would make clickable."""
    return _LINK.sub("<link>", text)


def _repeats(text: str, instructions: str) -> bool:
    """Whether ``_RUN`` words in a row are copied from the instructions."""
    own = _runs(instructions)
    return any(run in own for run in _runs(text))


def _runs(text: str) -> set[str]:
    words = _WORD.findall(text.lower())
    return {" ".join(words[start : start + _RUN]) for start in range(len(words) - _RUN + 1)}
