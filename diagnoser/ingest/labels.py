"""Labels out of what shippers nest."""

from collections.abc import Iterator
from typing import Any

NESTED_DEEP = 8


def flat(name: str, value: Any, deep: int = NESTED_DEEP) -> Iterator[tuple[str, str]]:
    """What an object holds, as ``kubernetes.pod_name``; nothing that is nested deeper than ``deep``."""
    if not isinstance(value, dict):
        if value is not None:
            yield name, label_text(value)
    elif deep:
        for key, inner in value.items():
            yield from flat(f"{name}.{key}" if name else key, inner, deep - 1)


def label_text(value: Any) -> str:
    """A number that a shipper's script has made a float is still whole; of a list, its first element."""
    match value:
        case float() if value.is_integer():
            return str(int(value))
        case [str() as first, *_]:
            return first
    return str(value)
