"""Contract of learned rules: their life, who works on them, and what they would have done."""

import asyncio
from dataclasses import replace

import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import (
    AttemptKey,
    Author,
    ConfirmedFailure,
    Counts,
    Feedback,
    FeedbackVerdict,
    HitVerdict,
    LearnedRule,
    LearnedState,
    RuleHit,
    Signature,
    ValidationResult,
)
from diagnoser.model.errors import Conflict, NotFound
from diagnoser.model.queries import LearnedRuleQuery
from diagnoser.model.taxonomy import FailureType
from tests.contract.records import KEY, append
from tests.contract.test_queries import put

RULE = LearnedRule(
    "learned_a",
    source="01",
    created=100.0,
    type="gpu_lost",
    text="id: learned_a",
    by="maria",
    author=Author("template", failure="model_timeout"),
    gates=(ValidationResult("compiles", True, "as a rule file"),),
).with_state(LearnedState.PROPOSED, by="maria", why="confirmed", now=100.0)
HIT = RuleHit(RULE.id, KEY, 200.0, "d1")
OTHER = AttemptKey("other", 2)


async def test_a_rule_is_stored_once_and_every_replica_learns_of_it(store: SqlStore, second: SqlStore) -> None:
    """The second proposal of one id changes nothing; the revision grows with the first only."""
    before = await second.rules.revision()
    assert await store.rules.propose(RULE)
    assert not await second.rules.propose(replace(RULE, text="another"))
    assert await second.rules.find(RULE.id) == RULE
    assert await second.rules.find("nothing") is None
    assert await second.rules.revision() == before + 1


async def test_of_two_who_change_a_rule_one_is_told(store: SqlStore, second: SqlStore) -> None:
    """The version decides; the loser is told, and nothing of his is stored."""
    await store.rules.propose(RULE)
    shadow = await store.rules.change(
        RULE, RULE.with_state(LearnedState.SHADOW, by="diagnoser", why="passed", now=101.0)
    )
    with pytest.raises(Conflict):
        await second.rules.change(RULE, RULE.with_state(LearnedState.REFUSED, by="b", why="w", now=102.0))
    with pytest.raises(NotFound):
        await second.rules.change(replace(RULE, id="nothing"), RULE)
    assert await second.rules.find(RULE.id) == shadow
    assert (shadow.state, shadow.version) == (LearnedState.SHADOW, 1)


async def test_changes_that_meet_are_all_counted(store: SqlStore, second: SqlStore) -> None:
    """Whoever reads a revision reads all changes up to it: two at once give two numbers."""
    rules = [replace(RULE, id=f"learned_{number}") for number in range(8)]
    before = await store.rules.revision()
    await asyncio.gather(*((store, second)[number % 2].rules.propose(rule) for number, rule in enumerate(rules)))
    assert await second.rules.revision() == before + 8


async def test_a_proposed_rule_is_worked_on_by_one(store: SqlStore, second: SqlStore) -> None:
    """The lease keeps others away; when its holder died the next one gets it, and the dead one's change fails."""
    await store.rules.propose(RULE)
    await store.rules.propose(replace(RULE, id="learned_b", state=LearnedState.ACTIVE))
    (first,) = await store.rules.claim(200.0, 60.0, 5)
    assert await second.rules.claim(259.0, 60.0, 5) == []
    (again,) = await second.rules.claim(260.0, 60.0, 5)
    assert (first.id, again.id) == (RULE.id, RULE.id)
    with pytest.raises(Conflict):
        await store.rules.change(first, first.with_state(LearnedState.SHADOW, by="diagnoser", why="w", now=261.0))
    done = await second.rules.change(again, again.with_state(LearnedState.REFUSED, by="diagnoser", why="w", now=262.0))
    assert await store.rules.find(RULE.id) == done


