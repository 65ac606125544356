"""Every format of ``secret_formats.yaml`` with a made-up value, and how to find a value again in what went out."""

import base64
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits
from typing import Any
from urllib.parse import quote

import yaml

ALPHABETS = {
    "alnum": ascii_letters + digits,
    "lower": ascii_lowercase + digits,
    "upper": ascii_uppercase + digits,
    "digits": digits,
    "hex": digits + "abcdef",
    "b64": ascii_letters + digits + "+/",
    "url64": ascii_letters + digits + "-_",
    "text": ascii_letters + digits + " ",
}
_MADE = re.compile(r"\{(alnum|lower|upper|digits|hex|b64|url64|text):(\d+)\}")
_BASIC = re.compile(r"\{basic:([^{}]*)\}")


@dataclass(frozen=True)
class Secret:
    """text: a line of a log. parts: what of it must not survive. glued: found without a boundary before it."""

    name: str
    text: str
    parts: Sequence[str]
    glued: bool = False


@cache
def listed() -> dict[str, Any]:
    """The file as it is."""
    known: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "secret_formats.yaml").read_text("utf-8"))
    return known


@lru_cache(maxsize=8)
def secrets(seed: int) -> Sequence[Secret]:
    """Each format. seed: of the made-up values."""
    formats = listed()["formats"]
    return [_made(known["name"], known["text"], seed, glued=known.get("glued", False)) for known in formats]


def disguised(seed: int) -> Iterator[Secret]:
    """Each way to hide a secret in a line."""
    for name, text in listed()["disguises"].items():
        yield _made(name, text, seed)


def is_told(part: str, text: str) -> bool:
    """Whether a text holds a secret: as it is, url-encoded, or as base64, whatever stands before it there."""
    return any(form in text for form in _forms(part))


@cache
def _forms(part: str) -> frozenset[str]:
    encoded = set()
    for shift in range(3):  # base64 of the same bytes differs by where in a group of three they begin
        whole = base64.b64encode(b"." * shift + part.encode()).decode()
        encoded.add(whole[4 : len(whole) - 4])
    return frozenset({part, part[:12], part[-12:], quote(part, safe=""), *(form for form in encoded if len(form) > 8)})


def _made(name: str, text: str, seed: int, *, glued: bool = False) -> Secret:
    chance, parts = random.Random(f"{name}{seed}"), []

    def value(match: re.Match[str]) -> str:
        alphabet, length = ALPHABETS[match[1]], int(match[2])
        made = "".join(chance.choices(alphabet, k=length - 2)).replace("  ", " a")
        letter = next((char for char in alphabet if char.isalpha()), "4")
        made = f"{letter}{made}7"
        if length >= 8:
            parts.append(made)
        return made

    def basic(match: re.Match[str]) -> str:
        encoded = base64.b64encode(match[1].encode()).decode()
        parts.append(encoded)
        return encoded

    return Secret(name, _BASIC.sub(basic, _MADE.sub(value, text)), parts, glued)
