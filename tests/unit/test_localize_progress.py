"""What the progress series tells."""

import math
from dataclasses import replace

from diagnoser.localize import progress
from diagnoser.localize.metric_breaks import loss_break
from diagnoser.model import Evidence, Line, Progress, Stream

CALM = [6.0, 5.5, 5.2, 5.0, 4.8, 4.7, 4.6, 4.5, 4.4, 4.3]


def series(losses: list[float], checkpoint_after: int = -1) -> list[Progress]:
    points = [Progress(line=10 + i, rank=0, time=0.0, step=i + 1, loss=loss) for i, loss in enumerate(losses)]
    if checkpoint_after >= 0:
        points.insert(checkpoint_after, Progress(line=10, rank=0, time=0.0, checkpoint="ckpt/step_4"))
    return points


def test_calm_loss_is_no_break() -> None:
    """A falling loss, and one without enough points, is no finding."""
    assert loss_break(series(CALM)) is None
    assert loss_break(series([9.0, 90.0])) is None


def test_nan_from_here_on_is_a_break() -> None:
    """The first NaN is the place when no finite loss follows; the last checkpoint before it is told."""
    found = loss_break(series([*CALM, math.nan, math.nan], checkpoint_after=4))
    assert found is not None and (found.point.step, found.checkpoint, found.until) == (11, "ckpt/step_4", 12)


def test_a_nan_that_passes_is_none() -> None:
    """A skipped step with NaN inside a healthy run is no divergence."""
    assert loss_break(series([*CALM, math.nan, *CALM])) is None


def test_a_spike_that_stays_is_a_break_at_its_first_point() -> None:
    """A loss that leaves the band and ends in NaN broke at the spike, not at the NaN."""
    found = loss_break(series([*CALM, 900.0, 1e9, math.nan]))
    assert found is not None and found.point.step == 11


def test_a_spike_that_falls_back_is_none() -> None:
    """One bad batch that the run recovers from is no divergence."""
    assert loss_break(series([*CALM, 900.0, 950.0, 920.0, *CALM])) is None


def evidence(points: list[Progress]) -> Evidence:
    return Evidence((Line(Stream(), 12, "x", "x"),), progress=tuple(points))


def test_training_went_on_after_several_steps() -> None:
    """One step more may have been under way when the error was printed; three are progress."""
    line = evidence([]).lines[0]
    assert not progress.ProgressTimeline(evidence(series(CALM[:4]))).went_on(line)
    assert progress.ProgressTimeline(evidence(series(CALM))).went_on(line)


def test_after_a_line_of_a_node_only_what_prints_from_it_counts() -> None:
    """A kernel's line has no rank: steps of ranks on other nodes do not show that the node's own went on."""
    lines = [Line(Stream(), 4, "step 3", "step 3", rank, node=node) for rank, node in ((0, "cn00"), (1, "cn01"))]
    kernel = Line(Stream(), 12, "NVRM: Xid 79", "NVRM: Xid 79", node="cn01")
    points = [Progress(line=4, rank=1, time=0.0, step=3), *series(CALM)]
    told = progress.ProgressTimeline(Evidence((*lines, kernel), progress=tuple(points)))
    assert not told.went_on(kernel)
    assert told.went_on(replace(kernel, node="cn00"))


def test_the_same_step_again_is_no_progress() -> None:
    """A last step that many ranks print is one step."""
    points = [Progress(line=20 + rank, rank=rank, time=0.0, step=7) for rank in range(8)]
    assert not progress.ProgressTimeline(evidence(points)).went_on(evidence([]).lines[0])


def test_a_finite_loss_calms() -> None:
    """A NaN in one metric line is over when a later line is finite."""
    line = evidence([]).lines[0]
    assert progress.ProgressTimeline(evidence(series(CALM))).calmed(line)
    assert not progress.ProgressTimeline(evidence(series([6.0, 5.0, math.nan]))).calmed(line)


def test_another_run_in_the_same_log_has_its_own_losses() -> None:
    """A run that starts again at step 1 with a high loss has not diverged from the one before it."""
    first = [Progress(line=i, rank=0, time=0.0, step=100 + i, loss=0.01) for i in range(20)]
    second = [Progress(line=50 + i, rank=0, time=0.0, step=1 + i, loss=9.0 - i / 10) for i in range(20)]
    assert loss_break([*first, *second]) is None


