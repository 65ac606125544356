"""What the service cannot see, decided from what it last heard."""

from dataclasses import replace

import pytest

from diagnoser.model.vitals import AgentSeen, BlindSpotKind, Vitals, Waiting
from diagnoser.observability.blind_spots import JOB_LINE, find_blind_spots

NOW = 1_790_000_000.0
WELL = Vitals(
    time=NOW,
    newest_line=NOW - 2,
    together=3,
    running=3,
    agents=(AgentSeen("east", "slurm@head", NOW - 20),),
    node_logs={"east": {"gpu-1": NOW - 30, "gpu-2": NOW - 900}},
    busy=frozenset({"gpu-1", "gpu-2"}),
    due=Waiting(1, NOW - 20, ("job-1",)),
    undelivered=Waiting(1, NOW - 60, ("slack",)),
)
"""A service that hears all it should."""


def kinds(vitals: Vitals) -> list[tuple[BlindSpotKind, str]]:
    return [(spot.kind, spot.subject) for spot in find_blind_spots(vitals)]


def test_a_service_that_hears_everything_has_none() -> None:
    """Neither has one that nobody has used yet."""
    assert kinds(WELL) == []
    assert kinds(Vitals(NOW)) == []


@pytest.mark.parametrize(
    ("change", "kind", "subject"),
    [
        ({"newest_line": NOW - 301, "together": 1}, "intake_stopped", ""),
        ({"newest_line": NOW - 901, "running": 0}, "intake_stopped", ""),
        ({"silent": Waiting(1, NOW - 700, ("job-1",))}, "job_silent", ""),
        ({"mute": Waiting(2, NOW - 700, ("job-1", "job-2"))}, "job_without_lines", ""),
        ({"agents": (AgentSeen("east", "slurm@head", NOW - 181),)}, "agent_silent", "east"),
        ({"node_logs": {"east": {"gpu-1": NOW - 901, "gpu-2": NOW - 901}}}, "node_logs_stopped", "east"),
        ({"node_logs": {"east": {"gpu-1": NOW - 1}}}, "node_logs_missing", ""),
        ({"node_logs": {"east": {"gpu-1": NOW - 1, "gpu-2": NOW - 3601}}}, "node_logs_missing", ""),
        ({"node_logs": {}}, "node_logs_never_sent", "east"),
        ({"due": Waiting(4, NOW - 301, ("job-1",))}, "diagnosis_late", ""),
        ({"undelivered": Waiting(4, NOW - 901, ("slack",))}, "messages_undelivered", ""),
    ],
)
def test_what_is_missing_is_told_by_its_name(change: dict[str, object], kind: str, subject: str) -> None:
    """Each thing that the service should hear, and does not, is one blind spot and no other."""
    assert kinds(replace(WELL, **change)) == [(BlindSpotKind(kind), subject)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"newest_line": NOW - 299, "together": 1},
        {"newest_line": NOW - 899, "running": 0},
        {"newest_line": NOW - 86_000, "running": 1, "together": 1},
        {"newest_line": 0.0, "running": 0, "together": 0},
        {"agents": (AgentSeen("east", "slurm@head", NOW - 179),)},
        {"node_logs": {"east": {"gpu-1": NOW - 899, "gpu-2": NOW - 3599}}},
        {"agents": (), "node_logs": {}},
        {"busy": frozenset(), "node_logs": {}},
        {"busy": frozenset({"gpu-1"})},
        {"due": Waiting(100, NOW - 299)},
        {"undelivered": Waiting(100, NOW - 899)},
    ],
)
def test_what_may_well_be_missing_is_not_told(change: dict[str, object]) -> None:
    """Within its patience nothing is missing; one job that is silent may hang, and idle nodes have nothing to say."""
    assert kinds(replace(WELL, **change)) == []  # type: ignore[arg-type]


def test_a_stop_of_everything_is_told_once() -> None:
    """Where no job is heard any more, the single jobs are not told as well."""
    stopped = replace(WELL, newest_line=NOW - 700, silent=Waiting(3, NOW - 700, ("a", "b", "c")))
    assert kinds(stopped) == [(BlindSpotKind.INTAKE_STOPPED, "")]


def test_each_cluster_is_told_for_itself() -> None:
    """Two silent agents are two blind spots; the one that is heard is none."""
    agents = tuple(AgentSeen(name, "agent", NOW - age) for name, age in (("a", 500), ("b", 10), ("c", 900)))
    told = [spot for spot in find_blind_spots(replace(WELL, agents=agents)) if spot.kind is BlindSpotKind.AGENT_SILENT]
    assert [spot.subject for spot in told] == ["a", "c"]
    assert [spot.since for spot in told] == [NOW - 500, NOW - 900]


def test_a_sentence_names_a_few_and_counts_the_rest() -> None:
    """However many jobs are silent, what is told stays short."""
    names = tuple(f"job-{number}" for number in range(20))
    (spot,) = find_blind_spots(replace(WELL, silent=Waiting(1234, NOW - JOB_LINE - 1, names)))
    assert "1,234 jobs" in spot.what
    assert "(job-0, job-1, job-2, job-3, job-4 and 1,229 more)" in spot.what
