"""Kills the coordinator of an evaluation again and again: no shard may be lost, and none carried out twice.

python -m tests.trial_kills [KILLS]
"""

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from diagnoser.adapters.sql.store import open_store
from diagnoser.model.evaluations import RunProgress, RunState
from tests.trial_runs import check, completions, judged, suite, trial_run

KILLS = 100
TASKS = (40, 25, 60, 10)
SECONDS_MAX = 3600.0


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else KILLS
    done = runs = 0
    begun = time.monotonic()
    while done < kills:
        with tempfile.TemporaryDirectory() as folder:
            done += killed_again_and_again(Path(folder), kills - done, random.Random(runs))
        runs += 1
        _say(f"{done} kills of the coordinator over {runs} runs: no sample lost, none twice")
    _say(f"{time.monotonic() - begun:.0f} s")


def killed_again_and_again(folder: Path, kills: int, chance: random.Random) -> int:
    """One run, whose coordinator is killed until it is over, or often enough; how often. Raises AssertionError."""
    url = f"sqlite:///{folder}/test.db"
    asyncio.run(_begin(url, folder))
    done, limit = 0, time.monotonic() + SECONDS_MAX
    while (progress := asyncio.run(_progress(url))).run.state is RunState.RUNNING:
        assert time.monotonic() < limit, "the run does not end"
        done += _killed(url, folder, chance.uniform(0.3, 2.0) if done < kills else None)
    check(progress)
    assert set(completions(folder).values()) == {1}, "a shard was carried out twice"
    assert len(completions(folder)) == 2 * (sum(TASKS) + TASKS[-1]), "a sample is missing"
    assert not list((folder / "r1" / "weights").glob("*.use")), "a copy of the weights is left"
    return done


def _killed(url: str, folder: Path, after: float | None) -> int:
    """1 if the coordinator was killed, 0 if it had ended by then. after: seconds that it gets; None: all it takes."""
    with (folder / "coordinator.log").open("ab") as log:
        words = [sys.executable, "-m", "tests.trial_runs", url, "r1"]
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        try:
            code = process.wait(after)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return 1
    assert code == 0, (folder / "coordinator.log").read_text()[-4000:]
    return 0


async def _begin(url: str, folder: Path) -> None:
    store = await open_store(url)
    (folder / "killed").touch()  # only the coordinator is killed
    await store.evaluations.add_run(trial_run(folder, judged(folder, suite(folder, TASKS, seconds=0.03))))
    await store.close()


async def _progress(url: str) -> RunProgress:
    store = await open_store(url)
    progress = await store.evaluations.progress("r1")
    await store.close()
    assert progress is not None
    return progress


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
