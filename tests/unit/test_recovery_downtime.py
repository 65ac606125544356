"""What failures cost, and what is not known of it."""

from diagnoser.model import FailedRun
from diagnoser.recovery.downtime import FATAL_AGE, GIVEN_UP, HOUR, failed_at
from diagnoser.recovery.failed_runs import FailedRuns, RecoveryFigures, recovery_figures

NOW = 1_000_000.0


def run(**fields: object) -> FailedRun:
    values: dict[str, object] = {"failed": NOW - 2 * HOUR, "diagnosed": NOW - 2 * HOUR + 30}
    return FailedRun(**(values | fields))  # type: ignore[arg-type]


def figures_of(runs: list[FailedRun]) -> RecoveryFigures:
    return recovery_figures(FailedRuns.of(runs), NOW)


def test_lost_hours_go_to_the_next_launch_or_to_now() -> None:
    """A job that nobody launched again is given up after a day; what does not say its GPUs is counted as unknown."""
    runs = [
        run(gpus=8, relaunched=NOW - HOUR),
        run(gpus=4),
        run(gpus=2, failed=NOW - 10 * GIVEN_UP, diagnosed=NOW - 10 * GIVEN_UP),
        run(),
    ]
    figures = figures_of(runs)
    assert figures.lost_hours == 8 + 8 + 48
    assert (figures.failures, figures.without_gpus) == (4, 1)


def test_what_no_job_says_is_unknown() -> None:
    """Not nothing, and no guess."""
    figures = figures_of([run(relaunched=NOW)])
    assert (figures.lost_hours, figures.saved_hours, figures.judged) == (None, None, 0)
    assert figures_of([]) == RecoveryFigures()


def test_times_are_means_of_what_happened() -> None:
    """To the verdict, and to the next launch where there was one; a clock that is ahead makes no negative time."""
    runs = [run(relaunched=NOW - HOUR), run(diagnosed=NOW - 2 * HOUR - 5), run(diagnosed=NOW - 2 * HOUR + 90)]
    figures = figures_of(runs)
    assert figures.to_diagnosis == 40.0
    assert (figures.to_recovery, figures.relaunched) == (HOUR, 1)


def test_launches_that_held_are_those_without_a_fault() -> None:
    """One without a verdict is not judged."""
    runs = [run(relaunched=NOW, next_succeeded=outcome) for outcome in (True, True, False, None)]
    figures = figures_of(runs)
    assert (figures.succeeded, figures.judged, figures.relaunched) == (2, 3, 4)


def test_saved_hours_need_people_to_compare_with() -> None:
    """The median relaunch of people, against each that an agent carried out; unknown with fewer than five of them."""
    by_plan = run(gpus=10, by_plan=True, relaunched=NOW - 2 * HOUR + 600)
    by_people = [run(relaunched=NOW - 2 * HOUR + minutes * 60) for minutes in (50, 60, 70, 90, 30)]
    assert figures_of([by_plan, *by_people[:4]]).saved_hours is None
    assert figures_of(by_people).saved_hours is None
    saved = figures_of([by_plan, *by_people]).saved_hours
    assert saved is not None
    assert round(saved, 6) == round(10 * 50 / 60, 6)


def test_when_a_run_failed() -> None:
    """A hang at its last line; else the end, or the fatal line shortly before. An early one was survived."""
    assert failed_at(hung=True, fatal=900.0, ended=1_000.0, last_line=500.0) == 500.0
    assert failed_at(hung=False, fatal=900.0, ended=1_000.0, last_line=950.0) == 900.0
    assert failed_at(hung=False, fatal=None, ended=None, last_line=950.0) == 950.0
    end = 900.0 + FATAL_AGE + 1
    assert failed_at(hung=False, fatal=900.0, ended=end, last_line=950.0) == end
