"""Streams without times: which rank crashed, and what another stream says about it by arriving later: nothing."""

import random
from collections.abc import Sequence
from io import BytesIO

import pytest

from diagnoser.compress import AttemptLog
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.localize import launches
from diagnoser.localize.progress import ProgressTimeline
from diagnoser.model import Diagnosis, Event, EventKind, Evidence, Facts, Job, Line, LineBlock, Progress, Stream
from diagnoser.model.order import is_after
from diagnoser.model.taxonomy import FailureType, Outcome
from tests import accuracy_bars, rank_streams
from tests.rank_streams import FRAMES, START
from tests.thorough import THOROUGH

RUNS = 60 if THOROUGH else 10
ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
OUT, ERR = Stream("/logs/train.out"), Stream("/logs/train.err")


@pytest.fixture(scope="module")
def analyzer() -> LogAnalyzer:
    return accuracy_bars.load()


def diagnose(analyzer: LogAnalyzer, blocks: Sequence[LineBlock], *, exits: bool = False) -> Diagnosis:
    """The verdict ten seconds after the last line."""
    compressor = analyzer.compressor()
    for block in blocks:
        compressor.feed(block)
    newest = max(block.received for block in blocks)
    events = (Event(EventKind.EXIT, newest + 1, code=1),) if exits else ()
    facts = Facts(Job("run"), 1, events, {}, (newest, newest), last_line=newest)
    return analyzer.analyze(AttemptLog(compressor.take()), facts, newest + 10)


def steps(first: int, last: int) -> list[str]:
    return [f"step {step} | loss {5 - step / 100:.4f}" for step in range(first, last + 1)]


def blocks(*bodies: tuple[Stream, float, Sequence[str]]) -> list[LineBlock]:
    """Bodies of streams, each so many seconds after the start."""
    numbers: dict[Stream, int] = {}
    made = []
    for stream, after, lines in bodies:
        first = numbers.get(stream, 1)
        numbers[stream] = first + len(lines)
        made.append(LineBlock(stream, "\n".join([*lines, ""]).encode(), first, received=START + after))
    return made


@pytest.mark.parametrize("seed", range(RUNS))
def test_the_rank_that_crashed_is_named_in_any_order_of_arrival(analyzer: LogAnalyzer, seed: int) -> None:
    """Its type is the one of its own file read alone, with and without an exit event."""
    run = rank_streams.crashed_run(seed)
    alone = analyzer.analyze(analyzer.read(BytesIO(run.alone())), Facts())
    verdict = diagnose(analyzer, run.bodies(), exits=run.exits)
    assert verdict.root_cause is not None
    assert (verdict.outcome, verdict.type, verdict.root_cause.rank) == (Outcome.FAILED, alone.type, run.rank)


@pytest.mark.parametrize("late", [0, 1])
def test_a_clean_end_of_one_rank_clears_no_other(analyzer: LogAnalyzer, late: int) -> None:
    """Rank 17 ends within an exception, another rank says that training is complete, before or after."""
    died = (rank_streams.stream_of(17), 20.0 * late, [*steps(1, 90), *FRAMES, ECC])
    done = (rank_streams.stream_of(9), 10.0, [*steps(1, 90), "training finished after 90 steps"])
    bodies = [died, done, (rank_streams.stream_of(3), 5.0, steps(1, 90))]
    verdict = diagnose(analyzer, blocks(*sorted(bodies, key=lambda body: body[1])))
    assert verdict.root_cause is not None
    assert (verdict.outcome, verdict.type, verdict.root_cause.rank) == (Outcome.FAILED, FailureType.ECC_ERROR, 17)


def test_a_rank_that_handled_its_exception_and_completed_is_complete(analyzer: LogAnalyzer) -> None:
    """In its own stream training went on after the exception: no order between streams is needed."""
    handled = (rank_streams.stream_of(17), 0.0, [*steps(1, 40), *FRAMES, ECC, *steps(41, 80), "training complete"])
    done = (rank_streams.stream_of(9), 10.0, [*steps(1, 80), "training complete"])
    assert diagnose(analyzer, blocks(handled, done)).type is FailureType.COMPLETED


@pytest.mark.parametrize(("bodies", "died"), [(1, True), (12, False)])
def test_the_other_output_shows_life_once_it_came_long_after(analyzer: LogAnalyzer, bodies: int, died: bool) -> None:
    """Steps on standard output that come in one body may be older than the exception on standard error; those that
    come body after body for minutes are not."""
    later = [(OUT, 2.0 + 20 * body, steps(10 * body + 11, 10 * body + 20)) for body in range(bodies)]
    verdict = diagnose(analyzer, blocks((OUT, 0.0, steps(1, 10)), (ERR, 1.0, [*FRAMES, ECC]), *later))
    assert (verdict.type is FailureType.ECC_ERROR) is died


