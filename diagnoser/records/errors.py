"""The error that a record carries in its fields, as the lines that a program would print of it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from diagnoser.records.fields import ERROR_PAIRS, ERROR_TEXTS, ERRORS

_MOST = 400
"""Lines that are read of an error."""
_DIRECT = "The above exception was the direct cause of the following exception:"
_WHILE = "During handling of the above exception, another exception occurred:"
_START = "Traceback (most recent call last):"


def error_lines(fields: Mapping[str, Any]) -> tuple[list[str], set[str]]:
    """The lines, and the names of the fields that they are made of."""
    lines, used = list[str](), set[str]()
    for name in ERROR_TEXTS:
        text = _as_text(fields.get(name))
        if text:
            lines, used = text.splitlines(), {name}
            break
    for kind, message in ERROR_PAIRS:
        if isinstance(fields.get(kind), str) and isinstance(fields.get(message), str):
            used |= {kind, message}
            _add(lines, f"{fields[kind]}: {fields[message]}")
            break
    for name in ERRORS:
        if name in used:
            continue
        if isinstance(fields.get(name), str):
            used.add(name)
            for line in fields[name].splitlines():
                _add(lines, line)
    return lines[:_MOST], used


def _add(lines: list[str], line: str) -> None:
    """An error is often stated in several fields: a line that holds another one stands for it."""
    text = line.partition(": ")[2].strip() or line.strip()
    if text and not any(text in other for other in lines):
        lines.append(line)


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return ""
    kinds = set(map(type, value))
    if kinds == {str}:
        return "".join(item.removesuffix("\n") + "\n" for item in value)
    return "\n".join(_tracebacks(value)) if kinds == {dict} else ""


def _tracebacks(stacks: list[dict[str, Any]]) -> Iterator[str]:
    """Tracebacks as structlog writes them in objects: what was raised last comes first."""
    link = ""
    for stack in reversed(stacks[:8]):
        if link:
            yield from ("", link, "")
        frames = stack.get("frames")
        if isinstance(frames, list) and frames:
            yield _START
            yield from _frames(frames)
        kind, value = stack.get("exc_type", "Exception"), stack.get("exc_value", "")
        yield f"{kind}: {value}" if value else f"{kind}"
        link = _DIRECT if stack.get("is_cause") else _WHILE


def _frames(frames: Iterable[Any]) -> Iterator[str]:
    for frame in frames:
        if not isinstance(frame, dict):
            continue
        yield f'  File "{frame.get("filename", "")}", line {frame.get("lineno", 0)}, in {frame.get("name", "")}'
        if isinstance(frame.get("line"), str) and frame["line"]:
            yield f"    {frame['line']}"
