"""Signatures of lines that matter: equal only when skeleton and protected tokens are equal.

An Xid code, an errno, a signal, an HTTP status, an exit code or a device code tells one cause from another: it never
becomes a wildcard, so a line with another code is another signature and no budget of the first one shadows it.
"""

import re

from diagnoser.compress.shapes import Kind
from diagnoser.compress.skeleton import identity

_PROTECTED = re.compile(
    rb"Xid[^:\n]{0,40}: (\d+)|[Ee]rrno\W{0,3}(\d+)|[Ss]ignal\W{0,3}(\d+)|exit ?code\W{0,4}(-?\d+)|exited with\D{0,16}(\d+)"
    rb"|error\W{0,3}\(?(\d+)|status\W{0,3}(\d+)|\b([45]\d\d) (?:Server|Client|[A-Z])|code\W{0,3}(-?\d+)|failure (\d+)"
    rb"|err(?:or)? (\d+)|RC: (\d+)|(?:task|rank)s?\W{1,3}(\d+)",
)
_KEEPS_TOKENS = Kind.ANCHOR | Kind.EXCEPTION | Kind.MAPPING | Kind.ERROR


def signature(shape: int, kind: Kind, line: bytes) -> int:
    """63 bits; never 0."""
    if not kind & _KEEPS_TOKENS:
        return shape or 1
    tokens = _PROTECTED.findall(line[:2048])
    return identity(b"%d %s" % (shape, repr(tokens).encode())) or 1 if tokens else shape or 1
