"""Checkpoints of real torch: the example of docs/checkpoints.md as users run it, and damage that torch does not see."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from diagnoser.client.checkpoints import find, latest, verify
from diagnoser.client.checkpoints.verification import State
from diagnoser.web.api.client_archive import built
from tests.environments import TORCH

pytestmark = pytest.mark.skipif(bool(TORCH.missing), reason=TORCH.missing)
PAGE = Path(__file__).resolve().parents[2] / "docs/checkpoints.md"
LOAD = """
import sys, torch
from torch.distributed import checkpoint as dcp
state = {"model": torch.nn.Linear(32, 1).state_dict()}
dcp.load(state, checkpoint_id=sys.argv[1])
"""

OVERWRITES = """
import sys, torch
from torch.distributed import checkpoint as dcp
from diagnoser.client.checkpoints import Checkpointer
weights, saves, buffers = torch.ones(1 << 20), [], set()
with Checkpointer(sys.argv[1]) as saver:
    for step in (1, 2, 3):
        saves.append(saver.async_save(step, {"weights": weights}))
        buffers.add(id(saver._buffers()))
        weights.add_(1)  # training goes on while the files are written
for step, save in enumerate(saves, 1):
    saved = {"weights": torch.zeros(1 << 20)}
    dcp.load(saved, checkpoint_id=save.path)
    assert bool((saved["weights"] == step).all()), (step, saved["weights"].unique())
assert len(buffers) == 1
"""


def command(folder: Path, code: str, *words: object) -> tuple[list[str], dict[str, str]]:
    """As with the file that the service hands out: no other package is there."""
    (folder / "client.pyz").write_bytes(built("").data)
    (folder / "train.py").write_text(code)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder / "client.pyz"), "PYTHONWARNINGS": "ignore"}
    return [str(TORCH.python), str(folder / "train.py"), *map(str, words)], environment


def test_the_example_trains_goes_on_and_saves_at_the_end(tmp_path: Path) -> None:
    """Each save verifies; a second launch goes on where the first was; SIGTERM leaves the step that was finished last.
    Flipped bits load without an error, and are never chosen."""
    example = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[0]
    folder = tmp_path / "checkpoints"
    words, environment = command(tmp_path, example, folder, 20)
    subprocess.run(words, env=environment, check=True, timeout=600)
    found = find(str(folder))
    assert [each.completion.about.step for each in found if each.completion] == [19, 9]
    assert [verify(each.path).state for each in found] == 2 * [State.VERIFIED]

    words, environment = command(tmp_path, example, folder, 1 << 30)
    last = None
    while last is None:
        known = len(find(str(folder)))
        with subprocess.Popen(words, env=environment) as running:
            deadline = time.monotonic() + 600
            while len(find(str(folder))) < known + 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            running.send_signal(signal.SIGTERM)
        assert running.returncode == -signal.SIGTERM
        saved = latest(str(folder))
        assert saved is not None
        assert saved.completion is not None
        if saved.completion.about.just_in_time:
            last = saved
        else:  # the step that was finished last was one to be saved anyhow
            assert saved.completion.about.step % 10 == 9
    gone_on = find(str(folder))
    assert {each.path for each in found} < {each.path for each in gone_on}
    assert [verify(each.path).state for each in gone_on].count(State.VERIFIED) >= 4

    shard = Path(last.path) / "__0_0.distcp"
    weights = bytearray(shard.read_bytes())
    name = re.search(
        rb"data/0FB..Z*", weights, re.DOTALL
    )  # in torch's archive values lie behind their name and padding
    assert name is not None
    weights[name.end()] ^= 1
    shard.write_bytes(weights)
    words, environment = command(tmp_path, LOAD, last.path)
    subprocess.run(words, env=environment, check=True, timeout=600)
    chosen = latest(str(folder))
    assert chosen is not None
    assert chosen.path != last.path


def test_each_save_holds_the_state_of_its_step(tmp_path: Path) -> None:
    """Saves copy into the same buffers, while training changes the state and the save before is still written."""
    words, environment = command(tmp_path, OVERWRITES, tmp_path / "checkpoints")
    subprocess.run(words, env=environment, check=True, timeout=600)


def test_ranks_that_save_together_and_one_that_dies(tmp_path: Path) -> None:
    """Whatever a rank was about when it was killed, or did not come, the checkpoint before that save is chosen; another
    number of ranks loads what was saved. A flipped bit is found in the file of its rank, and is never chosen."""
    root = Path(__file__).resolve().parents[2]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(root)}
    words = [str(TORCH.python), "-m", "tests.checkpoint_ranks", str(tmp_path)]
    made = subprocess.run(words, cwd=root, env=environment, stdout=subprocess.PIPE, check=True, timeout=600)
    outcomes = json.loads(made.stdout)
    for kind in ("save", "async_save"):
        *cases, loaded = outcomes[kind]
        assert [case["chosen"] for case in cases] == [case["expected"] for case in cases]
        assert [case["case"] for case in cases if case["codes"] == [0, 0, 0]] == ["nobody is killed"]
        assert loaded == {"loaded": [0, 0]}
    assert outcomes["damaged"] == {"faulty": ["__1_0.distcp"], "went back": True}


@pytest.mark.parametrize("name", ["lightning", "transformers"])
def test_the_examples_for_frameworks_save_and_go_on(name: str, tmp_path: Path) -> None:
    """Every checkpoint verifies with a finite loss, every file of it is in a manifest, and a second run goes on from
    the newest."""
    root = Path(__file__).resolve().parents[2]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(root)}
    words = [str(TORCH.python), "-m", "tests.checkpoint_frameworks", name, str(tmp_path)]
    made = subprocess.run(words, cwd=root, env=environment, stdout=subprocess.PIPE, check=True, timeout=600)
    outcome = json.loads(made.stdout.splitlines()[-1])
    assert outcome["saved"] == [[step, "verified", True] for step in (4, 8, 12, 16)]
    assert outcome["went on to"] == 16
