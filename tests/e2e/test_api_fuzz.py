"""The API does what its description says: a short form of ``make fuzz-api``."""

from pathlib import Path

import pytest

from tests.api_fuzz import SEED, fuzz
from tests.environments import SCHEMATHESIS
from tests.thorough import THOROUGH

BOUNDS = "examples,coverage"


@pytest.mark.skipif(bool(SCHEMATHESIS.missing), reason=SCHEMATHESIS.missing)
@pytest.mark.parametrize(
    ("with_token", "phases"), [(False, "fuzzing,stateful"), (True, BOUNDS)], ids=["open", "tokens"]
)
async def test_no_answer_contradicts_the_description(tmp_path: Path, with_token: bool, phases: str) -> None:
    """Valid requests are taken, others refused, and every answer has a status, type and shape that are documented.

    Each of the two looks in half of the ways, so that they end soon. Every bound of every field is tried where
    something is changed; where something is read, by thorough tests alone, and where PUT is another word for POST.
    """
    changes_only = ["--exclude-method", "GET", "--exclude-method", "PUT"] if phases == BOUNDS and not THOROUGH else []
    status, output = await fuzz(tmp_path, 1, SEED, with_token=with_token, phases=phases, options=changes_only)
    assert status == 0, output
