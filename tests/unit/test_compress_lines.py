"""Lines as a terminal shows them, and what launchers put in front of them."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnoser.compress.lines import LONGEST, body_of, clean, measure, strip_blurred
from diagnoser.dialects import Prefix
from tests.thorough import examples


def shown(data: bytes) -> list[bytes]:
    return clean(data).lines


def test_lines_are_split_by_newline_only() -> None:
    """Form feeds, vertical tabs and Unicode line ends inside a line do not shift line numbers."""
    assert len(shown("a\x0bb\x0cc\u2028d\nsecond\n".encode())) == 2


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        (b"\x1b[31mERROR\x1b[0m disk", b"ERROR disk"),
        (b"\x1b]0;title\x07text", b"text"),
        (b"a\0b\0c", b"abc"),
        (b"windows\r", b"windows"),
        (b"10%|#  | 1/9 [00:01<00:08]\r20%|## | 2/9 [00:02<00:07]", b"20%|## | 2/9 [00:02<00:07]"),
        (b"pool: 3/9\r         \rtrn-2: no shard", b"trn-2: no shard"),
        (b"boom: no device\r 50%|#####     | 5/10 [00:01<00:01,  4.0it/s]", b"boom: no device"),
        (b"\r\r\r", b""),
        (b"", b""),
    ],
)
def test_a_line_is_what_the_terminal_would_show(raw: bytes, seen: bytes) -> None:
    """Codes, NULs and painted-over bar states are gone; text that was painted over stays, for it may be the error."""
    line = shown(raw + b"\n")[0]
    assert line.startswith(seen)
    assert line == seen or b"boom" in seen


def test_the_middle_of_a_very_long_line_is_cut_and_counted() -> None:
    """Head and tail stay, and the line itself says how many bytes are missing."""
    cleaned = clean(b"head " + b"x" * 1_000_000 + b" tail\nnext\n")
    assert cleaned.lines[0].startswith(b"head ")
    assert cleaned.lines[0].endswith(b" tail")
    assert len(cleaned.lines[0]) <= LONGEST
    assert cleaned.cut_lines == 1
    assert b"<%d bytes cut>" % cleaned.cut_bytes in cleaned.lines[0]
    assert cleaned.lines[1] == b"next"


def test_bar_states_glued_without_carriage_returns_become_one() -> None:
    """A long line of glued bar states keeps what was printed between them."""
    bars = b"".join(b"  %d%%|##| %d/900 [00:01<00:09,  9.00it/s]" % (n // 9, n) for n in range(400))
    line = shown(bars[:9000] + b"node gpu-3 is gone" + bars + b"\n")[0]
    assert b"node gpu-3 is gone" in line
    assert line.count(b"it/s]") < 5


@pytest.mark.parametrize(
    ("line", "prefix", "body"),
    [
        (b"12: step", Prefix(task=12, voice="t12"), b"step"),
        (b"  3: step", Prefix(task=3, voice="t3"), b"step"),
        (b"[rank7]: boom", Prefix(rank=7, voice="r7"), b"boom"),
        (b"[rank7]:[E317 10:11:12.5 x.cpp:1] boom", Prefix(rank=7, voice="r7"), b"[E317 10:11:12.5 x.cpp:1] boom"),
        (b"[default2]:hello", Prefix(local=2, voice="d2"), b"hello"),
        (b"[1,3]<stderr>:boom[1,3]<stderr>:: no shard", Prefix(rank=3, voice="r3"), b"boom: no shard"),
        (b"1: [default3]:[rank11]: boom", Prefix(11, 1, 3, "", "t1/d3"), b"boom"),
        (b"4: [rank4]: boom", Prefix(rank=4, task=4, voice="t4"), b"boom"),
        (b"[1,12]<stdout>:hello", Prefix(rank=12, voice="r12"), b"hello"),
        (b"(Trainer pid=812, ip=10.1.2.3) hello", Prefix(node="10.1.2.3", voice="p812@10.1.2.3", pid=812), b"hello"),
        (b"node-a7:811:902 [3] NCCL WARN x", Prefix(node="node-a7"), b"NCCL WARN x"),
        (b"[pod/train-0/worker] hello", Prefix(voice="ktrain-0", pod="train-0"), b"hello"),
        (b"2026-01-02T03:04:05.123456789Z stdout F hello", Prefix(), b"hello"),
        (b"12 steps: done", Prefix(), b"12 steps: done"),
        (b"ValueError: 3: bad", Prefix(), b"ValueError: 3: bad"),
        (b"  5%|#         | 1/20 [00:01<00:20,  1.0s/it]Traceback (most recent call last):", Prefix(), b"Traceback"),
        (b"0:  5%|#  | 1/20 [00:01<00:20,  1.0s/it][rank3]: boom", Prefix(3, 0, -1, "", "t0"), b"boom"),
    ],
)
def test_prefixes_become_fields(line: bytes, prefix: Prefix, body: bytes) -> None:
    """The innermost rank wins, the voice names the process, and a glued bar is no part of the message."""
    found, rest = body_of(line)
    assert found == prefix
    assert rest.startswith(body)


@settings(max_examples=examples(150))
@given(
    st.binary(max_size=400)
    | st.lists(st.sampled_from([b"\r", b"\n", b"\x1b[", b"%|", b"it/s]", b"a 1", b"\xe2"])).map(b"".join)
)
def test_any_bytes_give_one_bounded_line_for_each_newline(data: bytes) -> None:
    """Whatever arrives, line numbers hold, nothing fails, and no line contains what would break another step."""
    lines = shown(data)
    whole = data[:-1] if data.endswith(b"\n") else data
    assert len(lines) == whole.count(b"\n") + 1
    for line in lines:
        assert len(line) <= LONGEST
        assert b"\n" not in line
        assert b"\0" not in line
        body_of(line)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"a",
        b"a\n",
        b"a\nb",
        b"\n" * 9000,
        b"x" * LONGEST + b"\n",
        b"x" * (LONGEST + 1),
        b"a\n" * 5000,
        b"x" * LONGEST + b"\n" + b"y" * (LONGEST + 1),
    ],
)
def test_lines_are_measured_as_splitting_measures_them(data: bytes) -> None:
    """With and without a last newline, in small and large bodies, long lines counted."""
    whole = data.split(b"\n")[: -1 if data.endswith(b"\n") else None]
    assert measure(data) == (len(whole), sum(len(line) > LONGEST for line in whole))


@pytest.mark.parametrize("bar", [b"\ta:    0%|x| 1/2 [b]", b"\ta: 0%|x| 0/0 [b]"])
def test_glued_bars_that_nothing_follows_cost_no_more_than_their_length(bar: bytes) -> None:
    """There is one way to read a bar: with several, sixty of them would be read in more ways than a service can try."""
    began = time.process_time()
    assert body_of(bar * 60)[1] == bar * 60
    assert strip_blurred(bar * 60)[1] == bar * 60
    assert time.process_time() - began < 1.0
