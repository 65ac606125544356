"""The Log Agent of the real process: routine of a job family is learned behind the verdicts, and shown to people."""

from pathlib import Path
from typing import Any

import httpx

from tests.e2e.service import diagnosis_of, send, service, until
from tests.integration.model_server import model_server
from tests.integration.test_log_agent import RULES, agent_says, log

SITE = {"LOG_AGENT": "true", "MODEL_NAME": "scripted", "FILTERS_PROMOTE_AFTER": "0"}


def run(client: httpx.Client, number: int) -> dict[str, Any]:
    """A run of the family that fails; its diagnosis."""
    job = f"feeding-{number}"
    client.post("/api/v1/jobs", json={"id": job, "framework": "qx"}).raise_for_status()
    lines = log().splitlines(keepends=True)
    send(client, lines, 0, len(lines), job=job)
    client.post(f"/api/v1/jobs/{job}/events", json={"kind": "exit", "code": 1}).raise_for_status()
    return diagnosis_of(client, job)


def rule_in(client: httpx.Client, state: str) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        items = client.get("/api/v1/rules", params={"kind": "filter"}).raise_for_status().json()["items"]
        return next((one for one in items if one["state"] == state), None)

    return until(found, f"a Filter Rule in {state}")  # type: ignore[no-any-return]


def test_routine_is_learned_tried_and_put_in_force_by_a_person(tmp_path: Path) -> None:
    """In shadow after the first run, counted on the next, promoted on the page; then the family reads shorter, also
    after a kill."""
    settings = {f"DIAGNOSER_{name}": value for name, value in SITE.items()}
    with (
        model_server(agent_says(*RULES)) as server,
        service(tmp_path, DIAGNOSER_LLM_URL=server.url, **settings) as running,
    ):
        client = running.start()
        before = run(client, 1)
        rule = rule_in(client, "shadow")
        run(client, 2)
        until(lambda: rule_in(client, "shadow")["counts"]["lines"] == 160, "what it would have hidden")
        page = client.get("/rules").raise_for_status().text
        form = {"decision": "promote", "by": "ida", "comment": "routine indeed"}
        client.post(f"/rules/{rule['id']}/decide", data=form, headers={"Origin": running.url})
        rule_in(client, "active")
        until(lambda: running.log().count("rules_loaded") >= 2, "the replica has the rule")
        after = run(client, 3)
        running.kill()
        client = running.start()
        again = run(client, 4)
        until(lambda: "160.0" in _known(client), "lines counted in force")
    assert rule["id"] in page and "qx//feeding" in page and "160" in page
    assert rule["author"]["name"] == "llm:scripted"
    assert after["compression"]["bytes_out"] < before["compression"]["bytes_out"]
    assert again["compression"] == after["compression"]
    assert (after["type"], after["root_cause"]) == (before["type"], before["root_cause"])


def _known(client: httpx.Client) -> str:
    rows = client.get("/metrics").text.split("\n")
    return next((row for row in rows if row.startswith('diagnoser_filter_matched_lines_total{state="active"}')), "")
