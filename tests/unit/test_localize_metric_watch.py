"""The metrics of runs that go on: what lasts is seen soon, and a healthy run raises no alarm."""

import math
import random
from dataclasses import replace
from io import BufferedReader, BytesIO
from itertools import accumulate

import pytest

from diagnoser.localize import metric_watch
from diagnoser.localize.metric_watch import MetricHistory, seen_in
from diagnoser.model import LOSS_SERIES, Facts, MetricEventKind, Progress
from diagnoser.model.taxonomy import FailureType
from tests.rule_files import ANALYZER
from tests.thorough import THOROUGH
from tools.metric_runs import curves
from tools.metric_runs.__main__ import points_of, watched
from tools.metric_runs.recipes import DIVERGENT_FORMS, HEALTHY, KINDS, divergence

STEPS = 1500 if THOROUGH else 700
SURE = {"nan": 3, "infinite": 3, "thousandfold": 7, "to_chance": 24, "tenfold_tuning": 20}
"""Kind of divergence -> steps behind its first one within which it must be seen."""


def timed(seconds: list[float], batch: float = 64.0) -> list[Progress]:
    return [
        Progress(line=index, rank=0, time=0.0, step=index, loss=2.0, step_seconds=value, batch_size=batch)
        for index, value in enumerate(seconds, 1)
    ]


def noisy(usual: float, count: int) -> list[float]:
    rng = random.Random(count)
    return [usual * rng.uniform(0.97, 1.03) for _ in range(count)]


KINDS_OF_A_FORM = len(KINDS) if THOROUGH else 2
FORMS_AND_KINDS = [
    (form, (number + other) % len(KINDS))
    for number, form in enumerate(DIVERGENT_FORMS)
    for other in range(KINDS_OF_A_FORM)
]
"""How a form is read does not depend on how the run diverges: each form and each kind is seen at least twice."""


@pytest.mark.parametrize(("form", "kind"), FORMS_AND_KINDS)
def test_a_divergence_that_lasts_is_seen_while_the_run_goes_on(form: str, kind: int) -> None:
    """In every form of log, and not before it begins."""
    run = divergence(kind, form, behind=40)
    points = points_of([line for _, _, line in run.lines])
    [(line, event)] = [seen for seen in watched(points) if seen[1].kind is MetricEventKind.DIVERGED]
    step = run.lines[line - 1][1]
    assert 0 < step - run.at + 1 <= SURE[run.kind]
    assert run.at <= run.lines[event.point.line - 1][1] <= run.at + 3


@pytest.mark.parametrize("steps", [800, 2400])
def test_a_loss_that_climbs_back_over_many_steps_has_diverged(steps: int) -> None:
    """Each point is within the band of those before it. It ended as completed at 0.97, and nobody was told; a rollback
    goes back to where the climb began."""
    curve, rng = curves.language_model(random.Random(5), begin=10.5), random.Random(5)
    losses = [curve(step) for step in range(1000)]
    losses += [losses[-1] + 7.0 * min(1.0, step / steps) + rng.gauss(0.0, 0.03) for step in range(steps + 500)]
    lines = [f"step {step} loss {loss:.4f}" for step, loss in enumerate(losses)]
    seen = [event.kind for _, event in watched(points_of(lines))]
    assert seen == [MetricEventKind.DIVERGED]
    text = "".join(f"{line}\n" for line in lines).encode()
    found = ANALYZER.analyze(ANALYZER.read(BufferedReader(BytesIO(text)), lambda _: None), Facts())
    assert (found.type, found.decided_by) == (FailureType.LOSS_DIVERGENCE, LOSS_SERIES)
    assert found.rollback and 900 < (found.rollback.skip_from or 0) < 1000 + steps / 5


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_recipe_raises_no_alarm(name: str) -> None:
    """Warm-up, restarts, changed data, rewards, two players, evaluations between, many ranks, counters that reset."""
    lines = [line for _, line in HEALTHY[name](random.Random(7), STEPS)]
    assert list(watched(points_of(lines))) == []


def test_a_spike_that_passes_is_an_annotation() -> None:
    """It stands among what was seen, and nobody is told."""
    losses = [2.0 + 0.01 * (step % 5) for step in range(60)]
    losses[40:43] = [30.0, 12.0, 5.0]
    points = [Progress(line=step + 1, rank=0, time=0.0, step=step, loss=loss) for step, loss in enumerate(losses)]
    assert [(event.kind, event.point.step) for event in seen_in(points, is_running=True)] == [
        (MetricEventKind.SPIKE, 40)
    ]
    assert list(watched(points)) == []


