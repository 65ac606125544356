"""Skeletons: what is left of a line when everything that changes from line to line is gone.

``blurred`` is made for a whole block in C: a number becomes one 0, a gap one blank. All that is decided about a line
before it is looked at by itself is decided about its blur, so it is the same in every process. ``identity`` then names
what lines of several blurs share: no digits, no blanks, no signs, no bar glyphs, no hex numbers, no hashes.
"""

import hashlib
import re

import numpy as np
import re2

from diagnoser.model import expressions

_GLYPHS = b"\xe2\x96" + bytes(range(0x88, 0x90))
"""The UTF-8 bytes of the block glyphs of bars."""
GONE = b"0123456789 \t.-+" + _GLYPHS
"""Bytes that never tell one message from another."""
GAP_BYTES = b"\t-" + _GLYPHS
"""What becomes a blank. The bytes of the glyphs are also parts of other characters, of Chinese ones for instance."""
_BLUR = bytes(48 if 48 <= byte <= 57 else 32 if byte in GAP_BYTES else byte for byte in range(256))
_ZEROS, _BLANKS = re.compile(rb"00+"), re.compile(rb"  +")
_SHORT = 100
"""Bytes up to which arrays cost more than they save: the anchors of rules are blurred at each start."""
_PIECE = 256 << 10
"""Bytes that are blurred at once: as many as stay in the processor's cache."""


def latin1() -> re2.Options:
    """Options of RE2 by which bytes are matched as they are, also where they are no UTF-8."""
    options = expressions.quiet_options(64 << 20)
    options.encoding = re2.Options.Encoding.LATIN1
    return options


_CHANGING = re.compile(
    rb"0[xX][0a-fA-F]+"
    rb"|\b[0a-fA-F]{1,8}(?: [0a-fA-F]{1,4}){3} [0a-fA-F]{1,12}\b"
    rb"|\b(?=[a-fA-F]*0)[0a-fA-F]{4,}\b"
    rb"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b"
)
"""In a blurred line: hex numbers, UUIDs, hashes, dates."""
_MAY_CHANGE = expressions.search_set(
    (
        r"0[xX][0a-fA-F]",
        r"\b[0a-fA-F]{1,8}(?: [0a-fA-F]{1,4}){3} [0a-fA-F]{1,12}\b",
        r"\b[0a-fA-F]{4,}\b",
        r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) ",
    ),
    latin1(),
)
"""A line that has none of these is spared the slower look."""


def bare(text: bytes) -> bytes:
    """A line without what never tells."""
    return text.translate(None, GONE)


def blurred(text: bytes) -> bytes:
    """A line, or a whole block of lines, with every run of digits as one 0 and every run of blanks and minuses as one
    blank.
    """
    if len(text) <= _PIECE:
        return _blurred(text)
    parts, start = [], 0
    while start < len(text):
        end = text.find(b"\n", start + _PIECE) + 1 or len(text)
        parts.append(_blurred(text[start:end]))
        start = end
    return b"".join(parts)


def _blurred(text: bytes) -> bytes:
    if len(text) <= _SHORT:
        return _BLANKS.sub(b" ", _ZEROS.sub(b"0", text.translate(_BLUR)))
    seen = np.frombuffer(text.translate(_BLUR), np.uint8)
    kept = np.empty(len(seen), np.bool_)
    kept[0] = True
    np.not_equal(seen[1:], seen[:-1], out=kept[1:])
    kept |= (seen & 0xEF) != 32  # neither blank (32) nor 0 (48)
    return seen[kept].tobytes()


def masked(blur: bytes) -> bytes:
    """What is left of one blurred line."""
    return bare(_CHANGING.sub(b"", blur) if _MAY_CHANGE.Match(blur) else blur)


def identity(skeleton: bytes) -> int:
    """A 63-bit name: fits a signed integer of any store. Also the order in which caps choose what to keep."""
    return int.from_bytes(hashlib.blake2b(skeleton, digest_size=8).digest(), "big") >> 1
