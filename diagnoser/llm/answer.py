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
_NOTHING = frozenset({"", "null", "none", "unknown", "n/a", "na"})
_QUOTE_CHARS, _CITED, _MITIGATION_CHARS, _REASONING_CHARS, _NODE_CHARS = 400, 5, 600, 4000, 100
_UNSURE = 0.5
"""Confidence of an answer that states none."""

AnswerT = TypeVar("AnswerT", bound=BaseModel)

LineNumber = Annotated[int, Field(ge=1, le=999_999_999)]


class StrictAnswer(BaseModel):
    """An answer with exactly these fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TolerantAnswer(BaseModel):
    """Asked for with exactly these fields; further ones are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, json_schema_extra={"additionalProperties": False})


class Quote(TolerantAnswer):
    """A line that the model cites: its number in the view and words copied from it."""

    line: LineNumber
    quote: Annotated[str, Field(max_length=_QUOTE_CHARS)]


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

    @model_validator(mode="before")
    @classmethod
    def _in_other_forms(cls, said: Any) -> Any:
        """Fields in forms that mean the same. The type and what is cited must be there; the rest has a default."""
        if not isinstance(said, Mapping) or "type" not in said:
            return said
        kind = _name(said["type"])
        known = kind in set(FailureType)
        category, alternative = _name(said.get("category") or ""), _name(said.get("alternative") or "")
        return {
            "reasoning": _text(said.get("reasoning"))[:_REASONING_CHARS],
            "type": kind,
            "category": category if category in set(Category) or not known else str(category_of(FailureType(kind))),
            "cited": _cited(said.get("cited", ())),
            "node": _node(said.get("node")),
            "rank": _rank(said.get("rank")),
            "fault": _one_of(said.get("fault"), ("user_error", "infrastructure")),
            "recoverable": _one_of(said.get("recoverable"), ("yes", "no")),
            "mitigation": _text(said.get("mitigation"))[:_MITIGATION_CHARS],
            "confidence": _share(said.get("confidence")),
            "alternative": alternative if alternative in set(FailureType) else "unknown",
        }


def parse(text: str, answer_type: type[AnswerT]) -> AnswerT:
    """The last object in the text that reads as an answer. Raises ModelFailed(answer_malformed) with what is wrong."""
    body = _THINKING.sub("", text).strip()
    if len(body) > ANSWER_CHARS:
        raise ModelFailed(ModelFailure.MALFORMED, f"the answer has {len(body)} characters")
    fault = "no JSON object"
    for said in reversed(_objects(body)):
        try:
            return answer_type.model_validate(said)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"]))[:100] or "answer"
            fault = f"{where}: {first['msg'][:300]}" if fault == "no JSON object" else fault
    raise ModelFailed(ModelFailure.MALFORMED, fault)


def _objects(text: str) -> list[Mapping[str, Any]]:
    """JSON objects in prose, in fences or alone, in their order; those inside another one are not looked at."""
    # Not strict: models, and grammars that guide them, put line breaks into strings as they are.
    decoder, objects, start = json.JSONDecoder(strict=False), list[Mapping[str, Any]](), 0
    for _ in range(_OBJECTS_MAX):
        begin = text.find("{", start)
        if begin < 0:
            break
        try:
            said, start = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            start = begin + 1
        else:
            objects.append(said)
    return objects


def _text(said: object) -> str:
    """Also of a list of sentences."""
    if isinstance(said, list):
        return " ".join(map(_text, said))
    return "" if said is None else str(said)


def _name(said: object) -> str:
    """``NVLink Error`` -> nvlink_error."""
    return _WORDS.sub("_", str(said).lower()).strip("_")


def _one_of(said: object, values: tuple[str, ...]) -> str:
    name = {"true": "yes", "false": "no"}.get(_name(said), _name(said))
    return name if name in values else "unknown"


def _node(said: object) -> str | None:
    node = _text(said[0] if isinstance(said, list) and said else said).strip()
    return None if node.lower() in _NOTHING else node[:_NODE_CHARS]


def _rank(said: object) -> int | None:
    """Also as ``rank 3`` or ``"3"``; None for what is no rank."""
    number = None if isinstance(said, bool | list) else _NUMBER.search(_text(said))
    rank = float(number[0]) if number else -1.0
    return int(rank) if 0 <= rank <= 9_999_999 else None


def _share(said: object) -> object:
    """85, ``85 %`` and 0.85 mean the same; what is no number stays, to be refused."""
    if said is None:
        return _UNSURE
    if isinstance(said, str):
        number = _NUMBER.search(said)
        if number is None:
            return {"high": 0.9, "medium": 0.6, "low": 0.3}.get(_name(said), said)
        said = float(number[0]) / (100 if "%" in said else 1)
    share: object = said
    return said / 100 if isinstance(said, int | float) and 1 < said <= 100 else share


def _cited(said: object) -> object:
    """Also one citation alone, and ``12: words`` or ``12 r3| words`` as text."""
    listed = said if isinstance(said, list | tuple) else [] if said is None else [said]
    return [_quote(entry) for entry in listed[:_CITED]]


def _quote(said: object) -> object:
    if isinstance(said, str):
        numbered = _LINE.match(said)
        return {"line": numbered[1], "quote": numbered[2][:_QUOTE_CHARS]} if numbered else said
    if not isinstance(said, Mapping):
        return {"line": said, "quote": ""} if isinstance(said, int) else said
    number = _LINE.match(str(said.get("line", said.get("number", ""))))
    quote = _text(said.get("quote", said.get("text")))[:_QUOTE_CHARS]
    return {"line": number[1] if number else said.get("line"), "quote": quote}
