"""Patterns that people try, and the rules that they save of them, over stored failures and healthy runs."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from diagnoser.compress import Compressor
from diagnoser.diagnosis.attempt_logs import AttemptLogs
from diagnoser.learning import workbench
from diagnoser.learning.replay_history import ReplayHistory
from diagnoser.learning.template_rules import RuleDraft
from diagnoser.learning.workbench import RuleProposal, RuleWorkbench
from diagnoser.model import Author, LearnedState
from diagnoser.model.errors import BadInput, NotFound, Overloaded
from diagnoser.model.taxonomy import FailureType
from diagnoser.rules.line_match import LineConditions
from tests.rule_learning import STEPS, Site, site

FEEDER = "mosaic-feeder: catalogue snapshot"
DRAFT = RuleDraft(
    "The feeder gave up",
    ("quilt manifest",),
    (r"snapshot \d+ differs from the quilt manifest",),
    mitigation="Rebuild it.",
)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as made:
        yield made


def bench(here: Site, search_seconds: float = 60.0) -> RuleWorkbench:
    history = ReplayHistory(here.store, AttemptLogs(here.store, Compressor))
    ticks = itertools.count()
    return RuleWorkbench(history, here.registry, here.lifecycle, lambda: next(ticks) / 1000, search_seconds)


async def healthy(here: Site, *lines: str) -> None:
    await here.run("fine", [*STEPS, *lines, "Training completed"], code=0)


async def test_a_pattern_is_held_against_cases_examples_and_healthy_runs(here: Site) -> None:
    """Matched cases by their cause, with the root line first; healthy runs and examples that it should not touch."""
    first, second = await here.fail("quilt-1"), await here.fail("quilt-2", 82)
    await here.say(first)
    await here.say(second, FailureType.DATASET_LOADING_ERROR)
    await here.fail("nobody-judged")
    await healthy(here, f"{FEEDER} 5 is fine")
    narrow = await bench(here).trial(LineConditions(("quilt manifest of",), (FEEDER,)))
    assert dict(narrow.types) == {FailureType.DATALOADER_KILLED: 1, FailureType.DATASET_LOADING_ERROR: 1}
    assert (narrow.cases.matched, narrow.cases.searched, narrow.cases.known) == (2, 2, 2)
    assert (narrow.healthy.matched, narrow.healthy.searched, narrow.is_complete) == (0, 1, True)
    hit = next(hit for hit in narrow.cases.items if hit.attempt.job == "quilt-1")
    assert hit.is_root and hit.line.text[slice(*hit.line.spans[0])] == "quilt manifest of"
    wide = await bench(here).trial(LineConditions((FEEDER, "CUDA out of memory")))
    assert [hit.attempt.job for hit in wide.healthy.items] == ["fine"]
    assert FailureType.OUT_OF_MEMORY_ERROR in {hit.type for hit in wide.examples.items}
    assert wide.examples.matched >= len(wide.examples.items) > 0
    routine = await bench(here).trial(LineConditions((r"^step \d+ loss",)))
    assert not any(hit.is_root for hit in routine.cases.items) and len(routine.healthy.items) == 1


async def test_what_people_say_later_counts_in_the_next_trial(here: Site) -> None:
    """A judgement given, or changed, is seen at once."""
    first = await here.fail("quilt-1")
    trials = bench(here)
    conditions = LineConditions((FEEDER,))
    assert (await trials.trial(conditions)).cases.matched == 0
    await here.say(first)
    assert dict((await trials.trial(conditions)).types) == {FailureType.DATALOADER_KILLED: 1}
    await here.say(first, FailureType.DATASET_LOADING_ERROR)
    assert dict((await trials.trial(conditions)).types) == {FailureType.DATASET_LOADING_ERROR: 1}


async def test_a_trial_ends_in_time_and_says_what_it_left_out(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs that are still to be read, and a search whose time is over; another try goes on where the first one was."""
    for number in range(3):
        await here.say(await here.fail(f"quilt-{number}", number))
    trials = bench(here)
    monkeypatch.setattr(workbench, "READ_SECONDS", 0.0)
    none = await trials.trial(LineConditions((FEEDER,)))
    assert (none.cases.searched, none.cases.known, none.is_complete) == (0, 3, False)
    monkeypatch.setattr(workbench, "READ_SECONDS", 60.0)
    assert (await trials.trial(LineConditions((FEEDER,)))).cases.searched == 3
    slow = await bench(here, search_seconds=0.0).trial(LineConditions((FEEDER,)))
    assert not slow.is_complete and slow.cases.matched == 0


async def test_few_may_wait_for_a_trial(here: Site) -> None:
    """Who comes when many wait is told to come later; the others get their answers."""
    trials = bench(here)
    wanted = [trials.trial(LineConditions(("x",))) for _ in range(workbench.WAITING_MAX + 3)]
    answers = await asyncio.gather(*wanted, return_exceptions=True)
    assert sum(isinstance(answer, Overloaded) for answer in answers) == 3


