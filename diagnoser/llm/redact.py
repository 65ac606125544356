"""Masks what must not leave the site, before text goes to a model, a chat or a webhook."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import re2

from diagnoser.llm.hosts import without_addresses
from diagnoser.llm.secret_patterns import PATTERNS, SecretPattern
from diagnoser.model import expressions
from diagnoser.model.errors import BadInput, Fault, RuleFaults

_KEY_LINE = re.compile(r"((?:.*[|\]:] )?)(?:[A-Za-z0-9+/]{1,80}={0,2}|(?:Proc-Type|DEK-Info|Version|Comment): .*)?\s*")
_OPENING = re.compile(r"[bBrRuU]?\\{0,3}[\"']")


class _Mask:
    """One kind of secret."""

    def __init__(self, known: SecretPattern) -> None:
        self._kind = known.kind
        self._search: Any = re2.compile(known.pattern)
        self._harmless: Any = re2.compile(known.harmless) if known.harmless else None

    def __call__(self, text: str) -> str:
        return str(self._search.sub(self._masked, text))

    def _masked(self, match: Any) -> str:
        kept = (match[1] or "") if self._search.groups else ""
        secret = match[0][len(kept) :]
        opening = quote[0] if (quote := _OPENING.match(secret)) else ""
        if self._harmless and self._harmless.fullmatch(secret[len(opening) :]):
            return str(match[0])
        return f"{kept}{opening}<{self._kind}>"


_MASKS = tuple(map(_Mask, PATTERNS))


class Redactor:
    """Masks the known kinds of secrets, and the patterns that this site adds."""

    def __init__(self, extra: Sequence[str] = (), *, addresses: bool = False) -> None:
        """extra: RE2 patterns. addresses: whether to mask network addresses too. Raises re2.error for a bad pattern."""
        self._extra: list[Any] = [re2.compile(pattern) for pattern in extra]
        self._addresses = addresses

    def __call__(self, text: str) -> str:
        """``text`` with every secret replaced by ``<its kind>``; what names the secret (``password=``) stays."""
        for pattern in self._extra:
            text = pattern.sub("<redacted>", text)
        for mask in _MASKS:
            text = mask(text)
        return without_addresses(text) if self._addresses else text


def keyless(lines: Iterable[str]) -> Iterator[str]:
    """The lines with key blocks masked; a single line of a block may be too short to be recognised by itself."""
    inside = False
    for line in lines:
        key_line = inside and _KEY_LINE.fullmatch(line)
        inside = ("PRIVATE KEY-----" in line and "-----BEGIN" in line) or bool(key_line)
        yield f"{key_line[1]}<private key>" if key_line else line


def load(path: str, text: str, *, addresses: bool = False) -> Redactor:
    """Additional patterns, one a line, without empty lines and ``#`` comments. Raises RuleFaults with all faults."""
    patterns, faults = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if fault := _fault(line.strip()):
            faults.append(Fault(path, number, fault))
        patterns.append(line.strip())
    if faults:
        raise RuleFaults(faults)
    return Redactor(patterns, addresses=addresses)


def _fault(pattern: str) -> str:
    try:
        compiled = expressions.compiled(pattern)
    except BadInput as error:
        return str(error)
    return "matches nothing at all, so it would mask everything" if compiled.search("") else ""


redact = Redactor()
"""For outgoing text where a site adds no patterns."""
