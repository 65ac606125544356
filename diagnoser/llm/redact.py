"""Masks what must not leave the site, before text goes to a model, a chat or a webhook."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import re2

from diagnoser.llm.hosts import without_addresses
from diagnoser.model.errors import Fault, RuleFaults

# name -> RE2. Each is anchored on a literal shape, so that ordinary log text is left alone. A first group stays.
PATTERNS = {
    "private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?",
    # What is left of a key block that was cut or whose lines carry prefixes.
    "base64": r"(?m)(^|[|\]:] )[A-Za-z0-9+/]{60,}={0,2}\s*$",
    "url password": r"\b([a-z][a-z0-9+.-]{1,15}://)[^/\s:@]{0,200}:[^/\s@]{1,200}@",
    "webhook": r"(https://(?:hooks\.slack\.com/services|discord(?:app)?\.com/api/webhooks)/)[^\s\"']+",
    "signature": r"(?i)([?&](?:sig|signature|access_token|api_?key|x-amz-(?:signature|credential|security-token)"
    r"|x-goog-(?:signature|credential))=)[^&\s\"']{6,}",
    "bearer": r"(?i)\b((?:bearer|basic) )[A-Za-z0-9._~+/=-]{16,}",
    "token": r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{30,}|glpat-[A-Za-z0-9_-]{15,}"
    r"|nvapi-[A-Za-z0-9_-]{20,}|dckr_pat_[A-Za-z0-9_-]{20,}|pypi-[A-Za-z0-9_-]{40,}|gsk_[A-Za-z0-9]{30,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,})",
    "secret": r"(?i)\b((?:[a-z0-9]+[_-])*(?:api_?key|account_?key|secret(?:_?key)?|token|passwd|password|access_?key)"
    r"(?:_id)?[\"']?\s{0,2}[=:]\s{0,2}[\"']?)[^\s\"',;]{6,}",
    "argument": r"(?i)(--(?:[a-z0-9]+[_-])*(?:password|passwd|token|api[_-]?key|secret)[ =])[^\s\"']{6,}",
    "e-mail": r"\b[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+\b",
    "home": r"(/(?:home|Users)/)[A-Za-z0-9._-]{1,64}",
}

_KEY_LINE = re.compile(r"((?:.*[|\]:] )?)[A-Za-z0-9+/]{1,80}={0,2}\s*")


class Redactor:
    """Masks the known kinds of secrets, and the patterns that this site adds."""

    def __init__(self, extra: Sequence[str] = (), *, addresses: bool = False) -> None:
        """extra: RE2 patterns. addresses: whether to mask network addresses too. Raises re2.error for a bad pattern."""
        built_in = [(re2.compile(pattern), _mark(name, pattern)) for name, pattern in PATTERNS.items()]
        self._rules: list[tuple[Any, str]] = [(re2.compile(pattern), "<redacted>") for pattern in extra] + built_in
        self._addresses = addresses

    def __call__(self, text: str) -> str:
        """``text`` with every secret replaced by ``<its kind>``; what names the secret (``password=``) stays."""
        for pattern, mark in self._rules:
            text = pattern.sub(mark, text)
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
        compiled = re2.compile(pattern)
    except re2.error as error:
        return f"is no RE2 pattern: {error}"
    return "matches nothing at all, so it would mask everything" if compiled.search("") else ""


def _mark(name: str, pattern: str) -> str:
    return rf"\1<{name}>" if re2.compile(pattern).groups else f"<{name}>"


redact = Redactor()
"""For outgoing text where a site adds no patterns."""
