"""Stacks of C++, Java, NCCL, Ray and torchelastic, each joined for the rank that printed it."""

import pytest

from diagnoser.compress import Compressor, digest
from diagnoser.model import Evidence, LineBlock, Stack, StackKind, Stream


def read(*lines: str) -> Evidence:
    """Behind a few hundred routine lines, as in a log."""
    routine = [f"fetched batch {n} in 0.1 s" for n in range(300)]
    compressor = Compressor()
    compressor.feed(LineBlock(Stream(), "".join(line + "\n" for line in [*routine, *lines, *routine]).encode()))
    return digest(compressor.take()).evidence


def frames(stack: Stack) -> list[str]:
    return [frame.split(" + ")[0] for frame in stack.frames]


def native(prefix: str, name: str) -> list[str]:
    return [
        f"{prefix}terminate called after throwing an instance of 'c10::DistBackendError'",
        f"{prefix}  what():  the ring of {name} is broken",
        f"{prefix}more about {name}",
        f"{prefix}Exception raised from poll at ../csrc/Ring.cpp:88 (most recent call first):",
        f"{prefix}frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x45 (0x7f01 in /opt/lib/libc10.so)",
        f"{prefix}frame #1: ring::{name}() + 0x1a2 (0x7f02 in /opt/lib/libring.so)",
    ]


def mixed(parts: list[list[str]]) -> list[str]:
    return [line for lines in zip(*parts, strict=True) for line in lines]


def test_a_native_crash_is_one_stack_of_its_rank() -> None:
    """Class, message over two lines, where it was raised and the frames belong together; the message is the root."""
    found = read(*native("[rank3]: ", "north"))
    (stack,) = found.stacks
    assert (stack.kind, stack.rank, stack.exception) == (StackKind.NATIVE, 3, "c10::DistBackendError")
    assert stack.message == "the ring of north is broken\nmore about north"
    assert frames(stack)[1:] == ["c10::Error::Error(c10::SourceLocation, std::string)", "ring::north()"]
    assert "what():" in found.lines[stack.raised].body


def test_ranks_that_crash_at_once_do_not_mix() -> None:
    """Interleaved line by line, with a prefix: each stack has its own message and frames."""
    found = read(*mixed([native("2: ", "west"), native("5: ", "east")]))
    assert sorted((one.rank, one.message.split("\n")[0], frames(one)[-1]) for one in found.stacks) == [
        (2, "the ring of west is broken", "ring::west()"),
        (5, "the ring of east is broken", "ring::east()"),
    ]


def test_numbered_frames_are_told_apart_without_a_prefix() -> None:
    """Two processes print their frames in turns and say nothing of themselves: frame 1 follows frame 0."""
    stacks = [[f"frame #{n}: {name}{n}() + 0x1 (0x7f0{n} in /opt/lib/lib{name}.so)" for n in range(4)] for name in "ab"]
    found = read(*mixed(stacks)).stacks
    assert [frames(one) for one in found] == [["a0()", "a1()", "a2()", "a3()"], ["b0()", "b1()", "b2()", "b3()"]]


@pytest.mark.parametrize(
    ("lines", "exception", "message", "shown"),
    [
        (
            [
                "F0304 10:11:12.131415  77 pool.cc:41] Check failed: used <= size (9 vs. 8)",
                "*** Check failure stack trace: ***",
                "    @     0x7f3300112233  google::LogMessage::Fail()",
                "    @     0x7f3300112299  pool::Grow()",
            ],
            *("Check failed", "Check failed: used <= size (9 vs. 8)", ["google::LogMessage::Fail()", "pool::Grow()"]),
        ),
        (
            [
                "[gpu-4:00077] *** Process received signal ***",
                "[gpu-4:00077] Signal: Bus error (7)",
                "[gpu-4:00077] [ 0] /lib/libpthread.so.0(+0x12730)[0x7f3300112233]",
                "[gpu-4:00077] [ 1] /opt/lib/libucp.so(ucp_worker_progress+0x6a)[0x7f3300112299]",
            ],
            "Process received signal",
            "Signal: Bus error (7)",
            [
                "/lib/libpthread.so.0(+0x12730)[0x7f3300112233]",
                "/opt/lib/libucp.so(ucp_worker_progress+0x6a)[0x7f3300112299]",
            ],
        ),
        (
            [
                "Program terminated with signal SIGSEGV, Segmentation fault.",
                "#0  0x00007f3300112233 in spin ()",
                "#1  main ()",
            ],
            *("SIGSEGV", "", ["spin ()", "main ()"]),
        ),
        (
            [
                "collective 12 failed",
                "Exception raised from check at ../csrc/Dog.cpp:5 (most recent call first):",
                "frame #0: dog::bark() + 0x1 (0x7f01 in /opt/lib/libdog.so)",
            ],
            *("", "collective 12 failed", ["check at ../csrc/Dog.cpp:5", "dog::bark()"]),
        ),
    ],
    ids=["glog", "openmpi", "gdb", "message-before"],
)
def test_each_kind_of_native_stack_is_joined(lines: list[str], exception: str, message: str, shown: list[str]) -> None:
    """Whatever library prints it."""
    (stack,) = read(*lines).stacks
    assert (stack.kind, stack.exception, stack.message) == (StackKind.NATIVE, exception, message)
    assert frames(stack) == shown
    assert len(stack.lines) == len(lines)


