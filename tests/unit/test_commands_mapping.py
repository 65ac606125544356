"""`diagnoser check-mapping`: what samples become, and an exit code for scripts."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diagnoser.cli import cli

RUN = CliRunner()


def checked(*arguments: str, text: str | None = None) -> tuple[int, list[dict[str, object]]]:
    result = RUN.invoke(cli, ["check-mapping", "--json", *arguments], input=text)
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


def test_samples_of_all_kinds_are_read() -> None:
    """A record, labels as Loki shows them, and name=value: each says its place and what decided it."""
    samples = ('{"slurm": {"job": {"id": 7}}, "rank": 3}', '{job="llm", host="gpu-1"}', "job=llm attempt=2")
    code, (slurm, loki, pairs) = checked(*samples)
    assert code == 0
    assert (slurm["job"], slurm["rank"]) == ("slurm-7", 3)
    assert slurm["decided"]["job"] == {"value": "slurm-7", "by": "preset slurm", "labels": ["slurm.job.id"]}  # type: ignore[index]
    assert (loki["job"], loki["node"], loki["placed"]) == ("llm", "gpu-1", True)
    assert (pairs["job"], pairs["attempt"]) == ("llm", 2)


def test_a_sample_without_a_place_says_what_was_missing() -> None:
    """With the reason, what was received, and lines that would place it; the exit code tells a script."""
    code, (result,) = checked('{app="web"}')
    assert code == 1
    assert (result["placed"], result["reason"], result["read"]) == (False, "no_job", {"app": "web"})
    assert result["mapping"] == "job:\n  - app\n"


def test_files_and_standard_input_are_read(tmp_path: Path) -> None:
    """One record a line, or a document."""
    rows = tmp_path / "rows.ndjson"
    rows.write_text('{"job": "a"}\n\n{"job": "b"}\n')
    assert [result["job"] for result in checked(str(rows))[1]] == ["a", "b"]
    assert [result["job"] for result in checked(text='[\n {"job": "c"},\n {"job": "d"}\n]')[1]] == ["c", "d"]


def test_a_mapping_file_is_tried_before_it_is_used(tmp_path: Path) -> None:
    """The file decides, by its name; a faulty one tells all of its faults."""
    file = tmp_path / "site.yaml"
    file.write_text("job: [experiment]\n")
    code, (result,) = checked("--mapping", str(file), "experiment=run-1 job=scrape")
    assert (code, result["job"]) == (0, "run-1")
    assert result["decided"]["job"]["by"] == str(file)  # type: ignore[index]
    file.write_text("jobs: [experiment]\npresets: [slum]\n")
    assert RUN.invoke(cli, ["check-mapping", "--mapping", str(file), "a=b"]).exit_code == 1


def test_the_table_reads_as_one_sentence_a_sample() -> None:
    """For people: what decided each field, and where the line goes."""
    result = RUN.invoke(cli, ["check-mapping", "job=llm rank=3", "_TRANSPORT=kernel _HOSTNAME=gpu-1", "app=web"])
    assert result.exit_code == 1
    assert "= job llm, attempt the latest, rank 3, source stdout" in result.stdout
    assert "= the own log of node gpu-1: its sender needs a token with the scope agent" in result.stdout
    assert "NO PLACE  no job: none of app names one" in result.stdout
    assert "      - app" in result.stdout


@pytest.mark.parametrize("sample", ["a line of log", "{broken", "[1]", '{"a" 1}'])
def test_what_is_no_sample_is_told(sample: str) -> None:
    """A line without labels cannot be placed by any mapping."""
    result = RUN.invoke(cli, ["check-mapping"], input=sample)
    assert result.exit_code == 1
    assert "not a" in str(result.exception)


@pytest.mark.parametrize(
    ("sample", "warning"),
    [
        ("_TRANSPORT=kernel SYSLOG_FACILITY=0 _HOSTNAME=gpu-1", ""),
        ("_TRANSPORT=kernel _HOSTNAME=gpu-1", "send journald's SYSLOG_FACILITY as well"),
        ("_TRANSPORT=syslog SYSLOG_IDENTIFIER=kernel _HOSTNAME=gpu-1", "proves nothing"),
        ("source=kernel _TRANSPORT=syslog _HOSTNAME=gpu-1", "its transport is syslog"),
        ("source=kernel _HOSTNAME=gpu-1", "proves what the shipper calls the kernel's"),
        ("source=syslog _HOSTNAME=gpu-1", "proves nothing"),
        ("source=scheduler _HOSTNAME=gpu-1", ""),
    ],
)
def test_a_node_log_that_proves_nothing_or_too_much_is_warned_of(sample: str, warning: str) -> None:
    """Before a shipper is trusted, a sample of its records tells what they are worth."""
    code, (result,) = checked(sample)
    assert (code, warning in str(result["warning"]), bool(result["warning"])) == (0, True, bool(warning))
