"""The answer that the Failure Agent must give, and its strict reading."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.model.taxonomy import Category, FailureType

ANSWER_CHARS = 64 << 10

LineNumber = Annotated[int, Field(ge=1, le=999_999_999)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Quote(_Strict):
    """A line that the model cites: its number in the view and words copied from it."""

    line: LineNumber
    quote: Annotated[str, Field(max_length=400)]


class Answer(_Strict):
    """Every field is required; "I do not know" has its own value everywhere."""

    type: FailureType
    category: Category
    cited: Annotated[tuple[Quote, ...], Field(max_length=5)]
    node: Annotated[str, Field(max_length=100)] | None
    rank: Annotated[int, Field(ge=0, le=9_999_999)] | None
    fault: Literal["user_error", "infrastructure", "unknown"]
    recoverable: Literal["yes", "no", "unknown"]
    mitigation: Annotated[str, Field(max_length=600)]
    confidence: Annotated[float, Field(ge=0, le=1)]
    alternative: FailureType


def schema() -> Mapping[str, Any]:
    """JSON schema of an answer, for `response_format: json_schema`."""
    return Answer.model_json_schema()


def parse(text: str) -> Answer:
    """Raises ModelFailed(answer_malformed) with what is wrong."""
    if len(text) > ANSWER_CHARS:
        raise ModelFailed(ModelFailure.MALFORMED, f"the answer has {len(text)} characters")
    body = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        # Not strict: models, and grammars that guide them, put line breaks into strings as they are.
        return Answer.model_validate(json.loads(body, strict=False))
    except (ValueError, RecursionError) as error:
        raise ModelFailed(ModelFailure.MALFORMED, _why(error)) from None


def _why(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])[:100] or "answer"
        return f"{where}: {first['msg'][:300]}"
    return f"no JSON: {error}"[:300]
