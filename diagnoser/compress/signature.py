"""Signatures of lines that matter: equal only when message, kind and protected tokens are equal.

An Xid code, an errno, a signal, an HTTP status, an exit code or a device code tells one cause from another: it never
becomes a wildcard, so a line with another code is another signature and no budget of the first one shadows it.
"""

import re
from functools import cache, lru_cache

from diagnoser.compress.line_flags import IMPORTANT
from diagnoser.compress.line_masking import identity
from diagnoser.compress.pattern_masking import blur
from diagnoser.compress.prefilter import PatternSet

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
_CARRIED = PatternSet.of((blur(token.decode().replace(r"(?!\.\d)", "")), 1 << at) for at, token in enumerate(_TOKENS))
_RANKS = rb"\b(?:task|rank)s?\W{1,3}(\d+)"
_HEAD = 1024
Tokens = re.Pattern[bytes]


def tokens_of(line: bytes, table: bool) -> Tokens | None:
    """Pattern of the protected tokens in lines that blur to ``line``: only kinds that they can carry.

    table: the line is one of many that each speak of another rank or task, whose number then counts, too.
    """
    kinds = _CARRIED.look(line)[0]
    carried = tuple(index for index in range(len(_TOKENS)) if kinds >> index & 1)
    return _compiled(carried, table) if carried or table else None


@cache
def _compiled(carried: tuple[int, ...], table: bool) -> Tokens:
    tokens = list(map(_TOKENS.__getitem__, carried))
    if table:
        tokens.append(_RANKS)
    return re.compile(b"|".join(tokens))


def signature(shape: int, kind: int, line: bytes, tokens: Tokens | None) -> int:
    """63 bits, never 0. Lines of one signature are of one kind, so one budget holds for all of them."""
    return _named(shape, kind & IMPORTANT, tuple(tokens.findall(line[:_HEAD])) if tokens else ())


@lru_cache(maxsize=65536)
def _named(shape: int, kind: int, codes: tuple[bytes | tuple[bytes, ...], ...]) -> int:
    return identity(b"%d %d %r" % (shape, kind, codes)) or 1
