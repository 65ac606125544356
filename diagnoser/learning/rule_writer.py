"""Who writes a diagnosis rule: a language model proposes, and the line's own shape does where it cannot.

What the model writes is data: it chooses words and expressions, never the type, the role or the authority of a rule.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from diagnoser.failure_agent.conversation import Conversation, build_question
from diagnoser.learning import template_rules
from diagnoser.learning.rule_context import RuleContext
from diagnoser.learning.template_rules import RuleDraft
from diagnoser.llm.answer import StrictAnswer
from diagnoser.llm.evidence import without_links
from diagnoser.llm.prompt import Prompt
from diagnoser.llm.view import delimited, plain
from diagnoser.model import Author
from diagnoser.model.errors import ModelFailed
from diagnoser.ports import LanguageModel

TEMPLATE, PERSON = "template", "person"
MODEL = "llm:"
"""What the name of a model begins with, where it is the author."""
CALLS_MAX = 10
"""Requests for one rule: an answer and its repair, each in every format that a server may want to be asked in."""

Piece = Annotated[str, StringConstraints(min_length=6, max_length=120)]
Expression = Annotated[str, StringConstraints(min_length=6, max_length=300)]


class RuleAnswer(StrictAnswer):
    title: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    anchors: Annotated[tuple[Piece, ...], Field(min_length=1, max_length=3)]
    patterns: Annotated[tuple[Expression, ...], Field(min_length=1, max_length=3)]
    unless: Annotated[tuple[Expression, ...], Field(max_length=3)]


@dataclass(frozen=True, slots=True)
class LLMRuleWriter:
    """How a site asks a model for rules. token: a new random word each time. deadline_seconds: for one rule."""

    model: LanguageModel
    prompt: Prompt
    token: Callable[[], str]
    deadline_seconds: float


async def write(
    writer: LLMRuleWriter | None, id: str, context: RuleContext, fault: Callable[[str], str]
) -> tuple[str, Author]:
    """A rule file and who wrote it; the text is "" where the line says too little for a rule.

    A model is not asked for a line that is no failure: there only its own shape may be taken.

    fault: why a rule file cannot be taken, "" where it can. Runs in a thread.
    """
    author = Author(TEMPLATE)
    if writer and not context.benign:
        conversation = Conversation(writer.model, writer.deadline_seconds, CALLS_MAX)
        question = build_question(writer.prompt, variables(context, f"LOG-{writer.token()}"), RuleAnswer)
        try:
            async with conversation.deadline():
                answer = await conversation.ask(question, lambda answer: fault(_rule_text(id, context, answer)))
            return _rule_text(id, context, answer), conversation.author(writer.prompt)
        except ModelFailed as failure:
            author = replace(conversation.author(writer.prompt), name=TEMPLATE, failure=str(failure)[:300])
    draft = template_rules.from_shape(context)
    if draft is None:
        return "", author
    return template_rules.rule_text(id, context, draft), author


def variables(context: RuleContext, marker: str) -> dict[str, Any]:
    """What the prompt is filled with. marker: stands around what programs printed, and nowhere in it."""
    return {
        "type": str(context.type),
        "marker": marker,
        "line": delimited(context.line, marker),
        "around": [delimited(text, marker) for text in context.around],
        "healthy": [delimited(text, marker) for text in context.healthy],
        "alias": context.alias,
    }


def _rule_text(id: str, context: RuleContext, answer: RuleAnswer) -> str:
    title = without_links(" ".join(plain(answer.title).split()))[:120]
    draft = RuleDraft(title, answer.anchors, answer.patterns, answer.unless, context.mitigation)
    return template_rules.rule_text(id, context, draft)
