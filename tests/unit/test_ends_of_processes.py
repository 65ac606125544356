"""Ends of runs of several processes, each of which speaks for itself."""

from collections.abc import Sequence

import pytest

from diagnoser.model.taxonomy import FailureType
from tests.unit.test_run_endings import diagnose

T = FailureType
TURNS = range(1, 41)
NODES = ("trn-a1", "trn-a2", "trn-a3")


def turns(numbers: Sequence[int], measure: str = "") -> list[str]:
    return [f"Sweep {turn}: residual = {measure or f'{1 + 1 / turn:.4f}'}" for turn in numbers]


def steps_of(count: int) -> list[str]:
    return [f"step={turn} loss={1 + 1 / turn:.4f}" for turn in range(1, count + 1)]


def job(processes: Sequence[Sequence[str]], *, tagged: bool) -> list[str]:
    """The lines of processes that run side by side. tagged: a node in front of each, as pdsh prints it."""
    lines = []
    for position in range(max(map(len, processes))):
        for node, process in zip(NODES, processes, strict=True):
            if position < len(process):
                lines.append(f"{node}: {process[position]}" if tagged else process[position])
    return lines


FITTED = ["Solver 4.1 reads cells.csv", *turns(TURNS), "coefficients written to out/w.bin", "Model fitted"]
CRASHED = ["Solver 4.1 reads cells.csv", *turns(TURNS[:20]), "KeyError: 'cells'"]
BROKEN = ["Solver 4.1 reads cells.csv", *turns(TURNS[:9]), *turns(TURNS[9:], "-nan"), "Model fitted"]


@pytest.mark.parametrize("tagged", [True, False])
def test_an_end_that_all_processes_print_is_the_end_of_the_run(tagged: bool) -> None:
    """Lines that each process prints once behind its loop are last words and no turns of the loop."""
    assert diagnose(*job([FITTED] * 3, tagged=tagged)).type is T.COMPLETED


@pytest.mark.parametrize("left", [0.3, 0.6, 0.9])
def test_processes_that_just_stop_did_not_complete(left: float) -> None:
    """A log of several processes that was cut within their loops is no clean end."""
    lines = job([FITTED] * 3, tagged=True)
    assert diagnose(*lines[: int(len(lines) * left)]).type is T.UNKNOWN


def test_a_process_that_its_peers_outlive_fails_the_run() -> None:
    """The end that two processes print does not hold for the third one, whose last word is an error."""
    assert diagnose(*job([FITTED, CRASHED, FITTED], tagged=True)).type is T.KEY_ERROR


@pytest.mark.parametrize(
    ("last", "completed"),
    [
        (["the halls were walked"] * 3, True),
        (["the halls were walked", "the halls were walked"], False),
        (["now walking the halls ..."] * 3, False),
        (["the halls were walked", "the halls were walked", "cannot open halls"], False),
    ],
    ids=["all", "some", "a beginning", "a complaint"],
)
def test_what_all_processes_say_once_behind_their_loops_is_an_end(last: list[str], completed: bool) -> None:
    """Words that nobody knows end a run where each process prints them once, after its last turn."""
    endings = [last[process : process + 1] for process in range(3)]
    lines = job([["Solver 4.1 reads cells.csv", *turns(TURNS), *ending] for ending in endings], tagged=True)
    assert (diagnose(*lines).type is T.COMPLETED) is completed


def test_a_line_of_a_loop_is_no_end_of_it() -> None:
    """A solver says at each turn that it is finished with it: who stops there has not ended well."""
    solves = [line for turn in TURNS for line in (f"optimization finished, #iter = {turn}", f"obj = -{turn}.25")]
    assert diagnose(*solves).type is T.UNKNOWN
    assert diagnose(*solves, "Accuracy = 0.91 (109/120)").type is T.COMPLETED


@pytest.mark.parametrize(("made", "completed"), [((40, 40), True), ((40, 31), False), ((31, 31), False)])
def test_the_last_turn_of_the_total_is_an_end_where_all_processes_made_it(
    made: tuple[int, int], completed: bool
) -> None:
    """A loop of any words that counts to its total is over with it; a date beside it is no count."""
    loops = [[f"11/11/26 lap {turn} of 40: gap {1 / turn:.4f}" for turn in range(1, last + 1)] for last in made]
    assert (diagnose(*job(loops[:2] + loops[:1], tagged=True)).type is T.COMPLETED) is completed


