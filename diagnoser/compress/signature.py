"""Signatures of lines that matter: equal only when skeleton and protected tokens are equal.

An Xid code, an errno, a signal, an HTTP status, an exit code or a device code tells one cause from another: it never
becomes a wildcard, so a line with another code is another signature and no budget of the first one shadows it.
"""

import re
from functools import cache, lru_cache

from diagnoser.compress.skeleton import identity

_TOKENS = (
    rb"Xid(?: \([^)\n]{0,40}\))?[^:\n]{0,20}: (\d+)",
    rb"[Ee]rrno\W{0,3}(\d+)",
    rb"[Ss]ignal\W{0,3}(\d+)",
    rb"[Ee]xit ?code\W{0,4}(-?\d+)",
    rb"[Ee]xited with\D{0,16}(\d+)",
    rb"[Ee]rr(?:or)?[ =:(]{1,2}(\d+)\b(?!\.\d)",
    rb"[Ss]tatus[ =:]{1,2}(\d+)\b(?!\.\d)",
    rb"\b([45]\d\d) (?:Server|Client) Error",
    rb"[Cc]ode[ =:#]{1,2}(-?\d+)\b(?!\.\d)",
    rb"[Ff]ailure (\d+)\b",
    rb"RC: (\d+)",
)
_EACH = tuple(re.compile(token) for token in _TOKENS)
_RANKS = rb"\b(?:task|rank)s?\W{1,3}(\d+)"
MAY_CARRY = r"(?i)xid|errno|signal|exit ?code|exited with|err[=:( ]|status|error|code|failure|RC:"
"""RE2; a line without a match carries no protected token and needs no look of its own."""
_HEAD = 1024
Tokens = re.Pattern[bytes]


def tokens_of(line: bytes, table: bool) -> Tokens | None:
    """What finds the protected tokens in lines of the skeleton that ``line`` has: only kinds that it carries itself.

    table: the line is one of many that each speak of another rank or task, whose number then counts, too.
    """
    carried = tuple(index for index, token in enumerate(_EACH) if token.search(line[:_HEAD]))
    return _compiled(carried, table) if carried or table else None


@cache
def _compiled(carried: tuple[int, ...], table: bool) -> Tokens:
    return re.compile(b"|".join([_TOKENS[index] for index in carried] + ([_RANKS] if table else [])))


def signature(shape: int, line: bytes, tokens: Tokens | None, anchored: bool) -> int:
    """63 bits, never 0. anchored: a rule matches the line, which may set it apart from others of its shape."""
    found = tokens.findall(line[:_HEAD]) if tokens else ()
    return _named(shape, anchored, tuple(found)) if found or anchored else shape or 1


@lru_cache(maxsize=65536)
def _named(shape: int, anchored: bool, found: tuple[bytes | tuple[bytes, ...], ...]) -> int:
    return identity(b"%d %d %r" % (shape, anchored, found)) or 1
