"""Batches that a plan skips, on the real frameworks."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.environments import TORCH
from tests.resume_forks import GOES_BACK_TO, GOES_ON_AT, LAST, LIBRARIES, RANKS

pytestmark = pytest.mark.skipif(bool(TORCH.missing), reason=TORCH.missing)
ROOT = Path(__file__).resolve().parents[2]


def trained(folder: Path, rank: int) -> list[tuple[int, str]]:
    """What a rank trained on, by step, in order."""
    lines = [line.split() for line in (folder / f"rank-{rank}.txt").read_text().splitlines()]
    return [(int(step), rows) for step, rows in lines]


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_batches_of_a_plan_are_left_out_and_no_others(name: str, tmp_path: Path) -> None:
    """A launch that goes back trains on what the launch before would have, but for the steps to skip, which lie around
    the end of an epoch: shuffled, with workers that read ahead, on every rank; alone or as one of two, in turn. One
    that goes on within a later epoch has its order."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    environment["THOROUGH"] = os.environ.get("THOROUGH", "0")
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [str(TORCH.python), "-m", "tests.resume_forks", name, str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=600)
    for ranks in RANKS[name]:
        for rank in range(ranks):
            before, after = (trained(tmp_path / str(ranks) / launch, rank) for launch in ("before", "after"))
            assert before
            assert all(step <= LAST for step, _ in before)
            expected = [(step, rows) for step, rows in before if step > GOES_BACK_TO and step not in range(8, 12)]
            assert after == expected
            if name in GOES_ON_AT:
                assert trained(tmp_path / str(ranks) / "later", rank) == before[GOES_ON_AT[name] :]
