"""A run that is cut short leaves no process behind, whatever cut it short."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.service import ROOT, alive, until

SETUP = """
from tests import reaper

def pytest_configure():
    reaper.watch()
"""
STARTS = """
import os, subprocess, sys, time
from pathlib import Path

ORPHAN = "trap '' TERM INT; sleep 1000 & echo $! > {folder}/below; exec sleep 1000"

def test_hangs():
    begun = [
        subprocess.Popen(["sh", "-c", ORPHAN], start_new_session=True, env={{"PATH": os.environ["PATH"]}}),
        subprocess.Popen(["sh", "-c", "sleep 1000 & echo $! > {folder}/orphan"]),
        subprocess.Popen(["sleep", "1000"]),
    ]
    begun[1].wait()
    while not Path("{folder}/below").exists() or not Path("{folder}/below").read_text():
        time.sleep(0.05)
    Path("{folder}/direct").write_text("\\n".join(str(process.pid) for process in (begun[0], begun[2])))
    Path("{folder}/ready").touch()
    {goes_on}
"""


def start(folder: Path, goes_on: str, *options: str, by: tuple[str, ...] = ()) -> "subprocess.Popen[bytes]":
    """by: the command of another program that starts the run as its own child."""
    (folder / "conftest.py").write_text(SETUP)
    (folder / "test_starts.py").write_text(STARTS.format(folder=folder, goes_on=goes_on))
    (folder / "pytest.ini").write_text("[pytest]\n")
    words = [*by, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options, str(folder)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    environment["TMPDIR"] = str(folder)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so it is below a script that runs in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def begun(folder: Path) -> list[int]:
    return [int(pid) for name in ("below", "orphan", "direct") for pid in (folder / name).read_text().split()]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_whatever_a_test_started_ends_with_an_interrupted_run(tmp_path: Path, how: signal.Signals) -> None:
    """Children, orphans, sessions of their own and environments made from nothing, also such as ignore signals. Its
    temporary files go with them."""
    run = start(tmp_path, "time.sleep(1000)")
    until((tmp_path / "ready").exists, "the test has started processes")
    processes = begun(tmp_path)
    assert all(map(alive, processes))
    assert list(tmp_path.glob("tests-*"))
    run.send_signal(how)
    run.wait()
    until(lambda: not any(map(alive, processes)), "all of them have ended")
    until(lambda: not list(tmp_path.glob("tests-*")), "their folder is gone")


def test_a_run_ends_with_the_make_that_it_belongs_to(tmp_path: Path) -> None:
    """SIGKILL gives ``make`` no time to end its children: a run of many minutes would go on unseen."""
    make = tmp_path / "make"
    shutil.copy("/bin/sh", make)
    run = start(tmp_path, "time.sleep(1000)", by=(str(make), "-c", '"$@"; exit $?', "make"))
    until((tmp_path / "ready").exists, "the test has started processes")
    processes = begun(tmp_path)
    run.kill()
    run.wait()
    until(lambda: not any(map(alive, processes)), "all of them have ended")


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "workers"])
def test_a_run_that_ends_in_order_leaves_nothing_either(tmp_path: Path, options: tuple[str, ...]) -> None:
    """A test that forgets to end what it started, in the run's own process or in a worker."""
    run = start(tmp_path, "", *options)
    run.wait()
    processes = begun(tmp_path)
    until(lambda: not any(map(alive, processes)), "all of them have ended")
