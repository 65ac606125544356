"""The program of the node check where nccl-tests is installed: a double that prints in its format stands for it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "deploy" / "checks" / "allgather.py"

OUTPUT = """# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1048576 warmup iters: 1 iters: 3 validation: 1
# Using devices
#  Rank  0 Group  0 Pid   5120 on      gpu-01 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   4711 on      gpu-02 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        131072     float    none      -1    61.20   17.13    8.57      0    60.90   17.22    8.61      0
# Out of bounds values : {wrong} {word}
# Avg bus bandwidth    : 8.59
"""


def check(folder: Path, script: str, rank: int = 0, *options: str, **variables: str) -> tuple[int, dict[str, Any]]:
    """Exit code and the JSON line (empty without one) of one rank of two."""
    program = folder / "all_gather_perf"
    program.write_text(f"#!/bin/sh\n{script}")
    program.chmod(0o755)
    command = [sys.executable, str(PROGRAM), "--mebibytes", "1", "--nccl-tests", str(program), *options]
    ranks = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0"} | variables
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/bin:/usr/bin", **ranks}, check=False)
    return done.returncode, json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}


def printing(wrong: int = 0, word: str = "OK", code: int = 0) -> str:
    return f"cat <<'END'\n{OUTPUT.format(wrong=wrong, word=word)}END\necho \"$@\" > ${{0}}.asked\nexit {code}\n"


def test_sound_ranks_pass(tmp_path: Path) -> None:
    """With the data checked, once a size, one GPU a process."""
    code, told = check(tmp_path, printing())
    assert (code, told["ok"], told["detail"]) == (0, True, "2 ranks, 3 rounds of 1 MiB each, by nccl-tests")
    asked = (tmp_path / "all_gather_perf.asked").read_text().split()
    assert asked == ["-b", "1048576", "-e", "1048576", "-g", "1", "-c", "1", "-w", "1", "-n", "3"]


def test_wrong_data_is_told_whatever_the_exit_code(tmp_path: Path) -> None:
    """A call that succeeds with wrong data is the fault that matters."""
    for exit_code in (0, 1):
        code, told = check(tmp_path, printing(12, "FAILED", exit_code))
        assert (code, told["ok"], told["detail"]) == (1, False, "nccl-tests: 12 values out of bounds")


def test_a_failed_call_is_told_with_its_last_words(tmp_path: Path) -> None:
    """Also by a rank that prints nothing else."""
    code, told = check(tmp_path, "echo 'Test NCCL failure common.cu:958 unhandled system error' >&2; exit 3", 1)
    assert (code, told["rank"]) == (2, 1)
    assert told["detail"] == "nccl-tests: exit code 3: Test NCCL failure common.cu:958 unhandled system error"


def test_a_silent_rank_that_ends_well_is_sound(tmp_path: Path) -> None:
    """Only the first process prints."""
    assert check(tmp_path, "exit 0", 1) == (0, {})


def test_a_hang_is_a_failure(tmp_path: Path) -> None:
    """Within the time limit of the check."""
    code, told = check(tmp_path, "exec sleep 30", 0, "--timeout", "0.5")
    assert (code, told["detail"]) == (2, "nccl-tests took longer than 0.5 s")


def test_processes_that_do_not_meet_leave_it_to_torch(tmp_path: Path) -> None:
    """Without MPI each is a group of its own and says nothing about the network. (No torch here: exit code 3.)"""
    alone = "\n".join(line for line in OUTPUT.splitlines() if "Rank  1" not in line)
    script = f"cat <<'END'\n{alone}\nEND\n"
    blocked = tmp_path / "torch.py"
    blocked.write_text("raise ImportError('none')")
    code, told = check(tmp_path, script, PYTHONPATH=str(tmp_path))
    assert (code, told["detail"]) == (3, "torch cannot be imported: none")


@pytest.mark.parametrize("option", ["never", "auto"])
def test_without_a_gpu_it_is_left_to_torch(tmp_path: Path, option: str) -> None:
    """nccl-tests needs one."""
    (tmp_path / "torch.py").write_text("raise ImportError('none')")
    code, told = check(tmp_path, printing(), 0, "--nccl-tests", option, PYTHONPATH=str(tmp_path))
    assert (code, told["detail"]) == (3, "torch cannot be imported: none")
