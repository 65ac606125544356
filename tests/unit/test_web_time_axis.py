"""The data of the time axis: from the facts of an attempt to lanes with spans and marks."""

import pytest

from diagnoser.compress import AttemptLog, Compressor
from diagnoser.logview.log_index import LogIndex
from diagnoser.model import (
    Attempt,
    AttemptKey,
    CheckpointPhase,
    Event,
    EventKind,
    Line,
    LineBlock,
    Mark,
    Mode,
    NodeActor,
    NodeEvent,
    NodeEventKind,
    Plan,
    PlanChange,
    PlanState,
    Provenance,
    Rollback,
    Step,
    Stream,
)
from diagnoser.model.taxonomy import Action
from diagnoser.web.pages.rank_strip import ROWS_MAX
from diagnoser.web.pages.time_axis import AxisFacts, AxisLane, CitedLine, TimeAxis, checkpoint_axis, time_axis

NOON = 1_789_993_800.0
"""2026-09-21 12:30:00 UTC, when the runs of these tests begin."""
LOG = "/jobs/j/attempts/1/log"


def at(seconds: float) -> str:
    minute, second = divmod(int(seconds), 60)
    return f"2026-09-21 12:{30 + minute}:{second:02d}"


def ranks(
    count: int, *, silent: int = -1, steps: int = 120, late: float = 0.0, at_once: bool = False
) -> list[LineBlock]:
    """Ranks that print a step a second; one of them stops half way, and one prints the loss. late: seconds from a line
    to its arrival, by the clocks of both sides; at_once: the whole log comes in one piece."""
    blocks = []
    for rank in range(count):
        last = steps // 2 if rank == silent else steps
        lines = [f"{at(second)} waits for its peers" for second in range(last)]
        if rank == 0:
            lines = [f"{at(second)} step {second}/1000 loss: {5 - second / 100:.2f}" for second in range(steps)]
        lines.append(
            f"{at(last)} {'ERROR the seam broke' if rank == silent else 'ERROR watchdog timeout'} of rank {rank}"
        )
        data = "".join(line + "\n" for line in lines).encode()
        arrivals = () if at_once else tuple((number + 1, NOON + number + late) for number in range(len(lines)))
        stream = Stream("stdout", f"gpu-{rank // 8}", rank)
        blocks.append(LineBlock(stream, data, received=NOON + steps + late, arrivals=arrivals))
    return blocks


def index(*blocks: LineBlock) -> LogIndex:
    compressor = Compressor()
    for block in blocks:
        compressor.feed(block)
    return LogIndex(AttemptLog(compressor.take()))


def attempt(**fields: object) -> Attempt:
    """One whose lines came as they were printed."""
    values = {"key": AttemptKey("j"), "opened": NOON, "last_line": NOON + 120, "ended": NOON + 125}
    return Attempt(**(values | fields))  # type: ignore[arg-type]


def facts(log: LogIndex, **fields: object) -> AxisFacts:
    values = {"timeline": log.timeline, "attempt": attempt(), "log_path": LOG}
    return AxisFacts(**(values | fields))  # type: ignore[arg-type]


def drawn(given: AxisFacts) -> TimeAxis:
    axis = time_axis(given)
    assert axis is not None
    return axis


def texts(lane: AxisLane) -> list[str]:
    return [mark.text for mark in lane.marks]


