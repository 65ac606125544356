"""The prefix of a log is learned from the log, and from nothing else that stands in front of lines."""

from collections.abc import Callable, Sequence

import pytest

from diagnoser.compress.compressor import Compressor
from diagnoser.compress.digest import digest
from diagnoser.dialects import Prefix
from diagnoser.model import LineBlock, Stream
from diagnoser.records import learned_prefixes, stream_names
from diagnoser.records.learned_prefixes import FORMS, LearnedPrefix

TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/srv/train.py", line 214, in <module>',
    "    main(cfg)",
    "KeyError: 'mask'",
)


def learned(lines: Sequence[str]) -> LearnedPrefix | None:
    return learned_prefixes.learn(lines, lambda text: (-1, text))


def speech(heads: Sequence[str], failing: int = 1) -> list[str]:
    """What processes with these heads print in turn; one of them ends in a traceback, the others go on."""
    texts = ["loading the configuration", "model has 117M parameters", "data pipeline is ready"]
    texts += [f"step {step} loss {3 - step / 10:.2f}" for step in range(6)]
    lines = [head + text for text in texts for head in heads]
    for text in TRACEBACK:
        lines += [heads[failing] + text, heads[failing - 1] + "step 7 loss 2.30"]
    return lines


def prefix_of(log: Sequence[str], line: str) -> Prefix:
    found = learned(log)
    assert found is not None
    parted = found.split(line)
    assert parted is not None
    return parted[0]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_form_reads_its_examples(form: learned_prefixes.PrefixForm) -> None:
    """Name and message are taken apart, and the message keeps its indentation."""
    for line, value, message in form.examples:
        match = form.pattern.match(line)
        assert match is not None
        assert (match["value"], line[match.end() :]) == (value, message)


@pytest.mark.parametrize(
    ("heads", "rank", "node"),
    [
        (("w0> ", "w1> "), 1, ""),
        (("[node-a/0] ", "[node-a/1] ", "[node-b/2] "), 1, "node-a"),
        (("gpuhost07 | ", "gpuhost08 | "), -1, "gpuhost08"),
        (("trainer_0 | ", "trainer_1 | "), 1, ""),
        (("(actor 0) ", "(actor 1) "), 1, ""),
        (("<0> ", "<1> "), 1, ""),
        (("worker-0: ", "worker-1: ", "worker-2: "), 1, ""),
        (("rank_0000 ", "rank_0001 "), 1, ""),
        (("node1:gpu0: ", "node1:gpu1: "), -1, "node1"),
        (("p0] ", "p1] "), 1, ""),
        (("[host0/gpu0] ", "[host1/gpu0] ", "[host0/gpu1] ", "[host1/gpu1] "), -1, "host1"),
        (("worker 0: ", "worker 1: "), 1, ""),
        (("trainer-0 stderr | ", "trainer-1 stdout | "), 1, ""),
        (("10:00:01 - task-0 - INFO - ", "10:00:01 - task-1 - INFO - "), 1, ""),
        (("10:00:01  INFO task{id=0}: ", "10:00:01  INFO task{id=1}: "), 1, ""),
        (("run_b3\t", "run_b4\t"), -1, ""),
        (("svc-1  | ", "svc-2  | "), -1, ""),
        (("12:00:01 web.1 | ", "12:00:02 web.2 | "), -1, ""),
        (("(r0@aurora) ", "(r1@aurora) ", "(r2@borealis) "), 1, "aurora"),
        (("c3-a7/0 | ", "c3-a7/1 | ", "c3-b2/2 | ", "c3-b2/3 | "), 1, "c3-a7"),
        (("actor/0 | ", "actor/1 | ", "critic/2 | ", "critic/3 | "), 1, ""),
        (("logs/rank_0.log:", "logs/rank_1.log:"), 1, ""),
        (("2026-03-04 10:00:01 cn0042 rank=0 ", "2026-03-04 10:00:01 cn0042 rank=1 "), 1, "cn0042"),
        (("10:00:01 hpc17: ", "10:00:01 hpc23: "), -1, "hpc23"),
    ],
)
def test_a_prefix_tells_who_speaks(heads: tuple[str, ...], rank: int, node: str) -> None:
    """Every head is a voice of its own; rank and node are stated where the names leave no doubt."""
    log = speech(heads)
    prefix = prefix_of(log, heads[1] + "KeyError: 'mask'")
    voices = {prefix_of(log, head + "step").voice for head in heads}
    assert (prefix.rank, prefix.node) == (rank, node)
    assert len(voices) == len(heads)


