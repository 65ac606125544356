"""How much of some tests is done: a part in `make test`, all of it with `THOROUGH=1 make test`, as before a release."""

import os

THOROUGH = os.environ.get("THOROUGH", "0") != "0"


def examples(count: int) -> int:
    """How many examples a property is tried on: they are other ones in each run."""
    return count if THOROUGH else max(10, count // 4)
