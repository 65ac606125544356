"""Reads YAML documents into pydantic models and reports all their faults at once, each with path and line.

Rules, filter rules and the policy table are all read this way, so that a person can fix a file in one go.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from diagnoser.model.errors import Fault, RuleFaults

# libyaml reads some hundred rule files several times faster than the loader in Python.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Model = TypeVar("Model", bound=BaseModel)


class StrictModel(BaseModel):
    """The base of everything that is read from a site's files: an unknown name is a fault."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def read(path: str, text: str, shape: type[Model]) -> tuple[Model | None, list[Fault]]:
    """The document as ``shape``, or None and every fault found. ``path`` is only used in the faults."""
    try:
        tree, data = _parse(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        return None, [Fault(path, mark.line + 1 if mark else 0, f"not YAML: {problem}")]
    if not isinstance(data, dict):
        return None, [Fault(path, 1, "must be a mapping")]
    duplicates = _duplicate_keys(path, tree)
    try:
        return (None if duplicates else shape.model_validate(data)), duplicates
    except ValidationError as error:
        return None, duplicates + [
            Fault(path, line_of(tree, entry["loc"]), _message(entry["loc"], entry["msg"])) for entry in error.errors()
        ]


def load(
    path: str, text: str, shape: type[Model], faults_of: Callable[[Model], Iterable[Fault]] = lambda _: ()
) -> Model:
    """Read the document as ``shape``. Raises RuleFaults with every fault.

    faults_of: finds what the shape alone does not show.
    """
    found, faults = read(path, text, shape)
    if found is not None:
        faults += faults_of(found)
    if found is None or faults:
        raise RuleFaults(faults)
    return found


def _parse(text: str) -> tuple[yaml.Node | None, object]:
    """The node tree, which knows the lines, and the plain data made of it: one pass for both."""
    loader = _Loader(text)
    try:
        tree = loader.get_single_node()
        return tree, None if tree is None else loader.construct_document(tree)
    finally:
        loader.dispose()


def line_of(tree: yaml.Node | None, location: tuple[int | str, ...]) -> int:
    """1-based line of the deepest part of ``location`` that the document has."""
    line = 1
    for step in location:
        child = _child(tree, step)
        if child is None:
            break
        line, tree = child
    return line


def locate(text: str, *location: int | str) -> int:
    """Like ``line_of`` for a document's text: for faults found after the shape is right."""
    return line_of(_tree(text), location)


@lru_cache(maxsize=1)
def _tree(text: str) -> yaml.Node | None:
    """Kept for the next question: who checks a table asks for the lines of the same document many times."""
    return _parse(text)[0]


def _child(tree: yaml.Node | None, step: int | str) -> tuple[int, yaml.Node] | None:
    if isinstance(tree, yaml.MappingNode):
        for key, value in tree.value:
            if key.value == str(step):
                return key.start_mark.line + 1, value
    if isinstance(tree, yaml.SequenceNode) and isinstance(step, int) and step < len(tree.value):
        return tree.value[step].start_mark.line + 1, tree.value[step]
    return None


def _duplicate_keys(path: str, tree: yaml.Node | None) -> list[Fault]:
    faults: list[Fault] = []
    if isinstance(tree, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in tree.value:
            if key.value in seen:
                faults.append(Fault(path, key.start_mark.line + 1, f"key '{key.value}' appears twice"))
            seen.add(key.value)
            faults += _duplicate_keys(path, value)
    elif isinstance(tree, yaml.SequenceNode):
        for value in tree.value:
            faults += _duplicate_keys(path, value)
    return faults


def _message(location: tuple[int | str, ...], message: str) -> str:
    where = ".".join(str(step) for step in location)
    message = (
        message.removeprefix("Value error, ")
        .replace("Extra inputs are not permitted", "unknown key")
        .replace("Field required", "missing")
    )
    return f"{where}: {message}" if where else message
