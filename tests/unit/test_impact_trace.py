"""The report of a job trace in the columns of AcmeTrace, against figures computed by hand."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diagnoser.cli import cli
from diagnoser.impact.markdown import trace_markdown
from diagnoser.impact.report import Spread
from diagnoser.impact.trace import TraceReport, build_trace_report
from diagnoser.model.errors import BadInput
from diagnoser.redaction.redact import redact

TRACES = Path(__file__).resolve().parents[1] / "job_traces"
SEREN, KALOS = (TRACES / "seren.csv").read_text(), (TRACES / "kalos.csv").read_text()


@pytest.fixture(scope="module")
def report() -> TraceReport:
    return build_trace_report(SEREN.splitlines())


def test_totals(report: TraceReport) -> None:
    """Seven jobs with GPUs, of which four failed: 128 + 64 + 8 hours and two minutes; another held 256 hours."""
    assert (report.total.jobs, report.total.failed, report.cpu_jobs, report.unreadable) == (7, 4, 1, 3)
    assert report.total.failed_gpu_hours == pytest.approx(128 + 64 + 8 + 120 / 3600)
    assert report.total.gpu_hours == pytest.approx(128 + 64 + 8 + 120 / 3600 + 256 + 0.5)
    assert report.total.queue == Spread(6, 16.0, 600.0)
    assert (report.since, report.until) == (1677628800.0, 1677664830.0)


def test_groups(report: TraceReport) -> None:
    """The group whose failures held most GPU hours is first; a state of the paper's keeps its name."""
    states = [(group.name, group.jobs, group.failed, round(group.gpu_hours, 2)) for group in report.by_state]
    assert states == [
        ("FAILED", 2, 2, 128.03),
        ("NODE_FAIL", 1, 1, 64.0),
        ("TIMEOUT", 1, 1, 8.0),
        ("CANCELLED", 2, 0, 256.0),
        ("COMPLETED", 1, 0, 0.5),
    ]
    assert [(group.name, group.jobs, group.failed) for group in report.by_type] == [
        ("Pretrain", 3, 2),
        ("Other", 2, 1),
        ("Evaluation", 2, 1),
    ]
    assert [(group.name, group.jobs) for group in report.by_size] == [("9-64", 3), ("2-8", 2), ("1", 2)]
    assert [(group.name, group.failed) for group in report.by_user] == [("u1", 2), ("u3", 1), ("u2", 1)]
    assert [(rate.size, rate.hours, rate.failures) for rate in report.rates] == [
        ("1", pytest.approx(1920 / 3600), 1),
        ("2-8", 1.0, 1),
        ("9-64", 7.0, 2),
    ]


def test_the_columns_of_kalos_are_read_by_name() -> None:
    """That cluster has more of them, in between."""
    report = build_trace_report(KALOS.splitlines())
    assert (report.total.failed, report.total.gpu_hours, report.total.queue) == (1, 1280 / 3600, Spread(1, 10.0, 10.0))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no column user"),
        ("job_id,user\n1,u1\n", "no column gpu_num, type"),
        (KALOS.splitlines()[0], "no row of the trace"),
        (KALOS + '"' + "x" * 200_000, "line 3 of the trace is no CSV"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(text: str, why: str) -> None:
    """With what it lacks."""
    with pytest.raises(BadInput, match=why):
        build_trace_report(text.splitlines())


def test_markdown_names_what_a_trace_cannot_say() -> None:
    """And takes its names as they are."""
    trace = SEREN.replace("u3", "a [b](http://evil)")
    text = trace_markdown(build_trace_report(trace.splitlines()), redact)
    assert "- 7 jobs with GPUs, 1 without, which are not counted below" in text
    assert "- ETTR and goodput: a trace has no checkpoints" in text
    assert "a \\[b\\]" in text


def test_the_command_reads_a_trace(tmp_path: Path) -> None:
    """Without a store."""
    path = tmp_path / "trace.csv"
    path.write_text(SEREN)
    printed = CliRunner().invoke(cli, ["report", "--trace", str(path), "--json"], catch_exceptions=False)
    report = json.loads(printed.output)
    assert (report["total"]["failed"], len(report["left_out"])) == (4, 5)
