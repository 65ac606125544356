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
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return value[0]
    return str(value)
