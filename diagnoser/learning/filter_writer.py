"""The Log Agent's pen: Filter Rules for a segment of routine lines, by self-consistency as in the paper (section 6.1).

A model is asked several times; what two answers agree on goes before a judge, another question, which keeps what is
safe. Without a model the shapes themselves are written down. What a model writes is an expression, and nothing else.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

import re2
import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from diagnoser.compress import templates
from diagnoser.compress.learned_filters import Known
from diagnoser.learning import filter_validation, rule_context
from diagnoser.learning.segments import Segment
from diagnoser.llm.prompt import Prompt, tokens_of
from diagnoser.llm.question import nodes_of
from diagnoser.llm.redact import Mask
from diagnoser.llm.view import delimited, disguise
from diagnoser.model import Author, Evidence, Facts
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.ports import LanguageModel, ModelAnswer, ModelRequest

TEMPLATE = "template"
SAMPLES, AGREE = 3, 2
"""Answers that are asked for, and how many must know a line."""
CALLS_MAX = 12
"""Questions for one rule, repairs and refusals of a way to ask included."""
_ANSWER_CHARS = 32 << 10
_REPAIRED_CHARS = 2000
_EXAMPLES = 6
_OTHER = "RuntimeError: the run cannot go on"
_WILD = {"NUM": r"[-+\d.,:eE]+", "TIME": r"\S+(?: \S+)?"}
_HOLE = re.compile(r"<(NUM|IP|HEX|TIME|UUID|\*)>")
_SPECIAL = re.compile(r"([\\.^$|()\[\]{}*+?])")
_MASKED = re.compile(r"<[a-z]+(?:-[a-z]+)*>")

M = TypeVar("M", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Proposed(_Strict):
    pattern: Annotated[str, StringConstraints(min_length=1, max_length=400)]
    lines: Annotated[tuple[int, ...], Field(max_length=100)]


class Proposals(_Strict):
    """What the Log Agent answers."""

    rules: Annotated[tuple[Proposed, ...], Field(max_length=24)]


class Kept(_Strict):
    """What the judge answers."""

    keep: Annotated[tuple[int, ...], Field(max_length=24)]


@dataclass(frozen=True, slots=True)
class Shown:
    """A line of a segment: as it came, and in disguise. count: lines of its shape."""

    raw: str
    text: str
    count: int


@dataclass(frozen=True, slots=True)
class Pen:
    """How a site asks. token: a new random word each time. deadline: seconds for one rule."""

    model: LanguageModel
    prompt: Prompt
    judge: Prompt
    token: Callable[[], str]
    deadline: float


@dataclass(slots=True)
class Talk:
    """All questions for one rule. author: grows with each of them."""

    pen: Pen
    author: Author = field(init=False)

    def __post_init__(self) -> None:
        one, two = self.pen.prompt, self.pen.judge
        name, label = self.pen.model.name, f"{one.label} {two.label}"
        self.author = Author(f"llm:{name}", name, label, f"{one.hash} {two.hash}", one.meta.temperature)

    async def ask(self, prompt: Prompt, variables: Mapping[str, Any], shape: type[M]) -> M:
        """An answer that can be read; when it cannot the model is told why, once. Raises ModelFailed."""
        request = filled(prompt, variables, shape)
        said = (await self._answer(request)).text
        try:
            return _read(said, shape)
        except ModelFailed as fault:
            repair = (said[:_REPAIRED_CHARS], prompt.render_repair(str(fault)))
        return _read((await self._answer(replace(request, repair=repair))).text, shape)

    async def _answer(self, request: ModelRequest) -> ModelAnswer:
        """Again where the server only wants to be asked in another way."""
        while self.author.calls < CALLS_MAX:
            self.author = replace(self.author, calls=self.author.calls + 1)
            try:
                answer = await self.pen.model.ask(request)
            except ModelFailed as failure:
                if failure.reason is not ModelFailure.FORMAT_REFUSED:
                    raise
                continue
            self._count(request, answer)
            return answer
        raise ModelFailed(ModelFailure.NO_AGREEMENT, f"{CALLS_MAX} calls gave no rule")

    def _count(self, request: ModelRequest, answer: ModelAnswer) -> None:
        size = tokens_of(request.system) + tokens_of(request.user)
        self.author = replace(
            self.author,
            name=f"llm:{answer.model}",
            model=answer.model,
            tokens_in=self.author.tokens_in + (answer.tokens_in or size),
            tokens_out=self.author.tokens_out + (answer.tokens_out or tokens_of(answer.text)),
        )


@dataclass(frozen=True, slots=True)
class Written:
    """text: a file of Filter Rules, "" where nothing is safe to hide, and then why."""

    text: str
    author: Author
    why: str = ""


def filled(prompt: Prompt, variables: Mapping[str, Any], shape: type[BaseModel]) -> ModelRequest:
    """The question, exactly as it is sent."""
    system, user = prompt.render(variables)
    return ModelRequest(system, user, shape.model_json_schema(), prompt.meta.max_tokens, prompt.meta.temperature)


def hidden_in(segment: Segment, evidence: Evidence, facts: Facts, mask: Mask) -> tuple[list[Shown], str]:
    """The lines of a segment in disguise, and what machines are called there."""
    hidden = disguise("\n".join(one.text for one in segment.samples), nodes_of(evidence, facts), mask)
    told = [Shown(one.text, rule_context.shown(one.text, hidden), one.count) for one in segment.samples]
    return told, hidden.hosts.prefix


async def write(pen: Pen | None, id: str, lines: Sequence[Shown], alias: str) -> Written:
    """alias: what machines are called in disguise. A model that gives no usable answer is replaced by the shapes."""
    author = Author(TEMPLATE)
    if pen:
        talk = Talk(pen)
        try:
            async with asyncio.timeout(pen.deadline):
                kept, why = await _agreed(talk, lines, alias)
            return Written(rule_text(id, kept, lines) if kept else "", talk.author, why)
        except ModelFailed as failure:
            reason = str(failure)
        except TimeoutError:
            reason = str(ModelFailure.TIMEOUT)
        author = replace(talk.author, name=TEMPLATE, failure=reason[:300])
    kept = usable(from_shapes([one.text for one in lines], alias), lines)
    return Written(rule_text(id, kept, lines) if kept else "", author, "" if kept else "no shape is telling")


async def _agreed(talk: Talk, lines: Sequence[Shown], alias: str) -> tuple[list[str], str]:
    """Patterns whose lines two answers know, as far as the judge keeps them; why there are none. Raises ModelFailed."""
    pen = talk.pen
    marker = f"LOG-{pen.token()}"
    asked = [talk.ask(pen.prompt, variables(lines, alias, marker), Proposals) for _ in range(SAMPLES)]
    answers, failures = [], []
    for found in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(found, Proposals):
            answers.append(usable([one.pattern for one in found.rules], lines))
        elif isinstance(found, ModelFailed):
            failures.append(found)
        else:
            raise found
    if len(answers) < AGREE:
        raise failures[0]
    candidates = agreed(answers, lines)
    if not candidates:
        return [], "no rule whose lines two answers know"
    verdict = await talk.ask(pen.judge, for_judge(candidates, lines, alias, marker), Kept)
    kept = [text for number, text in enumerate(candidates, 1) if number in verdict.keep]
    return kept, "" if kept else "the judge keeps no rule"


def agreed(answers: Sequence[Sequence[str]], lines: Sequence[Shown]) -> list[str]:
    """Patterns all of whose lines are known to ``AGREE`` answers, each once."""
    support = Counter(
        number for patterns in answers for number in {n for text in patterns for n in _numbers(text, lines)}
    )
    every = dict.fromkeys(text for patterns in answers for text in patterns)
    return [text for text in every if all(support[number] >= AGREE for number in _numbers(text, lines))][
        : filter_validation.MOST
    ]


def usable(patterns: Sequence[str], lines: Sequence[Shown]) -> list[str]:
    """Those that stand the tests of a pattern, both on the lines and on their disguise."""
    raw, hidden = [one.raw for one in lines], [one.text for one in lines]
    sound = [
        text
        for text in patterns
        if not filter_validation.fault(text, raw) and not filter_validation.fault(text, hidden)
    ]
    return [text for text in sound if _numbers(text, lines)][: filter_validation.MOST]


def from_shapes(texts: Sequence[str], alias: str) -> list[str]:
    """A pattern for each family of lines, as Drain3 groups them; what varies becomes a wildcard."""
    named = re.compile(rf"{re.escape(alias)}\d+[\w.-]*")
    bare = [_MASKED.sub("<*>", named.sub("<*>", text)) for text in texts]
    return list(dict.fromkeys(_pattern(group.text) for group in templates.group([(text, 0) for text in bare])))


def _pattern(template: str) -> str:
    """Literal parts as they are, blanks of any width, wildcards for what Drain3 or the masks left out."""
    parts = _HOLE.split(template.strip())
    made = [
        _WILD.get(part, r"\S+") if number % 2 else re.sub(r"\s+", r"\\s+", _SPECIAL.sub(r"\\\1", part))
        for number, part in enumerate(parts)
    ]
    return rf"^\s*{''.join(made)}\s*$"


def rule_text(id: str, patterns: Sequence[str], lines: Sequence[Shown]) -> str:
    """The file, in the format of shipped filters; examples are in disguise, for rules are exported."""
    rule = Known(id, tuple(patterns))
    match = [one.text for one in lines if rule.takes(one.text) and rule.takes(one.raw)]
    others = [one.text for one in lines if not rule.takes(one.text) and not rule.takes(one.raw)]
    text = _file(id, patterns, match, [*others[:2], _OTHER])
    # A filter must tell its counter-examples apart whatever their numbers; where it cannot they are no proof.
    return text if filter_validation.compiles(id, text)[1] else _file(id, patterns, match, [_OTHER])


def _file(id: str, patterns: Sequence[str], match: Sequence[str], no_match: Sequence[str]) -> str:
    title = f"Routine such as: {templates.mask(match[0])[:80]}" if match else "Routine"
    examples = {"match": list(dict.fromkeys(match))[:_EXAMPLES], "no_match": list(no_match)}
    found = {"id": id, "title": title, "patterns": list(patterns), "examples": examples}
    return str(
        yaml.safe_dump({"family": "learned", "filters": [found]}, sort_keys=False, allow_unicode=True, width=110)
    )


def _numbers(pattern: str, lines: Sequence[Shown]) -> list[int]:
    """Lines that a pattern knows, as they came and in disguise."""
    compiled = re2.compile(pattern)
    return [n for n, one in enumerate(lines, 1) if compiled.search(one.raw) and compiled.search(one.text)]


def variables(lines: Sequence[Shown], alias: str, marker: str) -> dict[str, Any]:
    """What the Log Agent's prompt is filled with. marker: stands around what programs printed, and nowhere in it."""
    told = [{"count": one.count, "text": delimited(one.text, marker)} for one in lines]
    return {"marker": marker, "lines": told, "alias": alias}


def for_judge(patterns: Sequence[str], lines: Sequence[Shown], alias: str, marker: str) -> dict[str, Any]:
    """The same for the judge: what a model wrote is data as well."""
    rules = [{"pattern": delimited(text, marker), "lines": _numbers(text, lines)} for text in patterns]
    return {**variables(lines, alias, marker), "rules": rules}


def _read(said: str, shape: type[M]) -> M:
    if len(said) > _ANSWER_CHARS:
        raise ModelFailed(ModelFailure.MALFORMED, f"the answer has {len(said)} characters")
    body = said.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        return shape.model_validate(json.loads(body, strict=False))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))[:100] or "answer"
        raise ModelFailed(ModelFailure.MALFORMED, f"{where}: {first['msg'][:200]}") from None
    except (ValueError, RecursionError) as error:
        raise ModelFailed(ModelFailure.MALFORMED, f"no JSON: {error}"[:300]) from None
