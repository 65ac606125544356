"""RE2 expressions as sites, people and models write them: they are compiled without a word on stderr, and what is wrong
with one is told in RE2's words."""

from collections.abc import Iterable
from typing import Any

import re2

from diagnoser.model.errors import BadInput


def options(max_mem: int = 0) -> Any:
    """max_mem: bytes that RE2 may use for what it makes of an expression or set; 0: as much as it uses by itself."""
    quiet = re2.Options()
    quiet.log_errors = False
    if max_mem:
        quiet.max_mem = max_mem
    return quiet


def compiled(pattern: str, how: Any = None) -> Any:
    """how: of ``options``. Raises BadInput."""
    try:
        return re2.compile(pattern, how or options())
    except re2.error as error:
        why = error.args[0] if error.args else "it is too large"
        words = why.decode("utf-8", "replace") if isinstance(why, bytes) else why
        raise BadInput(f"not an RE2 expression: {words}") from None


def search_set(patterns: Iterable[str | bytes], how: Any = None) -> Any:
    """Tells which of the patterns, all of them usable, a text has somewhere. how: of ``options``."""
    found = re2.Set.SearchSet(how or options())
    for pattern in patterns:
        found.Add(pattern)
    found.Compile()
    return found