@pytest.mark.parametrize(("bodies", "died"), [(3, True), (12, False)])
def test_a_rank_that_tells_no_steps_lives_while_the_others_train_on(
    analyzer: LogAnalyzer, bodies: int, died: bool
) -> None:
    """Only rank 0 prints steps, as usual. What it prints for minutes after rank 17's exception shows that it lives on;
    what arrives within the minute that buffers explain shows nothing."""
    one, other = rank_streams.stream_of(0), rank_streams.stream_of(17)
    later = [(one, 2.0 + 20 * body, steps(10 * body + 11, 10 * body + 20)) for body in range(bodies)]
    verdict = diagnose(analyzer, blocks((one, 0.0, steps(1, 10)), (other, 1.0, [*FRAMES, ECC]), *later))
    assert (verdict.type is FailureType.ECC_ERROR) is died


def test_a_file_that_arrives_late_shows_no_life(analyzer: LogAnalyzer) -> None:
    """The steps of rank 0 all arrive minutes after rank 17's exception, body after body: they may all be older."""
    one, other = rank_streams.stream_of(0), rank_streams.stream_of(17)
    late = [(one, 300.0 + 20 * body, steps(10 * body + 1, 10 * body + 10)) for body in range(12)]
    verdict = diagnose(analyzer, blocks((other, 1.0, [*FRAMES, ECC]), *late))
    assert verdict.type is FailureType.ECC_ERROR


def test_a_restart_by_the_launcher_comes_after_what_it_restarts(analyzer: LogAnalyzer) -> None:
    """The files of torchrun's second start show that training went on, whatever arrived first."""
    first, second = (Stream(f"/logs/run/attempt_{number}/0/stderr.log", "n1", 0) for number in (0, 1))
    crash, again = [*steps(1, 40), *FRAMES, ECC], [*steps(41, 90), "training complete"]
    verdict = diagnose(analyzer, blocks((second, 0.0, again), (first, 1.0, crash)))
    assert verdict.type is FailureType.COMPLETED


def test_a_signal_that_another_rank_got_does_not_explain_a_crash(analyzer: LogAnalyzer) -> None:
    """The launcher ends the other ranks because one crashed, and their lines may arrive first."""
    stopped = (
        rank_streams.stream_of(0),
        0.0,
        [
            *steps(1, 40),
            "received signal 10, will checkpoint and exit after this iteration",
        ],
    )
    crashed = (rank_streams.stream_of(1), 3.0, [*steps(1, 40), *FRAMES, "KeyError: 'labels'"])
    verdict = diagnose(analyzer, blocks(stopped, crashed))
    assert verdict.root_cause is not None
    assert (verdict.type, verdict.root_cause.rank) == (FailureType.KEY_ERROR, 1)


def test_ranks_that_come_up_after_each_other_are_one_launch(analyzer: LogAnalyzer) -> None:
    """Their files arrive in turn: the banner of the second, behind the steps of the first, begins no other launch. A
    second banner in one file does, and once for all files."""
    banner = "[rank0] initializing torch distributed"
    one, two = rank_streams.stream_of(0), rank_streams.stream_of(1)
    first = [(one, 0.0, [banner, *steps(1, 40)]), (two, 1.0, [banner, *steps(1, 40)])]
    again = [(one, 2.0, [banner, *steps(41, 60)]), (two, 3.0, [banner, *steps(41, 60)])]
    assert _begins(analyzer, first) == 0
    assert _begins(analyzer, first + again) == 1


def _begins(analyzer: LogAnalyzer, bodies: Sequence[tuple[Stream, float, Sequence[str]]]) -> int:
    compressor = analyzer.compressor()
    for block in blocks(*bodies):
        compressor.feed(block)
    return len(launches.starts(AttemptLog(compressor.take()).evidence, ()))


@pytest.mark.parametrize("seed", range(20))
def test_training_went_on_only_by_steps_that_are_after_the_line(seed: int) -> None:
    """What the timeline counts at once is what ``is_after`` says of each step; one stream alone shows enough steps."""
    draw = random.Random(seed)
    streams = [Stream(f"/logs/{name}") for name in "abc"]
    undated = set(draw.sample(streams, draw.randint(0, 2)))
    points, lines = [], []
    for stream in streams:
        for number in range(1, 30):
            time, arrived = START + number + draw.random(), stream in undated
            points.append(Progress(number, -1, time, step=number, stream=stream, arrived=arrived))
            lines.append(Line(stream, number, "x", "x", time=time, arrived=arrived))
    timeline = ProgressTimeline(Evidence(tuple(lines), progress=tuple(points)))
    for line in draw.sample(lines, 20):
        after = [point for point in points if is_after(point, line).after]
        most = max((len({p.step for p in after if p.stream == stream}) for stream in streams), default=0)
        all_steps = len({point.step for point in after})
        wanted = draw.randint(0, 28)
        assert timeline.went_on(line, wanted) is (all_steps > wanted) or most <= wanted < all_steps
