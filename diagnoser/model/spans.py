"""Spans of time as people write them."""

import re

from diagnoser.model.errors import BadInput

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds(span: str) -> float:
    """Read a span such as 30m, 12h or 90d. Raises BadInput."""
    if not re.fullmatch(r"[0-9]{1,6}[mhd]", span):
        raise BadInput(f"{span[:20]!r} is no span of time: write 30m, 12h or 90d")
    return int(span[:-1]) * _UNITS[span[-1]]
