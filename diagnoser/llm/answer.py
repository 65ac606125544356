"""The answer that the Failure Agent must give, and its strict reading."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diagnoser.errors import ModelFailed, ModelFailure
from diagnoser.taxonomy import FailureType

ANSWER_BYTES = 64 << 10


class Quote(BaseModel):
    """A line that the model cites: its number in the view and words copied from it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    line: int
    quote: Annotated[str, Field(max_length=2000)]


class Answer(BaseModel):
    """Every field is required; "I do not know" has its own value everywhere."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: FailureType
    cited: Annotated[tuple[Quote, ...], Field(max_length=20)]
    node: str | None
    rank: int | None
    confidence: Annotated[float, Field(ge=0, le=1)]
    mitigation: Annotated[str, Field(max_length=2000)]
    alternative: FailureType


def schema() -> Mapping[str, Any]:
    """JSON schema of an answer, for `response_format: json_schema`."""
    return Answer.model_json_schema()


def parse(text: str) -> Answer:
    """Raises ModelFailed(answer_malformed) with what is wrong."""
    if len(text) > ANSWER_BYTES:
        raise ModelFailed(ModelFailure.MALFORMED, f"the answer has {len(text)} characters")
    body = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        return Answer.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"]) or "answer"
        raise ModelFailed(ModelFailure.MALFORMED, f"{where}: {first['msg']}") from None
