"""What a person says of a failure that rules know holds from the next one on, within bounds, until it is taken back."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagnoser.learning import rule_lifecycle
from diagnoser.model import Feedback, FeedbackVerdict, LearnedState
from diagnoser.model.audit import Actor, ActorKind
from diagnoser.model.errors import Conflict, NotFound
from diagnoser.model.queries import AuditFilter, DiagnosisFilter
from diagnoser.model.taxonomy import Action, FailureType, Outcome
from diagnoser.model.work import DiagnosisRecord
from diagnoser.ports.audit import AuditedCall, auditing
from tests import accuracy_bars
from tests.corpus import CORPUS, needs_corpus
from tests.rule_learning import NOW, ROOT, STEPS, Site, site

SHAPES = "RuntimeError: The size of tensor a ({n}) must match the size of tensor b (12) at non-singleton dimension 1"
FULL = "OSError: [Errno 28] No space left on device: '/scratch/{n}/quilt.bin'"
PADDED = "ERROR quilt.loader: shard {n} was padded by the wrong collator"
DIED = "mosaic-feeder: helper {n} of {where} died: Segmentation fault (core dumped), a new one takes over"
ON = tuple(f"step {number} loss 2.1" for number in range(30, 40))
WRONG_DATA = FailureType.DATASET_LOADING_ERROR
RED: dict[str, Any] = {"name": "quilt-7b-1", "tenant": "red"}


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path, has_memory=True) as made:
        yield made


def lines(*texts: str, n: int = 4711, where: str = "/scratch/quilt") -> list[str]:
    return [*STEPS, *(text.format(n=n, where=where) for text in texts)]


async def taught(
    here: Site, texts: Sequence[str], kind: FailureType | None, code: int | None = 1, **more: Any
) -> DiagnosisRecord:
    """A failure of the red tenant's family, and what a person says of it."""
    first = await here.run("first", lines(*texts), code, **RED)
    await here.say(first, kind, **({"root_line": None} | more))
    return first


async def found(here: Site, id: str) -> DiagnosisRecord:
    record = await here.store.diagnoses.find(id)
    assert record is not None
    return record


def by(first: DiagnosisRecord) -> str:
    return f"incident:{first.id}"


@pytest.mark.parametrize(
    ("texts", "of_job", "is_decided"),
    [
        ((SHAPES,), {"name": "quilt-7b-2", "tenant": "red"}, True),
        ((SHAPES,), {"name": "quilt-7b-2", "tenant": "blue"}, False),
        ((SHAPES,), {"name": "quilt-7b-2"}, False),
        ((SHAPES,), {"name": "lantern-7b-2", "tenant": "red"}, False),
        ((SHAPES,), {"name": "lantern-2", "labels": {"family": "quilt-b"}, "tenant": "red"}, True),
        ((PADDED, SHAPES), {"name": "quilt-7b-2", "tenant": "red"}, False),
        ((SHAPES.replace("tensor a", "tensor c"),), {"name": "quilt-7b-2", "tenant": "red"}, False),
        ((FULL,), {"name": "quilt-7b-2", "tenant": "red"}, False),
    ],
    ids=["same", "tenant", "no tenant", "family", "family by label", "another complaint", "wording", "failure"],
)
async def test_a_correction_decides_the_next_same_failure_and_no_other(
    here: Site, texts: Sequence[str], of_job: dict[str, Any], is_decided: bool
) -> None:
    """Without a second press: of the same tenant, family and lines, with other numbers; else the rules decide."""
    first = await taught(here, [SHAPES], WRONG_DATA)
    assert first.diagnosis.decided_by == "rule:tensor_shape_mismatch"
    verdict = (await here.run("second", lines(*texts, n=5), **of_job)).diagnosis
    assert (verdict.decided_by == by(first), verdict.type is WRONG_DATA) == (is_decided, is_decided)
    assert (verdict.precedent is not None) is is_decided
    if verdict.precedent:
        assert (verdict.precedent.by, verdict.precedent.before.type) == ("maria", FailureType.RUNTIME_ERROR)


async def test_the_line_that_a_person_named_is_looked_for_and_becomes_the_root(here: Site) -> None:
    """Without it the correction says nothing; with it the cause is there."""
    first = await taught(here, [PADDED, SHAPES], WRONG_DATA, root_line=ROOT)
    assert first.diagnosis.root_cause and first.diagnosis.root_cause.line == ROOT + 1
    again = (await here.run("second", lines(PADDED, SHAPES, n=5), **RED)).diagnosis
    assert again.decided_by == by(first) and again.root_cause and again.root_cause.line == ROOT
    without = (await here.run("third", lines(SHAPES, n=6), **RED)).diagnosis
    assert without.decided_by == "rule:tensor_shape_mismatch"


