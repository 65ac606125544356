"""Who writes Filter Rules: a language model by several samples that agree, as in the paper, or the lines' own shapes.

A pattern is a message with wildcards that cross no blank: each word of it must be there, and nothing may follow. So the
worst that a hostile model can write is a pattern that knows too little.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated

import re2
from pydantic import Field, StringConstraints

from diagnoser.compress.delta import TemplateStats
from diagnoser.compress.routine import RoutineFilter, messages
from diagnoser.failure_agent.conversation import Conversation, build_question
from diagnoser.learning.rule_writer import TEMPLATE, LLMRuleWriter
from diagnoser.llm.answer import StrictAnswer
from diagnoser.llm.view import Pseudonymizer, delimited
from diagnoser.model import Author
from diagnoser.model.errors import ModelFailed
from diagnoser.redaction.redact import Redactor

SAMPLES, AGREE = 3, 2
"""Answers that a model gives, and how many must know a line."""
PATTERNS_MAX, LONGEST = 40, 400
"""Patterns of one rule, and characters of a pattern."""
_CALLS_MAX = 8
_PATTERN = re2.compile(r"\^(?:\\[dSw]\+|\[[\\d.,:eE+-]+\]\+|\\s\+|\\[^\w\s]|[^\\.^$|()\[\]{}*+?\n])+\$")
"""Literals, and wildcards that cross no blank."""
_DIGITS, _NUMBER = re.compile(r"\d"), re.compile(r"\d+(?:\\\.\d+)*")
_LETTERS, _TOKEN = re.compile(r"[^\W\d_]+"), re.compile(r"\S+")
_SPECIAL = re.compile(r"([\\.^$|()\[\]{}*+?])")


class FilterAnswer(StrictAnswer):
    patterns: Annotated[
        tuple[Annotated[str, StringConstraints(max_length=LONGEST)], ...], Field(max_length=PATTERNS_MAX)
    ]


async def write(
    writer: LLMRuleWriter | None, shapes: Sequence[TemplateStats], redact: Redactor
) -> tuple[list[str], Author]:
    """Patterns that know some of the shapes, and who wrote them. A model that fails is replaced by the shapes."""
    author = Author(TEMPLATE)
    if writer:
        conversation = Conversation(writer.model, writer.deadline_seconds, _CALLS_MAX)
        try:
            async with conversation.deadline():
                answers = await _answers(writer, conversation, shapes, redact)
            return _agreed(answers, shapes), conversation.author(writer.prompt)
        except ModelFailed as failure:
            author = replace(conversation.author(writer.prompt), name=TEMPLATE, failure=str(failure)[:300])
    return usable(map(from_shape, shapes), shapes), author


async def _answers(
    writer: LLMRuleWriter, conversation: Conversation, shapes: Sequence[TemplateStats], redact: Redactor
) -> list[list[str]]:
    """Usable patterns of each sample. Raises ModelFailed where one cannot be had or read."""
    marker, pseudonyms = f"LOG-{writer.token()}", Pseudonymizer(redact, ())
    texts = [f"{stat.count}x {delimited(pseudonyms.hide(messages(stat)[0]), marker)}" for stat in shapes]
    question = build_question(writer.prompt, {"marker": marker, "lines": texts}, FilterAnswer)
    samples = list((await conversation.send(replace(question.request, samples=SAMPLES))).samples)
    while len(samples) < SAMPLES:  # not every server gives more than one at once
        samples += (await conversation.send(question.request)).samples
    return [usable((await conversation.read(question, sample)).patterns, shapes) for sample in samples]


def _agreed(answers: Sequence[Sequence[str]], shapes: Sequence[TemplateStats]) -> list[str]:
    """Patterns all of whose shapes are known to ``AGREE`` answers, each pattern once."""
    support = Counter[int]()
    for patterns in answers:
        support.update({number for pattern in patterns for number in _known(pattern, shapes)})
    agreed = []
    for pattern in dict.fromkeys(pattern for patterns in answers for pattern in patterns):
        if all(support[number] >= AGREE for number in _known(pattern, shapes)):
            agreed.append(pattern)
    return agreed[:PATTERNS_MAX]


def usable(patterns: Iterable[str], shapes: Sequence[TemplateStats]) -> list[str]:
    """The patterns that know some of the shapes, and nothing that says other words."""
    sound = []
    for pattern in dict.fromkeys(patterns):
        if len(pattern) > LONGEST:
            continue
        if not _PATTERN.fullmatch(pattern):
            continue
        known = _known(pattern, shapes)
        if known and not any(is_too_wide(pattern, messages(shapes[number])[0]) for number in known):
            sound.append(pattern)
    return sound


def _known(pattern: str, shapes: Sequence[TemplateStats]) -> list[int]:
    """Numbers of the shapes whose first and last line a pattern takes."""
    known = RoutineFilter("", (pattern,))
    return [number for number, stat in enumerate(shapes) if all(map(known.takes, messages(stat)))]


def is_too_wide(pattern: str, text: str) -> bool:
    """Whether a pattern that takes the message also takes it with another word in the place of one of its own."""
    known, words = RoutineFilter("", (pattern,)), 0
    for token in _TOKEN.finditer(text):
        if _DIGITS.search(token[0]):
            continue
        if not _LETTERS.search(token[0]):
            continue
        words += 1
        if known.takes(text[: token.start()] + _LETTERS.sub("qq", token[0]) + text[token.end() :]):
            return True
    return words < 2


def from_shape(stat: TemplateStats) -> str:
    """The message with a wildcard for each number."""
    literals = (_SPECIAL.sub(r"\\\1", word) for word in messages(stat)[0].split())
    return "^" + r"\s+".join(_NUMBER.sub(lambda _: r"[\d.]+", literal) for literal in literals) + "$"
