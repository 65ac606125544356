"""Dumps come from tenants: what is read from a pickle is data, bounded by its size."""

import io
import os
import pickle
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diagnoser.hang import pickle_reader
from diagnoser.model.errors import BadInput
from tests.hang_dumps import as_torch_writes

DATA = {
    "a": [1, -5, 300, 70_000, 2**40, -(2**70), 1.5, None, True, "ü"],
    "b" * 300: ((), (1,), (1, 2), (1, 2, 3), (1,) * 9),
}
OF_TORCH = {"a": [1, -5, 300, 70_000, 1.5, None, True, "ü", ("0", "pg")], "b" * 300: {"a": [], "c": {}}, "í": "í" * 300}
ROOT = Path(__file__).parents[2]
PRIME = 2**61 - 1
"""Integers that are multiples of it have one hash."""


class Runs:
    """What a hostile pickle does: it calls a function when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_data_is_read_as_pickle_reads_it(protocol: int) -> None:
    """Numbers, strings, lists, tuples and dicts in every protocol that torch has written."""
    assert pickle_reader.loads(pickle.dumps(DATA, protocol)) == DATA


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_half_a_character_is_refused(protocol: int) -> None:
    """No page and no database takes it: the job would have no diagnosis, and its page would break."""
    with pytest.raises(BadInput):
        pickle_reader.loads(pickle.dumps({"name": "all_reduce\ud800"}, protocol))


def test_what_torch_writes_is_read_as_pickle_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is recognised, with short and long strings, and read by the library; our own reader says the same."""
    data = as_torch_writes(OF_TORCH | {str(number): [f"<{number}>"] for number in range(300)})
    assert pickle_reader.loads(data) == pickle.loads(data)
    read: list[bytes] = []

    def library(file: io.BytesIO) -> pickle.Unpickler:
        read.append(file.getvalue())
        return pickle.Unpickler(file)

    monkeypatch.setattr(pickle_reader, "_Unpickler", library)
    assert pickle_reader.loads(data) == pickle.loads(data)
    assert read == [data]
    assert pickle_reader.loads(data.replace(b"\x80\x02", b"\x80\x03", 1)) == pickle.loads(data)
    assert read == [data]


@pytest.mark.parametrize(
    "hostile", [Runs(), os.system, Exception("x"), {1, 2}, 3j], ids=lambda value: type(value).__name__
)
@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_what_makes_objects_is_refused(hostile: object, protocol: int) -> None:
    """No class is looked up, and nothing is called; also inside of what torch could have written."""
    for data in (pickle.dumps(hostile, protocol), b"\x80\x02](" + pickle.dumps(hostile, protocol)[:-1] + b"e."):
        with pytest.raises(BadInput, match=r"more than data|cannot be read"):
            pickle_reader.loads(data)


HOSTILE = {
    "a memo index of four thousand million": b"\x80\x02K\x01r" + struct.pack("<I", 2**32 - 1) + b".",
    "the same in what torch could have written": b"\x80\x02X\x01\0\0\0ar" + struct.pack("<I", 2**32 - 1) + b".",
    "the last memo index that torch's form allows": b"\x80\x02X\x01\0\0\0ar" + struct.pack("<I", 2**20 - 1) + b".",
    "a string of gigabytes": b"\x80\x02X" + struct.pack("<I", 2**32 - 1) + b"a.",
    "a string of exabytes": b"\x80\x04\x8d" + struct.pack("<Q", 2**60) + b"a.",
    "bytes of exabytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b"a.",
    "a byte array of exabytes": b"\x80\x05\x96" + struct.pack("<Q", 2**60) + b"a.",
    "a frame of exabytes": b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b"N.",
    "a key of tuples in each other": b"\x80\x02})" + b"\x85" * 300_000 + b"K\x01s.",
    "a key of 2^60 tuples": b"\x80\x02})" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(60)) + b"K\x01s.",
    "keys of one hash": b"\x80\x02}("
    + b"".join(b"\x8a\x0c" + (number * PRIME).to_bytes(12, "little") + b"N" for number in range(10_000))
    + b"u.",
    "ten million lists": b"\x80\x02](" + b"]" * 10_000_000 + b"e.",
    "two million lists": b"\x80\x02](" + b"]" * 2_000_000 + b"e.",
    "lists in each other": b"\x80\x02" + b"](" * 500_000 + b"e" * 500_000 + b".",
    "four million times nothing": b"\x80\x02](" + b"N" * 4_000_000 + b"e.",
    "a million places in the memo": b"\x80\x04N" + b"\x94" * 1_000_000 + b".",
    "a pair in a pair": b"\x80\x02}(" + b"X\x01\0\0\0aq\x00" * 2 + b"\x86h\x00\x86Nu.",
    "a pair that gets a place": b"\x80\x02}(" + b"X\x01\0\0\0aq\x00" * 2 + b"\x86(eq\x01h\x01h\x01\x86Nu.",
    "a list in itself": b"\x80\x02]q\x00(h\x00e.",
    "half a character": b"\x80\x02X\x03\0\0\0\xed\xa0\x80q\x00.",
}
READS = """
import resource
from diagnoser.hang.flight_recorder import DumpReader
from diagnoser.model.errors import BadInput
from tests.unit.test_hang_pickle_reader import HOSTILE
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
for name, data in HOSTILE.items():
    print(name, flush=True)
    try:
        DumpReader().read(data, 0)
    except BadInput as error:
        assert str(error)
    else:
        raise AssertionError("none of them is a dump")
(peak,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
assert int(peak.split()[1]) < 500 << 10, peak  # kilobytes of this program; ru_maxrss has what its parent held
"""


def test_hostile_pickles_take_neither_memory_nor_ages_nor_the_process() -> None:
    """In a process of its own with a gigabyte of room all of them are refused."""
    done = subprocess.run([sys.executable, "-c", READS], cwd=ROOT, capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, (done.stdout[-100:], done.stderr.decode()[-2000:])


def test_whatever_is_sent_is_read_or_refused() -> None:
    """Changed and cut pickles raise BadInput or give data, the same as the library gives; nothing else."""
    dice = random.Random(7)
    for whole in (pickle.dumps(DATA, 2), as_torch_writes(OF_TORCH)):
        for _ in range(5_000):
            data = bytearray(whole[: dice.randint(1, len(whole))])
            for _ in range(dice.randint(1, 6)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            try:
                pickle_reader.loads(bytes(data))
            except BadInput as error:
                assert str(error)