def test_everything_is_on_one_scale() -> None:
    """Event, line and plan step of the same second are at the same place, whoever told of them."""
    plan = Plan(
        id="p",
        key="k",
        job="j",
        attempt=1,
        action=Action.CORDON_AND_RESUBMIT,
        nodes=("gpu-0",),
        mode=Mode.ACT,
        state=PlanState.SENT,
        reason="",
        created=NOON + 60,
        expires=NOON + 999,
        history=(PlanChange(NOON + 60, PlanState.WAITING, "diagnoser", "a person decides"),),
        steps=(Step("scontrol update", 1, time=NOON + 60),),
    )
    kernel = Line(
        Stream("kernel", "gpu-0", -1, Provenance.NODE),
        7,
        "Xid",
        "Xid 79",
        node="gpu-0",
        time=NOON + 60,
        mark=Mark.ANCHOR,
    )
    axis = drawn(
        facts(
            index(*ranks(2)),
            attempt=attempt(events=(Event(EventKind.CHECKPOINT, NOON + 60, step=60),)),
            cited=[CitedLine(NOON + 60, "root", "why", "the seam broke", f"{LOG}?at=x", 1)],
            node_lines=[kernel],
            node_events=[NodeEvent("c", "gpu-0", NodeEventKind.DOWN, NodeActor.PERSON, NOON + 60)],
            plan=plan,
        )
    )
    marks = [*axis.checkpoints.marks, *axis.events.marks, *axis.plan.marks, *axis.cited.marks]
    assert len(marks) == 6
    assert {round(mark.x, 6) for mark in marks} == {round(axis.root or 0, 6)}
    assert {mark.time for mark in marks} == {NOON + 60}
    assert "gpu-0 kernel: Xid 79" in texts(axis.events)
    assert "gpu-0 down by a person" in texts(axis.events)
    assert [mark.kind for mark in axis.plan.marks] == ["plan waiting", "plan failed"]


def test_stages_follow_each_other_and_the_loss_is_drawn() -> None:
    """Training lasts to its last line; the curve falls from the left to the right."""
    axis = drawn(facts(index(*ranks(2))))
    assert [span.text for span in axis.stages.spans] == ["training"]
    assert axis.curve is not None and axis.curve.name == "Loss"
    points = [tuple(map(float, pair.split(","))) for pair in axis.curve.lines[0].split()]
    assert points == sorted(points)
    assert points[0][1] < points[-1][1], "a lower loss is further down"


def test_a_loss_that_is_no_number_breaks_the_curve() -> None:
    """NaN is marked where it was printed, and never drawn as a value."""
    lines = [f"{at(second)} step {second}/1000 loss: {'nan' if 20 < second < 23 else 2.5}" for second in range(60)]
    axis = drawn(facts(index(LineBlock(Stream(), "".join(line + "\n" for line in lines).encode()))))
    assert axis.curve is not None
    assert len(axis.curve.lines) == 2
    assert [mark.text for mark in axis.curve.broken] == ["loss is NaN at step 21", "loss is NaN at step 22"]


def test_a_silent_rank_ends_early_and_one_that_never_printed_is_named() -> None:
    """Each rank has a row that leads to its own log, from its first line to its last."""
    axis = drawn(facts(index(*ranks(4, silent=2)), rank_nodes=dict.fromkeys(range(5), "gpu-0")))
    strip = axis.ranks
    assert strip is not None
    assert [row.name for row in strip.rows] == [f"rank {rank} on gpu-0" for rank in range(5)]
    assert [row.url for row in strip.rows] == [f"{LOG}?ranks={rank}" for rank in range(5)]
    assert [row.last for row in strip.rows] == [NOON + 120, NOON + 120, NOON + 60, NOON + 120, None]
    assert [row.errors for row in strip.rows] == [1, 1, 1, 1, 0]
    assert strip.notes[0] == "No line came from rank 4."
    assert strip.notes[1].startswith("Rank 2 fell silent 1\u00a0min")


@pytest.mark.parametrize(
    "head",
    [
        "[2026-09-21 12:30:{n:02d}] [rank{rank}] ",
        "[2026-09-21 12:30:{n:02d}][rank{rank}]: ",
        "2026-09-21 12:30:{n:02d},123 | [rank {rank}] ",
    ],
)
def test_ranks_that_are_named_behind_the_time_fill_the_strip(head: str) -> None:
    """In one stream of all ranks: each has its row, none is called silent, and none early."""
    turns = [(n, rank) for n in range(40) for rank in range(16)]
    lines = [head.format(n=n, rank=rank) + f"step {n} loss 2.{n * rank % 97}" for n, rank in turns]
    data = "".join(line + "\n" for line in lines).encode()
    log = index(LineBlock(Stream("stdout"), data, received=NOON + 60))
    strip = drawn(facts(log, rank_nodes=dict.fromkeys(range(16), "gpu-0"))).ranks
    assert strip is not None
    assert strip.heard.count("M") == 16 and not strip.silent
    assert strip.notes == ()


