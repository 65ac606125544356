"""Reads YAML documents into pydantic models and reports all their faults at once, each with path and line.

Rules, filter rules and the policy table are all read this way, so that a person can fix a file in one go.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from diagnoser.model.errors import Fault, RuleFaults

# libyaml reads some hundred rule files several times faster than the loader in Python.
_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_TEXT, _LIST, _MAPPING, _MERGE = (f"{_TAG}{kind}" for kind in ("str", "seq", "map", "merge"))

Model = TypeVar("Model", bound=BaseModel)
_COLLECTIONS: dict[type[yaml.Node], str] = {yaml.SequenceNode: _LIST, yaml.MappingNode: _MAPPING}


class _Loader(_Safe):  # type: ignore[misc]
    """Names the tag of a node by its kind and first character alone: nothing here resolves tags by a node's path, which
    would take a third of the time."""

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: Any) -> str:
        if kind is not yaml.ScalarNode:
            return _COLLECTIONS[kind]
        if implicit[0] and value is not None:
            for tag, form in self.yaml_implicit_resolvers.get(value[:1], ()):
                if form.match(value):
                    return str(tag)
        return _TEXT

    def descend_resolver(self, parent: yaml.Node | None, index: object) -> None:
        """Nothing to note of the way down."""

    def ascend_resolver(self) -> None:
        """Nothing to forget on the way up."""


class StrictModel(BaseModel):
    """The base of everything that is read from a site's files: an unknown name is a fault."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def read(path: str, text: str, shape: type[Model]) -> tuple[Model | None, list[Fault]]:
    """Read a document as ``shape``: the model, or None and every fault. ``path`` is only used in the faults."""
    loader = _Loader(text)
    try:
        tree = loader.get_single_node()
        builder = _Builder(loader)
        data = builder.build(tree)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        return None, [Fault(path, mark.line + 1 if mark else 0, f"not YAML: {problem}")]
    finally:
        loader.dispose()
    if not isinstance(data, dict):
        return None, [Fault(path, 1, "must be a mapping")]
    faults = [Fault(path, key.start_mark.line + 1, f"key '{key.value}' appears twice") for key in builder.duplicates]
    try:
        model = shape.model_validate(data)
    except ValidationError as error:
        for entry in error.errors():
            faults.append(Fault(path, line_of(tree, entry["loc"]), _message(entry["loc"], entry["msg"])))
    return (None, faults) if faults else (model, [])


def sound(document: Model | None, faults: list[Fault]) -> Model:
    """The document that ``read`` returned, after further checks. Raises RuleFaults where there are any faults."""
    if document is None or faults:
        raise RuleFaults(faults)
    return document


def load(
    path: str, text: str, shape: type[Model], faults_of: Callable[[Model], Iterable[Fault]] = lambda _: ()
) -> Model:
    """Read a document as ``shape``. Raises RuleFaults with every fault.

    faults_of: finds what the shape alone does not show.
    """
    found, faults = read(path, text, shape)
    if found is not None:
        faults += faults_of(found)
    return sound(found, faults)


class _Builder:
    """Makes plain data of a node tree. Most of it is text, lists and mappings, which it makes itself, in half the time
    of the loader's own way. An anchor's node is built once, however often the document repeats it."""

    def __init__(self, loader: Any) -> None:
        self.duplicates: list[yaml.Node] = []
        self._loader = loader
        self._built: dict[int, object] = {}

    def build(self, node: yaml.Node | None) -> object:
        if node is None:
            return None
        if node.tag == _TEXT and isinstance(node, yaml.ScalarNode):
            return node.value
        known = self._built.get(id(node))
        if known is not None:
            return known
        match node:
            case yaml.SequenceNode() if node.tag == _LIST:
                return self._list(node)
            case yaml.MappingNode() if node.tag == _MAPPING:
                return self._mapping(node)
        return self._loader.construct_object(node, deep=True)

    def _list(self, node: yaml.SequenceNode) -> list[object]:
        items: list[object] = []
        self._built[id(node)] = items
        for child in node.value:
            items.append(self.build(child))
        return items

    def _mapping(self, node: yaml.MappingNode) -> dict[object, object]:
        mapping: dict[object, object] = {}
        self._built[id(node)] = mapping
        self._note_duplicates(node)
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a scalar", key.start_mark)
            mapping[self.build(key)] = self.build(value)
        return mapping

    def _note_duplicates(self, node: yaml.MappingNode) -> None:
        """Look for keys that the document itself repeats; those that a merge (``<<``) brings may be overridden."""
        seen = set[str]()
        merges = False
        for key, _ in node.value:
            merges |= key.tag == _MERGE
            if isinstance(key.value, str) and key.value in seen:
                self.duplicates.append(key)
            seen.add(str(key.value))
        if merges:
            self._loader.flatten_mapping(node)


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
    return yaml.compose(text, _Loader)


def _child(tree: yaml.Node | None, step: int | str) -> tuple[int, yaml.Node] | None:
    if isinstance(tree, yaml.MappingNode):
        for key, value in tree.value:
            if key.value == str(step):
                return key.start_mark.line + 1, value
    if isinstance(tree, yaml.SequenceNode) and isinstance(step, int) and step < len(tree.value):
        return tree.value[step].start_mark.line + 1, tree.value[step]
    return None


def _message(location: tuple[int | str, ...], message: str) -> str:
    where = ".".join(map(str, location))
    message = (
        message.removeprefix("Value error, ")
        .replace("Extra inputs are not permitted", "unknown key")
        .replace("Field required", "missing")
    )
    return f"{where}: {message}" if where else message
