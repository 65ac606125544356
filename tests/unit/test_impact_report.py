"""The report of impact against figures that were computed by hand, on 40 failures with six kinds of trouble."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from diagnoser.cli import cli
from diagnoser.impact import poisson
from diagnoser.impact.closing import _BY_REASON, Closing
from diagnoser.impact.columns import Attempts
from diagnoser.impact.markdown import report_markdown
from diagnoser.impact.report import Cost, ImpactReport, Spread, build_report, size_of
from diagnoser.model import AttemptOutcome, Mode, PlanReason, PlanState
from diagnoser.model.record_json import RecordJson
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.redaction.redact import redact

ROOT = Path(__file__).resolve().parents[2]
NO_CAUSE = (Category.UNKNOWN, FailureType.UNKNOWN)
HOUR, DAY = 3600.0, 86_400.0
INFRASTRUCTURE, SCRIPT = Category.INFRASTRUCTURE, Category.SCRIPT
ECC, NCCL, KEY = FailureType.ECC_ERROR, FailureType.NCCL_TIMEOUT_ERROR, FailureType.KEY_ERROR


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


NOW = at("2026-09-30T12:00Z")


def plan(state: PlanState, reason: PlanReason, mode: Mode = Mode.ACT, *, waited: bool = False) -> dict[str, Any]:
    return {"mode": mode, "state": state, "reason": reason, "has_waited": waited}


CARRIED_OUT = plan(PlanState.REACHED, PlanReason.REACHED)
APPROVED = plan(PlanState.REACHED, PlanReason.REACHED, Mode.APPROVE, waited=True)
FOR_PEOPLE = plan(PlanState.ADVISED, PlanReason.FOR_A_PERSON)
UNPROVEN = plan(PlanState.WAITING, PlanReason.UNPROVEN, waited=True)
SPENT = plan(PlanState.HELD, PlanReason.RETRIES_SPENT)
TRIED = plan(PlanState.NOT_REACHED, PlanReason.NOT_REACHED)
ADVICE = plan(PlanState.ADVISED, PlanReason.OBSERVE, Mode.OBSERVE)
SENT = plan(PlanState.SENT, PlanReason.ACT)


def failed(
    job: str,
    number: int,
    opened: float,
    hours: float,
    *,
    planned: dict[str, Any] | None = None,
    verdict: float = 60.0,
    kind: tuple[Category, FailureType] = (INFRASTRUCTURE, ECC),
    gpus: int | None = 8,
    **more: Any,
) -> AttemptOutcome:
    """verdict: seconds from the failure to the verdict and plan."""
    end, (category, failure_type) = opened + hours * HOUR, kind
    fields = {"outcome": Outcome.FAILED, "category": category, "type": failure_type, "diagnosed": end + verdict}
    if planned:
        fields |= planned | {"planned": end + verdict}
    return ran(job, number, opened, hours, gpus, **(fields | more))


def ran(job: str, number: int, opened: float, hours: float, gpus: int | None = None, **more: Any) -> AttemptOutcome:
    label = None if gpus is None else str(gpus)
    return AttemptOutcome(job, number, opened, opened + hours * HOUR, gpus=label, **more)


def fixture() -> Iterator[AttemptOutcome]:
    # 10 failures that an agent recovered from, of 8 GPUs, after an hour each
    for number in range(10):
        job, opened = f"a{number}", at("2026-09-15T00:00Z") + number * HOUR
        node: dict[str, Any] = {"cluster": "east", "user": "ann", "node": "n1" if number < 5 else "n2"}
        yield failed(job, 1, opened, 5, planned=CARRIED_OUT, **node)
        yield ran(job, 2, opened + 6 * HOUR, 2, gpus=8, **node)
    # one job that is launched nine times: eight fail after ten hours, an hour after a checkpoint, and are approved.
    # The first fails on Sunday in UTC, and on Monday where the site is.
    opened = at("2026-09-20T14:30+02:00")
    of_b: dict[str, Any] = {"cluster": "east", "user": "cal", "node": "n3", "gpus": 64}
    for number in range(1, 9):
        shape: dict[str, Any] = {"verdict": 120.0, "kind": (INFRASTRUCTURE, NCCL), "saved": opened + 9 * HOUR} | of_b
        yield failed("b", number, opened, 10, planned=APPROVED, **shape)
        opened += 10.5 * HOUR
    yield ran("b", 9, opened, 10, **of_b)
    # 6 errors in scripts, of jobs that do not say their GPUs
    for number in range(6):
        begun = at("2026-09-08T08:00Z") + number * HOUR
        yield failed(
            f"c{number}", 1, begun, 1, planned=FOR_PEOPLE, kind=(SCRIPT, KEY), gpus=None, cluster="west", user="bob"
        )
    # 5 that people recovered from, after two to six hours
    for number, after in enumerate((2, 3, 4, 5, 6)):
        job, begun = f"d{number}", at("2026-09-22T00:00Z")
        of_d: dict[str, Any] = {"cluster": "west", "user": "ann", "node": "n1"}
        yield failed(job, 1, begun, 5, planned=UNPROVEN, **of_d)
        yield ran(job, 2, begun + (5 + after) * HOUR, 1, gpus=8, **of_d)
    # 2 jobs at the same time on one node, whose second launch begins ten minutes before the first one ends
    for job in ("e1", "e2"):
        of_e: dict[str, Any] = {
            "gpus": 16,
            "kind": NO_CAUSE,
            "cluster": "east",
            "user": "eve",
            "node": "n1",
        }
        yield failed(job, 1, at("2026-09-16T06:00Z"), 4, **of_e)
        yield failed(job, 2, at("2026-09-16T09:50Z"), 13 / 6, **of_e)
    # a job that moves to another cluster
    begun = at("2026-09-23T00:00Z")
    of_f: dict[str, Any] = {"gpus": 32, "user": "fay", "node": "n4"}
    yield failed("f", 1, begun, 4, planned=CARRIED_OUT, cluster="east", **of_f)
    yield failed("f", 2, begun + 5 * HOUR, 4, planned=CARRIED_OUT, cluster="west", **of_f)
    yield ran("f", 3, begun + 11 * HOUR, 4, cluster="west", **of_f)
    # 2 that are open, and 3 that nobody launched again
    of_g: dict[str, Any] = {"cluster": "east", "user": "gus"}
    yield failed("g1", 1, NOW - 2 * HOUR, 1, planned=SENT, **of_g)
    yield failed("g2", 1, NOW - 3 * HOUR, 1, gpus=None, **of_g)
    for job, planned in (("g3", SPENT), ("g4", TRIED), ("g5", ADVICE)):
        yield failed(job, 1, NOW - 3 * DAY - HOUR, 1, planned=planned, **of_g)


@pytest.fixture(scope="module")
def report() -> ImpactReport:
    return build_report(Attempts.of([[*fixture()]]), NOW - 30 * DAY, NOW)


def test_attempts_are_read_in_parts(report: ImpactReport) -> None:
    """The launches of a job may come in several."""
    assert build_report(Attempts.of([row] for row in fixture()), NOW - 30 * DAY, NOW) == report


def test_totals_and_savings(report: ImpactReport) -> None:
    """80 + 256 + 160 + 768 + 96 + 584 hours; saved against three hours, the median of 0, 0, 2, 3, 4, 5, 6."""
    assert (report.attempts, report.recovery.failures, report.recovery.without_gpus) == (57, 40, 7)
    assert report.recovery.lost_hours == pytest.approx(1944)
    assert report.manual == pytest.approx(3 * HOUR)
    assert report.recovery.saved_hours == pytest.approx(160 + 1280 + 96)


def test_how_failures_were_closed(report: ImpactReport) -> None:
    """12 of 38 without a person; two are open."""
    assert report.closings == {
        Closing.AUTOMATIC: 12,
        Closing.POLICY: 9,
        Closing.NO_PROOF: 5,
        Closing.UNKNOWN: 4,
        Closing.REPAIR: 6,
        Closing.GUARDRAIL: 1,
        Closing.NOT_REACHED: 1,
        Closing.OPEN: 2,
    }
    assert (report.share.automatic, report.share.closed, report.share.share) == (12, 38, 12 / 38)
    weeks = [(week.start, week.automatic, week.closed) for week in report.by_week]
    assert weeks == [
        (at("2026-09-07T00:00Z"), 0, 6),
        (at("2026-09-14T00:00Z"), 10, 15),
        (at("2026-09-21T00:00Z"), 2, 17),
        (at("2026-09-28T00:00Z"), 0, 0),
    ]
    categories = [(group.name, group.automatic, group.closed) for group in report.by_category]
    assert categories == [("infrastructure", 12, 28), ("script", 0, 6), ("unknown", 0, 4)]
    clusters = [(group.name, group.automatic, group.closed) for group in report.by_cluster]
    assert clusters == [("east", 11, 26), ("west", 1, 12)]


def test_a_job_that_moves_is_launched_again_elsewhere() -> None:
    """The next launch counts for a failure of the cluster that is reported on, wherever it runs."""
    east = build_report(Attempts.of([[*fixture()]]), NOW - 30 * DAY, NOW, cluster="east")
    assert (east.attempts, east.share.automatic, east.share.closed, east.to_relaunch.count) == (39, 11, 26, 21)


def costs(listed: object) -> list[tuple[str, str, float, int, int]]:
    assert isinstance(listed, list)
    rows: list[Cost] = listed
    return [(row.cluster, row.name, round(row.gpu_hours, 6), row.failures, row.without_gpus) for row in rows]


def test_what_cost_most(report: ImpactReport) -> None:
    """A name of a node means another node on another cluster."""
    assert costs(report.cost_by_category) == [
        ("", "infrastructure", 1176.0, 30, 1),
        ("", "unknown", 768.0, 4, 0),
        ("", "script", 0.0, 6, 6),
    ]
    assert costs(report.cost_by_size) == [
        ("", "9-64", 1120.0, 14, 0),
        ("", "2-8", 824.0, 19, 0),
        ("", "unknown", 0.0, 7, 7),
    ]
    users = [(row.name, round(row.gpu_hours, 6)) for row in report.cost_by_user]
    assert users == [("eve", 768), ("gus", 584), ("cal", 256), ("ann", 240), ("fay", 96), ("bob", 0)]
    assert costs(report.costly_nodes) == [
        ("east", "n1", 808.0, 9, 0),
        ("east", "n3", 256.0, 8, 0),
        ("west", "n1", 160.0, 5, 0),
        ("west", "n4", 64.0, 1, 0),
        ("east", "n2", 40.0, 5, 0),
    ]
    assert [row.name for row in report.costly_jobs] == ["e1", "e2", "b", "g3", "g4"]


def test_times_from_the_failure(report: ImpactReport) -> None:
    """Nearest rank, of those to which it happened."""
    assert report.to_verdict == Spread(40, 60.0, 120.0)
    assert report.to_plan == Spread(35, 60.0, 120.0)
    assert report.to_relaunch == Spread(27, HOUR, 4 * HOUR)


def test_time_to_failure_by_size(report: ImpactReport) -> None:
    """Bounds by the chi-square quantiles of tables: 11.4393 and 29.6709 for 19 failures."""
    by_size = {rate.size: rate for rate in report.rates}
    small, large, unknown = by_size["2-8"], by_size["9-64"], by_size["unknown"]
    assert [small.failures, large.failures, unknown.failures] == [19, 10, 1]
    assert [small.hours, large.hours, unknown.hours] == pytest.approx([104, 114, 7])
    assert [small.mttf, large.mttf, unknown.mttf] == pytest.approx([104 / 19, 11.4, 7])
    assert [small.low, small.high] == pytest.approx([104 / 29.6709, 104 / 11.4393], rel=1e-4)


def test_training_time_of_long_jobs(report: ImpactReport) -> None:
    """Nine hours of each failed launch were saved, and all ten of the last: 82 of 94, and of 90 that GPUs were held."""
    (job,) = report.long_jobs
    assert (job.job, job.failures, job.is_bound) == ("b", 8, False)
    assert [job.hours, job.ettr, job.goodput] == pytest.approx([94, 82 / 94, 82 / 90])


def test_a_job_that_reports_no_checkpoint_has_a_bound() -> None:
    """What it lost since the last one is not known."""
    runs = [failed("j", 1, NOW - 30 * HOUR, 10), ran("j", 2, NOW - 15 * HOUR, 15)]
    (job,) = build_report(Attempts.of([runs]), NOW - 7 * DAY, NOW).long_jobs
    assert job.is_bound
    assert job.ettr == pytest.approx(25 / 30)


@pytest.mark.parametrize(
    ("events", "low", "high"),
    [(0, 0.0, 3.6889), (1, 0.0253, 5.5716), (10, 4.7954, 18.3904), (100, 81.3640, 121.6268)],
)
def test_bounds_are_those_of_tables(events: int, low: float, high: float) -> None:
    """Garwood's, with 95 % confidence."""
    assert list(poisson.mean_bounds(events)) == pytest.approx([low, high], abs=5e-5)