def test_throughput_that_falls_by_a_fifth_and_stays_is_told() -> None:
    """From the step on at which it fell; not where steps do more work, where it is a hiccup, or only a tenth."""
    found = metric_watch.slower(timed([*noisy(2.0, 80), *noisy(2.8, 25)]))
    assert found is not None and found.point.step == 81 and "71%" in found.why and "│" in found.picture
    assert metric_watch.slower(timed([*noisy(2.0, 80), *noisy(2.8, 15)])) is None
    assert metric_watch.slower(timed([*noisy(2.0, 80), *noisy(2.8, 25), 2.0])) is None
    assert metric_watch.slower(timed([*noisy(2.0, 80), *noisy(2.2, 40)])) is None
    grown = [*timed(noisy(2.0, 80)), *timed(noisy(4.0, 120), batch=128.0)[80:]]
    assert metric_watch.slower(grown) is None


def test_what_only_looks_slower_is_not_told() -> None:
    """A bar that is drawn again for one step, its average that comes back after a pause, and two seconds of a run of
    quick steps."""
    drawn = [replace(point, step=min(point.step or 0, 81)) for point in timed([*noisy(2.0, 80), *noisy(2.8, 40)])]
    assert metric_watch.slower(drawn) is None
    averaged = [4.0 - 0.04 * point for point in range(30)]
    assert metric_watch.slower(timed([*noisy(2.0, 80), *averaged])) is None
    assert metric_watch.slower(timed([*noisy(0.05, 80), *noisy(0.07, 40)])) is None
    assert metric_watch.slower(timed([*noisy(0.05, 80), *noisy(0.07, 120)])) is not None


def arriving(seconds: list[float], stride: int = 1) -> list[Progress]:
    """Steps that come so many seconds after each other."""
    times = accumulate(seconds, initial=5000.0)
    return [Progress(line=n, rank=0, time=0.0, step=stride * n, received=time) for n, time in enumerate(times, 1)]


@pytest.mark.parametrize(
    ("seconds", "step"),
    [
        ([1.0] * 20 + [9.0] * 3, 22),
        ([1.0] * 20 + [3.5, 3.1, 4.0], 22),
        ([0.1] * 40 + [0.5] * 12, 42),
        ([1.0] * 20 + [9.0] * 2, None),
        ([1.0] * 20 + [60.0, 1.0, 1.0], None),
        ([1.0] * 20 + [9.0, 9.0, 1.0, 9.0], None),
        ([1.0] * 20 + [2.5] * 20, None),
        ([0.1] * 40 + [0.5] * 4, None),
        ([9.0] * 3 + [1.0] * 20, None),
        ([1.0] * 20 + [3600.0, 1.0, 1.0, 1.0], None),
        ([1.0] * 20 + [-3600.0, 9.0, 9.0], None),
    ],
    ids=["ninefold", "threefold", "quick", "two", "pause", "uneven", "little", "moment", "faster", "clock", "back"],
)
def test_steps_that_take_several_times_as_long_and_go_on_so_crawl(seconds: list[float], step: int | None) -> None:
    """By their arrival, from the first slow one on; a pause, or a clock that jumps, is none."""
    events = [event.point.step for _, event in watched(arriving(seconds)) if event.kind is MetricEventKind.CRAWLING]
    assert events[:1] == ([step] if step else [])
    assert metric_watch.crawling(arriving([0.0] * 40)) is None


def test_a_loss_that_stays_at_chance_is_told() -> None:
    """The logarithm of fifty thousand tokens, step after step; one that falls slowly is none."""
    stuck = [Progress(line=step, rank=0, time=0.0, step=step, loss=math.log(50_257)) for step in range(1, 260)]
    slow = [Progress(line=step, rank=0, time=0.0, step=step, loss=10.9 - step / 400) for step in range(1, 260)]
    assert [event.kind for _, event in watched(stuck)] == [MetricEventKind.STUCK]
    assert list(watched(slow)) == []


def test_a_line_counts_once_and_memory_is_bounded() -> None:
    """Pieces of a log are read again after a compaction, and a run may make a million steps."""
    history = MetricHistory()
    points = [Progress(line=step, rank=0, time=0.0, step=step, loss=2.0) for step in range(1, 3000)]
    history.add(points)
    history.add(points)
    kept = [point.step for series in history.series for point in series.points]
    assert len(kept) == len(set(kept)) <= metric_watch.FIRST + 2 * metric_watch.LATEST
    assert kept[0] == 1 and kept[-1] == 2999


def test_ranks_and_names_are_series_of_their_own() -> None:
    """One rank that trains at another level, or a second loss, is no jump of the first."""
    points = []
    for step in range(60):
        points.append(Progress(line=3 * step + 1, rank=0, time=0.0, step=step, loss=2.0, metric="loss"))
        if step > 30:
            points.append(Progress(line=3 * step + 2, rank=1, time=0.0, step=step, loss=40.0, metric="loss"))
            points.append(Progress(line=3 * step + 3, rank=0, time=0.0, step=step, loss=90.0, metric="aux loss"))
    assert list(watched(points)) == []
