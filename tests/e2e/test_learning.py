"""Learned rules in real processes: hot reload in another replica, kill -9 between the steps, export."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import preloaded
from tests.e2e.service import service, until
from tests.e2e.test_feedback import UNKNOWN, fail, log
from tests.integration.model_server import NEVER, Reply, model_server
from tests.integration.scripted import question

ROOT = 30
"""Number of the line that shows the cause."""
KIND = "dataloader_killed"


def teach(client: httpx.Client, job: str = "quilt-1") -> str:
    """A failure that no rule knows, and a person who does: the id of the diagnosis."""
    found = fail(client, job, log(UNKNOWN, 4711, "gpu-017"))
    said = {"verdict": "corrected", "type": KIND, "root_line": ROOT}
    client.post(f"/api/v1/diagnoses/{found['id']}/feedback", json=said).raise_for_status()
    return str(found["id"])


def rules(client: httpx.Client, **where: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = client.get("/api/v1/rules", params=where).raise_for_status().json()["items"]
    return items


def rule_in(client: httpx.Client, state: str) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        return next(iter(rules(client, state=state)), None)

    rule: dict[str, Any] = until(found, f"a rule in {state}")
    return rule


def promote(client: httpx.Client, rule: str) -> None:
    client.post(f"/api/v1/rules/{rule}/promote", json={}).raise_for_status()


@pytest.mark.xdist_group("postgresql")
def test_what_one_replica_learned_the_other_decides_by(tmp_path: Path, postgresql_database: str) -> None:
    """Confirmed and promoted at one replica, which then dies: the other, running all the while, knows the failure."""
    folders = [tmp_path / name for name in ("left", "right")]
    for folder in folders:
        folder.mkdir()
    given = {"DIAGNOSER_DATABASE_URL": postgresql_database}
    with service(folders[0], **given) as first, service(folders[1], **given) as second:
        one, two = first.start(), second.start()
        teach(one)
        rule = rule_in(one, "shadow")
        promote(one, rule["id"])
        first.kill()
        found = fail(two, "quilt-2", log(UNKNOWN, 82, "gpu-201"))
        assert (found["type"], found["decided_by"]) == (KIND, f"rule:{rule['id']}")
        assert found["root_cause"]["line"] == ROOT
        (hit,) = until(lambda: two.get(f"/api/v1/rules/{rule['id']}").json()["hits"], "the hit")
        assert (hit["job"], hit["active"]) == ("quilt-2", True)
        assert second.stop() == 0


def test_killed_between_two_steps_the_rule_is_finished_after_the_restart(tmp_path: Path) -> None:
    """SIGKILL while the model writes, and again between writing and testing: nothing lost, nothing twice."""

    killed: list[bool] = []

    def slow(asked: dict[str, Any]) -> Reply:
        writes = question(asked).system.startswith("You write one rule")
        return Reply(json.dumps({}), wait=NEVER if writes and not killed else 0.0)

    with model_server(slow) as server:
        given = {
            "DIAGNOSER_LLM_URL": server.url,
            "DIAGNOSER_LLM_MODEL": "scripted",
            "DIAGNOSER_CLAIM_LEASE_SECONDS": "0.5",
        }
        with service(tmp_path, **given) as running:
            client = running.start()
            teach(client)
            until(lambda: any("You write one rule" in str(one) for one in server.asked), "the question for a rule")
            running.kill()
            killed.append(True)
            client = running.start()
            until(lambda: any(rule["text"] for rule in rules(client)), "the written rule")
            running.kill()
            client = running.start()
            rule = rule_in(client, "shadow")
            assert len(rules(client)) == 1
    assert rule["author"]["name"] == "template"
    assert rule["author"]["failure"].startswith("answer_malformed")
    assert all(gate["passed"] for gate in rule["gates"])


def test_exported_rules_prove_themselves(tmp_path: Path) -> None:
    """From a server and from its database the same files; `rules test` holds them, and a site may keep them."""
    by_url, by_database = tmp_path / "url", tmp_path / "database"
    with service(tmp_path) as running:
        client = running.start()
        teach(client)
        rule = rule_in(client, "shadow")
        promote(client, rule["id"])
        preloaded.run(["rules", "export", by_url, "--url", running.url]).check_returncode()
    database = {"DIAGNOSER_DATABASE_URL": f"sqlite:///{tmp_path}/test.db"}
    preloaded.run(["rules", "export", by_database], database).check_returncode()
    path = f"framework/{rule['id']}.yaml"
    assert (by_url / path).read_text() == (by_database / path).read_text() == rule["text"]
    assert "examples of 1 rules hold" in preloaded.run(["rules", "test", by_url]).stdout
