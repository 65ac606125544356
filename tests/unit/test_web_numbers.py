"""What the bodies of requests take for a number."""

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

import diagnoser.app  # noqa: F401  loads every route, and with it every body
from diagnoser.web.http.routing import StrictSchema


def test_no_body_takes_a_truth_value_for_a_number() -> None:
    """``false`` as seconds would end a mute that somebody meant to set."""
    taken = [(body.__name__, name) for body, name in _numbers() if _takes(body, name, value=False)]
    assert taken == []
    assert len(list(_numbers())) > 10


def _numbers() -> Iterator[tuple[type[StrictSchema], str]]:
    """(body, field) of each field that the description calls a number."""
    for body in _bodies(StrictSchema):
        for name, described in body.model_json_schema().get("properties", {}).items():
            kinds = {option.get("type") for option in described.get("anyOf", [described])}
            if kinds & {"number", "integer"}:
                yield body, name


def _bodies(schema: type[StrictSchema]) -> Iterator[type[StrictSchema]]:
    """Parameters of a query are texts, and no bodies."""
    for body in schema.__subclasses__():
        if not body.__name__.endswith(("Query", "Export", "Path")):
            yield body
        yield from _bodies(body)


def _takes(body: type[StrictSchema], name: str, value: Any) -> bool:
    try:
        body.__pydantic_validator__.validate_assignment(body.model_construct(), name, value)
    except ValidationError:
        return False
    return True
