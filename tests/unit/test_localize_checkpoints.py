"""What a job reported of its checkpoints, and which of them a launch may go on from."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnoser.localize import checkpoints
from diagnoser.localize.checkpoints import Checkpoint, reported
from diagnoser.model import CheckpointPhase, Event, EventKind, Evidence, Progress, Rollback
from tests.unit.test_localize_rollback import BROKEN, found_in, series

STAGED, DURABLE, VERIFIED, BAD = CheckpointPhase
Phases = Sequence[CheckpointPhase | None]


def told(
    step: int, *phases: CheckpointPhase | None, path: str = "", time: float = 0.0, **fields: object
) -> list[Event]:
    """The reports of one checkpoint, a second apart; by default saved one after the other, each at its own path."""
    path, begin = path or f"/ckpt/{step}", time or float(step)
    return [
        Event(EventKind.CHECKPOINT, begin + second, step=step, path=path, phase=phase, **fields)  # type: ignore[arg-type]
        for second, phase in enumerate(phases)
    ]


def test_the_reports_of_a_checkpoint_are_one_checkpoint() -> None:
    """It has the last word on it, the longest wait, the largest size, and stands where it was saved."""
    staged, durable = told(100, STAGED, DURABLE, blocked_ms=800.0)
    sized = Event(EventKind.CHECKPOINT, 105.0, step=100, path="/ckpt/100", phase=VERIFIED, bytes=9, finite=True)
    assert reported([sized, durable, Event(EventKind.HEARTBEAT, 1.0), staged]) == [
        Checkpoint("/ckpt/100", 100, VERIFIED, 100.0, 105.0, blocked_ms=800.0, bytes=9, finite=True)
    ]


def test_bad_stands_whatever_is_said_later() -> None:
    """Verified in one check and found bad in another is bad, with its reason."""
    (saved,) = reported([*told(100, BAD, reason="model.pt: checksum"), *told(100, VERIFIED, time=500.0)])
    assert (saved.phase, saved.is_bad, saved.why) == (BAD, True, "model.pt: checksum")


@pytest.mark.parametrize(
    ("path", "step", "why"),
    [
        ("/ckpt/100", 100, "a bit flipped"),
        ("/ckpt/100", None, "a bit flipped"),
        ("100", 100, "a bit flipped"),  # as a line of the log names it
        ("100", None, ""),
        ("/ckpt/100", 200, ""),
        ("/ckpt/1001", 100, ""),
        ("/ckpt/150", 150, "its loss was not finite"),
        ("/ckpt/50", 50, ""),
    ],
)
def test_why_a_checkpoint_must_not_be_loaded(path: str, step: int | None, why: str) -> None:
    """Whichever attempt reported it; one whose path was saved anew by a later attempt is another."""
    first = [*told(100, VERIFIED), *told(150, DURABLE, finite=False), *told(50, BAD)]
    late = [*told(100, BAD, time=500.0, reason="a bit flipped"), *told(50, DURABLE, VERIFIED, time=600.0)]
    assert checkpoints.why_bad(path, step, [first, late]) == why


def chosen(events: Sequence[Event], *earlier: Sequence[Event], first: int = 0) -> Rollback:
    """For a loss that breaks at step 200, behind a last good one at 190."""
    evidence = series(BROKEN)
    evidence = Evidence(progress=tuple(point for point in evidence.progress if (point.step or 0) >= first))
    found = found_in(evidence, events, earlier)
    assert found is not None and (found.skip_from, found.skip_to) == (191, 220)
    return found


def test_the_newest_verified_one_before_the_spike_is_chosen() -> None:
    """Newer ones that nobody verified, and verified ones that carry the damage, are not."""
    events = [*told(50, VERIFIED), *told(100, STAGED, DURABLE, VERIFIED), *told(150, DURABLE), *told(210, VERIFIED)]
    assert chosen(events) == Rollback("/ckpt/100", 100, 191, 220, verified=True)


@pytest.mark.parametrize("damage", [told(150, VERIFIED, BAD), told(150, VERIFIED, finite=False)])
def test_a_bad_one_and_one_that_is_not_finite_are_never_chosen(damage: list[Event]) -> None:
    """Neither where another is verified, nor where nothing else is known."""
    assert chosen([*told(100, VERIFIED), *damage]).step == 100
    assert chosen(damage) == Rollback("", None, 191, 220)


def test_without_a_verified_one_the_newest_written_out_is_advised_and_named_so() -> None:
    """One that is only staged may not be there; the plan says that nothing is verified."""
    events = [*told(100, STAGED, DURABLE), *told(150, STAGED)]
    assert chosen(events) == Rollback("/ckpt/100", 100, 191, 220, verified=False)


def test_a_just_in_time_one_is_chosen_only_when_verified() -> None:
    """A job that is failing saved it."""
    in_time = told(150, DURABLE, just_in_time=True)
    assert chosen([*told(100, DURABLE), *in_time]).step == 100
    assert chosen(in_time).checkpoint == ""
    assert chosen([*told(100, VERIFIED), *told(150, DURABLE, VERIFIED, just_in_time=True)]).step == 150


def test_where_no_phase_was_reported_events_count_as_before() -> None:
    """The newest of log and events, not verified."""
    assert chosen([*told(100, None), *told(150, None)]) == Rollback("/ckpt/150", 150, 191, 220)


def test_a_line_of_the_log_does_not_outweigh_what_the_job_reports() -> None:
    """Asynchronous savers print that they saved what is not written out yet."""
    evidence = series(BROKEN, {10: "/ckpt/100", 15: "/ckpt/150"})
    for phases in ((STAGED,), (DURABLE, BAD)):
        found = found_in(evidence, told(150, *phases))
        assert found is not None and (found.step, found.verified) == (100, False)


def test_a_path_that_was_written_again_does_not_hold_the_earlier_checkpoint() -> None:
    """Whatever became of the later one."""
    latest = told(100, VERIFIED, path="/ckpt/latest")
    assert chosen(latest).verified
    for phase in CheckpointPhase:
        again = told(210, phase, path="/ckpt/latest")
        assert chosen([*told(50, VERIFIED), *latest, *again]).step == 50


def test_between_the_last_good_loss_and_the_broken_one_is_the_last_choice() -> None:
    """The loss is printed every ten steps: the checkpoint of step 195 may hold the damage."""
    between = told(195, VERIFIED)
    assert chosen([*told(100, VERIFIED), *between]).step == 100
    assert chosen([*told(100, DURABLE), *between]) == Rollback("/ckpt/195", 195, 191, 220, verified=True)


def test_a_launch_that_diverges_before_its_first_save_goes_back_to_one_of_the_launch_before() -> None:
    """Only to one from before it went on: what the other launch saved later is of another course of training."""
    earlier = [*told(20, VERIFIED), *told(40, VERIFIED), *told(120, VERIFIED)]
    assert chosen([], earlier, first=50) == Rollback("/ckpt/40", 40, 191, 220, verified=True)
    assert chosen(told(60, VERIFIED), earlier, first=50).step == 60
    middle = told(30, DURABLE)
    assert chosen([], earlier, middle, first=50).step == 20


def test_a_check_that_comes_late_is_of_the_launch_that_saved() -> None:
    """What the launch before saved on another course, and a check during this one verified, is not on the way."""
    earlier = [*told(40, DURABLE), *told(120, DURABLE)]
    late = [*told(40, VERIFIED, time=500.0), *told(120, VERIFIED, time=501.0)]
    assert chosen(late, earlier, first=50) == Rollback("/ckpt/40", 40, 191, 220, verified=True)
    assert chosen([*told(120, DURABLE, time=400.0), *late], earlier, first=50).step == 120


def test_what_an_earlier_launch_saved_counts_only_where_the_log_shows_the_first_step() -> None:
    """Without steps nobody knows where the launch went on."""
    points = [Progress(line, 0, float(line), loss=2.0 if line < 20 else math.nan) for line in range(24)]
    assert found_in(Evidence(progress=tuple(points)), (), [told(40, VERIFIED)]) == Rollback()


def test_after_a_damaged_checkpoint_the_one_before_it_is_chosen() -> None:
    """A checkpoint that the error names is not tried again, by its whole path or by its name."""
    events, earlier = told(300, VERIFIED), [told(100, VERIFIED), told(200, VERIFIED)]
    for line in ("EOFError while reading /ckpt/300/model.pt", "cannot load 300.", "'/ckpt/300'"):
        found = checkpoints.to_resume(events, earlier, [line])
        assert found is not None and found.step == 200
    found = checkpoints.to_resume(events, earlier, ["3000 bytes are missing"])
    assert found is not None and found.step == 300
    assert checkpoints.to_resume(told(300, DURABLE), (), []) is None


def test_of_very_many_checkpoints_the_oldest_are_dropped_whole() -> None:
    """The newest verified one stays, however old it is, with all that was said of it."""
    oldest, verified = told(1, STAGED, DURABLE, VERIFIED), told(2, STAGED, DURABLE, VERIFIED)
    newer = [event for step in range(3, 3 + checkpoints.KEPT) for event in told(step, STAGED, DURABLE)]
    assert list(checkpoints.surplus([*oldest, *verified, *newer])) == oldest
    assert list(checkpoints.surplus(newer)) == []


_phases = st.lists(st.sampled_from([None, *CheckpointPhase]), min_size=1, max_size=4)
_saved = st.tuples(st.integers(0, 23), _phases, st.sampled_from([None, True, False]), st.booleans())


@given(st.lists(_saved, max_size=12), st.dictionaries(st.integers(0, 21), st.just("/log/x"), max_size=4))
def test_no_bad_or_unverified_one_is_chosen_where_a_verified_one_is_there(
    saves: list[tuple[int, Phases, bool | None, bool]], logged: dict[int, str]
) -> None:
    """Whatever else jobs and logs say; and one that is bad, not finite, or from after the spike never is."""
    events = [
        event
        for step, phases, finite, in_time in saves
        for event in told(10 * step, *phases, finite=finite, just_in_time=in_time)
    ]
    found = found_in(series(BROKEN, logged), events)
    assert found is not None and (found.step is None or found.step < 200)
    saved = {one.step: one for one in reported(events)}
    healthy = [step for step, one in saved.items() if one.is_verified and step is not None and step < 200]
    assert found.verified == bool(healthy)
    if healthy:
        assert (found.step, found.checkpoint) == (max(healthy), f"/ckpt/{max(healthy)}")
    known = saved.get(found.step)
    assert known is None or found.step is None or not known.is_bad
    assert found.verified or known is None or not (known.just_in_time and found.checkpoint == known.path)
