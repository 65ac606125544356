"""Diagnoses over the API: the fixed contract, filters and paging."""

from dataclasses import replace
from pathlib import Path

import pytest

from diagnoser.model import Rival
from diagnoser.model.taxonomy import FailureType
from tests.serving import ECC, NOW, UNSURE, fill, save, serving, verdict

DIAGNOSES = "/api/v1/diagnoses"
CONTRACT = {
    "outcome",
    "category",
    "type",
    "confidence",
    "decided_by",
    "root_cause",
    "evidence",
    "symptoms",
    "nodes",
    "recovery",
    "mitigation",
    "left_out",
    "compression",
}


async def test_a_diagnosis_carries_the_fixed_contract(tmp_path: Path) -> None:
    """The JSON of one diagnosis holds the fields that the command line prints, with the same values, and its plan."""
    async with serving(tmp_path, base_url="https://diagnoser.example") as web:
        record = await save(web.store, "llm-7b", ECC, plan=True)
        shown = (await web.client.get(f"{DIAGNOSES}/{record.id}")).json()
    assert set(shown) >= CONTRACT
    assert shown["root_cause"] == {
        "line": 18_233,
        "text": "[ 8123.112233] NVRM: Xid (PCI:0000:1b:00): 94, pid=48112, name=python, Contained ECC error",
        "rank": 12,
        "node": "hgx-04",
        "gpu": "0000:1b:00",
        "source": "stdout",
        "provenance": "job",
    }
    assert shown["recovery"] == {"action": "cordon_and_resubmit", "reason": "a named node has a hardware fault"}
    assert shown["compression"] == {"lines_in": 21_408, "bytes_in": 3_214_992, "lines_out": 412, "bytes_out": 61_220}
    assert (shown["id"], shown["job"], shown["attempt"]) == (record.id, "llm-7b", 1)
    assert shown["created"] == "2026-09-21T14:13:20Z"
    assert shown["url"] == f"https://diagnoser.example/diagnoses/{record.id}"
    assert (shown["plan"]["mode"], shown["plan"]["state"]) == ("observe", "advised")
    assert shown["plan"]["nodes"] == ["hgx-04"]


async def test_a_verdict_without_a_root_shows_null(tmp_path: Path) -> None:
    """What a diagnosis does not have is null or empty, never left out."""
    async with serving(tmp_path) as web:
        record = await save(web.store, "j", verdict())
        shown = (await web.client.get(f"{DIAGNOSES}/{record.id}")).json()
    assert (shown["root_cause"], shown["plan"], shown["model"]) == (None, None, None)
    assert (shown["evidence"], shown["nodes"]) == ([], [])


async def test_log_text_is_given_verbatim(tmp_path: Path) -> None:
    """In JSON nothing of a log line is changed, not even control characters."""
    async with serving(tmp_path) as web:
        record = await save(web.store, "j", UNSURE)
        shown = (await web.client.get(f"{DIAGNOSES}/{record.id}")).json()
    assert UNSURE.root_cause is not None
    assert shown["root_cause"]["text"] == UNSURE.root_cause.text


async def test_a_diagnosis_that_nobody_made_is_not_found(tmp_path: Path) -> None:
    """An unknown id is a 404 with a sentence, an impossible one a 400."""
    async with serving(tmp_path) as web:
        unknown = await web.client.get(f"{DIAGNOSES}/0123")
        impossible = await web.client.get(f"{DIAGNOSES}/a%20b")
    assert (unknown.status_code, impossible.status_code) == (404, 400)
    assert "0123" in unknown.json()["detail"]


@pytest.mark.parametrize(
    ("query", "jobs"),
    [
        ("", ["llm-70b-pretrain", "rlhf-13b", "eval-mmlu@v2", "sft-8b.seed_3", "llm-70b-pretrain"]),
        ("category=infrastructure", ["llm-70b-pretrain"]),
        ("type=out_of_memory_error", ["llm-70b-pretrain"]),
        ("outcome=completed", ["sft-8b.seed_3"]),
        ("job=rlhf-13b", ["rlhf-13b"]),
        ("node=hgx-11", ["llm-70b-pretrain"]),
        ("node=hgx-09", ["eval-mmlu@v2"]),
        (f"since={NOW - 1_000}", ["llm-70b-pretrain", "rlhf-13b"]),
        ("since=2026-09-21T14:10:00Z", ["llm-70b-pretrain"]),
        ("q=FLASH_attn", ["eval-mmlu@v2"]),
        ("category=script&outcome=completed", []),
        ("cluster=east&decided_by=rule:ecc_error_seen", ["llm-70b-pretrain"]),
        ("family=rlhf-b", ["rlhf-13b"]),
    ],
)
async def test_filters(tmp_path: Path, query: str, jobs: list[str]) -> None:
    """Each filter narrows the list, and all that are given must hold; the newest comes first."""
    async with serving(tmp_path) as web:
        await fill(web.store)
        shown = (await web.client.get(f"{DIAGNOSES}?{query}")).json()
    assert [one["job"] for one in shown["items"]] == jobs
    assert shown["next"] is None


