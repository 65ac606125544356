"""Answers a person's question about a failure, from what the read-only tools show, with the lines that prove it."""

import asyncio
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from diagnoser.failure_agent.consultation import ConsultationConfig, ConsultationInput, prepare
from diagnoser.failure_agent.conversation import Conversation, Question
from diagnoser.failure_agent.tools import QUESTION_SPECS
from diagnoser.llm import evidence
from diagnoser.llm.answer import Quote, TolerantAnswer
from diagnoser.llm.view import delimited
from diagnoser.model import Line, ToolUse
from diagnoser.ports import LanguageModel

CALLS_MAX, TOKENS_MAX = 5, 32_000
"""Requests of one question, and their tokens, read and written."""


class InquiryAnswer(TolerantAnswer):
    """What the model says, and the lines that it cites."""

    answer: Annotated[str, Field(max_length=2_000)]
    cited: Annotated[tuple[Quote, ...], Field(max_length=5)] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """For people. lines: cited ones that say what is quoted. looks: what the model looked at."""

    text: str
    lines: tuple[Line, ...]
    looks: tuple[ToolUse, ...]


async def answer_question(
    model: LanguageModel, subject: ConsultationInput, config: ConsultationConfig, text: str
) -> Reply:
    """Raises ModelFailed. text: as the person typed it; names of machines are hidden from the model."""
    conversation = Conversation(model, config.deadline_seconds, CALLS_MAX, TOKENS_MAX)
    asked = await asyncio.to_thread(prepare, subject, config, config.log_tokens, QUESTION_SPECS)
    context, toolbox = asked.context, asked.toolbox
    schema = InquiryAnswer.model_json_schema()
    last = delimited(f"The engineer asks: {context.pseudonyms.hide(text)}", asked.marker)
    request = replace(asked.question.request, schema=schema, follow_up=last)
    async with conversation.deadline():
        reply = await conversation.send(replace(request, may_call=True))
        while calls := reply.samples[0].calls:
            if toolbox.is_spent:
                break
            request = replace(request, rounds=(*request.rounds, await toolbox.run(calls)))
            may_call = conversation.affords(request, 2)  # another look, and the answer after it
            if toolbox.is_spent:
                may_call = False
            reply = await conversation.send(replace(request, may_call=may_call))
        question = Question(config.prompt, request, InquiryAnswer)
        said = await conversation.read(question, reply.samples[0])
    lines = evidence.cited_lines(said.cited, replace(context, results=toolbox.cited))
    return Reply(evidence.for_people(said.answer, context), lines, tuple(toolbox.uses))
