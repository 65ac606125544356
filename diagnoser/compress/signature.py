"""Signatures of lines that matter: equal only when skeleton and protected tokens are equal.

An Xid code, an errno, a signal, an HTTP status, an exit code or a device code tells one cause from another: it never
becomes a wildcard, so a line with another code is another signature and no budget of the first one shadows it.
"""

import re

from diagnoser.compress.skeleton import identity

_TOKENS = re.compile(
    rb"Xid[^:\n]{0,40}: (\d+)|[Ee]rrno\W{0,3}(\d+)|[Ss]ignal\W{0,3}(\d+)|[Ee]xit ?code\W{0,4}(-?\d+)"
    rb"|[Ee]xited with\D{0,16}(\d+)|[Ee]rr(?:or)?[ =:(]{1,2}(\d+)\b(?!\.\d)|[Ss]tatus[ =:]{1,2}(\d+)\b(?!\.\d)"
    rb"|[Cc]ode[ =:#]{1,2}(-?\d+)\b(?!\.\d)|[Ff]ailure (\d+)\b|RC: (\d+)"
)
_HTTP = re.compile(rb"\b([45]\d\d) (?:Server|Client) Error")
_RANKS = re.compile(rb"\b(?:task|rank)s?\W{1,3}(\d+)")
MAY_CARRY = r"(?i)xid|errno|signal|exit ?code|exited with|err[=:( ]|status|error|code|failure|RC:"
"""RE2; a line without a match carries no protected token and needs no look of its own."""
_HEAD = 1024


def carries_tokens(line: bytes) -> bool:
    """Whether a line, and so every line of its skeleton, carries a protected token."""
    return bool(_TOKENS.search(line[:_HEAD]) or _HTTP.search(line[:_HEAD]))


def signature(shape: int, line: bytes, table: bool, anchored: bool) -> int:
    """63 bits, never 0. table: the line is one of many that each speak of another rank or task. anchored: a rule
    matches it, which may set it apart from others of its shape.
    """
    tokens: list[object] = [*_TOKENS.findall(line[:_HEAD])]
    if b" Error" in line:
        tokens += _HTTP.findall(line[:_HEAD])
    if table:
        tokens.append(tuple(_RANKS.findall(line[:_HEAD])))
    if anchored:
        tokens.append("anchored")
    return identity(b"%d %r" % (shape, tokens)) or 1 if tokens else shape or 1
