"""The digest: what later stages, models and people see."""

import random

import pytest

from diagnoser.compress import Compressor, Digest, Prefilter, digest, merge
from diagnoser.compress.digest import MANY
from diagnoser.compress.render import tokens
from diagnoser.model import Anchor, Evidence, LineBlock, Mark, Stream
from diagnoser.model.number_runs import spans

TRACE = [
    "Traceback (most recent call last):",
    '  File "/srv/app/load.py", line 10, in read',
    "    return table[key]",
    "           ~~~~~^^^^^",
    "KeyError: 'width'",
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    "Traceback (most recent call last):",
    '  File "/srv/app/train.py", line 99, in <module>',
    "    main()",
    '  File "/srv/app/train.py", line 80, in main',
    "    load(key)",
    "RuntimeError: cannot load the table:",
    "\tmissing column: width",
]


def view(*lines: str, gate: Prefilter | None = None, stream: Stream | None = None) -> Digest:
    compressor = Compressor(gate)
    compressor.feed(LineBlock(stream or Stream(), "".join(line + "\n" for line in lines).encode()))
    return digest(compressor.take())


def read(*lines: str) -> Evidence:
    return view(*lines).evidence


def routine(count: int, prefix: str = "") -> list[str]:
    return [f"{prefix}fetched batch {n} in 0.1 s" for n in range(count)]


def test_chained_tracebacks_are_joined_and_linked() -> None:
    """The second exception points at the first; frames and the message's further lines belong to it."""
    found = read(*routine(500), *TRACE, *routine(500))
    first, second = found.tracebacks
    assert (first.exception, first.message, first.cause) == ("KeyError", "'width'", -1)
    assert (second.exception, second.cause) == ("RuntimeError", 0)
    assert second.message == "cannot load the table:\n\tmissing column: width"
    assert second.frames[-1].endswith("in main")
    assert found.lines[second.raised].body == "RuntimeError: cannot load the table:"


@pytest.mark.parametrize("rank", [-1, 3])
def test_headings_are_shown_where_several_ranks_may_print(rank: int) -> None:
    """A line that says who printed what is below is kept, except in the stream of one rank."""
    heading = "== worker 3 =="
    lines = view(*routine(500), heading, *routine(500), stream=Stream(rank=rank)).evidence.lines
    assert (heading in [line.text for line in lines]) == (rank < 0)


def test_interleaved_ranks_do_not_mix() -> None:
    """Tracebacks that four ranks print at once, line by line, come out whole, each with its rank."""
    rng = random.Random(4)
    left = {rank: [f"[rank{rank}]: {line}" for line in TRACE[:5]] for rank in range(4)}
    mixed = []
    while any(left.values()):
        mixed.append(left[rng.choice([rank for rank, lines in left.items() if lines])].pop(0))
    found = read(*routine(400), *mixed)
    assert sorted((one.rank, one.exception, len(one.frames)) for one in found.tracebacks) == [
        (rank, "KeyError", 1) for rank in range(4)
    ]


def test_a_cut_traceback_is_no_traceback() -> None:
    """Frames without an exception line stay as lines and claim nothing."""
    found = read(*TRACE[:3], *routine(3))
    assert found.tracebacks == ()
    assert found.lines[1].mark is Mark.TRACEBACK


def test_an_exception_group_gives_its_inner_exceptions() -> None:
    """Lines drawn with the bars of an exception group are read like others."""
    found = read(
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "a.py", line 3, in <module>',
        "  |     run()",
        "  | ExceptionGroup: two failed (2 sub-exceptions)",
        "  +-+---------------- 1 ----------------",
        "    | Traceback (most recent call last):",
        '    |   File "a.py", line 9, in first',
        "    |     raise ValueError('x')",
        "    | ValueError: x",
        "    +------------------------------------",
    )
    assert [one.exception for one in found.tracebacks] == ["ExceptionGroup", "ValueError"]


@pytest.mark.parametrize(
    ("lines", "ranks"),
    [
        (["0: up", "1: up", "1: [rank1]: boom"], {0, 1}),
        (["0: up", "1: up", "1: [rank9]: boom"], {9}),
        (
            ["0: [default1]:up", "0: [default1]:[rank1]: boom", "1: [default0]:[rank8]: boom", "1: [default0]:up"],
            {1, 8},
        ),
        (["[1,5]<stderr>:boom"], {5}),
    ],
)
def test_a_label_is_a_rank_only_where_each_task_is_one(lines: list[str], ranks: set[int]) -> None:
    """The most specific prefix of the whole log decides what a bare srun label means."""
    found = read(*lines)
    assert found.ranks == ranks
    assert {line.rank for line in found.lines} - {-1} == ranks


def test_nodes_of_ranks_come_from_the_world_communicator() -> None:
    """NCCL numbers ranks anew in each communicator: the largest one tells the world's ranks."""
    found = read(
        "gpu-b:11:12 [1] NCCL INFO comm 0xab rank 1 nranks 2 cudaDev 1 - Init COMPLETE",
        "gpu-b:11:12 [1] NCCL INFO comm 0xcd rank 9 nranks 16 cudaDev 1 - Init COMPLETE",
        "gpu-a:11:12 [1] NCCL INFO comm 0xcd rank 1 nranks 16 cudaDev 1 - Init COMPLETE",
    )
    assert found.rank_nodes == {1: "gpu-a", 9: "gpu-b"}


