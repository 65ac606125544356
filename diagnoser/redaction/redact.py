"""Masks what must not leave the site: the one function on every way out that ``exits`` lists."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import re2

from diagnoser.model import expressions
from diagnoser.model.errors import BadInput, Fault, RuleFaults
from diagnoser.redaction.secret_patterns import PATTERNS, PERSONAL, SecretPattern

ADDRESS = re2.compile(
    r"\b(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)\b"
    r"|\b(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}\b"
    r"|\b(?:fe80|f[cd][0-9a-f]{2}|2[0-9a-f]{3})(?::[0-9a-f]{1,4}){0,6}::(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){0,6})?"
)
NO_HOST = frozenset({"0.0.0.0", "127.0.0.1", "255.255.255.255"})  # noqa: S104 - compared, not bound


def without_addresses(text: str) -> str:
    """``text`` as it may leave the site: a chat or a receiver of webhooks has no use for addresses in log lines."""
    return str(ADDRESS.sub(_masked, text))


def _masked(match: Any) -> str:
    address = str(match.group())
    if address in NO_HOST:
        return address
    return "<address>"


Redact = Callable[[str], str]

_KEY_LINE = re.compile(r"((?:.*[|\]:] )?)(?:[A-Za-z0-9+/]{1,80}={0,2}|(?:Proc-Type|DEK-Info|Version|Comment): .*)?\s*")
_OPENING = re.compile(r"[bBrRuU]?\\{0,3}[\"']|&quot;|%22")
_ESCAPE_SEQUENCES = re2.compile(
    r"\x1b\][^\x07\x1b\n]{0,300}(?:\x07|\x1b\\)"
    r"|(?:\x1b|\\u001[bB]|\\x1[bB]|\\033|\x{9b})\[?[0-?]{0,40}[ -/]{0,4}[@-~]"
)
"""Colours and titles of terminals (ECMA-48), also as JSON and Python print them."""
_INVISIBLE = re2.compile(
    r"[\p{Cf}\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\x{34f}\x{115f}\x{1160}\x{17b4}\x{17b5}\x{180b}-\x{180f}"
    r"\x{3164}\x{fe00}-\x{fe0f}\x{ffa0}\x{e0100}-\x{e01ef}]"
)
"""Characters without a width (Unicode's Default_Ignorable_Code_Point) and controls that are no blank."""
_WHOLE = re.compile(r"<[a-z0-9 -]{1,40}>")


def _roomy() -> Any:
    """Options of RE2 with memory for long bounded repetitions: without it, it falls back to a slower search."""
    options = re2.Options()
    options.max_mem = 128 << 20
    return options


class _Mask:
    """One kind of secret. Its expressions are compiled when the first text is masked: all of them take 60 ms, which no
    command that masks nothing shall wait for."""

    def __init__(self, known: SecretPattern) -> None:
        self._known = known

    @cached_property
    def _search(self) -> Any:
        return re2.compile(self._known.pattern, _roomy())

    @cached_property
    def _harmless(self) -> Any:
        return re2.compile(self._known.harmless) if self._known.harmless else None

    def __call__(self, text: str) -> str:
        return str(self._search.sub(self._masked, text))

    def _masked(self, match: Any) -> str:
        kept = (match[1] or "") if self._search.groups else ""
        secret, opening = match[0][len(kept) :], ""
        if quote := _OPENING.match(secret):
            opening = quote[0]
        if self._harmless and self._harmless.fullmatch(secret[len(opening) :]):
            return str(match[0])
        return f"{kept}{opening}<{self._known.kind}>"


class _Masks:
    """Several kinds of secrets. One search tells whether a text may hold any, and few do."""

    def __init__(self, known: Sequence[SecretPattern]) -> None:
        self._known = known
        self._masks = tuple(map(_Mask, known))

    @cached_property
    def _any(self) -> Any:
        options = _roomy()
        options.never_capture = True
        return re2.compile("|".join(f"(?:{pattern.pattern})" for pattern in self._known), options)

    def __call__(self, text: str) -> str:
        if self._any.search(text) is None:
            return text
        for mask in self._masks:
            text = mask(text)
        return text


_SECRETS, _ALL = _Masks(PATTERNS), _Masks((*PATTERNS, *PERSONAL))


class Redactor:
    """Masks the known kinds of secrets, and the patterns that this site adds."""

    def __init__(self, extra: Sequence[str] = (), *, addresses: bool = False, personal: bool = True) -> None:
        """extra: RE2 patterns. addresses, personal: whether to mask network addresses, e-mail addresses and home
        folders too. Raises re2.error for a bad pattern."""
        self._extra: list[Any] = [re2.compile(pattern) for pattern in extra]
        self._addresses = addresses
        self._masks = _ALL if personal else _SECRETS

    def __call__(self, text: str) -> str:
        """``text`` with every secret replaced by ``<its kind>``; what names the secret (``password=``) stays.

        A text that holds a secret comes back folded, any other one as it was.
        """
        text = self._of_this_site(text)
        readable = folded(text)
        masked = self._masks(self._of_this_site(readable) if readable != text else text)
        if self._addresses:
            masked = without_addresses(masked)
        if masked == readable:
            return text
        return masked

    def _of_this_site(self, text: str) -> str:
        for pattern in self._extra:
            text = pattern.sub("<redacted>", text)
        return text


def folded(text: str) -> str:
    """``text`` as a person reads it: without colours and characters that have no width, wide letters as plain ones."""
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    text = str(_INVISIBLE.sub("", _ESCAPE_SEQUENCES.sub("", text)))
    return unicodedata.normalize("NFKC", text)


def masked(value: Any, redact: Redact) -> Any:
    """JSON with every text in it masked. What an entry is called counts: ``{"password": "..."}``."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {redact(str(name)): masked_entry(str(name), entry, redact) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item, redact) for item in value]
    return value


def masked_entry(name: str, value: Any, redact: Redact) -> Any:
    """The value of one entry of a mapping, masked. name: of the entry."""
    if not isinstance(value, str):
        return masked(value, redact)
    written = value.replace('"', "'").replace("\\", "/")  # nothing in it ends the quotes
    _, _, shown = redact(f'{name}="{written}"').partition('="')
    whole = _WHOLE.match(shown)
    if whole and shown == f'{whole[0]}"':
        return whole[0]
    return redact(value)


def masked_lines(text: str, redact: Redact) -> str:
    """A text of many lines, each masked by itself: what ends one line and begins the next is no assignment."""
    return "\n".join(map(redact, mask_key_blocks(text.split("\n"))))


def mask_key_blocks(lines: Iterable[str]) -> Iterator[str]:
    """The lines with key blocks masked; a single line of a block may be too short to be recognised by itself."""
    inside = False
    for line in lines:
        key_line = _KEY_LINE.fullmatch(line) if inside else None
        if key_line:
            yield f"{key_line[1]}<private key>"
            continue
        inside = "-----BEGIN" in line and "PRIVATE KEY-----" in line
        yield line


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
without_secrets = Redactor(personal=False)
"""For names by which people and programs find a thing again: a node may be called by its address."""
