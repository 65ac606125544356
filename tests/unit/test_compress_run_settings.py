"""What a log says about how its run was started."""

from diagnoser.compress import AttemptLog, Compressor
from diagnoser.diagnosis.run_comparison import RunSettings, SettingChange, changes, run_settings
from diagnoser.model import LineBlock, Stream

START = """\
------------------------ arguments ------------------------
  lr .............................................. 0.00015
NCCL version 2.21.5+cuda12.4
torch==2.4.0 transformers 4.41.2
CUDA Version: 12.4
Namespace(seed=1234, data_path='/data/a b', rank=3)
git commit: abcdef1234
max_steps: 1000
WARNING: careful
"""


def read(*texts: str) -> RunSettings:
    compressor = Compressor()
    for rank, text in enumerate(texts):
        compressor.feed(LineBlock(Stream("stdout", "", rank), text.encode()))
    return run_settings(AttemptLog(compressor.take()).digest)


def test_versions_and_settings_are_read_in_the_words_of_real_frameworks() -> None:
    """Arguments of Megatron, a Namespace, `name: value` lines, and versions as NCCL, pip and the driver print them."""
    found = read(START)
    assert found.versions == {
        "nccl": "2.21.5+cuda12.4",
        "torch": "2.4.0",
        "transformers": "4.41.2",
        "cuda": "12.4",
        "commit": "abcdef1234",
    }
    assert found.settings == {"lr": "0.00015", "seed": "1234", "data_path": "/data/a b", "max_steps": "1000"}


def test_what_is_printed_in_training_is_no_setting() -> None:
    """After the first step values are measured, not set."""
    assert "scale" not in read(START + "step 1/100 loss: 2.5\nscale = 512\n").settings
    assert read(START + "scale = 512\n").settings["scale"] == "512"


def test_what_ranks_say_in_two_ways_is_left_out() -> None:
    """It is of the rank, not of the run."""
    assert read("shard: 1\nlr: 0.1\n", "shard: 2\nlr: 0.1\n").settings == {"lr": "0.1"}


def test_changes_begin_with_what_both_runs_say() -> None:
    """Then come those that only one of them prints; what is the same is none."""
    found = changes({"a": "1", "gone": "x", "z": "1"}, {"a": "1", "new": "y", "z": "2"})
    assert found == [SettingChange("z", "1", "2"), SettingChange("gone", "x", ""), SettingChange("new", "", "y")]
