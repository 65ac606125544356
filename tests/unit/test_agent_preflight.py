"""`diagnoser check` on the node itself, before a launch: real commands, with a double of nvidia-smi in front."""

import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diagnoser.agent import preflight
from diagnoser.cli import cli

SOUND, FAULTY = "0, 00000000:3B:00.0, 0", "0, 00000000:3B:00.0, 3"
DOUBLE = """#!/bin/sh
# Notes that it ran, and says what the driver of a node with one GPU says.
echo "$*" >> {folder}/asked
case "$*" in
-L) echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1d0c)" ;;
*ecc.errors*) {ecc} ;;
*) echo "Field is not a valid field to query."; exit 2 ;;
esac
"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a node whose nvidia-smi is a double: see ``answers``."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    answers(tmp_path, SOUND)
    return tmp_path


def answers(node: Path, ecc: str) -> None:
    """ecc: counters that are printed, or the command that runs in place of it."""
    command = f"echo '{ecc}'" if ecc in (SOUND, FAULTY) else ecc
    (node / "nvidia-smi").write_text(DOUBLE.format(folder=node, ecc=command))
    (node / "nvidia-smi").chmod(0o755)


def check(node: Path, *options: str) -> tuple[int, str]:
    """(exit status, what is printed)"""
    result = CliRunner().invoke(cli, ["check", "--cache", str(node / "cache"), *options])
    return result.exit_code, result.output


def times_asked(node: Path) -> int:
    asked = node / "asked"
    return asked.read_text().count("-L") if asked.exists() else 0


def test_a_node_that_passed_is_not_asked_again_within_the_hour(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it, it is; the marks of earlier hours go."""
    now = [3600.0 * 500_000]
    monkeypatch.setattr(time, "time", lambda: now[0])
    status, said = check(node)
    assert status == 0 and "no fault by gpu_present, gpu_ecc, mounts (no answer: gpu_recovery_action)" in said
    now[0] += 3599
    status, said = check(node)
    assert status == 0 and "passed within the hour" in said and times_asked(node) == 1
    now[0] += 1
    check(node)
    assert times_asked(node) == 2
    assert len(list((node / "cache").iterdir())) == 1


def test_a_fault_is_never_remembered(node: Path) -> None:
    """It is printed with its proof, and only --fail makes it stop the launch."""
    answers(node, FAULTY)
    for options, expected in (((), 0), (("--fail",), 1)):
        status, said = check(node, *options)
        assert status == expected and f"FAULT, gpu_ecc: {FAULTY}" in said
    assert times_asked(node) == 2
    answers(node, SOUND)
    assert check(node, "--fail")[0] == 0


def test_a_query_that_hangs_proves_nothing(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut off, and the launch goes on by what the others answered."""
    monkeypatch.setattr(preflight, "QUERY_SECONDS", 1.0)
    monkeypatch.setattr(preflight, "ALL_SECONDS", 60.0)
    answers(node, "exec sleep 3600")
    status, said = check(node, "--fail")
    assert status == 0 and "(no answer: gpu_ecc, gpu_recovery_action)" in said and "mounts" in said


def test_a_node_of_which_nothing_answers_is_asked_again(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the time of all is over: the launch goes on, and nobody calls it checked."""
    monkeypatch.setattr(preflight, "ALL_SECONDS", 0.0)
    for _ in range(2):
        status, said = check(node, "--fail")
        assert status == 0 and "nothing could be asked, the launch goes on" in said
    assert not (node / "cache").exists()


@pytest.mark.parametrize("forged", ["folder", "mark"])
def test_a_job_does_not_vouch_for_its_node(node: Path, monkeypatch: pytest.MonkeyPatch, forged: str) -> None:
    """A mark that others could have made does not count."""
    check(node)
    if forged == "folder":
        (node / "cache").chmod(0o777)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    answers(node, FAULTY)
    assert check(node, "--fail")[0] == 1
