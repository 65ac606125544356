"""Records as JSON and back."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

Record = TypeVar("Record")


class RecordJson(Generic[Record]):
    """JSON of one kind of record. Fields that an older version did not write take their defaults; those that a newer
    one added are left out."""

    def __init__(self, shape: type[Record]) -> None:
        self._shape = shape

    def dump(self, record: Record, without: set[str] | None = None) -> str:
        """without: names of fields to leave out."""
        return self._adapter.dump_json(record, exclude=without).decode()

    def plain(self, record: Record) -> Any:
        """As JSON would be read: objects, arrays, texts, numbers."""
        return self._adapter.dump_python(record, mode="json")

    def load(self, text: str | bytes) -> Record:
        """Raises pydantic.ValidationError where it is no such record."""
        return self._adapter.validate_json(text)

    @cached_property
    def _adapter(self) -> TypeAdapter[Record]:
        """Made at its first use: those of all records take a twentieth of a start."""
        return TypeAdapter(self._shape)


def fields_of(record: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}
