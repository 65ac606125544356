"""Checks what a model claims against the log: a claim without a line to prove it is cut."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from diagnoser.errors import ModelFailed, ModelFailure
from diagnoser.llm.answer import Answer
from diagnoser.llm.redact import redact
from diagnoser.model import Line

QUOTE_LENGTH = 4
"""Characters that a quote needs at least: less proves nothing."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What is left of an answer.

    lines: the cited lines that hold, in the model's order. share: what part of the cited lines that is, in 0..1.
    """

    answer: Answer
    lines: tuple[Line, ...]
    share: float
    notes: tuple[str, ...]


def check(answer: Answer, view: Mapping[int, Sequence[Line]], nodes: Collection[str]) -> Checked:
    """Keep the cited lines that exist and contain their quote; keep a node only if it belongs to the job.

    view: number shown to the model -> lines of that number, one a stream. Raises ModelFailed(evidence_not_found) when
    no citation holds.
    """
    found = [next((x for x in view.get(cite.line, ()) if _holds(cite.quote, x)), None) for cite in answer.cited]
    held = [line for line in found if line is not None]
    if not held:
        raise ModelFailed(ModelFailure.NO_EVIDENCE, "none of the cited lines says what the model quotes")
    notes = []
    if len(held) < len(answer.cited):
        notes.append(f"{len(answer.cited) - len(held)} cited lines do not say what the model quotes")
    if answer.node is not None and answer.node not in nodes:
        notes.append("the model named a node that is not of this job")
        answer = answer.model_copy(update={"node": None})
    return Checked(answer, tuple(held), len(held) / len(answer.cited), tuple(notes))


def _holds(quote: str, line: Line) -> bool:
    """The model saw the line redacted, so a quote may hold a mask."""
    words = " ".join(quote.split())
    texts = (" ".join(text.split()) for text in (line.text, redact(line.text)))
    return len(words) >= QUOTE_LENGTH and any(words in text for text in texts)