def test_java_causes_are_linked() -> None:
    """The wrapper points at what caused it, down to the first exception."""
    outer, middle, inner = read(
        "py4j.protocol.Py4JJavaError: An error occurred while calling o77.save.",
        ": org.apache.spark.SparkException: Job aborted due to stage failure",
        "\tat org.apache.spark.Scheduler.abort(Scheduler.scala:10)",
        "\tat java.base/java.lang.Thread.run(Thread.java:829)",
        "Caused by: java.lang.RuntimeException: task 3 lost",
        "\tat org.apache.spark.Task.run(Task.scala:5)",
        "\t... 12 more",
        "Caused by: java.io.IOException: No space left on device",
        "\tat java.io.FileOutputStream.write(FileOutputStream.java:326)",
    ).stacks
    assert {one.kind for one in (outer, middle, inner)} == {StackKind.JAVA}
    assert [one.cause for one in (outer, middle, inner)] == [1, 2, -1]
    assert (inner.exception, inner.message) == ("java.io.IOException", "No space left on device")
    assert outer.frames[0] == "org.apache.spark.Scheduler.abort(Scheduler.scala:10)"


def test_nccl_returns_are_joined_by_thread() -> None:
    """Two threads of one node warn at once: each has its own way of the error through the sources."""
    first, second = (
        [
            f"gpu-4:77:{thread} [{gpu}] transport/net_ib.cc:9 NCCL WARN NET/IB: lost peer {gpu}",
            f"gpu-4:77:{thread} [{gpu}] NCCL INFO transport/net.cc:11 -> 6",
            f"gpu-4:77:{thread} [{gpu}] NCCL INFO proxy.cc:{thread} -> 6",
        ]
        for gpu, thread in ((0, 81), (1, 92))
    )
    stacks = read(*mixed([first, second])).stacks
    assert [(one.message, one.exception, one.frames[-1]) for one in stacks] == [
        ("NET/IB: lost peer 0", "NCCL error 6", "proxy.cc:81"),
        ("NET/IB: lost peer 1", "NCCL error 6", "proxy.cc:92"),
    ]


def test_a_failure_table_tells_each_child() -> None:
    """The rank of a child is the one in the table, whoever prints it."""
    rows = [
        f"  time      : 2026-03-01_10:11:1{rank}\n  host      : gpu-4\n  rank      : {rank} (local_rank: {rank % 8})\n"
        f"  exitcode  : {code} (pid: 7{rank})\n  error_file: <N/A>\n"
        f"  traceback : Signal {-code} received by PID 7{rank}"
        for rank, code in ((9, -9), (12, -11))
    ]
    lines = [
        "=" * 40,
        "train.py FAILED",
        "-" * 40,
        "Failures:",
        "[1]:",
        rows[0],
        "-" * 40,
        "Root Cause:",
        "[0]:",
        rows[1],
    ]
    found = read(*"\n".join(lines).split("\n"))
    assert [(one.kind, one.rank, one.exception, one.message) for one in found.stacks] == [
        (StackKind.TABLE, 9, "exitcode -9 (pid: 79)", "Signal 9 received by PID 79"),
        (StackKind.TABLE, 12, "exitcode -11 (pid: 712)", "Signal 11 received by PID 712"),
    ]
    assert "exitcode" in found.lines[found.stacks[0].raised].body


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


@pytest.mark.parametrize("order", ["turns", "ahead", "heads"])
def test_interleaved_tracebacks_without_a_prefix_are_dealt(order: str) -> None:
    """Ranks print at once and say nothing of themselves: whole tracebacks come out, as many as there were."""
    a, b = trace("a"), trace("b")
    lines = {
        "turns": mixed([a, b]),
        "ahead": [*a[:3], *b[:2], a[3], b[2], *a[4:], *b[3:]],
        "heads": [a[0], b[0], *a[1:], *b[1:]],
    }[order]
    found = read(*lines).tracebacks
    assert sorted((one.exception, one.message, len(one.frames)) for one in found) == [
        ("KeyError", "'a'", 2),
        ("KeyError", "'b'", 2),
    ]


def test_a_cut_traceback_does_not_take_from_the_next() -> None:
    """One without an end, an ordinary line, then a whole one: the second is as it was printed."""
    (only,) = read(*trace("a")[:4], "going on", *trace("b")).tracebacks
    assert (only.message, len(only.frames)) == ("'b'", 2)
