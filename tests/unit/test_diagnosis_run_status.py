"""Where a run stands, by the end of its log."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from diagnoser import compress
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import Compressor, Delta
from diagnoser.diagnosis.run_status import PIECE_BYTES, RunStatuses, run_status
from diagnoser.model import LineBlock, Provenance, RunStatus, Stage, Stream
from tests.contract.records import KEY, OUT, append
from tests.databases import sqlite_store

MEGATRON = (
    " iteration {step:8d}/  500000 | consumed samples: 1024 | elapsed time per iteration (ms): 4312.5 | "
    "learning rate: 3.0E-04 | lm loss: 1.9{step}E+00 | grad norm: 0.412 |\n"
)


def read(text: str, received: float = 100.0) -> Delta:
    compressor = Compressor()
    compressor.feed(LineBlock(OUT, text.encode(), 1, None, received))
    return compressor.take()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


async def send(store: SqlStore, text: str, at: float = 100.0) -> int:
    """The revision of the log afterwards."""
    cursor = (await store.logs.cursors([KEY]))[KEY].get(OUT)
    block = LineBlock(OUT, text.encode(), cursor.next if cursor else 1, None, at)
    piece = append(read=cursor, delta=compress.pack([block]), at=at, lines=text.count("\n"))
    await store.logs.append([replace(piece, raw=len(text))])
    (attempt,) = await store.jobs.attempts(KEY.job)
    return attempt.revision


def test_a_training_line_tells_step_speed_loss_and_the_end() -> None:
    """The end follows from the steps that are left and the time of one."""
    status = run_status(read("".join(MEGATRON.format(step=step) for step in range(10, 20))))
    assert (status.stage, status.step, status.total) == (Stage.TRAIN, 19, 500_000)
    assert (status.loss, status.step_seconds) == (1.919, 4.3125)
    assert status.ends == pytest.approx(100.0 + (500_000 - 19) * 4.3125)
    assert status.last_line.startswith(" iteration       19/  500000")


def test_the_speed_is_measured_where_it_is_not_printed() -> None:
    """By the times in the lines."""
    lines = "".join(f"2026-11-22 10:00:{step * 2:02d} step {step} loss: 2.5\n" for step in range(1, 20))
    assert run_status(read(lines)).step_seconds == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("line", "total"),
    [
        ("step 7/12 loss: 2.5", 12),
        ("step 7 of 12, loss: 2.5", 12),
        ("step: 7 loss: 2.5 epoch 1/3", None),
        ("step 7 loss: 2.5", None),
    ],
)
def test_only_a_total_of_the_steps_is_one(line: str, total: int | None) -> None:
    """A total of epochs or files says nothing about the last step."""
    status = run_status(read(line + "\n"))
    assert (status.step, status.total) == (7, total)
    assert (status.ends is None) or total


def test_before_training_the_stage_is_what_the_log_says() -> None:
    """Without a step there is no end either; a log that says nothing has an empty status."""
    status = run_status(read("> building train, validation, and test datasets ...\n"))
    assert (status.stage, status.step, status.ends) == (Stage.DATA, None, None)
    assert run_status(Delta()) == RunStatus()


def test_the_last_line_is_clipped_and_never_that_of_a_node() -> None:
    """A line may be megabytes long; the kernel's lines are no progress of the job."""
    compressor = Compressor()
    compressor.feed(LineBlock(OUT, b"x" * 5_000 + b"\n", 1, None, 100.0))
    compressor.feed(LineBlock(Stream("kernel", "gpu-1", -1, Provenance.NODE), b"NVRM: hello\n", 1, None, 200.0))
    status = run_status(compressor.take())
    assert len(status.last_line) <= 300
    assert "NVRM" not in status.last_line


async def test_new_lines_are_read_after_a_while(store: SqlStore) -> None:
    """What is fresh is shown to everybody; what the newest lines leave open stays as it was."""
    now = 100.0
    statuses = RunStatuses(store, Compressor, lambda: now)
    revision = await send(store, MEGATRON.format(step=10))
    assert (await statuses.of({KEY: revision}))[KEY].step == 10
    later = await send(store, MEGATRON.format(step=11))
    assert (await statuses.of({KEY: later}))[KEY].step == 10
    now = 110.0
    assert (await statuses.of({KEY: later}))[KEY].step == 11
    for _ in range(8):
        last = await send(store, "chatter\n")
    now = 120.0
    status = (await statuses.of({KEY: last}))[KEY]
    assert (status.step, status.total, status.last_line) == (11, 500_000, "chatter")


async def test_a_log_that_cannot_be_read_has_no_status(store: SqlStore) -> None:
    """One bad piece does not take the page with it; a merged piece of a whole log is not read at all."""
    await store.logs.append([append(delta=b"no piece")])
    statuses = RunStatuses(store, Compressor, lambda: 100.0)
    assert (await statuses.of({KEY: 1}))[KEY] == RunStatus()
    assert (await store.logs.newest_pieces([KEY], 1, 3))[KEY] == []
    assert [piece.data for piece in (await store.logs.newest_pieces([KEY], 1, PIECE_BYTES))[KEY]] == [b"no piece"]