def test_every_reason_is_classified_on_purpose() -> None:
    """Reasons that are left out tell how a plan went on; a new one has to be added to either."""
    course = {"ACT", "APPROVED", "TAKEN_BACK", "REFUSED", "EXPIRED", "LATER_DIAGNOSIS", "REACHED", "NOT_REACHED"}
    assert {reason.name for reason in PlanReason if reason not in _BY_REASON} == course


def test_sizes_of_jobs() -> None:
    """Bounds belong to the smaller size."""
    assert [size_of(gpus) for gpus in (None, 0, 1, 8, 9, 512, 5000)] == [
        *("unknown", "unknown", "1", "2-8", "9-64", "65-512", "4097+")
    ]


def test_markdown_takes_names_as_they_are(report: ImpactReport) -> None:
    """A name of a user draws no table, link or secret."""
    text = report_markdown(report, "/impact", redact)
    assert "12 of 38 closed without a person (32\u2009%)" in text
    assert r"| n1 \(west\) | 5 | 160.0 | 0 |" in text
    hostile = [failed("j", 1, NOW - HOUR, 1, user="a | [b](http://evil) api_key=sk-abcdefghijklmnopqrstuvwxyz012345")]
    shown = report_markdown(build_report(Attempts.of([hostile]), NOW - DAY, NOW), "/impact", redact)
    assert "a \\| \\[b\\]" in shown
    assert "sk-abcdef" not in shown


