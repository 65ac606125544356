"""Reads fields of the cluster's objects: one that is absent or null is empty. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any


def section(item: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for name in path:
        item = item.get(name) or {}
    return item


def entries(item: Mapping[str, Any], *path: str) -> Sequence[Any]:
    *above, last = path
    return section(item, *above).get(last) or ()


def text(item: Mapping[str, Any], name: str) -> str:
    return str(item.get(name) or "")


def first_text(item: Mapping[str, Any], *names: str) -> str:
    return next(filter(None, (text(item, name) for name in names)), "")


def number(item: Mapping[str, Any], name: str) -> int:
    return int(item.get(name) or 0)


def count(value: object, most: int) -> int:
    """Read a number that stands as text; 0 for what is none, or is more than ``most``."""
    digits = str(value)
    if not digits.isdecimal():
        return 0
    if len(digits) > len(str(most)):
        return 0
    if int(digits) > most:
        return 0
    return int(digits)


def marks(item: Mapping[str, Any]) -> dict[str, Any]:
    """Read the annotations and the labels of an object; a label wins."""
    return {**section(item, "metadata", "annotations"), **section(item, "metadata", "labels")}


def conditions(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Read the conditions that hold, by their type."""
    holding = (condition for condition in entries(status, "conditions") if condition.get("status") == "True")
    return {text(condition, "type"): condition for condition in holding}


def resources(container: Mapping[str, Any]) -> dict[str, Any]:
    """Read what a container asks for; a limit wins."""
    return {**section(container, "resources", "requests"), **section(container, "resources", "limits")}
