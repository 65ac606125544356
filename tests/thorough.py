"""How much of some tests is done: a part in `make test`, all of it with `THOROUGH=1 make test`, as before a release."""

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
THOROUGH = os.environ.get("THOROUGH", "0") != "0"


def examples(count: int) -> int:
    """How many examples a property is tried on: they are other ones in each run."""
    return count if THOROUGH else max(10, count // 6)


def diagonal(things: Sequence[T], place: int, width: int) -> Sequence[T]:
    """Of a product, what is tried with the ``place``-th of the other side: each has its turn, at every ``width``-th."""
    return things if THOROUGH else things[place % width :: width]
