"""Masks what must not leave the site, before text goes to a model, a chat or a webhook."""

import re2

# name -> RE2. Each is anchored on a literal shape, so that ordinary log text is left alone.
PATTERNS = {
    "private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?",
    "url password": r"\b([a-z][a-z0-9+.-]{1,15}://)[^/\s:@]{1,200}:[^/\s@]{1,200}@",
    "bearer": r"(?i)\b((?:bearer|basic) )[A-Za-z0-9._~+/=-]{16,}",
    "token": r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|xox[abprs]-[A-Za-z0-9-]{10,}"
    r"|AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{30,}|glpat-[A-Za-z0-9_-]{15,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,})",
    "secret": r"(?i)\b((?:[a-z0-9]+_)*(?:api_?key|secret(?:_?key)?|token|passwd|password|access_?key)"
    r"(?:_id)?[\"']?\s{0,2}[=:]\s{0,2}[\"']?)[^\s\"',;]{6,}",
    "e-mail": r"\b[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+\b",
    "home": r"(/(?:home|Users)/)[A-Za-z0-9._-]{1,64}",
}
_KEEP_PREFIX = {"url password", "bearer", "secret", "home"}
_COMPILED = {name: re2.compile(pattern) for name, pattern in PATTERNS.items()}


def redact(text: str) -> str:
    """``text`` with every secret replaced by ``<its kind>``; what names the secret (``password=``) stays."""
    for name, pattern in _COMPILED.items():
        text = pattern.sub(rf"\1<{name}>" if name in _KEEP_PREFIX else f"<{name}>", text)
    return text
