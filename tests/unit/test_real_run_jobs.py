"""Frameworks and launchers as they are: halves that share nothing, and labels of what the log shows."""

from pathlib import Path

import pytest

from tools.real_runs.cases import NoRootLine
from tools.real_runs.jobs import __main__ as jobs

KEY = "KeyError: 'position_ids'"


def planned(launcher: str, fault: str = "key") -> jobs.Plan:
    return jobs.Plan("x", "gguf", launcher, "plain", "", fault, (1,), ("gpu-21", "gpu-22"), 2, 0, False, 8)


@pytest.mark.parametrize(
    ("launcher", "lines", "rank", "node"),
    [
        ("srun", [f"1: {KEY}", "srun: error: gpu-22: task 1: Exited with exit code 1"], 1, "gpu-22"),
        ("hydra", [f"[1] {KEY}"], 1, None),
        ("hydra", [f"[1] {KEY}", "=   PID 412 RUNNING AT gpu-22"], 1, "gpu-22"),
        ("nohup", ["==> logs/gpu-21.0.log <==", "step 1", "==> logs/gpu-22.1.log <==", KEY], 1, "gpu-22"),
        ("script", [KEY], None, None),
    ],
)
def test_only_what_the_log_shows_is_labelled(
    launcher: str, lines: list[str], rank: int | None, node: str | None
) -> None:
    """A head, a section or a launcher's words name the rank and the node; where no line does, there is no label."""
    case = jobs.make_case(planned(launcher), lines, 1, Path("/nowhere"))
    assert (case.label["rank"], case.label["node"]) == (rank, node)
    assert KEY in case.log[case.label["root_lines"][0] - 1]


def test_a_run_that_did_not_fail_as_planned_gets_no_label() -> None:
    """The truth is what was injected: a run whose log does not show it is no case."""
    with pytest.raises(NoRootLine):
        jobs.make_case(planned("srun"), ["0: done"], 0, Path("/nowhere"))


@pytest.mark.parametrize("generation", [7, 8])
def test_the_halves_share_no_launcher_or_pipe(generation: int) -> None:
    """The cases are written down: each names what there is, and a half has not seen what the other is measured with."""
    halves: list[set[str]] = [set(), set()]
    for plan in jobs.plans():
        assert plan.fault in jobs.FAULTS
        if plan.generation == generation:
            halves[plan.held_out] |= {plan.family, plan.launcher, plan.pipe or plan.family}
    assert not halves[0] & halves[1]
