"""Which process a name stands for is learned from the log: from what counts the processes, and what stands beside."""

from collections.abc import Sequence

import pytest

from diagnoser.records.process_names import ProcessNames, numbered


def speech(heads: Sequence[str], said: str) -> list[str]:
    """Lines of processes with these heads, each of which says once which one it is."""
    lines = [head + said.format(index=index, host=f"xq{index // 2 + 3}1") for index, head in enumerate(heads)]
    for step in range(6):
        lines += [f"{head}{text} {step}" for head in heads for text in ("lap", "slow lap")]
    return lines


@pytest.mark.parametrize(
    "heads",
    [
        ("@0/4 I: ", "@1/4 I: ", "@2/4 I: ", "@3/4 I: "),
        ("<7701> ", "<7702> ", "<7704> ", "<7705> "),
        ("fit.hand3 INFO ", "fit.hand4 INFO ", "fit.hand5 INFO ", "fit.hand6 INFO "),
        ("[xq31:0] ", "[xq31:1] ", "[xq41:0] ", "[xq41:1] "),
        ('L{"w":0,"m":"', 'L{"w":1,"m":"', 'L{"w":2,"m":"', 'L{"w":3,"m":"'),
    ],
)
def test_a_name_stands_for_the_process_that_says_so_once(heads: Sequence[str]) -> None:
    """Lines that say something else are of the process whose name is in front, on the host that it told."""
    names = ProcessNames(speech(heads, "hand {index} came from {host}"))
    assert [names.place(f"{head}KeyError: 'a'", "KeyError: 'a'", -1, "") for head in heads] == [
        (0, "xq31"),
        (1, "xq31"),
        (2, "xq41"),
        (3, "xq41"),
    ]


@pytest.mark.parametrize(
    "said",
    ["hand {index} talks to {host}", "node {index} came from {host}", "step {index} of 4", "hand {index} is up"],
)
def test_what_counts_something_else_names_no_process(said: str) -> None:
    """Hosts of peers, numbers of nodes, steps, and numbers beside nothing are no ranks."""
    heads = ("<7701> ", "<7702> ", "<7704> ", "<7705> ")
    assert ProcessNames(speech(heads, said)).place("<7702> KeyError", "KeyError", -1, "") == (-1, "")


def test_what_a_launcher_prints_about_a_process_is_not_the_process() -> None:
    """A host with one process is a name in its tracebacks only; where ranks are more than that, names are no ranks."""
    heads = ("xq31 <0> ", "xq42 <1> ")
    log = [f"{head}hand {rank} came from {head[:4]}" for rank, head in enumerate(heads)]
    log += [f"{head}lap {step}" for step in range(6) for head in heads]
    names = ProcessNames(log)
    assert names.place("xq42 keeper: child 0 has left", "keeper: child 0 has left", -1, "") == (-1, "")
    assert names.place("xq42   File", "  File", -1, "") == (1, "xq42")
    assert ProcessNames([*log, "world_size=8"]).place("xq42 <1> lap 9", "lap 9", -1, "") == (-1, "xq42")


def test_a_host_that_two_launches_tell_apart_is_of_neither() -> None:
    """A number that stands beside two hosts tells none of them."""
    heads = ("<7701> ", "<7702> ")
    log = [f"{head}hand {rank} came from xq{rank + place}1" for place in (3, 5) for rank, head in enumerate(heads)]
    assert ProcessNames(log).hosts == {}


def test_a_noun_tells_only_numbers_of_processes() -> None:
    """Mentions by the noun of the log are found up to the number of processes, whatever stands between."""
    assert list(numbered("caught in hand-1, hand 9 and palm 0", {"hand": 4})) == [1]
