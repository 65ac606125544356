"""The Failure Agent as the writer of rules: a language model proposes, and the line's own shape does where it cannot.

What the model writes is data: it chooses words and expressions, never the type, the role or the authority of a rule.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from diagnoser.learning import template_rules
from diagnoser.learning.rule_context import RuleContext
from diagnoser.learning.template_rules import RuleDraft
from diagnoser.llm.evidence import without_links
from diagnoser.llm.prompt import Prompt, tokens_of
from diagnoser.llm.view import delimited, plain
from diagnoser.model import Author
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.ports import LanguageModel, ModelAnswer, ModelRequest

TEMPLATE = "template"
_ANSWER_CHARS = 16 << 10
_REPAIRED_CHARS = 2000
_WAYS = 5
"""Ways to ask for JSON that are tried."""

Sound = Callable[[str], str]
"""A rule file -> why it cannot be taken, or "". Runs in a thread."""

Piece = Annotated[str, StringConstraints(min_length=6, max_length=120)]
Expression = Annotated[str, StringConstraints(min_length=6, max_length=300)]


class WrittenRule(BaseModel):
    """What the model answers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    anchors: Annotated[tuple[Piece, ...], Field(min_length=1, max_length=3)]
    patterns: Annotated[tuple[Expression, ...], Field(min_length=1, max_length=3)]
    unless: Annotated[tuple[Expression, ...], Field(max_length=3)]


@dataclass(frozen=True, slots=True)
class LLMRuleWriter:
    """How a site asks a model for rules. token: a new random word each time. deadline: seconds for one rule."""

    model: LanguageModel
    prompt: Prompt
    token: Callable[[], str]
    deadline: float


@dataclass(slots=True)
class _Talk:
    """One conversation. author: grows with each answer."""

    pen: LLMRuleWriter
    request: ModelRequest
    author: Author = field(init=False)

    def __post_init__(self) -> None:
        prompt, name = self.pen.prompt, self.pen.model.name
        self.author = Author(f"llm:{name}", name, prompt.label, prompt.hash, prompt.meta.temperature)

    async def ask(self, repair: tuple[str, str] | None = None) -> ModelAnswer:
        answer = await self._answer(replace(self.request, repair=repair))
        size = tokens_of(self.request.system) + tokens_of(self.request.user)
        self.author = replace(
            self.author,
            name=f"llm:{answer.model}",
            model=answer.model,
            tokens_in=self.author.tokens_in + (answer.tokens_in or size),
            tokens_out=self.author.tokens_out + (answer.tokens_out or tokens_of(answer.text)),
        )
        return answer

    async def _answer(self, request: ModelRequest) -> ModelAnswer:
        """Again where the server only wants to be asked in another way."""
        last: ModelFailed | None = None
        for _ in range(_WAYS):
            self.author = replace(self.author, calls=self.author.calls + 1)
            try:
                return await self.pen.model.ask(request)
            except ModelFailed as failure:
                if failure.reason is not ModelFailure.FORMAT_REFUSED:
                    raise
                last = failure
        raise last or ModelFailed(ModelFailure.FORMAT_REFUSED, "asked in every way")


async def write(pen: LLMRuleWriter | None, id: str, lesson: RuleContext, sound: Sound) -> tuple[str, Author]:
    """A rule file and who wrote it; the text is "" where the line says too little for a rule."""
    author = Author(TEMPLATE)
    if pen:
        talk = _Talk(pen, request(pen.prompt, lesson, f"LOG-{pen.token()}"))
        try:
            async with asyncio.timeout(pen.deadline):
                return await _written(talk, id, lesson, sound), talk.author
        except ModelFailed as failure:
            author = replace(talk.author, name=TEMPLATE, failure=str(failure)[:300])
        except TimeoutError:
            author = replace(talk.author, name=TEMPLATE, failure=str(ModelFailure.TIMEOUT))
    draft = template_rules.from_shape(lesson)
    return (template_rules.rule_text(id, lesson, draft) if draft else ""), author


def request(prompt: Prompt, lesson: RuleContext, marker: str) -> ModelRequest:
    """The question, exactly as it is sent."""
    system, user = prompt.render(variables(lesson, marker))
    return ModelRequest(system, user, WrittenRule.model_json_schema(), prompt.meta.max_tokens, prompt.meta.temperature)


def variables(lesson: RuleContext, marker: str) -> dict[str, Any]:
    """marker: stands around what programs printed, and nowhere in it."""
    return {
        "type": str(lesson.type),
        "marker": marker,
        "line": delimited(lesson.line, marker),
        "around": [delimited(text, marker) for text in lesson.around],
        "healthy": [delimited(text, marker) for text in lesson.healthy],
        "alias": lesson.alias,
    }


async def _written(talk: _Talk, id: str, lesson: RuleContext, sound: Sound) -> str:
    """The model's rule; when it cannot be used the model is told why, once. Raises ModelFailed."""
    said = (await talk.ask()).text
    try:
        return await _usable(said, id, lesson, sound)
    except ModelFailed as fault:
        told = talk.pen.prompt.render_repair(str(fault))
    return await _usable((await talk.ask((said[:_REPAIRED_CHARS], told))).text, id, lesson, sound)


async def _usable(said: str, id: str, lesson: RuleContext, sound: Sound) -> str:
    text = template_rules.rule_text(id, lesson, _draft(said, lesson))
    if why := await asyncio.to_thread(sound, text):
        raise ModelFailed(ModelFailure.MALFORMED, why)
    return text


def _draft(said: str, lesson: RuleContext) -> RuleDraft:
    if len(said) > _ANSWER_CHARS:
        raise ModelFailed(ModelFailure.MALFORMED, f"the answer has {len(said)} characters")
    body = said.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        found = WrittenRule.model_validate(json.loads(body, strict=False))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))[:100] or "answer"
        raise ModelFailed(ModelFailure.MALFORMED, f"{where}: {first['msg'][:200]}") from None
    except (ValueError, RecursionError) as error:
        raise ModelFailed(ModelFailure.MALFORMED, f"no JSON: {error}"[:300]) from None
    title = without_links(" ".join(plain(found.title).split()))[:120]
    return RuleDraft(title, found.anchors, found.patterns, found.unless, lesson.mitigation)
