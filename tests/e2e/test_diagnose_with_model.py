"""`diagnose` and `explain` with a configured model: many files, and nothing lost when the model fails."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded
from tests.command_line import invoke
from tests.e2e.service import DEMO_LOG
from tests.integration.model_server import NEVER, Reply, Say, model_server, refusal
from tests.integration.scripted import answer, question

ODD = "step 1 loss 9.1\nstep 2 loss 8.7\nzx81: lane 4 degraded beyond repair, giving up\n"
GUESS = 'Traceback (most recent call last):\n  File "/srv/t.py", line 8, in go\nlanes.LaneError: lane 4 degraded\n'


def run(command: str, url: str, *files: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    named = {"LLM_URL": url, "LLM_MODEL": "scripted", **settings}
    environment = {**os.environ, **{f"DIAGNOSER_{name}": value for name, value in named.items()}}
    return preloaded.run([*command.split(), *files], environment)


def verdicts(url: str, *files: Path, **settings: str) -> list[dict[str, Any]]:
    done = invoke("diagnose", "--json", *files, LLM_URL=url, LLM_MODEL="scripted", **settings)
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    """One that the rules know, one that they do not, one that they guess at."""
    odd, guess = tmp_path / "odd.log", tmp_path / "guess.log"
    odd.write_text(ODD)
    guess.write_text(GUESS)
    return [DEMO_LOG, odd, guess]


def knows(asked: dict[str, Any]) -> Reply:
    number, text = next((n, t) for n, t in question(asked).lines.items() if "degraded" in t)
    return answer("nvlink_error", {number: text})


def test_doubtful_verdicts_alone_are_asked_about(logs: list[Path]) -> None:
    """A line of JSON for each file, in their order, with what the model said, why it was asked and what it changed."""
    with model_server(knows) as server:
        told = run("diagnose --json", server.url, *logs)
        shown = run("diagnose", server.url, logs[2]).stdout
        explained = run("explain", server.url, logs[1]).stdout
    assert told.returncode == 0, told.stderr
    sure, odd, guess = map(json.loads, told.stdout.splitlines())
    assert (sure["type"], sure["model"], sure["doubts"]) == ("ecc_error", None, [])
    assert (odd["type"], odd["decided_by"], odd["model"]["asked"]) == ("nvlink_error", "llm:scripted", ["unknown"])
    assert odd["recovery"]["action"] == "check_and_resubmit"
    assert (guess["type"], guess["model"]["asked"]) == ("nvlink_error", ["unsure"])
    assert (guess["model"]["before"]["type"], guess["model"]["effect"]) == ("runtime_error", "decided")
    assert "asked because verdicts of its kind are often wrong" in " ".join(shown.split())
    assert "notify_user -> check_and_resubmit" in " ".join(shown.split())
    assert "asked because no rule knows the failure" in explained


@pytest.mark.parametrize(
    ("say", "reason"),
    [
        (lambda _: Reply(status=500, raw=b"oops"), "model_unavailable"),
        (lambda _: refusal("no"), "answer_format_refused"),
        (lambda _: refusal("wrong key", 401), "model_denied"),
        (lambda _: Reply(wait=NEVER), "model_timeout"),
        (lambda _: Reply("The lane, I think."), "answer_malformed"),
        (lambda asked: answer("nvlink_error", {1: "the switch caught fire"}), "evidence_not_found"),
    ],
)
def test_a_model_that_fails_costs_no_verdict(say: Say, reason: str, logs: list[Path]) -> None:
    """Down, slow or talking nonsense: every file has the verdict that it has without a model, with the reason."""
    alone = verdicts("", *logs)
    with model_server(say) as server:
        found = verdicts(server.url, *logs, LLM_DEADLINE_SECONDS="3" if reason == "model_timeout" else "60")
    for without, verdict in zip(alone, found, strict=True):
        use = verdict.pop("model")
        assert use is None or use["failure"] == reason
        assert verdict == {key: value for key, value in without.items() if key != "model"}


def test_nothing_listens(logs: list[Path]) -> None:
    """The verdicts come all the same, and standard error stays quiet."""
    done = run("diagnose --json", "http://127.0.0.1:9/v1", *logs)
    assert done.returncode == 0
    assert [json.loads(line)["type"] for line in done.stdout.splitlines()] == ["ecc_error", "unknown", "runtime_error"]
    assert done.stderr == ""


def test_a_model_is_left_alone_on_wish(logs: list[Path]) -> None:
    """`never` asks nothing."""
    with model_server(knows) as server:
        assert [found["model"] for found in verdicts(server.url, *logs, LLM_TRIGGER="never")] == [None] * 3
        assert server.asked == []
