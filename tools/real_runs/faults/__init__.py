"""Truths of faults as data: a file a kind of software, a section a trainer or a moment of it, a row a fault."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

Row = Mapping[str, Any]
"""Fields of a Truth."""


@cache
def read(name: str) -> Mapping[str, Mapping[str, Row]]:
    """Read ``name.yaml``: section -> fault -> fields of its truth."""
    sections = yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text())
    return {section: {fault: _row(fault, row) for fault, row in rows.items()} for section, rows in sections.items()}


def _row(fault: str, row: Any) -> Row:
    """Fill in a row. A short one is [type, marker, types that are as right...]; the reason is the fault's name then."""
    if isinstance(row, list):
        type_, marker, *also = row
        row = {"type": type_, "marker": marker, "also": also}
    reason = fault.replace("_", " ").replace("-", " ")
    return {"why": reason, **row, "also": tuple(row.get("also", ()))}
