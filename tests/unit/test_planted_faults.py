"""The table of planted faults follows the code."""

import pytest

from tools.planted_faults import FAULTS, ROOT, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_the_code_that_a_fault_changes_is_there_once(fault: Fault) -> None:
    """A fault whose code is gone proves nothing any more."""
    assert (ROOT / "diagnoser" / fault.file).read_text().count(fault.old) == 1