async def test_rules_are_listed_newest_first_by_what_they_are(store: SqlStore) -> None:
    """Pages and conditions: states, source."""
    for number, source in enumerate(("01", "02", "01")):
        await store.rules.propose(replace(RULE, id=f"learned_{number}", source=source, created=100.0 + number // 2))
    first = await store.rules.page(LearnedRuleQuery(), "", 2)
    rest = await store.rules.page(LearnedRuleQuery(), first[-1].id, 2)
    assert [one.id for one in first + rest] == ["learned_2", "learned_1", "learned_0"]
    only = await store.rules.page(LearnedRuleQuery((LearnedState.PROPOSED,), source="02"), "", 5)
    assert [one.id for one in only] == ["learned_1"]
    assert await store.rules.page(LearnedRuleQuery((LearnedState.ACTIVE,)), "", 5) == []
    assert len(await store.rules.page(LearnedRuleQuery(source="01"), "", 5)) == 2


async def test_a_hit_counts_once_for_an_attempt(store: SqlStore, second: SqlStore) -> None:
    """A worker that starts over notes the same; what became known of the hit is not forgotten."""
    await store.logs.append([append()])
    await store.logs.append([append(OTHER)])
    await store.rules.propose(RULE)
    await store.rules.record_hits([HIT, replace(HIT, attempt=OTHER)])
    assert await store.rules.judge_hits(KEY, "gpu_lost") == [RULE.id]
    assert await store.rules.judge_hits(OTHER, "ecc_error") == []
    await second.rules.record_hits([replace(HIT, time=300.0)])
    found = await second.rules.find(RULE.id)
    assert found is not None and found.counts == Counts(2, 1, 1)
    newest, older = await second.rules.hits(RULE.id, 5)
    assert (newest.attempt, newest.verdict, newest.time) == (KEY, HitVerdict.CONFIRMED, 300.0)
    assert (older.attempt, older.verdict) == (OTHER, HitVerdict.WRONG)


SAID = Feedback("f1", "01", 300.0, FeedbackVerdict.CORRECTED, "maria", FailureType.ECC_ERROR)
KNOWN = ConfirmedFailure("01", KEY, 200.0, 300.0, FailureType.ECC_ERROR, SAID.verdict, "maria", Signature("m"))
WANTED = replace(RULE, text="", type="ecc_error")


async def test_what_is_to_be_learned_is_stored_with_the_word_itself(store: SqlStore) -> None:
    """One transaction: without the diagnosis neither is there."""
    with pytest.raises(NotFound):
        await store.feedback.add(SAID, KNOWN, WANTED)
    assert await store.rules.find(WANTED.id) is None
    await put(store, "01", KEY.job)
    await store.feedback.add(SAID, KNOWN, WANTED)
    assert await store.rules.find(WANTED.id) == WANTED


async def test_another_word_takes_back_what_was_learned_from_the_first(store: SqlStore, second: SqlStore) -> None:
    """The rule of the old cause is retired, by whom and why; that of the same cause stays."""
    await put(store, "01", KEY.job)
    await store.feedback.add(SAID, KNOWN, WANTED)
    await store.feedback.add(replace(SAID, id="f2"), KNOWN, WANTED)
    same = await second.rules.find(WANTED.id)
    assert same is not None and same.state is LearnedState.PROPOSED
    before = await second.rules.revision()
    other = replace(WANTED, id="learned_b", type="gpu_lost")
    thought = replace(KNOWN, type=FailureType.GPU_LOST, changed=301.0, by="kai")
    await store.feedback.add(replace(SAID, id="f3", type=FailureType.GPU_LOST, by="kai"), thought, other)
    gone, new = await second.rules.find(WANTED.id), await second.rules.find("learned_b")
    assert gone is not None and (gone.state, gone.history[-1].by) == (LearnedState.RETIRED, "kai")
    assert "gpu_lost" in gone.history[-1].why
    assert new is not None and new.state is LearnedState.PROPOSED
    assert await second.rules.revision() == before + 2
    with pytest.raises(Conflict):
        await store.rules.change(WANTED, replace(WANTED, text="too late"))


async def test_a_word_settles_hits_and_asks_for_no_second_rule(store: SqlStore) -> None:
    """A rule on trial was right about the attempt: it knows this failure already."""
    await put(store, "01", KEY.job)
    await store.rules.propose(RULE)
    await store.rules.record_hits([HIT])
    word = replace(SAID, type=FailureType.GPU_LOST)
    await store.feedback.add(word, replace(KNOWN, type=FailureType.GPU_LOST), replace(WANTED, id="learned_b"))
    assert await store.rules.find("learned_b") is None
    assert [hit.verdict for hit in await store.rules.hits(RULE.id, 5)] == [HitVerdict.CONFIRMED]


async def test_what_a_recovery_proved_is_stored_once_and_never_over_a_word(store: SqlStore) -> None:
    """The second try changes nothing, and a person's confirmed failure stays."""
    await put(store, "01", KEY.job)
    proven = replace(KNOWN, verdict=FeedbackVerdict.CONFIRMED, by="recovery: plan 1")
    assert await store.feedback.add_confirmed_failure(proven, WANTED)
    assert not await store.feedback.add_confirmed_failure(
        replace(proven, by="recovery: plan 2"), replace(WANTED, id="learned_b")
    )
    assert await store.feedback.confirmed_failures(0.0, "", 5) == [proven]
    assert await store.rules.find("learned_b") is None
    await store.feedback.add(SAID, KNOWN)
    assert not await store.feedback.add_confirmed_failure(proven)
    [known] = await store.feedback.confirmed_failures(0.0, "", 5)
    assert known == replace(KNOWN, changed=known.changed)
    assert known.changed > proven.changed