def test_many_ranks_share_rows() -> None:
    """Of more ranks than there are rows, those of a node share one, which leads to the log of all of them."""
    nodes = {rank: f"gpu-{rank // 8}" for rank in range(8 * ROWS_MAX)}
    strip = drawn(facts(index(*ranks(8)), rank_nodes=nodes)).ranks
    assert strip is not None
    assert len(strip.rows) == ROWS_MAX
    assert strip.rows[0].name == "ranks 0\u20137 on gpu-0"
    assert strip.rows[0].url == f"{LOG}?ranks=0-7"


def test_local_time_in_the_log_is_put_right() -> None:
    """A log in the zone of the cluster: marks have true times, and events of the service stand beside its lines."""
    zone = 7 * 3600.0
    exits = attempt(events=(Event(EventKind.EXIT, NOON + zone + 60, code=1),))
    log = index(*ranks(2, late=zone))
    axis = drawn(facts(log, attempt=exits, cited=[CitedLine(NOON + 60, "root", "", "x", "")]))
    assert axis.shown == zone and not axis.is_late
    assert axis.cited.marks[0].time == axis.events.marks[0].time == NOON + zone + 60
    assert axis.cited.marks[0].x == axis.events.marks[0].x


@pytest.mark.parametrize("late", [2 * 3600.0, 2 * 86_400.0], ids=["hours", "days"])
def test_a_log_that_was_sent_later_keeps_its_own_times(late: float) -> None:
    """Its lines keep the times they print, and what the service saw comes last."""
    exits = attempt(events=(Event(EventKind.EXIT, NOON + late + 125, code=1),))
    axis = drawn(facts(index(*ranks(2, late=late, at_once=True)), attempt=exits))
    assert axis.is_late and axis.shown == 0.0
    assert axis.events.marks[0].x >= max(span.right for span in axis.stages.spans)


def test_a_late_log_whose_events_tell_when_it_ran_is_in_true_time() -> None:
    """The scheduler says that the attempt ended when the log does: their clocks are one, however late the log came."""
    exits = attempt(events=(Event(EventKind.EXIT, NOON + 121, code=1),))
    axis = drawn(facts(index(*ranks(2, late=7200.0, at_once=True)), attempt=exits))
    assert not axis.is_late and axis.shown == 0.0
    assert axis.events.marks[0].time == NOON + 121


def test_a_banner_without_times_does_not_stop_the_clock() -> None:
    """Lines before the first one with a time are as old as that one, although they came in later."""
    lines = ["torch==2.4.0", *[f"{at(second)} step {second}/1000 loss: 2.5" for second in range(60)]]
    data = "".join(line + "\n" for line in lines).encode()
    log = index(LineBlock(Stream(), data, received=NOON + 7200)).timeline
    assert (log.begin, log.end) == (NOON, NOON + 59)


def test_a_log_without_times_counts_its_rows() -> None:
    """It has an axis all the same; what is not from the log is not put at a place that nobody knows."""
    lines = [f"step {number}/1000 loss: 2.5" for number in range(300)] + ["ERROR the seam broke"]
    log = index(LineBlock(Stream(rank=0), "".join(line + "\n" for line in lines).encode(), received=NOON))
    axis = drawn(facts(log, attempt=attempt(events=(Event(EventKind.EXIT, NOON + 1, code=1),))))
    assert not axis.is_timed
    assert axis.events.marks == ()
    assert axis.stages.spans and axis.ranks is not None


def test_an_empty_log_has_no_axis() -> None:
    """Nor has one of a single line: nothing came before anything else."""
    assert time_axis(facts(index())) is None
    assert time_axis(facts(index(LineBlock(Stream(), b"one line\n", received=NOON)))) is None


