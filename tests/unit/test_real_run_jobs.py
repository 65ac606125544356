"""Jobs of several nodes: halves that share nothing, a draw that stays, and labels of what the log shows."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from tools.real_runs.cases import NoRootLine
from tools.real_runs.jobs import seventh
from tools.real_runs.jobs.draw import CARRIERS, FAMILIES, Plan, plans
from tools.real_runs.jobs.log import make_case
from tools.real_runs.jobs.run import End, Line, Run

PLAN = Plan("x", "hsdp recipe", "srun host", "print {text}", "keys_batch", (3,), ("dgx-01", "dgx-02"), 2, 600, False)
RUN = Run(
    [
        Line("it 1/9 lm_loss 2.0", 10.0, 0, "stdout"),
        Line("KeyError: 'position_ids'", 11.0, 3, "stderr"),
        Line("EOFError", 11.5, 0, "stderr"),
    ],
    [End(3, 1, 11.1), End(0, 1, 11.6)],
)


def test_the_halves_share_no_family_carrier_or_logger() -> None:
    """What a half is measured with has not been seen in the other one, and every family has its cases."""
    halves: list[set[str]] = [set(), set()]
    for plan in plans(6, 11):
        halves[plan.held_out] |= {plan.family, plan.carrier, plan.logger}
    assert halves[0] & halves[1] <= {"print {text}"}  # no logger at all
    assert set(FAMILIES) <= halves[0] | halves[1]


def test_a_draw_stays_what_it_was() -> None:
    """A seed draws the same cases again: the figures of a first sight name their draw."""
    drawn = "\n".join(f"{plan.id} {plan.struck} {plan.nodes}" for plan in plans(6, 9))
    assert hashlib.sha256(drawn.encode()).hexdigest()[:12] == "b2c05a265cf7"


@pytest.mark.parametrize(
    ("carrier", "rank", "node"),
    [("srun host", 3, "dgx-02"), ("victoria", 3, "dgx-02"), ("csv sink", None, "dgx-02")],
)
def test_only_what_the_log_shows_is_labelled(carrier: str, rank: int | None, node: str | None) -> None:
    """A head or a launcher's words name the rank and the node; where no line does, there is no label."""
    case = make_case(replace(PLAN, carrier=carrier), RUN, Path("/nowhere"))
    assert (case.label["rank"], case.label["node"]) == (rank, node)
    assert "KeyError" in case.log[case.label["root_lines"][0] - 1]


@pytest.mark.parametrize(("missing", "rank"), [(2, 2), (1, None)])
def test_a_peer_that_waits_in_vain_names_the_rank(missing: int, rank: int | None) -> None:
    """Where the failed process's own lines are not told apart, what others say of it shows which it was."""
    lines = [
        Line("KeyError: 'position_ids'", 11.0, 0, "stderr", rank=2),
        Line(f"TimeoutError: merge of bucket 9: part {missing} has not delivered", 11.1, 0, "stderr", rank=3),
    ]
    plan = replace(PLAN, family="dedup hosts", carrier="console", struck=(2,))
    case = make_case(plan, Run(lines, [End(0, 1, 11.2)]), Path("/nowhere"))
    assert (case.label["root_lines"], case.label["rank"]) == ([1], rank)


def test_a_run_that_did_not_fail_gets_no_label() -> None:
    """The truth is what was injected: a run that ended well in spite of it is no case."""
    with pytest.raises(NoRootLine):
        make_case(PLAN, replace(RUN, ends=[End(3, 0, 11.1)]), Path("/nowhere"))


def test_every_carrier_writes_each_line_once() -> None:
    """No line of a process is lost or doubled on its way, whatever stands between the lines."""
    for carrier, row in CARRIERS.items():
        if row.get("starts", "rank") == "rank":
            log = make_case(replace(PLAN, carrier=carrier), RUN, Path("/nowhere")).log
            assert sum("EOFError" in line for line in log) == 1


def test_the_halves_of_the_seventh_share_no_launcher_or_pipe() -> None:
    """Its cases are written down: each names what there is, and a half has not seen what the other is measured with."""
    halves: list[set[str]] = [set(), set()]
    for plan in seventh.plans():
        assert plan.fault in seventh.FAULTS
        halves[plan.held_out] |= {plan.family, plan.launcher, plan.pipe or plan.family}
    assert not halves[0] & halves[1]
    assert halves[0] | halves[1] >= set(seventh.LAUNCHERS)