def test_the_dashboard_reads_what_the_report_has(report: ImpactReport) -> None:
    """Each column of each panel is a field of the answer."""
    answer = RecordJson(ImpactReport).plain(report)
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "impact" / "impact.json").read_text())
    for panel in dashboard["panels"]:
        [target] = panel["targets"]
        part = answer[target["root_selector"]]
        row = part[0] if isinstance(part, list) else part
        assert {column["selector"] for column in target["columns"]} <= row.keys(), panel["title"]


def test_launches_wait_in_the_queue() -> None:
    """As the scheduler says, and then for their first step, by size; launches of before the window are left out."""
    waits = [(1, 30.0, None), (8, 600.0, 90.0), (8, 60.0, 30.0), (8, None, None), (None, 5.0, None)]
    again = ran("q", 2, NOW - HOUR / 2, 0.5, gpus=1, waited=10.0)
    runs = [
        ran(f"q{place}", 1, NOW - HOUR, 1, gpus=gpus, waited=waited, startup=startup)
        for place, (gpus, waited, startup) in enumerate(waits)
    ]
    early = ran("early", 1, NOW - 3 * DAY, 72, gpus=8, waited=9_000.0, startup=9_000.0)
    made = build_report(Attempts.of([[early, again], runs]), NOW - DAY, NOW)
    assert (made.queue, made.relaunches) == (Spread(5, 30.0, 600.0), 1)
    assert made.queue_by_size == {
        "1": Spread(2, 20.0, 30.0),
        "2-8": Spread(2, 330.0, 600.0),
        "unknown": Spread(1, 5.0, 5.0),
    }
    assert (made.startup, made.startup_by_size) == (Spread(2, 60.0, 90.0), {"2-8": Spread(2, 60.0, 90.0)})
    text = report_markdown(made, "/impact", redact)
    assert "| 2-8 | 2 | 5 min 30 s | 10 min |" in text
    assert "| 2-8 | 2 | 1 min | 1 min 30 s |" in text


def test_the_command_prints_both_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an empty store: no figure is made up."""
    monkeypatch.setenv("DIAGNOSER_DATABASE_URL", f"sqlite:///{tmp_path}/store.db")
    printed = CliRunner().invoke(cli, ["report", "--week", "--json"], catch_exceptions=False)
    report = json.loads(printed.output)
    assert (report["recovery"]["lost_hours"], report["closings"]["automatic"]) == (None, 0)
    printed = CliRunner().invoke(cli, ["report", "--week"], catch_exceptions=False)
    assert "0 of 0 closed without a person (none closed yet)" in printed.output