def test_a_thousand_events_leave_those_near_the_failure() -> None:
    """A lane stays readable, and says how much it leaves out."""
    events = tuple(Event(EventKind.STARTED, NOON + second / 10, step=second) for second in range(1000))
    lane = drawn(facts(index(*ranks(2)), attempt=attempt(events=events))).events
    assert len(lane.marks) == 60 and lane.left_out == 940
    assert lane.marks[-1].text == "started: step 999"


def saved(second: float, step: int, *phases: CheckpointPhase, **fields: object) -> list[Event]:
    return [
        Event(EventKind.CHECKPOINT, NOON + second + n, step=step, path=f"/ckpt/{step}", phase=phase, **fields)  # type: ignore[arg-type]
        for n, phase in enumerate(phases)
    ]


def test_checkpoints_have_a_lane_and_each_state_its_own_sign() -> None:
    """Each stands where it was saved; the words say what is known of it, and which one the plan goes back to."""
    staged, durable, verified, bad = CheckpointPhase
    events = [
        *saved(20, 20, staged, durable, verified, blocked_ms=812.5, bytes=9_000_000),
        *saved(40, 40, durable, bad, reason="model.pt: checksum"),
        *saved(60, 60, durable, finite=False),
        *saved(80, 80, durable, just_in_time=True),
        *saved(100, 100, staged),
        Event(EventKind.CHECKPOINT, NOON + 110, step=110),
        Event(EventKind.HEARTBEAT, NOON + 1),
    ]
    plan = Plan(
        id="p",
        key="k",
        job="j",
        attempt=1,
        action=Action.ROLLBACK_AND_RESUBMIT,
        nodes=(),
        mode=Mode.APPROVE,
        state=PlanState.WAITING,
        reason="",
        created=NOON + 120,
        expires=NOON + 999,
        rollback=Rollback("/ckpt/20", 20, verified=True),
    )
    axis = drawn(facts(index(*ranks(1)), attempt=attempt(events=tuple(events)), plan=plan))
    lane = axis.checkpoints
    assert [(mark.time - NOON, mark.kind.removeprefix("checkpoint ")) for mark in lane.marks] == [
        (20, "verified chosen"),
        (40, "bad"),
        (60, "bad"),
        (80, "durable"),
        (100, "staged"),
        (110, "durable"),
    ]
    assert texts(lane) == [
        "step 20: verified, the plan goes back to it, training stood still for 0.8125 s, 8.6 MiB, /ckpt/20",
        "step 40: bad, model.pt: checksum, /ckpt/40",
        "step 60: bad: not finite, /ckpt/60",
        "step 80: written out, not verified, saved because the job was about to end, /ckpt/80",
        "step 100: not written out yet, /ckpt/100",
        "step 110: saved, not verified",
    ]
    assert [name for _, name in axis.checkpoint_kinds] == [
        "verified checkpoint",
        "written out, not verified",
        "not written out yet",
        "bad checkpoint",
        "the plan goes back to it",
    ]
    assert axis.events.marks == ()


def test_the_checkpoints_of_a_job_are_drawn_without_its_log() -> None:
    """From the attempt's begin to its end, or to now while it runs; nothing where none was reported."""
    events = (Event(EventKind.STARTED, NOON), *saved(50, 20, CheckpointPhase.DURABLE))
    ended = checkpoint_axis(attempt(events=events, ended=NOON + 100), NOON + 9_999)
    runs = checkpoint_axis(attempt(events=events, ended=None), NOON + 1_000)
    assert ended is not None and runs is not None
    assert [axis.parts[0].end - axis.parts[0].begin for axis in (ended, runs)] == [100.0, 1_000.0]
    assert [lane.name for lane in ended.lanes] == ["Checkpoints", "Events"]
    assert ended.checkpoints.marks[0].x > runs.checkpoints.marks[0].x
    assert checkpoint_axis(attempt(events=events[:1]), NOON) is None
