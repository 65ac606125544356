"""How long a run may say nothing before it hangs: by its own rhythm, its stage, and the earlier runs of its family."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from diagnoser.localize.hang_detection import FIRST_STEP, ExpectedSilence, Silence, expected_silence, pauses
from diagnoser.model import Baseline, CleanRun, Evidence, Line, Phase, Progress, Stage, Stream, Template

OUT = Stream()
UNKNOWN = Baseline()


def evidence(*points: Progress, phases: tuple[Phase, ...] = (), last: float = 0.0) -> Evidence:
    """last: time of the newest line, which is no step."""
    newest = max([last, *(point.time for point in points)])
    number = max([100, *(point.line for point in points)])
    return Evidence((Line(OUT, number, "x", "x", time=newest),), progress=points, phases=phases)


def steps(count: int, every: float, start: float = 1000.0, first: int = 0, stride: int = 1) -> list[Progress]:
    numbers = range(first, first + count)
    return [Progress(n + 1, 0, start + (n - first) * every, step=n * stride) for n in numbers]


def phase(stage: Stage, line: int) -> Phase:
    return Phase(stage, OUT, line, OUT, line)


def family(**longest: float) -> Baseline:
    return Baseline((CleanRun("j/1", 10, {}, pauses={FIRST_STEP: 5.0}), CleanRun("j/2", 10, {}, pauses=longest)))


def limit(run: Evidence, known: Baseline = UNKNOWN) -> ExpectedSilence:
    found = expected_silence(run, known)
    assert found is not None
    return found


def after(run: Evidence, quiet: float, known: Baseline = UNKNOWN) -> Silence | None:
    return limit(run, known).silence(quiet)


@pytest.mark.parametrize(("every", "suspected"), [(1.0, 11.0), (3.0, 11.0), (40.0, 120.0)])
def test_a_hang_is_suspected_after_three_steps_and_never_before_eleven_seconds(every: float, suspected: float) -> None:
    """Fifteen seconds without a step are suspect at one-second steps and nothing at forty-second steps."""
    run = evidence(*steps(10, every))
    assert after(run, suspected - 1) is None
    found = after(run, suspected)
    assert found == Silence(suspected, every, Stage.TRAIN, confirmed=False)


def test_silence_alone_confirms_a_hang_after_ten_steps_where_pauses_are_known() -> None:
    """A family whose pauses are short is judged within a minute, or ten steps; one that nobody knows has more time:
    its first checkpoint may begin without a word."""
    for every, quiet in ((1.0, 60.0), (40.0, 400.0)):
        run, known = evidence(*steps(10, every)), family(train=5.0)
        late, hangs = after(run, quiet - 1, known), after(run, quiet, known)
        assert late is not None and not late.confirmed
        assert hangs is not None and hangs.confirmed
    alone = after(evidence(*steps(10, 1.0)), 299.0)
    assert alone is not None and not alone.confirmed
    assert limit(evidence(*steps(10, 1.0))).confirmed == 300.0


def test_steps_are_counted_as_they_are_printed() -> None:
    """Where each hundredth step is printed, a minute apart, three minutes without one are usual for three of them."""
    run = limit(evidence(*steps(10, 60.0, stride=100)))
    assert (run.usual, run.suspected) == (60.0, 180.0)


def test_steps_that_were_not_kept_do_not_change_the_rhythm() -> None:
    """Of a long series some points are kept: a thousand steps in a thousand seconds are no pause."""
    points = [Progress(1, 0, 1000.0, step=1), *steps(20, 1.0, start=2000.0, first=1001)]
    assert limit(evidence(*points)).usual == 1.0
    assert Stage.TRAIN not in pauses(evidence(*points))


def test_one_slow_step_does_not_change_the_rhythm() -> None:
    """The usual time is a median."""
    points = [*steps(10, 1.0), *steps(10, 1.0, start=1040.0, first=10)]
    assert limit(evidence(*points)).usual == 1.0


def test_a_log_that_comes_in_lumps_is_judged_by_its_arrival() -> None:
    """Ten steps a second apart that come together each ten seconds: ten seconds are the rhythm, not one."""
    points = [Progress(n, 0, 1000.0 + n, step=n, received=5000.0 + 10 * (n // 10)) for n in range(60)]
    run = limit(evidence(*points))
    assert (run.usual, run.suspected) == (10.0, 30.0)


def test_a_log_that_came_at_once_is_judged_by_its_own_times() -> None:
    """After an outage of the shipper there is no rhythm in the arrival."""
    points = [Progress(n, 0, 1000.0 + n, step=n, received=5000.0) for n in range(60)]
    assert limit(evidence(*points)).usual == 1.0


def test_many_steps_within_a_second_are_a_rhythm() -> None:
    """Times in whole seconds show no more of quick steps; that they are quick is enough."""
    run = limit(evidence(*(Progress(n, 0, 1000.0, step=n) for n in range(8))))
    assert (run.suspected, run.confirmed) == (11.0, 300.0)
    came_at_once = [Progress(n, 0, 5000.0, step=n, received=5000.0) for n in range(8)]
    assert (limit(evidence(*came_at_once)).suspected, limit(evidence(*came_at_once)).confirmed) == (11.0, 3600.0)


def test_steps_that_print_how_long_they_took_are_a_rhythm() -> None:
    """Each tenth step, of seven seconds, is printed, and the log came at once: that is one line in seventy seconds."""
    points = [Progress(n, 0, 5000.0, step=10 * n, step_seconds=7.0, received=5000.0) for n in range(8)]
    assert limit(evidence(*points)).suspected == 210.0


def test_lines_between_steps_are_no_progress_in_training() -> None:
    """Somebody prints, but no step is made: that is what a hang looks like from rank 0."""
    found = after(evidence(*steps(10, 1.0), last=1100.0), 10.0)
    assert found is not None and found.seconds == 101.0


def test_a_bar_that_is_drawn_again_is_no_progress() -> None:
    """The same step, printed again and again, is what a hang looks like where a monitor redraws the bar."""
    again = [Progress(100 + n, 0, 1010.0 + n, step=9) for n in range(90)]
    found = after(evidence(*steps(10, 1.0), *again), 10.0)
    assert found is not None and found.seconds == 100.0


def test_lines_of_a_new_kind_may_be_other_work_for_an_hour() -> None:
    """An evaluation may begin without a word that tells so; it counts from its newest line until it takes too long."""
    evaluates = Template("example <NUM>", 50, (OUT, 50), (OUT, 100), frozenset(), ())
    for last, seconds in ((1100.0, 10.0), (5000.0, 4001.0)):
        run = replace(evidence(*steps(10, 1.0), last=last), templates=(evaluates,))
        limits = limit(run)
        assert limits.ahead + 10.0 == seconds


@pytest.mark.parametrize(
    ("shown", "seconds"),
    [
        (lambda n: f"Evaluating: {n // 9}%|##  | {n}/900 [00:{n % 60:02d}<05:00, 1.1s/it]", 10.0),
        (lambda n: f"10:{n // 60:02d}:{n % 60:02d} uploading part {n} of 900", 10.0),
        (lambda n: f"eval [{n % 250}/250]", 10.0),
        (lambda n: f"batch {min(n, 260)}/900", 1400.0),
        (
            lambda n: f"[mon] 2026/11/28 10:{n // 60:02d}:{n % 60:02d}/24:00:00 up {n} s, {n}/900 s, 34/900 drawn",
            4001.0,
        ),
        (lambda n: f"[mon] memory {60 + n * 7 % 19}/80 GB, gpu {n % 2} of 2", 4001.0),
    ],
    ids=["bar", "upload", "the next part", "stands still", "clocks", "gauges"],
)
def test_whatever_counts_up_to_a_total_is_at_work(shown: Callable[[int], str], seconds: float) -> None:
    """However long, and whatever it is called; not how much of a time is over, and no gauge that goes up and down."""
    said = [Line(OUT, 100 + n, shown(n), shown(n), time=1010.0 + 10 * n) for n in range(400)]
    run = replace(evidence(*steps(10, 1.0)), lines=tuple(said))
    assert limit(run).ahead + 10.0 == seconds


def test_another_clock_in_the_log_is_no_silence() -> None:
    """Steps that print local time among lines that print another one: their arrival tells how old the last step is."""
    points = [Progress(n, 0, 1000.0 + n, step=n, received=5000.0 + n) for n in range(20)]
    ahead = Line(OUT, 100, "x", "x", time=1020.0 + 18_000.0, received=5021.0)
    assert limit(Evidence((ahead,), progress=tuple(points))).ahead == 2.0


def test_a_pause_that_the_run_came_back_from_is_no_hang() -> None:
    """Evaluation took two minutes before: the next one may take as long, and not three times that."""
    run = evidence(*steps(10, 1.0), *steps(10, 1.0, start=1129.0, first=10))
    assert pauses(run)[Stage.TRAIN] == 120.0
    assert after(run, 179.0) is None
    suspected, hangs = after(run, 180.0), after(run, 360.0)
    assert suspected is not None and not suspected.confirmed
    assert hangs is not None and hangs.confirmed


def test_a_pause_among_steps_that_were_not_kept_counts() -> None:
    """A hundred one-second steps that took four hundred seconds hold a pause of up to three hundred."""
    run = evidence(*steps(10, 1.0), *steps(40, 1.0, start=1409.0, first=109))
    assert pauses(run)[Stage.TRAIN] == pytest.approx(301.0)


def test_a_pause_that_the_family_came_back_from_is_no_hang() -> None:
    """The first checkpoint of this run may take as long as those of the runs before it."""
    run = evidence(*steps(10, 1.0))
    assert after(run, 179.0, family(train=120.0)) is None
    found = after(run, 300.0, family(train=120.0))
    assert found is not None and not found.confirmed


@pytest.mark.parametrize(("paused", "patience"), [((0, 0, 80), 11.0), ((0, 80, 80), 120.0), ((80,), 120.0)])
def test_one_odd_pause_is_no_habit_of_a_family(paused: tuple[float, ...], patience: float) -> None:
    """Half of its clean runs tell how long it pauses between two steps."""
    runs = [{"first_step": 5.0, **({"train": pause} if pause else {})} for pause in paused]
    known = Baseline(tuple(CleanRun(f"j/{n}", 10, {}, run) for n, run in enumerate(runs)))
    found = expected_silence(evidence(*steps(10, 1.0)), known)
    assert found is not None
    assert found.suspected == patience


def test_a_run_that_crawls_is_not_called_hung_for_its_new_pace() -> None:
    """Two slow steps show it; one is a pause like any other."""
    assert limit(evidence(*steps(30, 1.0), *steps(2, 14.0, start=1043.0, first=30))).suspected == 42.0
    assert limit(evidence(*steps(30, 1.0), *steps(1, 14.0, start=1043.0, first=30))).usual == 1.0


@pytest.mark.parametrize(
    ("stage", "minutes"), [(Stage.INIT, 15), (Stage.DATA, 60), (Stage.LOAD, 30), (Stage.SAVE, 30), (Stage.EVAL, 30)]
)
def test_each_stage_has_its_own_patience(stage: Stage, minutes: int) -> None:
    """Before any step is made, or while a checkpoint is written, iterations say nothing."""
    run = evidence(phases=(phase(Stage.LAUNCH, 1), phase(stage, 50)), last=1000.0)
    late, hangs = after(run, 60 * minutes - 1), after(run, 60 * minutes)
    assert late is not None and not late.confirmed
    assert hangs is not None and hangs.confirmed and hangs.stage is stage


def test_a_stage_before_training_is_measured_by_earlier_runs_only() -> None:
    """Loading the first file in a second does not mean that the second file takes one; a clean run does."""
    lines = tuple(Line(OUT, number, "x", "x", time=1000.0 + number) for number in (1, 2, 3))
    run = Evidence(lines, phases=(phase(Stage.LOAD, 1),))
    assert limit(run).confirmed == 1800.0
    assert limit(run, family(load_checkpoint=20.0)).confirmed == 300.0
    assert limit(run, family(load_checkpoint=200.0)).confirmed == 600.0


def test_the_first_step_has_its_own_patience() -> None:
    """Kernels are compiled before it, for as long as in the runs before."""
    run = evidence(phases=(phase(Stage.TRAIN, 50),), last=1000.0)
    assert limit(run).confirmed == 3600.0
    assert limit(run, family(first_step=400.0)).suspected == 600.0
    slow_start = evidence(*steps(1, 1.0), *steps(10, 1.0, start=1500.0, first=1))
    assert pauses(slow_start) == {FIRST_STEP: 500.0}


def test_saving_is_measured_by_earlier_saves() -> None:
    """Checkpoints took two hundred seconds before: after ten minutes in the next one nobody is writing any more."""
    saves = [*steps(5, 1.0), Progress(6, 0, 1005.0, checkpoint="ck/5", stage=Stage.SAVE)]
    saves += [Progress(7, 0, 1205.0, step=5), Progress(8, 0, 1206.0, checkpoint="ck/6", stage=Stage.SAVE)]
    lines = tuple(Line(OUT, point.line, "x", "x", time=point.time) for point in saves)
    run = limit(Evidence(lines, progress=tuple(saves)))
    assert (run.stage, run.usual, run.suspected, run.confirmed) == (Stage.SAVE, 200.0, 300.0, 600.0)


def test_a_quick_save_is_followed_by_the_next_step_at_once() -> None:
    """Where the run went on within a second after each checkpoint, eleven seconds after one are suspect."""
    saves = [*steps(5, 1.0), Progress(6, 0, 1005.0, checkpoint="ck/5", stage=Stage.SAVE)]
    saves += [Progress(7, 0, 1005.0, step=5), Progress(8, 0, 1006.0, checkpoint="ck/6", stage=Stage.SAVE)]
    lines = tuple(Line(OUT, point.line, "x", "x", time=point.time) for point in saves)
    run = limit(Evidence(lines, progress=tuple(saves)))
    assert (run.stage, run.suspected, run.confirmed) == (Stage.SAVE, 11.0, 300.0)


def test_the_next_look_is_when_the_silence_tells_more() -> None:
    """Until it is suspect, then until it is certain, then never."""
    run = limit(evidence(*steps(10, 1.0)))
    assert [run.next_look(quiet) for quiet in (5.0, 11.0, 100.0, 300.0)] == [6.0, 289.0, 200.0, math.inf]


def test_nothing_to_measure_by_is_no_hang() -> None:
    """Without a known stage, silence cannot be judged; two steps are the first ones."""
    assert expected_silence(evidence(last=1000.0), UNKNOWN) is None
    assert limit(evidence(*steps(2, 1.0))).confirmed == 3600.0


def test_the_length_of_a_stage_is_known_once_it_was_seen() -> None:
    """The first evaluation is new, unless the family's clean runs had one; training is not, once steps were made."""
    begins, trains = evidence(*steps(10, 1.0), phases=(phase(Stage.EVAL, 90),)), evidence(*steps(10, 1.0))
    assert not limit(begins).known
    assert limit(begins, family(eval=60.0)).known
    assert limit(trains).known