async def test_since_an_id(tmp_path: Path) -> None:
    """Whoever knows one diagnosis asks for those that were made after it."""
    async with serving(tmp_path) as web:
        records = await fill(web.store)
        shown = (await web.client.get(f"{DIAGNOSES}?since_id={records['script'].id}")).json()
    assert [one["id"] for one in shown["items"]] == [records["ecc"].id, records["unsure"].id]


async def test_a_guess_is_shown_with_its_rivals(tmp_path: Path) -> None:
    """The page says what it most likely is; the API keeps the best guess as the type and lists the others."""
    guess = replace(ECC, confidence=0.4, rivals=(Rival(FailureType.GPU_LOST, 7, 0.3),))
    async with serving(tmp_path) as web:
        record = await save(web.store, "guessed", guess)
        page = (await web.client.get(f"/diagnoses/{record.id}")).text
        shown = (await web.client.get(f"{DIAGNOSES}/{record.id}")).json()
    assert "<h1>Unknown, most likely ecc error (40%) or gpu lost (30%)</h1>" in page
    assert (shown["type"], shown["rivals"]) == ("ecc_error", [{"type": "gpu_lost", "line": 7, "confidence": 0.3}])


async def test_facets_are_counted(tmp_path: Path) -> None:
    """With the same filters as the list, each value with its number, by the name of the filter."""
    async with serving(tmp_path) as web:
        await fill(web.store)
        everything = (await web.client.get(f"{DIAGNOSES}/facets")).json()
        east = (await web.client.get(f"{DIAGNOSES}/facets?cluster=east")).json()
    assert everything["is_complete"]
    assert everything["facets"]["outcome"] == [{"value": "failed", "count": 4}, {"value": "completed", "count": 1}]
    assert set(everything["facets"]) == {"outcome", "category", "type", "cluster", "family", "node", "decided_by"}
    assert sum(value["count"] for value in east["facets"]["type"]) == 2


async def test_paging_shows_each_diagnosis_once(tmp_path: Path) -> None:
    """Following the cursor shows all, in order, also when new ones arrive between two pages."""
    async with serving(tmp_path) as web:
        made = [(await save(web.store, f"job-{number}", ECC, created=NOW - 900 + number)).id for number in range(5)]
        seen: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            shown = (await web.client.get(f"{DIAGNOSES}?limit=2&cursor={cursor}")).json()
            seen += [one["id"] for one in shown["items"]]
            cursor = shown["next"]
            await save(web.store, f"late-{len(seen)}", ECC, created=NOW + len(seen))
    assert seen == made[::-1]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=201", "category=bad", "type=Xid", "since=1990-01-01", "sort=body", "colour=red"]
)
async def test_faulty_queries(tmp_path: Path, query: str) -> None:
    """A filter out of its closed list or range, and one that does not exist, is a 400."""
    async with serving(tmp_path) as web:
        answer = await web.client.get(f"{DIAGNOSES}?{query}")
    assert answer.status_code == 400


async def test_a_replaced_diagnosis_stays_readable(tmp_path: Path) -> None:
    """A later verdict on the same attempt takes the old one from the list, not from its own address."""
    async with serving(tmp_path) as web:
        old = await save(web.store, "j", verdict(FailureType.UNKNOWN), created=NOW - 100)
        new = await save(web.store, "j", ECC, created=NOW)
        listed = (await web.client.get(DIAGNOSES)).json()["items"]
        shown = (await web.client.get(f"{DIAGNOSES}/{old.id}")).json()
    assert [one["id"] for one in listed] == [new.id]
    assert shown["current"] is False


async def test_the_policy_of_a_diagnosis_is_explained(tmp_path: Path) -> None:
    """Every row up to the one that applies, each with the condition that does not hold."""
    async with serving(tmp_path) as web:
        record = await save(web.store, "j", ECC, plan=True)
        answer = (await web.client.get(f"/api/v1/diagnoses/{record.id}/policy")).json()
        missing = await web.client.get("/api/v1/diagnoses/none/policy")
    assert [one["why_not"] for one in answer["rows"][:-1]].count("") == 0
    assert answer["rows"][-1] == {"row": "broken_node_must_be_found", "why_not": ""}
    assert answer["action"] == "check_and_resubmit"
    assert answer["plan"]["state"] == "advised"
    assert missing.status_code == 404
