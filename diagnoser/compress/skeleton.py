"""Skeletons: what is left of a line when everything that changes from line to line is gone.

The first cut is made for a whole block by ``bytes.translate`` in C: no digits, no blanks, no signs, no bar glyphs. The
second cut (hex numbers, hashes, UUIDs) is made only for lines whose first cut was never seen.
"""

import hashlib
import re

GONE = b"0123456789 \t.-+\xe2\x96" + bytes(range(0x88, 0x90))
"""Bytes that never tell one message from another. The last ten are the UTF-8 bytes of the block glyphs of bars."""

_CHANGING = (
    rb"0[xX][0-9a-fA-F]+"
    rb"|\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"
    rb"|\b[a-fA-F]*[0-9]+[0-9a-fA-F]{6,}\b"
    rb"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b"
)
MAY_CHANGE = r"[0-9][0-9a-f]*[a-fA-F]|[xX][0-9]|[a-f][0-9]{5}|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) "
"""RE2; a line without a match has nothing for the second cut."""
_SUB = re.compile(_CHANGING)


def bare(text: bytes) -> bytes:
    """The first cut, for a line or for a whole block of lines."""
    return text.translate(None, GONE)


def masked(body: bytes) -> bytes:
    """The second cut of one line."""
    return bare(_SUB.sub(b"", body))


def identity(skeleton: bytes) -> int:
    """A 63-bit name: fits a signed integer of any store. Also the order in which caps choose what to keep."""
    return int.from_bytes(hashlib.blake2b(skeleton, digest_size=8).digest(), "big") >> 1
