"""The answer that the Failure Agent asks for, and the strict parser of all answers."""

import json
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.model.taxonomy import Category, FailureType

ANSWER_CHARS = 64 << 10

AnswerT = TypeVar("AnswerT", bound=BaseModel)

LineNumber = Annotated[int, Field(ge=1, le=999_999_999)]


class StrictAnswer(BaseModel):
    """An answer with exactly these fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Quote(StrictAnswer):
    """A line that the model cites: its number in the view and words copied from it."""

    line: LineNumber
    quote: Annotated[str, Field(max_length=400)]


class Answer(StrictAnswer):
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


def parse(text: str, answer_type: type[AnswerT]) -> AnswerT:
    """Raises ModelFailed(answer_malformed) with what is wrong."""
    if len(text) > ANSWER_CHARS:
        raise ModelFailed(ModelFailure.MALFORMED, f"the answer has {len(text)} characters")
    body = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        # Not strict: models, and grammars that guide them, put line breaks into strings as they are.
        return answer_type.model_validate(json.loads(body, strict=False))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))[:100] or "answer"
        raise ModelFailed(ModelFailure.MALFORMED, f"{where}: {first['msg'][:300]}") from None
    except (ValueError, RecursionError) as error:
        raise ModelFailed(ModelFailure.MALFORMED, f"no JSON: {error}"[:300]) from None
