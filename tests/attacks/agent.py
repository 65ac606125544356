"""A double of a cluster's agent: it takes whatever plans it is given, and notes what it would have carried out."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.attacks.site import API, Lab, Site


async def work(site: Site, lab: Lab, answers: Mapping[str, str], faulty: str = "") -> None:
    """Claims every plan of the lab. answers: what each node says to a query, by its id. faulty: a node whose pairs
    fail in the node check."""
    claim = {"executor": "double", "cluster": lab.cluster}
    while (taken := await site.call(lab, "agent", f"{API}/plans/claim", sound=True, json=claim)).content:
        plan, token = taken.json()["plan"], taken.json()["token"]
        if plan["action"] == "check_and_resubmit":
            await _check(site, lab, plan["id"], token, answers, faulty)
        stored = await site.store.plans.find(plan["id"])
        assert stored is not None
        lab.executed.append(stored)


async def _check(site: Site, lab: Lab, plan: str, token: str, answers: Mapping[str, str], faulty: str) -> None:
    """Both rounds. A conflict means that the plan waits for a person now."""
    begin = {"token": token, "queries": True, "pairs": True}
    answer = await site.call(lab, "agent", f"{API}/plans/{plan}/check/next", json=begin)
    while answer.status_code == 200 and (due := answer.json()).get("verdict") is None:
        told: dict[str, Any] = {"token": token, "round": due["round"], "vouched": True}
        if due.get("queries"):
            told["answers"] = [_said(asked, answers) for asked in due["queries"]]
        else:
            told["results"] = [{"nodes": pair, "ok": faulty not in pair, "seconds": 1.0} for pair in due["pairs"]]
        answer = await site.call(lab, "agent", f"{API}/plans/{plan}/check/results", json=told)


def _said(asked: Mapping[str, Any], answers: Mapping[str, str]) -> dict[str, Any]:
    now = datetime.now(UTC) + timedelta(seconds=2)  # their seconds are whole, and the launch began a moment ago
    text = answers.get(asked["id"], "").replace("%ISO%", now.strftime("%Y-%m-%dT%H:%M:%S+0000"))
    text = text.replace("%DMESG%", now.strftime("%Y-%m-%dT%H:%M:%S,%f+00:00"))
    return {"node": asked["node"], "id": asked["id"], "exit_code": 0, "output": text}