def test_a_process_that_stopped_long_before_its_only_peer_fails_the_run() -> None:
    """Of two processes one states its end: the other, which made no turn for half of the time, did not end with it."""
    fitted, stopped = FITTED, FITTED[:12]
    lines = [line for pair in zip(fitted, [*stopped, *[""] * 40], strict=False) for line in pair]
    tagged = [f"{NODES[number % 2]}: {line}" for number, line in enumerate(lines) if line]
    assert diagnose(*tagged).type is not T.COMPLETED


def test_what_logging_could_not_print_is_no_failure() -> None:
    """Python prints the error and the stack of the call, and the program goes on."""
    error = ["--- Logging error ---", "Traceback (most recent call last):"]
    error += ['  File "/usr/lib/python3.11/logging/__init__.py", line 1110, in emit', "    msg = self.format(record)"]
    error += [
        "KeyError: 'DEBUG'",
        "Call stack:",
        '  File "fit.py", line 7, in <module>',
        '    log.debug("at %s", cell)',
    ]
    error += ["Message: 'at %s'", "Arguments: (7,)"]
    assert diagnose(*error, *steps_of(10), "training finished").type is T.COMPLETED


def test_an_end_of_some_processes_is_none_of_the_run() -> None:
    """Where three processes began and two state an end, the run is not known to have completed."""
    stopped = CRASHED[:-1]
    assert diagnose(*job([FITTED, stopped, FITTED], tagged=False)).type is not T.COMPLETED


@pytest.mark.parametrize(
    "epitaph",
    [[], ["free(): invalid pointer"], ["reader: cannot open cells_1.csv"]],
    ids=["silent", "abort", "complaint"],
)
def test_the_ends_of_its_peers_do_not_hide_a_process_that_stopped(epitaph: list[str]) -> None:
    """Two processes state their end, and the third stops half way: the run did not complete."""
    stopped = [*CRASHED[:-1], *epitaph]
    assert diagnose(*job([FITTED, stopped, FITTED], tagged=True)).type is not T.COMPLETED


def test_one_process_that_speaks_last_does_not_speak_for_a_slower_one() -> None:
    """Steps of each process are known from the series: one that made half of them did not end with its peer."""
    steps = [f"step={turn} loss={1 + 1 / turn:.4f}" for turn in TURNS]
    done, stopped = [*steps, "training finished"], steps[:20]
    assert diagnose(*job([done, stopped, stopped], tagged=True)).type is not T.COMPLETED
    assert diagnose(*job([done, steps, steps], tagged=True)).type is T.COMPLETED


@pytest.mark.parametrize(
    ("lines", "completed"),
    [
        (["fit: 40 steps", *steps_of(40)], True),
        (["fit: 60 steps", *steps_of(40)], False),
        ([*steps_of(40), "could not write report: see above", "Elapsed time: 0:00:40"], False),
        ([*steps_of(40), "converged: residual 0.4 after 40 iterations"], True),
        ([*steps_of(40), "fit.service: Deactivated successfully."], True),
        (
            ["worker process 7 was killed by signal 9", "restarting worker 7", *steps_of(40), "fit finished"],
            True,
        ),
        ([*steps_of(40), "worker process 7 was killed by signal 9", "fit finished"], False),
    ],
)
def test_how_strong_the_witness_of_an_end_is(lines: list[str], completed: bool) -> None:
    """A total that was announced and reached, words of an end, a task that was started again; no time, no complaint."""
    assert (diagnose(*lines).type is T.COMPLETED) is completed


def test_a_measure_that_stays_nan_outranks_a_clean_end() -> None:
    """What a loop measures may be called anything: once it is NaN in all later turns, the run has diverged."""
    assert diagnose(*job([FITTED, BROKEN, FITTED], tagged=True)).type is T.LOSS_DIVERGENCE


def test_a_measure_that_is_finite_again_is_no_divergence() -> None:
    """A few turns without a finite measure are survived."""
    once = [*turns(TURNS[:3]), *turns(TURNS[3:6], "nan"), *turns(TURNS[6:]), "Model fitted"]
    assert diagnose(*once).type is T.COMPLETED


def test_a_host_that_a_fan_out_reports_fails_the_run() -> None:
    """What runs a command on many hosts reports the one on which it failed, though the others end well."""
    lines = job([FITTED, CRASHED, FITTED], tagged=True)
    lines.insert(-6, "pdsh@head: trn-a2: ssh exited with exit code 1")
    diagnosis = diagnose(*lines)
    assert diagnosis.type is T.KEY_ERROR and diagnosis.root_cause is not None
    assert diagnosis.root_cause.node == "trn-a2"