async def test_the_newest_word_counts_and_a_confirmation_of_the_rules_ends_a_correction(here: Site) -> None:
    """On the failure that the correction decided; the verdict is the rules' own again."""
    first = await taught(here, [SHAPES], WRONG_DATA)
    second = await here.run("second", lines(SHAPES, n=5), **RED)
    await here.say(second, FailureType.VALUE_ERROR, root_line=None)
    third = await here.run("third", lines(SHAPES, n=6), **RED)
    assert (third.diagnosis.type, third.diagnosis.decided_by) == (FailureType.VALUE_ERROR, by(second))
    await here.say(third, first.diagnosis.type, root_line=None)
    last = await here.run("fourth", lines(SHAPES, n=7), **RED)
    assert last.diagnosis.decided_by == "rule:tensor_shape_mismatch"


@pytest.mark.parametrize("kind", [FailureType.KEY_ERROR, FailureType.COMPLETED])
async def test_a_word_lowers_no_action_that_reaches_a_node(here: Site, kind: FailureType) -> None:
    """A full disk leads to a check of the node, also where a person took it for a fault of the script, or for none."""
    first = await taught(here, [FULL], kind)
    verdict = (await here.run("second", lines(FULL, n=5), **RED)).diagnosis
    assert verdict.recovery == first.diagnosis.recovery
    assert verdict.recovery.action is Action.CHECK_AND_RESUBMIT
    if kind is FailureType.COMPLETED:
        assert verdict.type is FailureType.DISK_FULL and "maria said completed" in verdict.needs_review
    else:
        assert verdict.type is kind and verdict.precedent and verdict.precedent.keeps_action


UNRELATED = 60


def corpus_log(case: str) -> list[str]:
    return (CORPUS / "dev" / f"{case}.log").read_text("utf-8", "replace").splitlines()


@needs_corpus
@pytest.mark.corpus
@pytest.mark.timeout(600)
async def test_wrong_words_harm_no_unrelated_failure(here: Site) -> None:
    """Three wrong types and three wrong words that nothing failed, each of another type, and then 60 failures of other
    types in the same family of the same tenant: none is decided by them."""
    by_type: dict[str, list[str]] = {}
    for label in accuracy_bars.labels("dev"):
        if label.category != "none":
            by_type.setdefault(label.type, []).append(label.id)
    taught_types = [kind for kind, ids in sorted(by_type.items()) if len(ids) > 2][:6]
    for number, kind in enumerate(taught_types):
        wrong = FailureType.COMPLETED if number % 2 else FailureType.IMPORT_ERROR
        first = await here.run(f"taught-{number}", corpus_log(by_type[kind][0]), **RED)
        await here.say(first, wrong, root_line=None)
    others = [case for kind, ids in sorted(by_type.items()) if kind not in taught_types for case in ids][:UNRELATED]
    assert len(others) == UNRELATED
    for case in others:
        verdict = (await here.run(case, corpus_log(case), name=f"quilt-7b-{case}", tenant="red")).diagnosis
        assert not verdict.decided_by.startswith("incident:")
        assert (verdict.precedent, verdict.needs_review) == (None, "")
    again = (await here.run("again", corpus_log(by_type[taught_types[0]][0]), **RED)).diagnosis
    assert again.decided_by.startswith("incident:"), "the words were never in force"


@pytest.mark.parametrize(
    ("texts", "code", "where", "is_cleared"),
    [
        ((DIED, *ON), None, "/scratch/quilt", True),
        ((DIED,), None, "/scratch/quilt", False),
        ((DIED, *ON), 1, "/scratch/quilt", False),
        ((DIED, *ON), None, "/scratch/lantern", False),
        ((DIED, *ON, FULL), None, "/scratch/quilt", False),
    ],
    ids=["went on", "ended there", "exit code 1", "another path", "another failure"],
)
async def test_no_failure_holds_where_the_run_went_on_past_the_same_line(
    here: Site, texts: Sequence[str], code: int | None, where: str, is_cleared: bool
) -> None:
    """The same path is in the line, nothing else fails, and no witness says that the run failed."""
    first = await taught(here, [DIED, *ON], FailureType.COMPLETED, code=None)
    assert first.diagnosis.type is FailureType.SEGMENTATION_FAULT
    verdict = (await here.run("second", lines(*texts, n=5, where=where), code, **RED)).diagnosis
    assert (verdict.outcome is Outcome.COMPLETED) is is_cleared
    assert (verdict.decided_by == by(first)) is is_cleared