def test_a_gradient_norm_that_stays_nan_is_a_break() -> None:
    """Where no loss is printed the gradient norm tells, unless it comes back."""

    def norms(*values: float) -> list[Progress]:
        return [Progress(line=i, rank=0, time=0.0, step=i, grad_norm=value) for i, value in enumerate(values)]

    found = loss_break(norms(1.0, 1.1, math.nan, math.nan, math.nan))
    assert found is not None and found.point.step == 2
    assert loss_break(norms(1.0, math.nan, math.nan, 1.2)) is None


def test_a_gradient_norm_that_explodes_is_a_break() -> None:
    """The loss still looks calm, the norm went up twentyfold and stays there; a peak that passes is none."""

    def run(*norms: float) -> list[Progress]:
        return [Progress(line=i, rank=0, time=0.0, step=i, loss=2.0, grad_norm=norm) for i, norm in enumerate(norms)]

    calm = (1.0, 1.2, 0.9, 1.1, 1.0, 1.3, 0.8)
    found = loss_break(run(*calm, 25.0, 40.0, 60.0))
    assert found is not None and found.point.step == 7 and "gradient norm" in found.why
    assert loss_break(run(*calm, 25.0, 40.0, 60.0, 1.0)) is None
    assert loss_break(run(*calm, 5.0, 6.0, 7.0)) is None


def test_a_counter_that_goes_back_is_another_launch() -> None:
    """Each rank counts for itself; the line at which one counts from earlier on is where a launch began."""
    told = [(1, 0, 5), (2, 1, 4), (3, 0, 6), (4, 1, 5), (7, 0, 3), (8, 0, 4)]
    points = tuple(Progress(line, rank, 0.0, step=step) for line, rank, step in told)
    assert progress.restarts(Evidence(progress=points)) == [7]
    assert progress.restarts(Evidence(progress=points[:4])) == []


def test_three_points_with_absurd_norms_are_a_spike() -> None:
    """A loss that jumps by a factor together with gradient norms of thousands needs no statistics; if it comes back, if
    only one of the two is high, or in a single point, it is none."""

    def run(*pairs: tuple[float, float]) -> list[Progress]:
        return [
            Progress(line=i, rank=0, time=0.0, step=i, loss=loss, grad_norm=norm)
            for i, (loss, norm) in enumerate(pairs)
        ]

    found = loss_break(run((2.3, 0.8), (38.3, 5900.0), (71.8, 9120.0)))
    assert found is not None and found.point.step == 1 and "before 0.8" in found.why
    assert loss_break(run((2.3, 0.8), (38.3, 5900.0), (2.2, 0.9))) is None
    assert loss_break(run((2.3, 0.8), (2.4, 5900.0), (2.2, 9120.0))) is None
    assert loss_break(run((11.9, 4100.0), (38.3, 5900.0), (71.8, 9120.0))) is None
    assert loss_break(run((2.3, 0.8), (38.3, 5900.0))) is None


def test_a_short_series_breaks_where_the_loss_is_a_multiple() -> None:
    """Three points before and three after, three times as high; twice as high says nothing yet."""
    found = loss_break(series([2.4, 2.3, 2.2, 9.8, 11.0, 10.9]))
    assert found is not None and found.point.step == 4
    assert loss_break(series([2.4, 2.3, 2.2, 4.9, 5.0, 5.1])) is None


def test_a_last_gradient_norm_of_thousands_is_an_explosion() -> None:
    """A norm a hundred times above all before needs no second point; one that falls back is none."""
    calm = [(1.5, 14.9), (1.3, 9.8), (1.6, 7.6), (1.5, 29.0), (1.6, 5.2), (1.4, 7.8)]

    def run(*pairs: tuple[float, float]) -> list[Progress]:
        return [
            Progress(line=i, rank=0, time=0.0, step=i, loss=loss, grad_norm=norm)
            for i, (loss, norm) in enumerate(pairs)
        ]

    found = loss_break(run(*calm, (1.5, 11140.0)))
    assert found is not None and found.point.step == 6
    assert loss_break(run(*calm, (1.5, 11140.0), (1.4, 8.0))) is None
    assert loss_break(run(*calm, (1.5, 900.0))) is None
