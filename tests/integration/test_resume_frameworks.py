"""Batches that a plan skips, on the real frameworks."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.environments import TORCH

pytestmark = pytest.mark.skipif(bool(TORCH.missing), reason=TORCH.missing)
ROOT = Path(__file__).resolve().parents[2]
LAST = 16
"""Step at which both launches end."""


def launch(name: str, ranks: int, folder: Path, *words: int, **plan: str) -> None:
    command = [str(TORCH.python), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "tests.resume_frameworks", name, str(folder), *map(str, words)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **plan}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=600)


def trained(folder: Path, rank: int) -> list[tuple[int, str]]:
    """What a rank trained on, by step, in order; and nothing of it any more."""
    path = folder / f"rank-{rank}.txt"
    lines = [line.split() for line in path.read_text().splitlines()]
    path.unlink()
    return [(int(step), rows) for step, rows in lines]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["torchdata", "sampler", "megatron", "transformers", "lightning"])
def test_the_batches_of_a_plan_are_left_out_and_no_others(name: str, ranks: int, tmp_path: Path) -> None:
    """A launch that goes back trains on what the launch before would have, but for the steps to skip, which lie around
    the end of an epoch: shuffled, with workers that read ahead, on every rank."""
    launch(name, ranks, tmp_path, LAST)
    before = [trained(tmp_path, rank) for rank in range(ranks)]
    assert all(step <= LAST for steps in before for step, _ in steps)
    plan = {"DIAGNOSER_CHECKPOINT_STEP": "6", "DIAGNOSER_SKIP_FROM": "8", "DIAGNOSER_SKIP_TO": "11"}
    launch(name, ranks, tmp_path, LAST, 6, **plan)
    for rank, steps in enumerate(before):
        expected = [(step, rows) for step, rows in steps if step > 6 and step not in range(8, 12)]
        assert trained(tmp_path, rank) == expected


def test_lightning_goes_on_within_a_later_epoch(tmp_path: Path) -> None:
    """In its order, where the sampler is told the epoch; step 13 is the third of the second one."""
    launch("lightning", 1, tmp_path, LAST)
    before = trained(tmp_path, 0)
    launch("lightning", 1, tmp_path, LAST, 13)
    assert trained(tmp_path, 0) == before[13:]
