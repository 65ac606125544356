"""A line of its own names the stream of the lines below it."""

from diagnoser.compress.compressor import Compressor
from diagnoser.compress.digest import digest
from diagnoser.model import LineBlock, Stream
from diagnoser.records.sections import Sections, find_sections


def sections_of(log: list[str]) -> Sections:
    return find_sections(list(enumerate(log, 1)), [(line, 1) for line in log])


def test_headings_that_differ_by_a_number_name_the_lines_below() -> None:
    """Lines above the first heading, and headings, are in no section."""
    log = ["start", "==> logs/rank_0.log <==", "step 1", "", "==> logs/rank_1.log <==", "KeyError: 'mask'"]
    sections = sections_of(log)
    assert sections.labelled(1, b"start") == b"start"
    assert sections.labelled(3, b"step 1") == b"logs/rank_0\x1fstep 1"
    assert sections.labelled(6, b"x") == b"logs/rank_1\x1fx"


def test_a_name_between_two_rules_or_in_front_of_a_status_is_a_heading() -> None:
    """Tools that run a command on many machines print their output so."""
    rule = "-" * 16
    assert sections_of([rule, "cn17", rule, "step", rule, "cn18", rule, "step"]).names == ("cn17", "cn18")
    assert sections_of(["cn17 | FAILED | rc=1 >>", "step", "cn18 | OK | rc=0 >>"]).names == ("cn17", "cn18")


def test_a_program_that_counts_prints_no_sections() -> None:
    """Headings of epochs, and a single one, name nobody."""
    assert sections_of(["=== epoch 1 ===", "a", "=== epoch 2 ===", "b"]) == Sections()
    assert sections_of(["==> logs/rank_0.log <==", "step 1"]) == Sections()


def test_a_heading_that_was_not_kept_takes_the_sections_away() -> None:
    """A line could be of a section whose heading is not there."""
    lines = [(1, "==> rank_0.log <=="), (9, "==> rank_1.log <==")]
    assert find_sections(lines, [("==> rank_0.log <==", 3)]) == Sections()


def test_a_rank_is_read_from_the_heading_of_a_long_log() -> None:
    """All headings of a log that is not kept whole are kept."""
    log = list[str]()
    for turn in range(40):
        for rank in range(3):
            log += ["", f"==> logs/rank_{rank}.log <=="]
            log += [f"step {3 * turn + step} of 120 loss {step}.{turn}" for step in range(3)]
    log += ["", "==> logs/rank_2.log <==", "Traceback (most recent call last):", "KeyError: 'mask'"]
    compressor = Compressor()
    compressor.feed(LineBlock(Stream(), "\n".join(log).encode()))
    last = digest(compressor.take()).lines[-1]
    assert (last.body, last.rank) == ("KeyError: 'mask'", 2)


def test_a_rule_in_front_of_a_name_makes_a_heading() -> None:
    """Nothing needs to stand behind the name of the file."""
    sections = sections_of([">>>>>> logs/xq31/hand.0.log", "step 1", ">>>>>> logs/xq41/hand.1.log", "KeyError: 'mask'"])
    assert sections.labelled(4, b"x") == b"logs/xq41/hand.1\x1fx"


def test_headings_are_read_behind_what_a_collector_puts_in_front() -> None:
    """A time or a record of JSON is no part of the heading, and the name of a machine may end in a process's number."""
    log = list[str]()
    for step in range(3):
        for rank in range(2):
            log += [f"==> logs/gpu-2{rank}.{rank}.log <==", f"step {step} loss 2.{step}"]
    for around in ('{{"log":"{}","stream":"stdout"}}', "2026-01-02T03:04:05+0000 {}"):
        compressor = Compressor()
        compressor.feed(LineBlock(Stream(), "\n".join(map(around.format, log)).encode()))
        last = digest(compressor.take()).lines[-1]
        assert (last.body, last.rank, last.node) == ("step 2 loss 2.2", 1, "gpu-21")


def test_the_only_host_of_a_command_is_known_and_its_verdict_is_no_part_of_the_last_line() -> None:
    """Ansible writes the status of a command right behind what it printed."""
    sections = sections_of(["cn17 | FAILED | rc=1 >>", "KeyError: 'x'non-zero return code"])
    assert sections.labelled(2, b"KeyError: 'x'non-zero return code") == b"cn17\x1fKeyError: 'x'"
