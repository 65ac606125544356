"""A coordinator that is killed; ``python -m tests.trial_kills`` does so a hundred times."""

import random
from pathlib import Path

from tests.trial_kills import killed_again_and_again


def test_a_killed_coordinator_is_followed_by_another(tmp_path: Path) -> None:
    """No piece is lost, none is carried out twice, and no copy of the weights stays."""
    assert killed_again_and_again(tmp_path, 4, random.Random(23)) >= 1
