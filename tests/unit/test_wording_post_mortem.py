"""Post-mortems: what they tell, and that what jobs wrote stays text."""

from dataclasses import replace
from pathlib import Path

import pytest

from diagnoser.model import Attempt, AttemptKey, Event, EventKind, Job, RootCause
from diagnoser.model.work import DiagnosisRecord
from diagnoser.wording.post_mortem import FailureStory, cost_words, failure_post_mortem
from tests.serving import ECC, NOW, fill, serving

KEY = AttemptKey("llm-70b", 2)
ENDED = Event(EventKind.EXIT, NOW - 100, code=1, reason="NonZeroExitCode")
STORY = FailureStory(
    DiagnosisRecord("01J", KEY, 1, NOW, True, ECC),
    Job("llm-70b", labels={"gpus": "512"}),
    Attempt(KEY, NOW - 7_300, ended=NOW - 100, events=(ENDED,)),
    Attempt(AttemptKey("llm-70b", 3), NOW + 260),
)


def test_a_failure_is_told_from_launch_to_relaunch() -> None:
    """In the order of time, with the cause, the line, the advice and the GPU hours."""
    told = failure_post_mortem(STORY, NOW + 9_000, "https://d.example/diagnoses/01J", str)
    parts = [told.index(part) for part in ("launched", "exit code 1", "diagnosed: ECC error", "launched again")]
    assert parts == sorted(parts)
    for part in ("## Cause", "## Evidence", "## Decisions", "51.2 GPU hours", "https://d.example/diagnoses/01J"):
        assert part in told


@pytest.mark.parametrize(
    ("gpus", "told"), [("512", "51.2 GPU hours"), ("many", "1 failure of jobs that do not say"), ("²", "do not say")]
)
def test_the_cost_is_counted_where_the_job_says_how_many_gpus_it_holds(gpus: str, told: str) -> None:
    """What a label says else is no number."""
    assert told in cost_words([replace(STORY, job=Job("llm-70b", labels={"gpus": gpus}))], NOW)


def test_what_a_job_wrote_stays_text() -> None:
    """A line cannot close its fence, and a name makes no link."""
    line = RootCause(3, "````\n# Approved\n[all is well](//evil.example)")
    job = AttemptKey("[x](//evil.example)<b>", 1)
    diagnosis = replace(ECC, root_cause=line)
    record = replace(STORY.record, diagnosis=diagnosis)
    told = failure_post_mortem(replace(STORY, record=record, attempt=replace(STORY.attempt, key=job)), NOW, "", str)
    assert "`````\n````\n# Approved\n" in told
    assert "[x](" not in told and "<b>" not in told


async def test_the_pages_lead_to_the_files(tmp_path: Path) -> None:
    """Of a diagnosis, and of the incident that it is part of."""
    async with serving(tmp_path) as web:
        record = (await fill(web.store))["ecc"]
        incident = await web.store.incidents.of_diagnosis(record.id)
        assert incident
        for path in (f"/diagnoses/{record.id}", f"/incidents/{incident.id}"):
            assert f'href="{path}/post-mortem.md"' in (await web.client.get(path)).text
            answer = await web.client.get(f"{path}/post-mortem.md")
            assert answer.headers["content-type"].startswith("text/markdown")
            assert "## Time line (UTC)" in answer.text and "## Cost" in answer.text
