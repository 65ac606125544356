"""What a command prints reaches its place, whatever happens to the copy."""

import os
from collections.abc import Iterator

import pytest

from diagnoser.client.relay import Channel


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for handle in (reader, writer):
        os.close(handle)


def printed(channel: Channel, data: bytes) -> int:
    """A descriptor through which a program would print, with this already printed."""
    program = os.dup(channel.writer)
    os.write(program, data)
    return program


def test_a_copy_that_fails_loses_no_output(pipe: tuple[int, int]) -> None:
    """It is given up, and told at the end; the rest passes on."""
    reader, writer = pipe

    def broken(name: str, data: bytes) -> None:
        raise MemoryError

    channel = Channel("stdout", writer)
    program = printed(channel, b"one\n")
    channel.start(broken)
    assert os.read(reader, 100) == b"one\n"
    os.write(program, b"two\n")
    assert os.read(reader, 100) == b"two\n"
    os.close(program)
    assert not channel.stop()
    assert "stdout is not shipped any more: MemoryError" in channel.fault


def test_a_target_that_cannot_be_written_stops_no_command() -> None:
    """As a full disk: what is printed is still shipped."""
    copied = list[bytes]()
    with open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123
        channel = Channel("stdout", full.fileno())
        program = printed(channel, b"one\n")
        channel.start(lambda name, data: copied.append(data))
        os.write(program, b"two\n")
        os.close(program)
        channel.thread.join()
        assert not channel.stop()
    assert b"".join(copied) == b"one\ntwo\n"
    assert "No space left" in channel.fault


def test_a_channel_that_stays_open_can_be_left(pipe: tuple[int, int]) -> None:
    """Everything that was printed until then has been passed on."""
    reader, writer = pipe
    channel = Channel("stdout", writer)
    program = printed(channel, b"printed")
    channel.start(lambda name, data: None)
    assert channel.stop()
    assert os.read(reader, 100) == b"printed"
    os.close(program)
    os.close(channel.reader)
