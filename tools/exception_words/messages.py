"""The labelled messages of ``messages.txt``: what exceptions of many ecosystems say, in own words."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diagnoser.model.taxonomy import FailureType
from diagnoser.rules.exception_words import RaisedException
from diagnoser.rules.exceptions import ExceptionTable

MESSAGES = Path(__file__).with_name("messages.txt")


@dataclass(frozen=True, slots=True)
class LabelledException:
    """ecosystem: the section of the file, held out as a whole."""

    ecosystem: str
    type: FailureType
    raised: RaisedException


def read(table: ExceptionTable) -> Iterator[LabelledException]:
    """The messages of the file, each with what the table says of its class."""
    ecosystem = ""
    for line in MESSAGES.read_text("utf-8").splitlines():
        if line.startswith("["):
            ecosystem = line.strip("[]")
        elif " | " in line and not line.startswith("#"):
            columns = f"{line} ".split(" | ", 3)
            kind, name, functions, message = (column.strip().removeprefix("-") for column in columns)
            yield LabelledException(ecosystem, FailureType(kind), _raised(name, functions, message, table))


def _raised(name: str, functions: str, message: str, table: ExceptionTable) -> RaisedException:
    frames = [f'File "train.py", line 1, in {function}' for function in functions.split()]
    return table.raised(name, message, frames)