async def test_a_case_suggests_a_pattern(here: Site) -> None:
    """From the shape of its root line; nothing where there is no such case."""
    first = await here.fail("quilt-1")
    await here.say(first)
    suggestion = await bench(here).lifecycle.suggestion(first.id)
    assert suggestion is not None and FEEDER in suggestion.anchors[0]
    assert (await bench(here).trial(LineConditions(suggestion.patterns, suggestion.anchors))).cases.matched == 1
    assert await bench(here).lifecycle.suggestion("nowhere") is None


async def taught(here: Site) -> str:
    """The diagnosis of a judged failure whose own rule is in shadow."""
    return (await here.taught()).source


async def test_a_saved_rule_passes_the_gates_and_replaces_the_one_it_was_made_from(here: Site) -> None:
    """Its author is the person; saved twice it is one rule; in shadow it takes the place of the older edition."""
    older = await here.taught()
    proposal = RuleProposal(older.source, DRAFT, older.id)
    rule, checks = await bench(here).propose(proposal, "kai")
    assert all(check.passed for check in checks)
    assert (rule.author, rule.by, rule.type, rule.state) == (
        Author("person"),
        "kai",
        FailureType.DATALOADER_KILLED,
        LearnedState.PROPOSED,
    )
    again, _ = await bench(here).propose(proposal, "ann")
    assert (again.id, again.by) == (rule.id, "kai")
    await here.lifecycle.step()
    assert await here.learned_state(rule) is LearnedState.SHADOW
    assert await here.learned_state(older) is LearnedState.RETIRED
    found = await here.store.rules.find(older.id)
    assert found is not None and found.history[-1].why == f"replaced by {rule.id}"
    await here.registry.refresh()
    await here.fail("quilt-9", 9, "node-5")
    (hit,) = await here.store.rules.hits(rule.id, 5)
    assert (hit.attempt.job, hit.active) == ("quilt-9", False)


async def test_the_rule_in_force_stays_when_an_edition_of_it_is_saved(here: Site) -> None:
    """A person promoted it: only a person retires it."""
    older = await here.move(await here.taught(), LearnedState.ACTIVE)
    rule, _ = await bench(here).propose(RuleProposal(older.source, DRAFT, older.id), "kai")
    await here.lifecycle.step()
    assert await here.learned_state(older) is LearnedState.ACTIVE
    assert await here.learned_state(rule) is not LearnedState.PROPOSED


async def test_a_persons_rule_that_history_speaks_against_is_refused_as_it_is(here: Site) -> None:
    """A healthy run prints such a line: nothing takes the place of what the person wrote."""
    await healthy(here, f"{FEEDER} 5 differs from the quilt manifest of gpu-017, retried")
    first = await here.fail("quilt-1")
    await here.say(first)
    rule, checks = await bench(here).propose(RuleProposal(first.id, DRAFT), "kai")
    assert all(check.passed for check in checks)
    for _ in range(4):
        await here.lifecycle.step()
    found = await here.store.rules.find(rule.id)
    assert found is not None and found.state is LearnedState.REFUSED
    assert found.text == rule.text and "healthy_logs" in found.history[-1].why


@pytest.mark.parametrize(
    ("draft", "told"),
    [
        (replace(DRAFT, anchors=("a quilt that is not there",)), "its_examples"),
        (replace(DRAFT, patterns=("error",), anchors=("error",)), "specific"),
        (replace(DRAFT, patterns=("some other words",)), "its_examples"),
    ],
)
async def test_a_rule_that_fails_its_first_tests_is_not_stored(here: Site, draft: RuleDraft, told: str) -> None:
    """The person hears which, and can go on."""
    source = await taught(here)
    rule, checks = await bench(here).propose(RuleProposal(source, draft), "kai")
    assert told in {check.name for check in checks if not check.passed}
    assert await here.store.rules.find(rule.id) is None


async def test_what_no_rule_can_be_made_of_is_said(here: Site) -> None:
    """A failure that nobody judged, one whose cause no line shows, one that is not there, a pattern that is none."""
    unjudged = await here.fail("quilt-1")
    with pytest.raises(BadInput, match="confirm or correct"):
        await bench(here).propose(RuleProposal(unjudged.id, DRAFT), "kai")
    await here.say(unjudged, root_line=9_999)
    with pytest.raises(BadInput, match="no kept line"):
        await bench(here).propose(RuleProposal(unjudged.id, DRAFT), "kai")
    with pytest.raises(NotFound):
        await bench(here).propose(RuleProposal("nowhere", DRAFT), "kai")
    with pytest.raises(BadInput, match="RE2"):
        await bench(here).propose(RuleProposal(unjudged.id, replace(DRAFT, patterns=("(",))), "kai")
