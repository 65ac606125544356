"""The order of incidents by what they cost."""

from dataclasses import replace

import pytest

from diagnoser.model import FailedRun, Incident, IncidentState
from diagnoser.model.taxonomy import Category, FailureType
from diagnoser.recovery.priority import by_cost, is_one_off

NOW = 1_000_000.0
HOUR = 3_600.0
LOST_GPU = Incident(
    "lost",
    "east",
    "gpu-017",
    Category.INFRASTRUCTURE,
    FailureType.GPU_LOST,
    "NVRM: Xid 79",
    "d1",
    first_seen=NOW - 2 * HOUR,
    last_seen=NOW - HOUR,
    failures=5,
    jobs=5,
)
SCRIPT = replace(
    LOST_GPU,
    id="script",
    node="",
    category=Category.SCRIPT,
    type=FailureType.KEY_ERROR,
    failures=1,
    jobs=1,
    last_seen=NOW - 10,
)


def run(gpus: int | None, hours: float, relaunched: float | None = None) -> FailedRun:
    return FailedRun(NOW - hours * HOUR, NOW - hours * HOUR, gpus, relaunched)


def first(*incidents: Incident, **runs: list[FailedRun]) -> str:
    return by_cost(incidents, runs, NOW)[0].incident.id


def test_a_lost_gpu_with_five_failures_comes_before_newer_script_errors() -> None:
    """However many of them there are, and whatever GPUs their jobs have."""
    scripts = [replace(SCRIPT, id=f"s{number}") for number in range(200)]
    runs = {one.id: [run(512, 0.1)] for one in scripts}
    assert first(*scripts, LOST_GPU, lost=[run(64, 1.0)] * 5, **runs) == "lost"


@pytest.mark.parametrize(
    ("costly", "cheap", "runs"),
    [
        ({"failures": 40}, {}, {}),
        ({"jobs": 40}, {}, {}),
        ({}, {}, {"costly": [run(1_024, 1.0)], "cheap": [run(8, 1.0)]}),
        ({}, {}, {"costly": [run(64, 1.0)], "cheap": [run(64, 1.0, NOW - 0.9 * HOUR)]}),
        ({}, {"last_seen": NOW - 30 * HOUR}, {}),
        ({}, {"state": IncidentState.ACKNOWLEDGED, "assignee": "ida"}, {}),
        ({}, {"category": Category.FRAMEWORK}, {}),
        ({"escalated": NOW, "failures": 1}, {"failures": 10_000}, {"cheap": [run(9_999_999, 20.0)] * 9}),
    ],
)
def test_each_term_lifts_what_costs_more(
    costly: dict[str, object], cheap: dict[str, object], runs: dict[str, list[FailedRun]]
) -> None:
    """Repeats, spread, GPUs that wait, jobs that do not run again, age, who works on it, machines, escalation."""
    one = replace(LOST_GPU, id="costly", **costly)  # type: ignore[arg-type]
    other = replace(LOST_GPU, id="cheap", **cheap)  # type: ignore[arg-type]
    assert first(other, one, **runs) == "costly"


def test_the_reasons_are_told_and_add_up() -> None:
    """The one that weighs most first; what a job claims for itself is bounded."""
    (ranked,) = by_cost([LOST_GPU], {"lost": [run(64, 1.0), run(None, 1.0)]}, NOW)
    assert ranked.terms[0].why == "64 GPUs of 2 jobs do not run again yet"
    assert {"it happened 5 times", "it hit 5 jobs", "the next job on gpu-017 may fail as well"} <= {
        term.why for term in ranked.terms
    }
    (liar,) = by_cost([SCRIPT], {"script": [run(9_999_999, 1.0)]}, NOW)
    assert liar.points < ranked.points


@pytest.mark.parametrize(
    ("changes", "folds"),
    [
        ({}, True),
        ({"failures": 2}, False),
        ({"assignee": "ida"}, False),
        ({"escalated": NOW}, False),
        ({"state": IncidentState.ACKNOWLEDGED}, False),
        ({"category": Category.FRAMEWORK}, False),
    ],
)
def test_a_script_error_that_happened_once_folds(changes: dict[str, object], *, folds: bool) -> None:
    """Unless it comes again, or somebody took it up."""
    assert is_one_off(replace(SCRIPT, **changes)) is folds  # type: ignore[arg-type]
