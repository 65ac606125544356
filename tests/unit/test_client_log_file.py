"""What a log file has gained."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagnoser.client import ship
from diagnoser.client.log_file import FileOffset, LogChunk, end_of, near_end, read_chunk, read_rotated

ME = os.getuid()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "job.log"


def chunk(path: Path, offset: FileOffset = FileOffset(), **options: Any) -> LogChunk[FileOffset]:  # noqa: B008 - frozen
    found = read_chunk(str(path), offset, ME, **options)
    assert found is not None
    return found


def test_whole_lines_are_read_once(log: Path) -> None:
    """A line without its end waits until it has one, or until the file gets no more."""
    log.write_bytes(b"one\ntwo\nthr")
    first = chunk(log)
    assert (first.body, first.first, first.offset.lines) == (b"one\ntwo\n", 0, 2)
    assert read_chunk(str(log), first.offset, ME) is None
    with log.open("ab") as more:
        more.write(b"ee\nfour")
    second = chunk(log, first.offset)
    assert (second.body, second.first) == (b"three\n", 2)
    last = chunk(log, second.offset, rest=True)
    assert (last.body, last.first, last.offset.lines) == (b"four", 3, 4)


def test_chunks_are_bounded(log: Path) -> None:
    """A chunk ends with a line; a line longer than a chunk is handed on in parts."""
    log.write_bytes(b"aaa\nbbb\n" + b"c" * 20 + b"\n")
    first = chunk(log, limit=6)
    assert first.body == b"aaa\n"
    rest = [chunk(log, chunk(log, first.offset, limit=6).offset, limit=6).body]
    assert rest == [b"c" * 6]


def test_a_file_that_was_cut_is_read_anew(log: Path) -> None:
    """Also when it has grown past the old place since, and its lines go on counting within one launch."""
    log.write_bytes(b"old 1\nold 2\n")
    offset = chunk(log).offset
    log.write_bytes(b"new 1\nnew 2\nnew 3\nnew 4\n")
    again = chunk(log, offset)
    assert (again.anew, again.body[:6], again.first) == (True, b"new 1\n", 2)
    launched = chunk(log, replace(offset, first=True))
    assert (launched.anew, launched.first) == (True, 0)


def test_the_hole_before_a_writer_that_goes_on_at_its_place_is_no_line(log: Path) -> None:
    """Rotation by truncation leaves it where the file was not opened to append, as Slurm opens the output of a job."""
    with log.open("wb", buffering=0) as writer:
        writer.write(b"x" * 99 + b"\n")
        writer.seek(3 << 20)
        writer.write(b"before\n")
        offset = end_of(str(log), FileOffset(), ME)
        os.truncate(log, 0)
        writer.write(b"one\ntwo\n")
    found = chunk(log, offset)
    assert (found.body, found.anew) == (b"one\ntwo\n", True)
    assert read_chunk(str(log), found.offset, ME) is None


def test_a_file_that_goes_on_is_not_read_twice(log: Path) -> None:
    """The next launch appends to it: its lines keep their place in the file."""
    log.write_bytes(b"launch 0\n")
    offset = replace(chunk(log).offset, first=True)
    with log.open("ab") as more:
        more.write(b"launch 1\n")
    found = chunk(log, offset)
    assert (found.body, found.first, found.anew) == (b"launch 1\n", 1, False)


def test_a_replaced_file_is_read_anew(log: Path, tmp_path: Path) -> None:
    """Rotation by rename gives the path to another file."""
    log.write_bytes(b"one\n")
    offset = chunk(log).offset
    (tmp_path / "next").write_bytes(b"two\n")
    (tmp_path / "next").rename(log)
    assert chunk(log, offset).body == b"two\n"


def test_only_the_users_own_plain_files_are_read(log: Path, tmp_path: Path) -> None:
    """A job may name any path as its output: what is not its user's is not read, and a pipe does not block."""
    log.write_bytes(b"secret\n")
    with pytest.raises(OSError, match="not a"):
        read_chunk(str(log), FileOffset(), ME + 1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a"):
        read_chunk(str(tmp_path / "pipe"), FileOffset(), ME)
    with pytest.raises(OSError, match="No such file"):
        read_chunk(str(tmp_path / "none"), FileOffset(), ME)


def test_the_end_is_behind_everything(log: Path) -> None:
    """What is there now is skipped, what comes later is read."""
    log.write_bytes(b"one\ntwo")
    offset = end_of(str(log), FileOffset(), ME)
    assert (offset.lines, read_chunk(str(log), offset, ME)) == (2, None)


@pytest.mark.parametrize("rotation", ["rename", "copy and truncate"])
def test_what_a_rotation_took_away_unread_is_read_first(log: Path, tmp_path: Path, rotation: str) -> None:
    """The rest of the old file, also a last line without its end, then the new file; lines go on counting."""
    log.write_bytes(b"one\ntwo\n")
    offset = chunk(log).offset
    with log.open("ab") as more:
        more.write(b"three\nfour")
    if rotation == "rename":
        log.rename(tmp_path / "job.log.1")
    else:
        (tmp_path / "job.log.1").write_bytes(log.read_bytes())
    log.write_bytes(b"")
    rest = read_rotated(str(log), offset)
    assert rest is not None
    assert (rest.body, rest.first) == (b"three\nfour", 2)
    assert read_rotated(str(log), rest.offset) is None
    log.write_bytes(b"five\n")
    new = chunk(log, rest.offset)
    assert (new.body, new.first, read_rotated(str(log), new.offset)) == (b"five\n", 4, None)


def test_a_file_that_only_grew_was_not_rotated(log: Path, tmp_path: Path) -> None:
    """A longer name beside it is not taken for what it was before."""
    log.write_bytes(b"one\n")
    offset = chunk(log).offset
    (tmp_path / "job.log.old").write_bytes(b"one\nother\n")
    with log.open("ab") as more:
        more.write(b"two\n")
    assert read_rotated(str(log), offset) is None


def test_a_file_whose_name_is_no_utf8_is_shipped_like_any_other() -> None:
    """Its name ended the shipping of all files beside it; two such names stay apart."""
    names = [ship.source_of(os.fsdecode(name)) for name in (b"/logs/rank-\xff.log", b"/logs/rank-\xfe.log")]
    assert len(set(names)) == 2
    assert all(name.encode().endswith(b"/logs/rank-\xef\xbf\xbd.log") for name in names)
    assert ship.source_of("/logs/rank-ü.log") == "/logs/rank-ü.log"


def test_of_a_log_with_a_hole_of_terabytes_the_last_bytes_are_read(log: Path) -> None:
    """Read from its beginning, the output of one job would keep an agent from all others for hours."""
    log.write_bytes(b"begun\n")
    offset = chunk(log).offset
    os.truncate(log, 1 << 42)
    with log.open("ab") as file:
        file.write(b"\nRuntimeError: the end\n")
    end = near_end(str(log), offset, 1000, ME)
    assert chunk(log, end, rest=True).body.endswith(b"RuntimeError: the end\n")
    assert near_end(str(log), end, 1000, ME) == end
