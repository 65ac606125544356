"""Network addresses in text."""

from typing import Any

import re2

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
