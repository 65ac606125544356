"""Signatures of lines that matter: equal only when skeleton and protected tokens are equal.

An Xid code, an errno, a signal, an HTTP status, an exit code or a device code tells one cause from another: it never
becomes a wildcard, so a line with another code is another signature and no budget of the first one shadows it.
"""

import re

from diagnoser.compress.skeleton import identity

_TOKENS = re.compile(
    rb"Xid[^:\n]{0,40}: (\d+)|[Ee]rrno\W{0,3}(\d+)|[Ss]ignal\W{0,3}(\d+)|exit ?code\W{0,4}(-?\d+)"
    rb"|[Ee]xited with\D{0,16}(\d+)"
    rb"|\b[Ee]rr(?:or)?[ =:(]{1,2}(\d+)\b(?!\.\d)|status[ =:]{1,2}(\d+)\b(?!\.\d)|\b([45]\d\d) (?:Server|Client) Error"
    rb"|\b[Cc]ode[ =:#]{1,2}(-?\d+)\b(?!\.\d)|\b[Ff]ailure (\d+)\b|\bRC: (\d+)"
)
_RANKS = re.compile(rb"\b(?:task|rank)s?\W{1,3}(\d+)")
_MAY_CARRY = re.compile(rb"(?i)xid|errno|signal|exitcode|exitedwith|err[=:(\[]?|status|error|code|failure|RC:")
_HEAD = 2048


def carries_tokens(skeleton: bytes) -> bool:
    """Whether lines of this skeleton can carry a protected token: most can not, and are not looked at one by one."""
    return bool(_MAY_CARRY.search(skeleton[:_HEAD]))


def signature(shape: int, line: bytes, table: bool) -> int:
    """63 bits, never 0. table: the line is one of many that each speak of another rank or task."""
    tokens = _TOKENS.findall(line[:_HEAD])
    if table:
        tokens.append(tuple(_RANKS.findall(line[:_HEAD])))
    return identity(b"%d %r" % (shape, tokens)) or 1 if tokens else shape or 1
