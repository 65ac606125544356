"""Reads JSON that may be cut, or hold what JSON does not know, to flat fields."""

import re
from collections.abc import Iterator, Mapping, Set
from typing import Any

import orjson

from diagnoser.records.fields import CONTAINERS, ERRORS, HOST, LEVEL, MESSAGE, OTHERS, PLACE, RANK, TIME, WEAK_MESSAGE

LONGEST = 64 << 10
"""Characters of a record that are read."""
_DEPTH, _MOST = 8, 256
"""Levels and fields that are read."""
_PAIR = re.compile(
    r'"(?P<key>(?:[^"\\\n]|\\.){1,80})"\s{0,4}:\s{0,4}(?:"(?P<text>(?:[^"\\]|\\.)*)|(?P<bare>[-+\w.]{1,40})|(?=[\[{]))'
)
_BEGINS = re.compile(r'\{\s{0,4}"(?:[^"\\\n]|\\.){1,80}"\s{0,4}:')
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_TYPES = frozenset({"stringValue", "intValue", "doubleValue", "boolValue"})
"""Names under which OpenTelemetry writes a value of that type."""
_TAG = re.compile(r"[A-Za-z_][\w./-]{0,60}:(?=\S)")
_PLAIN_MESSAGE = frozenset(MESSAGE) - WEAK_MESSAGE
_STATED = frozenset({*LEVEL, *TIME, *HOST})
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None}


def read_fields(text: str) -> dict[str, Any]:
    """Name -> value of a JSON object, or of as much of one as can be read; empty where it is none.

    Values are scalars, and lists as they stand. Names are in lower case and lead through the levels, with dots.
    """
    try:
        read = orjson.loads(text[:LONGEST])
    except ValueError:
        return _scanned(text[:LONGEST]) if _BEGINS.match(text) else {}
    return flat(read) if isinstance(read, dict) else {}


def flat(read: Mapping[str, Any]) -> dict[str, Any]:
    """The same of an object that was read."""
    fields: dict[str, Any] = {}
    for name, value in _leaves(read, (), 0):
        fields.setdefault(name, value)
        if len(fields) >= _MOST:
            break
    return _unwrapped(fields)


def _unwrapped(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields without the name of the object that holds the record, where the outer one has no message: exports of
    search engines wrap each record, whatever they call that."""
    if not fields.keys().isdisjoint(_PLAIN_MESSAGE):
        return fields
    wrappers = _wrappers(fields, _PLAIN_MESSAGE) & _wrappers(fields, _STATED)
    if len(wrappers) != 1:
        return fields
    wrapper = f"{wrappers.pop()}."
    unwrapped: dict[str, Any] = {}
    for name, value in fields.items():
        unwrapped.setdefault(name.removeprefix(wrapper), value)
    return unwrapped


def _wrappers(fields: Mapping[str, Any], names: Set[str]) -> set[str]:
    """The objects that hold a field of one of the names. The object of an error is none."""
    wrappers = set[str]()
    for field in fields:
        wrapper, _, name = field.partition(".")
        if name in names and wrapper not in ERRORS:
            wrappers.add(wrapper)
    return wrappers


def _leaves(node: Mapping[str, Any], path: tuple[str, ...], depth: int) -> Iterator[tuple[str, Any]]:
    """The outer fields come before those of inner levels."""
    inner = list[tuple[Mapping[str, Any], tuple[str, ...]]]()
    for key, value in node.items():
        name = str(key).lower()
        value = _opened(value)
        if isinstance(value, Mapping):
            is_container = name in CONTAINERS or _is_place(name, value)
            inner.append((value, path if is_container else (*path, name)))
        else:
            yield ".".join((*path, name)), value
    if depth < _DEPTH:
        for value, inner_path in inner:
            yield from _leaves(value, inner_path, depth + 1)


def _is_place(name: str, value: Mapping[str, Any]) -> bool:
    """Whether an object says as which rank the process runs and where, whatever a program calls it."""
    if name in OTHERS:
        return False
    if value.keys().isdisjoint(RANK):
        return False
    return len(value) > 1 and value.keys() <= PLACE


def _opened(value: Any) -> Any:
    """A value as it was before OpenTelemetry wrote its type around it, and its attributes as an object."""
    if isinstance(value, dict) and len(value) == 1:
        (name, typed), *_ = value.items()
        return typed if name in _TYPES else value
    if isinstance(value, list) and value:
        return _as_object(value)
    return value


def _as_object(items: list[Any]) -> Any:
    """A list of names and their values as an object; any other list as it is."""
    if all(map(_is_attribute, items)):
        return {str(item["key"]): item["value"] for item in items}
    if all(map(_is_tag, items)):
        return dict(item.split(":", 1) for item in items)
    return items


def _is_tag(item: Any) -> bool:
    """Whether it is a name and its value in one string: ``rank:3``."""
    return isinstance(item, str) and _TAG.match(item) is not None


def _is_attribute(item: Any) -> bool:
    return isinstance(item, dict) and {"key", "value"} <= item.keys()


def _scanned(text: str) -> dict[str, Any]:
    """The fields of an object that is no sound JSON, whatever level they are of."""
    fields: dict[str, Any] = {}
    for match in _PAIR.finditer(text):
        name = unescaped(match["key"]).lower()
        if match["text"] is not None:
            fields.setdefault(name, unescaped(match["text"]))
        elif match["bare"] is not None:
            fields.setdefault(name, _scalar(match["bare"]))
        if len(fields) >= _MOST:
            break
    return fields


def _scalar(word: str) -> Any:
    if word in _WORDS:
        return _WORDS[word]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def unescaped(text: str) -> str:
    """The text of a string in JSON or in quotes."""
    return _ESCAPED.sub(_character, text) if "\\" in text else text


def _character(match: re.Match[str]) -> str:
    escape = match[1]
    if len(escape) == 5:
        return _code_point(int(escape[1:], 16))
    return _CONTROL.get(escape, escape)


def _code_point(number: int) -> str:
    """Half of a character beyond the first 65,536 is none."""
    return "\ufffd" if 0xD800 <= number <= 0xDFFF else chr(number)
