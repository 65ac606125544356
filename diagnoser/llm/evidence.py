"""Checks what a model claims against the log: a claim without a line to prove it is cut."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from diagnoser.errors import ModelFailed, ModelFailure
from diagnoser.llm.answer import Answer
from diagnoser.llm.redact import redact
from diagnoser.model import Line


@dataclass(frozen=True, slots=True)
class Checked:
    """What is left of an answer.

    lines: the cited lines that hold, in the model's order. share: what part of the cited lines that is, in 0..1.
    """

    answer: Answer
    lines: tuple[Line, ...]
    share: float
    notes: tuple[str, ...]


def check(answer: Answer, view: Mapping[int, Line], nodes: Collection[str]) -> Checked:
    """Keep the cited lines that exist and contain their quote; keep a node only if it belongs to the job.

    view: number shown to the model -> line. Raises ModelFailed(evidence_not_found) when no citation holds.
    """
    held = [view[quote.line] for quote in answer.cited if _holds(quote.quote, view.get(quote.line))]
    if not held:
        raise ModelFailed(ModelFailure.NO_EVIDENCE, "none of the cited lines says what the model quotes")
    notes = []
    if len(held) < len(answer.cited):
        notes.append(f"{len(answer.cited) - len(held)} cited lines do not say what the model quotes")
    if answer.node is not None and answer.node not in nodes:
        notes.append("the model named a node that is not of this job")
        answer = answer.model_copy(update={"node": None})
    return Checked(answer, tuple(held), len(held) / len(answer.cited), tuple(notes))


def _holds(quote: str, line: Line | None) -> bool:
    """The model saw the line redacted, so a quote may hold a mask."""
    words = " ".join(quote.split())
    if line is None or len(words) < 4:
        return False
    return any(words in " ".join(text.split()) for text in (line.text, redact(line.text)))
