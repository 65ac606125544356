"""A failed run beside one that completed."""

from diagnoser.compress import AttemptLog, Compressor
from diagnoser.diagnosis.run_comparison import compare
from diagnoser.model import LineBlock, Stream

STEPS = [f"2026-09-21 14:{n // 60:02d}:{n % 60:02d} step {n}/1000 loss: 2.{n % 10}" for n in range(300)]
OLD_WARNING = ["Traceback (most recent call last):", "ValueError: a caught one, as always"]


def log(*lines: str) -> AttemptLog:
    compressor = Compressor()
    compressor.feed(LineBlock(Stream(), "".join(line + "\n" for line in lines).encode()))
    return AttemptLog(compressor.take())


def test_only_what_is_different_is_told() -> None:
    """The new line, the lost line, the other version and setting; not what both runs print, even a caught exception."""
    good = log("torch==2.3.1", "lr: 0.1", *OLD_WARNING, *STEPS, "metrics pushed", "metrics pushed", "training finished")
    bad = log("torch==2.4.0", "lr: 0.2", *OLD_WARNING, *STEPS, "RuntimeError: the seam broke")
    found = compare(bad, good, "good/1")
    assert [new.line.text for new in found.new] == ["RuntimeError: the seam broke"]
    assert [template.text for template in found.gone] == ["metrics pushed"]
    assert [(one.name, one.before, one.after) for one in found.versions] == [("torch", "2.3.1", "2.4.0")]
    assert [(one.name, one.before, one.after) for one in found.settings] == [("lr", "0.1", "0.2")]


def test_a_run_differs_in_nothing_from_itself() -> None:
    """Whatever it prints."""
    mine = log("torch==2.4.0", "lr: 0.2", *OLD_WARNING, *STEPS, "RuntimeError: the seam broke")
    found = compare(mine, mine, "good/1")
    assert (found.new, found.gone, found.versions, found.settings) == ((), (), (), ())
