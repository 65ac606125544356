"""How long a run may say nothing before it hangs, by its stage."""

import pytest

from diagnoser.localize.hang_detection import silence
from diagnoser.model import Evidence, Line, Phase, Progress, Stage, Stream

OUT = Stream()


def evidence(*points: Progress, phases: tuple[Phase, ...] = (), last: float = 0.0) -> Evidence:
    """last: time of the newest line, which is no step."""
    newest = max([last, *(point.time for point in points)])
    number = max([100, *(point.line for point in points)])
    return Evidence((Line(OUT, number, "x", "x", time=newest),), progress=points, phases=phases)


def steps(count: int, every: float, start: float = 1000.0) -> list[Progress]:
    return [Progress(line=i + 1, rank=0, time=start + i * every, step=i) for i in range(count)]


def phase(stage: Stage, line: int) -> Phase:
    return Phase(stage, OUT, line, OUT, line)


def test_training_is_measured_by_its_iterations() -> None:
    """A minute and a half without a step is a hang at one-second steps and nothing at forty-second steps."""
    fast = silence(evidence(*steps(10, 1.0)), now=1009.0 + 90.0)
    assert fast is not None and fast.confirmed and fast.stage is Stage.TRAIN
    assert silence(evidence(*steps(10, 40.0)), now=1360.0 + 90.0) is None
    slow = silence(evidence(*steps(10, 40.0)), now=1360.0 + 150.0)
    assert slow is not None and not slow.confirmed


def test_steps_that_were_not_kept_count() -> None:
    """Of a long series some points are kept: a thousand steps in a thousand seconds are one-second steps."""
    points = [Progress(1, 0, 1000.0, step=1), Progress(2, 0, 2000.0, step=1001), Progress(3, 0, 2001.0, step=1002)]
    found = silence(evidence(*points), now=2001.0 + 61.0)
    assert found is not None and found.confirmed and found.usual == 1.0


def test_lines_between_steps_are_no_progress_in_training() -> None:
    """Somebody prints, but no step is made: that is what a hang looks like from rank 0."""
    found = silence(evidence(*steps(10, 1.0), last=1100.0), now=1110.0)
    assert found is not None and found.confirmed and found.seconds == 101.0


def test_a_pause_that_the_run_came_back_from_is_no_hang() -> None:
    """Evaluation took two minutes before: the next one may take as long, and not ten times that."""
    paused = [*steps(5, 1.0), *(Progress(20 + i, 0, 1124.0 + i, step=5 + i) for i in range(5))]
    found = silence(evidence(*paused), now=1128.0 + 180.0)
    assert found is not None and not found.confirmed
    found = silence(evidence(*paused), now=1128.0 + 400.0)
    assert found is not None and found.confirmed


@pytest.mark.parametrize(
    ("stage", "minutes"), [(Stage.INIT, 15), (Stage.DATA, 60), (Stage.LOAD, 30), (Stage.SAVE, 30), (Stage.EVAL, 30)]
)
def test_each_stage_has_its_own_patience(stage: Stage, minutes: int) -> None:
    """Before any step is made, or while a checkpoint is written, iterations say nothing."""
    run = evidence(phases=(phase(Stage.LAUNCH, 1), phase(stage, 50)), last=1000.0)
    late, hangs = silence(run, 1000.0 + 60 * minutes - 1), silence(run, 1000.0 + 60 * minutes)
    assert late is not None and not late.confirmed
    assert hangs is not None and hangs.confirmed and hangs.stage is stage


def test_saving_is_measured_by_earlier_saves() -> None:
    """A checkpoint took forty seconds before: after two minutes in the next one nobody is writing any more."""
    saves = [*steps(5, 1.0), Progress(6, 0, 1005.0, checkpoint="ck/5", stage=Stage.SAVE)]
    saves += [Progress(7, 0, 1045.0, step=5), Progress(8, 0, 1046.0, checkpoint="ck/6", stage=Stage.SAVE)]
    early = silence(evidence(*saves), now=1046.0 + 100.0)
    assert early is not None and not early.confirmed and early.usual == 40.0
    found = silence(evidence(*saves), now=1046.0 + 130.0)
    assert found is not None and found.confirmed and found.stage is Stage.SAVE


def test_nothing_to_measure_by_is_no_hang() -> None:
    """Without steps with times, and without a known stage, silence cannot be judged."""
    assert silence(evidence(*steps(2, 1.0)), now=9e9) is None
    assert silence(evidence(last=1000.0), now=9e9) is None
