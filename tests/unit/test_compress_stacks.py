"""Where stacks of C++, Java and NCCL say that an error was raised; tracebacks of Ray and of ranks printing at once."""

import pytest

from diagnoser.compress import Compressor, digest
from diagnoser.model import Evidence, LineBlock, Stream
from diagnoser.structure import stacks


def read(*lines: str) -> Evidence:
    """Behind a few hundred routine lines, as in a log."""
    routine = [f"fetched batch {n} in 0.1 s" for n in range(300)]
    compressor = Compressor()
    compressor.feed(LineBlock(Stream(), "".join(line + "\n" for line in [*routine, *lines, *routine]).encode()))
    return digest(compressor.take()).evidence


def raised_at(evidence: Evidence, error: str) -> str:
    """The line that names the code that raised what the line with these words says."""
    (index,) = (number for number, line in enumerate(evidence.lines) if error in line.body)
    frame = stacks.frame_of(evidence.lines, index)
    return "" if frame is None else evidence.lines[frame].body.strip()


@pytest.mark.parametrize(
    ("lines", "error", "frame"),
    [
        (
            [
                "terminate called after throwing an instance of 'c10::DistBackendError'",
                "  what():  the ring is broken",
                "more about it",
                "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x45 (0x7f01 in /opt/lib/libc10.so)",
                "frame #1: ring::poll() + 0x1a2 (0x7f02 in /opt/lib/libring.so)",
            ],
            *("the ring is broken", "frame #1: ring::poll()"),
        ),
        (
            [
                "F0304 10:11:12.131415  77 pool.cc:41] Check failed: used <= size (9 vs. 8)",
                "*** Check failure stack trace: ***",
                "    @     0x7f3300112233  google::LogMessage::Fail()",
                "    @     0x7f3300112299  pool::Grow()",
            ],
            *("Check failed", "@     0x7f3300112299  pool::Grow()"),
        ),
        (
            [
                "[gpu-4:00077] *** Process received signal ***",
                "[gpu-4:00077] Signal: Bus error (7)",
                "[gpu-4:00077] [ 0] /lib/libpthread.so.0(+0x12730)[0x7f3300112233]",
            ],
            *("Bus error", "[ 0] /lib/libpthread.so.0(+0x12730)"),
        ),
        (
            ["Program terminated with signal SIGSEGV, Segmentation fault.", "#0  0x00007f3300112233 in spin ()"],
            *("SIGSEGV", "#0  0x00007f3300112233 in spin ()"),
        ),
        (
            [
                "collective 12 failed",
                "Exception raised from check at ../csrc/Dog.cpp:5 (most recent call first):",
                "frame #0: dog::bark() + 0x1 (0x7f01 in /opt/lib/libdog.so)",
            ],
            *("collective 12", "Exception raised from check at ../csrc/Dog.cpp:5"),
        ),
        (
            [
                "Caused by: java.io.IOException: No space left on device",
                "\tat java.io.FileOutputStream.write(FileOutputStream.java:326)",
            ],
            *("No space", "at java.io.FileOutputStream.write(FileOutputStream.java:326)"),
        ),
        (
            ["transport/net_ib.cc:9 NCCL WARN NET/IB: lost peer 0", "NCCL INFO transport/net.cc:11 -> 6"],
            *("lost peer", "NCCL INFO transport/net.cc:11 -> 6"),
        ),
        (["collective 12 failed", "#0  0x00007f3300112233 in spin ()"], "collective 12", ""),
    ],
    ids=["c10", "glog", "openmpi", "gdb", "message-before", "java", "nccl", "no-stack"],
)
def test_the_innermost_frame_below_an_error_says_where_it_was_raised(lines: list[str], error: str, frame: str) -> None:
    """Whatever library prints the stack; a line that no heading joins to the frames below has none."""
    at = raised_at(read(*lines), error)
    assert at.endswith(frame) or frame in at
    assert bool(at) is bool(frame)


def test_the_frames_of_another_rank_say_nothing() -> None:
    """Two ranks crash at once, line by line: each error has its own frame."""
    found = read("2:   what():  a broke", "5:   what():  b broke", "2: frame #0: a() + 0x1", "5: frame #0: b() + 0x1")
    assert "a()" in raised_at(found, "a broke")
    assert "b()" in raised_at(found, "b broke")


def test_ray_points_at_what_it_wraps() -> None:
    """Where the driver waited and where the task failed are two tracebacks, and the task's is the cause."""
    outer, inner = read(
        "Traceback (most recent call last):",
        '  File "driver.py", line 9, in <module>',
        "    ray.get(ref)",
        "ray.exceptions.RayTaskError(ValueError): ray::shard() (pid=77, ip=10.0.0.4)",
        '  File "shard.py", line 5, in shard',
        "    raise ValueError(path)",
        "ValueError: no such shard: 12",
    ).tracebacks
    assert (outer.exception, outer.cause) == ("ray.exceptions.RayTaskError", 1)
    assert (inner.exception, inner.message, inner.cause) == ("ValueError", "no such shard: 12", -1)


def trace(name: str) -> list[str]:
    return [
        "Traceback (most recent call last):",
        '  File "train.py", line 9, in <module>',
        "    main()",
        '  File "train.py", line 5, in main',
        f"    load({name})",
        f"KeyError: '{name}'",
    ]


def test_a_cut_traceback_does_not_take_from_the_next() -> None:
    """One without an end, an ordinary line, then a whole one: the second is as it was printed."""
    (only,) = read(*trace("a")[:4], "going on", *trace("b")).tracebacks
    assert (only.message, len(only.frames)) == ("'b'", 2)
