"""`diagnoser rules try`: what a pattern matches, without a service and with one."""

import json
from pathlib import Path
from typing import Any

import pytest

from diagnoser.commands import rule_trial
from diagnoser.model.errors import BadInput
from tests.command_line import invoke


def tried(*words: str | Path) -> dict[str, Any]:
    result = invoke("rules", "try", *words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_pattern_is_held_against_the_examples_of_all_rules() -> None:
    """Which say whose they are, and whether the rule must match them."""
    found = tried("CUDA out of memory")["examples"]
    assert found["matched"] >= len(found["items"]) > 3 and found["searched"] > 1000
    owners = {(item["owner"], item["is_counter"]) for item in found["items"]}
    assert {("cuda_oom", False), ("cuda_oom", True)} <= owners
    line = found["items"][0]["line"]
    (start, stop), *_ = line["spans"]
    assert line["text"][start:stop] == "CUDA out of memory"


def test_log_files_are_searched_as_the_service_reads_them(tmp_path: Path) -> None:
    """Anchors and exceptions count; what a terminal would obey is not printed."""
    log = tmp_path / "train.log"
    log.write_text("step 1\nfeeder: quilt seam 1 torn\nfeeder: quilt seam 2 mended\nquilt seam 3 torn \x1b[31m\n")
    (found,) = tried("quilt seam", "--anchor", "feeder", "--unless", "mended$", "--log", log)["logs"]
    assert [item["text"] for item in found["items"]] == ["feeder: quilt seam 1 torn"]
    shown = invoke("rules", "try", "quilt seam", "--log", log).stdout
    assert "quilt seam 3 torn" in shown and "\x1b[31m" not in shown


def test_a_service_is_asked_for_its_stored_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the token, in one request; its counts stand before those of the examples."""
    asked: list[tuple[str, str, object]] = []
    line = {"text": "a torn quilt seam", "spans": [[2, 6]]}
    case = {"job": "j", "attempt": 1, "diagnosis": "1", "type": "gpu_lost", "is_root": True, "lines": 1, "line": line}
    cases = {"matched": 1, "searched": 2, "known": 3, "items": [case]}

    def fetched(address: str, token: str, sent: object) -> dict[str, Any]:
        asked.append((address, token, sent))
        return {"cases": cases, "healthy": cases | {"items": []}, "types": {"gpu_lost": 1}, "is_complete": False}

    monkeypatch.setattr(rule_trial, "fetch_json", fetched)
    shown = invoke("rules", "try", "torn", "--url", "http://d.test/", "--token", "t").stdout
    assert asked == [("http://d.test/api/v1/rules/try", "t", {"patterns": ["torn"], "anchors": [], "unless": []})]
    assert "1 of 2 stored failures match: gpu_lost 1" in shown and "j/1" in shown and "a torn quilt seam" in shown
    assert "try again" in shown


@pytest.mark.parametrize(("words", "told"), [(("(",), "RE2"), (("x", "--log", "/no/such.log"), "No such file")])
def test_what_cannot_be_tried_is_an_error(words: tuple[str, ...], told: str) -> None:
    """A pattern that RE2 refuses, and a file that is not there."""
    with pytest.raises(BadInput, match=told):
        invoke("rules", "try", *words)