@pytest.mark.parametrize(
    "line",
    [
        lambda turn: f"[{turn % 10}]\ttrain-logloss:0.31\tvalid-logloss:0.42",
        lambda turn: f"Epoch {turn % 4} | batch {turn} | loss 0.3",
        lambda turn: f"[{('train', 'val')[turn % 2]}] epoch {turn} loss 0.3",
        lambda turn: f"{('INFO', 'WARNING', 'DEBUG')[turn % 3]}: step {turn} loss 0.3",
        lambda turn: f"layer{turn % 6}: weight norm 0.3 gradient norm 0.4",
        lambda turn: f"{('loss', 'accuracy', 'lr1')[turn % 3]}: 0.3",
        lambda turn: f"Chain {turn % 4}: Iteration: {turn} / 2000",
        lambda turn: f"p{(50, 95, 99)[turn % 3]} | latency 0.3 seconds",
        lambda turn: f"10:0{turn % 10}:01 step {turn} loss 0.3",
        lambda turn: ("for i in range(3):", "    x = 1", "def f(a):", "    return a")[turn % 4],
        lambda turn: f"[{turn * 10}/400] loss 0.3",
        lambda turn: f"{('user', 'assistant')[turn % 2]}> what is the number {turn}",
    ],
)
def test_what_a_program_counts_is_no_prefix(line: Callable[[int], str]) -> None:
    """Steps, levels, keys of a table and source take turns in front of lines, too, and name nobody."""
    assert learned([line(turn) for turn in range(60)]) is None


def test_who_carries_the_lines_of_one_stream_is_known_by_its_form() -> None:
    """A form that no program prints by itself is a prefix, however few lines and streams there are."""
    head = "ERROR\t2026-01-02 03:04:05 +0000\tpool1-0\t\t"
    assert prefix_of([head + '{"message": "no shard"}'], head + "step").voice == "wpool1-0"


def test_a_stream_says_which_rank_it_is() -> None:
    """Names that count from 1 state no rank; what their streams say of themselves does, also for silent ones."""
    heads = ("web.1 | ", "web.2 | ", "web.3 | ")
    log = [heads[0] + "initialized rank 0", heads[1] + "initialized rank 1", *speech(heads)]
    assert prefix_of(log, heads[2] + "step").rank == 2


def test_a_known_prefix_behind_a_learned_one_is_none_of_its_names() -> None:
    """Only the traceback has the rank in front: its lines are of the process that printed the steps."""
    heads = ("pod-a7 | ", "pod-b9 | ")
    trace = [f"{heads[0]}[rank0]: {text}" for text in TRACEBACK]
    log = [*speech(heads)[:8], *trace, *trace, *trace]
    found = learned_prefixes.learn(log, lambda text: (0 if text.startswith("[rank0]") else -1, text))
    assert found is not None
    assert len(found.layers) == 1


def test_the_name_of_the_only_machine_is_a_prefix_of_a_short_log() -> None:
    """A machine in front of all lines is where they were printed; a word in front of two lines is a word."""
    assert prefix_of(["cn0042 | Error: no such file", "cn0042 | exiting"], "cn0042 | exiting").node == "cn0042"
    assert learned(["shard-01 | Error: no such file", "shard-01 | exiting"]) is None


def test_a_name_that_speaks_for_several_ranks_is_none() -> None:
    """A launcher's label in front of the processes of a node is no rank."""
    heads = ("w0> ", "w1> ")
    log = [heads[0] + f"initialized rank {rank}" for rank in (0, 1)] + speech(heads)
    assert prefix_of(log, heads[1] + "step").rank == -1


def test_a_name_in_front_of_several_ranks_is_a_machine() -> None:
    """No rank prints behind two of them, so each is where its ranks run."""
    lines = speech(("x1-5: [rank 0] ", "x1-5: [rank 1] ", "x1-6: [rank 2] "))
    found = learned_prefixes.learn(lines, lambda text: (int(text[6]) if text.startswith("[rank ") else -1, text))
    assert found is not None
    assert found.hosts == {"x1-5", "x1-6"}


def test_a_name_in_front_of_the_time_of_all_lines_is_a_prefix() -> None:
    """No program prints anything in front of its own time."""
    found = learned([f"fit-7d9f 2026-03-04T10:00:{step:02d}Z step {step}" for step in range(12)])
    assert found is not None
    parted = found.split("fit-7d9f 2026-03-04T10:00:09Z KeyError")
    assert parted is not None and parted.body == "2026-03-04T10:00:09Z KeyError"


def test_a_world_larger_than_the_names_makes_them_no_ranks() -> None:
    """Two names in a world of 16 ranks are launchers or nodes."""
    log = ["w0> world_size=16", *speech(("w0> ", "w1> "))]
    assert prefix_of(log, "w1> step").rank == -1


def test_tracebacks_of_interleaved_streams_are_joined() -> None:
    """Two ranks that fail at once under a site's own prefix leave two whole tracebacks."""
    lines = speech(("w0> ", "w1> "))
    lines += [head + text for text in TRACEBACK for head in ("w0> ", "w1> ")]
    compressor = Compressor()
    compressor.feed(LineBlock(Stream(), "\n".join(lines).encode()))
    evidence = digest(compressor.take()).evidence
    assert sorted(trace.rank for trace in evidence.tracebacks) == [0, 1, 1]
    assert all(len(trace.lines) == len(TRACEBACK) for trace in evidence.tracebacks)


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("node-a/2", "node-a"),
        ("gpu-07:3", "gpu-07"),
        ("10.0.0.3", "10.0.0.3"),
        ("worker12.hpc.example.org", "worker12.hpc.example.org"),
        ("r2@aurora", "aurora"),
        ("train@1.service", ""),
        ("gpu3", ""),
        ("trainer_0", ""),
    ],
)
def test_a_host_in_a_name(name: str, host: str) -> None:
    """A machine is told from a device and from a process."""
    assert stream_names.host_in(name, ()) == host
