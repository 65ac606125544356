"""Tracebacks of Ray, and those that were cut."""

from diagnoser.compress import Compressor, digest
from diagnoser.model import Evidence, LineBlock, Stream


def read(*lines: str) -> Evidence:
    """Behind a few hundred routine lines, as in a log."""
    routine = [f"fetched batch {n} in 0.1 s" for n in range(300)]
    compressor = Compressor()
    compressor.feed(LineBlock(Stream(), "".join(line + "\n" for line in [*routine, *lines, *routine]).encode()))
    return digest(compressor.take()).evidence


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