def test_a_rank_that_was_launched_again_is_where_it_was_put_last() -> None:
    """The last line about a rank and a communicator counts, and tells where it stands; network devices are no hosts."""
    found = read(
        "gpu-a:11:12 [1] NCCL INFO comm 0xcd rank 1 nranks 16 cudaDev 1 - Init COMPLETE",
        "gpu-c:14:15 [1] NCCL INFO comm 0xef rank 1 nranks 16 cudaDev 1 - Init COMPLETE",
        "gpu-c:14:15 [1] NCCL INFO Sharp rank 1/16 initialized on mlx5_ib0:1",
    )
    assert found.rank_nodes == {1: "gpu-c"}
    assert [(one.rank, one.node, one.number) for one in found.placements] == [(1, "gpu-c", 2)]


def test_the_last_words_of_every_voice_are_there() -> None:
    """A rank that falls silent early with a line of its own is seen, however long the others go on."""
    early = ["3: waiting for the storage gateway"]
    lines = [line for n in range(2000) for line in [f"{n % 3}: fetched batch {n} in 0.1 s"]]
    kept = view(*lines[:60], *early, *lines[60:]).lines
    assert any(line.rank == 3 and "gateway" in line.body for line in kept)


def test_news_at_the_end_are_kept() -> None:
    """A shape never seen before, near the end of the log, needs no scary word."""
    kept = view(*routine(3000), "the quick fox left the building", *routine(40)).lines
    assert [line.number for line in kept if line.mark is Mark.NOVEL] == [3001]


def test_what_came_before_a_divergence_is_kept() -> None:
    """The last finite losses stand beside the first NaN."""
    steps = [f"step: {n} loss: {2 + n % 7}.5" for n in range(2000)]
    kept = view(*steps[:1000], "step: 1000 loss: 81234.5", "step: 1001 loss: nan", *routine(900)).lines
    assert {1001, 1002} <= {line.number for line in kept}


def test_what_is_left_out_is_said() -> None:
    """Counts add up to what was read, and the reason stands beside them."""
    found = read(*routine(5000))
    assert found.compression.lines_in == 5000
    assert found.left_out.lines == 5000 - len(found.lines) > 4900
    assert "templates" in found.left_out.why
    assert sum(one.count for one in found.templates) == 5000


def test_streams_are_put_in_order_of_time() -> None:
    """Lines of two nodes are merged by their times; within a stream the order of lines holds even if clocks jump."""
    parts = []
    for node, texts in (
        ("a", ["10:00:05 ERROR b", "09:00:00 ERROR d"]),
        ("b", ["10:00:01 ERROR a", "10:00:09 ERROR e"]),
    ):
        compressor = Compressor()
        data = "".join(f"2026-01-01 {text}\n" for text in texts).encode()
        compressor.feed(LineBlock(Stream(node=node), data))
        parts.append(compressor.take())
    assert [line.body[-1] for line in digest(merge(parts)).lines] == ["a", "b", "d", "e"]


def test_of_very_many_streams_those_that_end_unlike_the_others_are_shown() -> None:
    """A thousand ranks that end alike do not fill the view; the one that ends otherwise is there with its last line,
    and every rank is known."""
    compressor = Compressor()
    for rank in range(MANY + 800):
        end = ["leaving early"] if rank == 700 else []
        text = "".join(line + "\n" for line in [*routine(10), *end]).encode()
        compressor.feed(LineBlock(Stream("stdout", f"n{rank}", rank), text))
    evidence = digest(compressor.take()).evidence
    assert len(evidence.lines) < 100
    assert (700, "leaving early") in {(line.rank, line.body) for line in evidence.lines}
    assert evidence.ranks == frozenset(range(MANY + 800))


@pytest.mark.parametrize("budget", [300, 1000, 4000])
def test_the_view_fits_any_budget_and_keeps_a_block_of_each_rank_group(budget: int) -> None:
    """However small the budget, the one rank that says something else is in it, with line numbers."""
    gate = Prefilter([Anchor("failed")])
    lines = [f"{n % 64}: collective {n} failed with a timeout on this rank" for n in range(4000)]
    lines[2000] = "7: the device failed its self test"
    text = view(*lines, gate=gate).render(budget)
    assert tokens(text) <= budget
    assert "2001 r7| 7: the device failed its self test" in text


def test_spans_are_short() -> None:
    """Runs of numbers are written as ranges."""
    assert spans([0, 1, 2, 3, 7, 9, 10]) == "0-3,7,9-10"


def test_a_chain_stays_within_one_rank() -> None:
    """Of rank 1 only the second exception of a chain was kept: it does not follow from what rank 0 raised."""
    whole = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "KeyError: 'x'"]
    cut = ["During handling of the above exception, another exception occurred:", *whole[:2], "OSError: y"]
    found = read(*(f"[rank0]: {line}" for line in whole), *(f"[rank1]: {line}" for line in cut))
    assert [(trace.rank, trace.exception, trace.cause) for trace in found.tracebacks] == [
        (0, "KeyError", -1),
        (1, "OSError", -1),
    ]
