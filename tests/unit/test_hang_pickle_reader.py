"""Dumps come from tenants: what is read from a pickle is data, bounded by its size."""

import os
import pickle
import random
import resource
import struct
from typing import Any

import pytest

from diagnoser.hang import pickle_reader
from diagnoser.model.errors import BadInput

DATA = {
    "a": [1, -5, 300, 70_000, 2**40, -(2**70), 1.5, None, True, "ü"],
    "b" * 300: ((), (1,), (1, 2), (1, 2, 3), (1,) * 9),
}


class Runs:
    """What a hostile pickle does: it calls a function when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_data_is_read_as_pickle_reads_it(protocol: int) -> None:
    """Numbers, strings, lists, tuples and dicts in every protocol that torch has written."""
    assert pickle_reader.loads(pickle.dumps(DATA, protocol)) == DATA


@pytest.mark.parametrize(
    "hostile", [Runs(), os.system, Exception("x"), {1, 2}, 3j], ids=lambda value: type(value).__name__
)
def test_what_makes_objects_is_refused(hostile: object) -> None:
    """No class is looked up, and nothing is called."""
    with pytest.raises(BadInput, match="more than data"):
        pickle_reader.loads(pickle.dumps(hostile, 2))


def test_a_few_bytes_take_no_gigabytes() -> None:
    """A memo index of four thousand million, a string and a tuple of that length: refused, or read without the room."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert pickle_reader.loads(b"\x80\x02K\x01r" + struct.pack("<I", 2**32 - 1) + b".") == 1
    for cut in (
        b"X" + struct.pack("<I", 2**32 - 1),
        b"\x8d" + struct.pack("<Q", 2**60),
        b"\x8e" + struct.pack("<Q", 2**60),
    ):
        with pytest.raises(BadInput):
            pickle_reader.loads(b"\x80\x04" + cut + b"a.")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_whatever_is_sent_is_read_or_refused() -> None:
    """Ten thousand changed and cut pickles raise BadInput or give data; nothing else."""
    dice = random.Random(7)
    whole = pickle.dumps(DATA, 2)
    for _ in range(10_000):
        data = bytearray(whole[: dice.randint(1, len(whole))])
        for _ in range(dice.randint(1, 6)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            pickle_reader.loads(bytes(data))
        except BadInput as error:
            assert str(error)
