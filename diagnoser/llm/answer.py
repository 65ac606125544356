"""The answer that the Failure Agent asks for, and the parser of all answers.

The schema that is sent is strict; reading is not: servers without grammars, and models that think aloud, say the same
in other forms.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.model.taxonomy import Category, FailureType, category_of

ANSWER_CHARS = 64 << 10
_OBJECTS_MAX = 40
"""Most places in prose at which a JSON object is looked for."""
_THINKING = re.compile(r"(?is)\A\s*<(think|thinking|reasoning)>.*</\1>")
_WORDS = re.compile(r"[^a-z0-9]+")
_LINE = re.compile(r"(?i)\A\W*(?:l(?:ine)?)?\W*(\d{1,9})\s*(?:[^|:\n]{0,60}[|:])?\s*(.*)\Z", re.S)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_LOG = frozenset({"log", "the_log", "view", "none", "null", "search_log", "lines_around", "rank_stderr"})
"""Sources that are the log itself."""
_NOTHING = frozenset({"", "null", "none", "unknown", "n/a", "na"})
_QUOTE_CHARS, _CITED, _MITIGATION_CHARS, _REASONING_CHARS, _NODE_CHARS = 400, 5, 600, 4000, 100
_UNSURE = 0.5
"""Confidence of an answer that states none."""

AnswerT = TypeVar("AnswerT", bound=BaseModel)

LineNumber = Annotated[int, Field(ge=1, le=999_999_999)]


class StrictAnswer(BaseModel):
    """An answer with exactly these fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class TolerantAnswer(BaseModel):
    """Asked for with exactly these fields; further ones are ignored."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, defer_build=True, json_schema_extra={"additionalProperties": False}
    )


class Quote(TolerantAnswer):
    """A line that the model cites: its number, and words copied from it. source: a tool that showed it; "": the log."""

    line: LineNumber
    quote: Annotated[str, Field(max_length=_QUOTE_CHARS)]
    source: Annotated[str, Field(max_length=_NODE_CHARS)]


class Answer(TolerantAnswer):
    """Every field is required in the schema; "I do not know" has its own value everywhere.

    reasoning stands first: what a model writes before it commits itself makes the rest better.
    """

    reasoning: Annotated[str, Field(max_length=_REASONING_CHARS)]
    type: FailureType
    category: Category
    cited: Annotated[tuple[Quote, ...], Field(max_length=_CITED)]
    node: Annotated[str, Field(max_length=_NODE_CHARS)] | None
    rank: Annotated[int, Field(ge=0, le=9_999_999)] | None
    fault: Literal["user_error", "infrastructure", "unknown"]
    recoverable: Literal["yes", "no", "unknown"]
    mitigation: Annotated[str, Field(max_length=_MITIGATION_CHARS)]
    confidence: Annotated[float, Field(ge=0, le=1)]
    alternative: FailureType
    tells_apart: Annotated[str, Field(max_length=_MITIGATION_CHARS)]

    @model_validator(mode="before")
    @classmethod
    def _in_other_forms(cls, given: Any) -> Any:
        """Fields in forms that mean the same. The type and what is cited must be there; the rest has a default."""
        if not isinstance(given, Mapping):
            return given
        if "type" not in given:
            return given
        kind = _name(given["type"])
        return {
            "reasoning": _text(given.get("reasoning"))[:_REASONING_CHARS],
            "type": kind,
            "category": _category(given.get("category"), kind),
            "cited": _cited(given.get("cited", ())),
            "node": _node(given.get("node")),
            "rank": _rank(given.get("rank")),
            "fault": _one_of(given.get("fault"), ("user_error", "infrastructure")),
            "recoverable": _one_of(given.get("recoverable"), ("yes", "no")),
            "mitigation": _text(given.get("mitigation"))[:_MITIGATION_CHARS],
            "confidence": _share(given.get("confidence")),
            "alternative": _one_of(given.get("alternative"), tuple(FailureType)),
            "tells_apart": _text(given.get("tells_apart"))[:_MITIGATION_CHARS],
        }


def _category(given: object, kind: str) -> str:
    """Read the category; where it is none, the type tells it."""
    category = _name(given)
    if kind not in set(FailureType):
        return category
    if category in set(Category):
        return category
    return str(category_of(FailureType(kind)))


def parse(text: str, answer_type: type[AnswerT]) -> AnswerT:
    """The last object in the text that reads as an answer. Raises ModelFailed(answer_malformed) with what is wrong."""
    body = _THINKING.sub("", text).strip()
    if len(body) > ANSWER_CHARS:
        raise ModelFailed(ModelFailure.MALFORMED, f"the answer has {len(body)} characters")
    faults = list[str]()
    for given in reversed(objects(body)):
        try:
            return answer_type.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"]))[:100] or "answer"
            faults.append(f"{where}: {first['msg'][:300]}")
    raise ModelFailed(ModelFailure.MALFORMED, next(iter(faults), "no JSON object"))


def objects(text: str) -> list[Mapping[str, Any]]:
    """JSON objects in prose, in fences or alone, in their order; those inside another one are not looked at."""
    # Not strict: models, and grammars that guide them, put line breaks into strings as they are.
    decoder, objects, start = json.JSONDecoder(strict=False), list[Mapping[str, Any]](), 0
    for _ in range(_OBJECTS_MAX):
        begin = text.find("{", start)
        if begin < 0:
            break
        try:
            given, start = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            start = begin + 1
        else:
            objects.append(given)
    return objects


def _text(given: object) -> str:
    """Read a text, also from a list of sentences."""
    if isinstance(given, list):
        return " ".join(map(_text, given))
    if given is None:
        return ""
    return str(given)


def _name(given: object) -> str:
    """``NVLink Error`` -> nvlink_error."""
    return _WORDS.sub("_", _text(given).lower()).strip("_")


def _one_of(given: object, values: tuple[str, ...]) -> str:
    name = {"true": "yes", "false": "no"}.get(_name(given), _name(given))
    if name in values:
        return name
    return "unknown"


def _node(given: object) -> str | None:
    if isinstance(given, list):
        given = next(iter(given), None)
    node = _text(given).strip()
    return None if node.lower() in _NOTHING else node[:_NODE_CHARS]


def _rank(given: object) -> int | None:
    """Read a rank, also as ``rank 3`` or ``"3"``; None for what is no rank."""
    if isinstance(given, bool | list):
        return None
    number = _NUMBER.search(_text(given))
    if number is None:
        return None
    rank = float(number[0])
    return int(rank) if 0 <= rank <= 9_999_999 else None


def _share(given: object) -> object:
    """85, ``85 %`` and 0.85 mean the same; what is no number stays, to be refused."""
    if given is None:
        return _UNSURE
    if isinstance(given, str):
        number = _NUMBER.search(given)
        if number is None:
            return {"high": 0.9, "medium": 0.6, "low": 0.3}.get(_name(given), given)
        given = float(number[0]) / (100 if "%" in given else 1)
    if isinstance(given, int | float) and 1 < given <= 100:
        return given / 100
    return given


def _cited(given: object) -> object:
    """Read the citations; also one alone, and ``12: words`` or ``12 r3| words`` as text."""
    if given is None:
        return []
    if not isinstance(given, list | tuple):
        given = [given]
    return list(map(_quote, given[:_CITED]))


def _quote(given: object) -> object:
    if isinstance(given, int):
        return {"line": given, "quote": "", "source": ""}
    if isinstance(given, str):
        if numbered := _LINE.match(given):
            return {"line": numbered[1], "quote": numbered[2][:_QUOTE_CHARS], "source": ""}
        return given
    if not isinstance(given, Mapping):
        return given
    number = _LINE.match(str(given.get("line", given.get("number", ""))))
    quote = _text(given.get("quote", given.get("text")))[:_QUOTE_CHARS]
    source = _name(given.get("source"))[:_NODE_CHARS]
    if source in _LOG:
        source = ""
    return {"line": number[1] if number else given.get("line"), "quote": quote, "source": source}