async def test_any_contrary_word_retires_no_failure(here: Site) -> None:
    """Said of a run that it cleared: the next one fails again, as the rules say."""
    await taught(here, [DIED, *ON], FailureType.COMPLETED, code=None)
    second = await here.run("second", lines(DIED, *ON, n=5), None, **RED)
    assert second.diagnosis.type is FailureType.COMPLETED
    await here.say(second, FailureType.SEGMENTATION_FAULT, root_line=None)
    third = (await here.run("third", lines(DIED, *ON, n=6), None, **RED)).diagnosis
    assert (third.type, third.precedent) == (FailureType.SEGMENTATION_FAULT, None)
    await here.say(await here.run("fourth", lines(DIED, *ON, n=7), None, **RED), FailureType.COMPLETED, root_line=None)
    last = (await here.run("fifth", lines(DIED, *ON, n=8), None, **RED)).diagnosis
    assert last.type is FailureType.SEGMENTATION_FAULT and "named segmentation_fault" in last.needs_review


async def test_a_running_job_is_not_reported_for_a_line_that_is_no_failure(here: Site) -> None:
    """It goes on: there is nothing to store."""
    await taught(here, [DIED, *ON], FailureType.COMPLETED, code=None)
    await here.print_lines("second", lines(DIED, *ON, n=5), **RED)
    await here.worker.step()
    assert await here.store.diagnoses.page(DiagnosisFilter(job="second"), "", 1) == []


async def test_what_is_taken_back_decides_nothing_and_what_it_decided_is_diagnosed_again(here: Site) -> None:
    """In one step: the verdict is the rules' own, the rule that was learned is retired, its hit is open again."""
    first = await taught(here, [PADDED, SHAPES], WRONG_DATA, root_line=ROOT)
    rule = await here.learned(first)
    await here.run("second", lines(PADDED, SHAPES, n=5), **RED)
    record = await found(here, first.id)
    with auditing(AuditedCall("POST", NOW, actor=Actor("kai", ActorKind.PERSON))):
        await here.confirmed_failures.take_back(record, record.feedback[0].id, "kai", NOW + 50)
    assert (await found(here, first.id)).feedback == ()
    assert await here.worker.step() == 1
    (again,) = await here.store.diagnoses.page(DiagnosisFilter(job="second"), "", 1)
    assert again.diagnosis.decided_by == "rule:tensor_shape_mismatch"
    decided = DiagnosisFilter(decided_by=by(first), current_only=False)
    assert [(one.attempt.job, one.current) for one in await here.store.diagnoses.page(decided, "", 9)] == [
        ("second", False)
    ]
    assert await here.learned_state(rule) is LearnedState.RETIRED
    (entry, *_) = await here.store.audit.page(AuditFilter(object_kind="diagnosis"), 0, 5)
    assert (entry.actor.name, entry.before and entry.before["by"], entry.after) == ("kai", "maria", {})
    with pytest.raises(NotFound):
        await here.confirmed_failures.take_back(record, record.feedback[0].id, "kai", NOW + 60)


async def test_what_was_said_before_counts_again(here: Site) -> None:
    """Only the newest word can be taken back."""
    first = await taught(here, [SHAPES], WRONG_DATA)
    await here.say(first, FailureType.VALUE_ERROR, root_line=None)
    record = await found(here, first.id)
    with pytest.raises(Conflict):
        await here.confirmed_failures.take_back(record, record.feedback[1].id, "kai", NOW + 50)
    await here.confirmed_failures.take_back(record, record.feedback[0].id, "kai", NOW + 50)
    assert (await here.run("second", lines(SHAPES, n=5), **RED)).diagnosis.type is WRONG_DATA


async def test_the_same_word_twice_is_one_and_a_word_on_an_old_page_is_none(here: Site) -> None:
    """A second press stores nothing; of two people who correct at the same time one reads the other's word first."""
    first = await here.run("first", lines(SHAPES), **RED)
    said = Feedback("f-a", first.id, NOW, FeedbackVerdict.CORRECTED, "maria", FailureType.KEY_ERROR)
    for _ in range(2):
        await here.confirmed_failures.learn(first, said, "")
    with pytest.raises(Conflict, match="maria"):
        await here.confirmed_failures.learn(first, replace(said, id="f-b", by="kai", type=WRONG_DATA), "")
    assert [one.by for one in (await found(here, first.id)).feedback] == ["maria"]


async def test_a_rule_that_was_only_wrong_is_not_promoted(here: Site) -> None:
    """Its one hit in shadow was in a failure of another cause."""
    rule = await here.taught()
    hit = await here.fail("quilt-2", 5)
    await here.say(hit, FailureType.KEY_ERROR)
    known = await here.store.rules.find(rule.id)
    assert known and (known.counts.confirmed, known.counts.wrong) == (0, 1)
    with pytest.raises(Conflict, match="wrong"):
        rule_lifecycle.promoted(known, "kai", "", NOW)
