"""How a confirmed failure becomes a rule: written, tested, tried in shadow, promoted, withdrawn."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from diagnoser.ingest.job_access import JobAccess
from diagnoser.learning.rule_registry import RuleRegistry
from diagnoser.learning.validation import ValidationCheck
from diagnoser.model import Author, HitVerdict, LearnedRule, LearnedState
from diagnoser.model.queries import LearnedRuleQuery
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.work import DiagnosisRecord
from tests import accuracy_bars
from tests.rule_learning import NOW, QUILT, ROOT, STEPS, Site, site
from tests.serving import serving

SHADOW, ACTIVE, REFUSED, RETIRED = (
    LearnedState.SHADOW,
    LearnedState.ACTIVE,
    LearnedState.REFUSED,
    LearnedState.RETIRED,
)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as made:
        yield made


def refused_by(rule: LearnedRule) -> list[str]:
    return [gate.name for gate in rule.gates if not gate.passed]


async def test_a_failure_that_a_person_named_becomes_a_rule_that_decides(here: Site) -> None:
    """Unknown, named, learned, in shadow without a say, promoted: the same failure elsewhere is decided by it."""
    first = await here.fail("quilt-1")
    assert first.diagnosis.is_undecided
    await here.say(first)
    rule = await here.learned(first)
    assert (rule.state, rule.author, len(rule.gates)) == (SHADOW, Author("template"), len(ValidationCheck))
    assert (await here.fail("quilt-2", 82, "gpu-201")).diagnosis.is_undecided
    await here.move(rule, ACTIVE)
    third = await here.fail("quilt-3", 9, "node-5")
    verdict = third.diagnosis
    assert (verdict.type, verdict.decided_by) == (FailureType.DATALOADER_KILLED, f"rule:{rule.id}")
    assert verdict.root_cause is not None and verdict.root_cause.line == ROOT
    assert verdict.confidence <= 0.9 and not verdict.grounds.stable and verdict.grounds.hint is None
    assert verdict.ruleset != first.diagnosis.ruleset
    hits = await here.store.rules.hits(rule.id, 5)
    assert {(hit.attempt.job, hit.active) for hit in hits} == {("quilt-2", False), ("quilt-3", True)}


async def test_the_next_round_of_another_replica_uses_the_rule(here: Site) -> None:
    """A second registry over the same database sees each change by the counter, and nothing when nothing changed."""
    other = RuleRegistry(accuracy_bars.load(), here.store.rules, lambda: NOW)
    rule = await here.taught()
    assert await other.refresh() and not await other.refresh()
    plain = other.analyzer
    assert [one.id for one in other.snapshot.trial.ruleset.rules] == [rule.id]
    await here.move(rule, ACTIVE)
    assert await other.refresh()
    assert other.analyzer is not plain
    assert rule.id in {one.id for one in other.analyzer.knowledge.engine.ruleset.rules}
    await here.move(rule, RETIRED)
    assert await other.refresh()
    assert other.analyzer.knowledge.engine.ruleset.hash == accuracy_bars.load().knowledge.engine.ruleset.hash


async def test_a_rule_that_cannot_be_read_any_more_is_left_out(here: Site) -> None:
    """A newer schema, a damaged row: the others still decide."""
    rule = await here.move(await here.taught(), ACTIVE)
    await here.store.rules.propose(replace(rule, id="learned_broken", text="role: [nonsense"))
    await here.registry.refresh()
    learned = [one.id for one in here.registry.analyzer.knowledge.engine.ruleset.rules if one.id.startswith("learned_")]
    assert learned == [rule.id]


async def test_confirmed_hits_in_shadow_promote(here: Site) -> None:
    """Three attempts that it would have decided, each confirmed by a person, and none wrong."""
    rule = await here.taught()
    for number in range(2, 5):
        assert (await here.learned_state(rule)) is SHADOW
        await here.say(await here.fail(f"quilt-{number}", number))
        await here.lifecycle.step()
    found = await here.store.rules.find(rule.id)
    assert found is not None and (found.state, found.counts.confirmed) == (ACTIVE, 3)
    assert found.history[-1].why == "3 confirmed hits in shadow, none wrong"


async def test_a_site_may_leave_promotion_to_people(tmp_path: Path) -> None:
    """With 0, no number of confirmed hits promotes."""
    async with site(tmp_path, promote_after=0) as here:
        rule = await here.taught()
        for number in range(2, 6):
            await here.say(await here.fail(f"quilt-{number}", number))
        await here.lifecycle.step()
        found = await here.store.rules.find(rule.id)
    assert found is not None and (found.state, found.counts.confirmed) == (SHADOW, 4)


async def test_one_wrong_hit_keeps_a_rule_in_shadow(here: Site) -> None:
    """A person names another cause for a failure that it would have decided: evidence promotes it no more."""
    rule = await here.taught()
    await here.say(await here.fail("other", 5), FailureType.DATASET_LOADING_ERROR)
    for number in range(2, 6):
        await here.say(await here.fail(f"quilt-{number}", number))
        await here.lifecycle.step()
    found = await here.store.rules.find(rule.id)
    assert found is not None and (found.state, found.counts.confirmed, found.counts.wrong) == (SHADOW, 4, 1)


async def test_a_rule_in_force_that_was_wrong_is_retired(here: Site) -> None:
    """A person corrects a verdict of the rule: it decides nothing more."""
    rule = await here.move(await here.taught(), ACTIVE)
    wrong = await here.fail("quilt-2", 5)
    assert wrong.diagnosis.decided_by == f"rule:{rule.id}"
    await here.say(wrong, FailureType.DATASET_LOADING_ERROR)
    await here.lifecycle.step()
    found = await here.store.rules.find(rule.id)
    assert found is not None and found.state is RETIRED
    assert "quilt-2/1" in found.history[-1].why
    assert (await here.fail("quilt-3", 6)).diagnosis.is_undecided


async def test_who_thinks_again_takes_the_rule_back(here: Site) -> None:
    """The person names another cause for the same diagnosis: what was learned from the first word is retired."""
    first = await here.fail("quilt-1")
    await here.say(first)
    rule = await here.learned(first)
    await here.say(first, FailureType.DATASET_LOADING_ERROR)
    old = await here.store.rules.find(rule.id)
    assert old is not None and (old.state, old.history[-1].by) == (RETIRED, "maria")
    for _ in range(3):
        await here.lifecycle.step()
    states = {one.type: one.state for one in await here.store.rules.page(LearnedRuleQuery(source=first.id), "", 5)}
    assert states == {"dataloader_killed": RETIRED, "dataset_loading_error": SHADOW}


async def test_a_line_that_healthy_runs_print_makes_no_rule(here: Site) -> None:
    """A completed attempt printed the same: refused, with the attempt that speaks against it."""
    await here.run("fine", [*STEPS, QUILT.format(n=1, host="gpu-2"), *STEPS, "training completed"], code=0)
    first = await here.fail("quilt-1")
    await here.say(first)
    rule = await here.learned(first)
    assert (rule.state, refused_by(rule)) == (REFUSED, [ValidationCheck.HEALTHY])
    assert "fine/1" in rule.gates[-3].reason


async def test_a_line_of_another_types_failure_makes_no_rule(here: Site) -> None:
    """It stands in the log of an attempt that ran out of memory as well."""
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.10 GiB in all"
    other = await here.run("oom", [*STEPS, oom, QUILT.format(n=1, host="gpu-2")])
    assert other.diagnosis.type is FailureType.OUT_OF_MEMORY_ERROR
    first = await here.fail("quilt-1")
    await here.say(first)
    rule = await here.learned(first)
    assert (rule.state, refused_by(rule)) == (REFUSED, [ValidationCheck.OTHERS])


async def test_a_line_that_says_nothing_makes_no_rule(here: Site) -> None:
    """What every failure prints cannot tell this one."""
    first = await here.run("j", [*STEPS, "process exited with error code 3"])
    await here.say(first)
    rule = await here.learned(first)
    assert (rule.state, rule.text) == (REFUSED, "")
    assert "no more than any failure" in rule.history[-1].why


async def test_the_only_line_that_complains_is_taken_for_the_root(here: Site) -> None:
    """The person named the type alone, and there is nothing else that it could be."""
    first = await here.fail("quilt-1")
    await here.say(first, root_line=None)
    assert first.diagnosis.is_undecided
    assert "quilt manifest" in (await here.learned(first)).text


async def test_without_a_root_line_nothing_is_learned(here: Site) -> None:
    """Two lines may be the cause: the person is told to name it."""
    first = await here.fail("quilt-1", more=["mosaic-feeder: lantern wick governor found no paraffin, giving up"])
    await here.say(first, root_line=None)
    rule = await here.learned(first)
    assert rule.state is REFUSED
    assert "say its number" in rule.history[-1].why


async def test_what_a_rule_knows_already_is_not_learned_again(here: Site) -> None:
    """A second confirmed failure of the kind counts for the rule on trial; one from before it is refused as known."""
    early = await here.fail("quilt-0", 1)
    rule = await here.taught()
    later = await here.fail("quilt-2", 3)
    await here.say(later)
    assert await here.store.rules.page(LearnedRuleQuery(source=later.id), "", 5) == []
    await here.say(early)
    second = await here.learned(early)
    assert second.state is REFUSED
    assert rule.id in second.history[-1].why


async def test_a_verdict_that_a_rule_gave_teaches_nothing(here: Site) -> None:
    """Confirming what the shipped rules know wants no rule."""
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.10 GiB in all"
    found = await here.run("oom", [*STEPS, oom])
    await here.say(found, None)
    assert await here.store.rules.page(LearnedRuleQuery(), "", 5) == []


async def test_a_process_that_dies_between_two_steps_is_taken_over(here: Site, tmp_path: Path) -> None:
    """Killed while it writes: when the lease is over another one writes; killed before the gates: they run there."""
    first = await here.fail("quilt-1")
    await here.say(first)
    (claimed,) = await here.store.rules.claim(NOW, 60, 1)
    assert await here.lifecycle.step() == 0
    async with site(tmp_path, now=NOW + 61) as other:
        assert await other.lifecycle.step() == 1
        written = await other.store.rules.find(claimed.id)
        assert written is not None and written.text and written.state is LearnedState.PROPOSED
    assert (await here.learned(first)).state is SHADOW


async def test_nothing_secret_gets_into_a_rule(here: Site) -> None:
    """Keys, addresses, hosts and home folders of the line, its neighbours and the comment are masked."""
    odd = (
        "mosaic-feeder: quilt fetch from https://bob:hunter2@10.1.2.3/q by mia@corp.com at /home/mia/q.bin for gpu-017"
    )
    line = f"{odd} refused its catalogue snapshot, token=abcdef123456 giving up"
    first = await here.run("quilt-1", [*STEPS, line])
    await here.say(first, comment="ask mia@corp.com, password=hunter2hunter2")
    rule = await here.learned(first)
    assert rule.state is SHADOW, rule
    for secret in ("hunter2", "10.1.2.3", "mia", "gpu-017", "abcdef123456", "corp.com"):
        assert secret not in rule.text


async def test_counter_examples_are_healthy_lines(here: Site) -> None:
    """What the failed run printed after its root, or only once, is none; its routine before the root is."""
    after = ["mosaic-feeder: catalogue snapshot is closed"] * 5
    first = await here.fail("quilt-1", more=after)
    await here.say(first)
    examples = yaml.safe_load((await here.learned(first)).text)["examples"]
    assert examples["no_match"] == [STEPS[0]]


async def test_hits_that_a_stable_rule_contradicts_are_wrong(here: Site) -> None:
    """The rule on trial would overrule a shipped one that knows another cause."""
    rule = await here.taught()
    known_one = "[rank6]: ValueError: mmap length is greater than file size"
    text = rule.text.replace("specificity: message", "specificity: code")
    known = await here.store.rules.find(rule.id)
    assert known is not None
    await here.store.rules.change(known, replace(known, text=text))
    found = await here.fail("quilt-2", 5, more=[known_one])
    assert found.diagnosis.type is FailureType.DATASET_LOADING_ERROR
    hits = await here.store.rules.hits(rule.id, 5)
    assert [hit.verdict for hit in hits] == [HitVerdict.WRONG]


FULL = "OSError: [Errno 28] No space left on device: '/scratch/spool/{n}'"
LEASES = "mosaic-feeder: lease table {n} lost: [Errno 28] No space left on device"
FROZEN = "mosaic-feeder: quilt spool {n} frozen until the catalogue is rebuilt"
DISK = "rule:no_space_left"
LATE = (
    "[E socket.cpp:922] [c10d] The client socket has timed out after 900s while trying to connect to (trn-{n}, 29400)."
)


async def test_a_correction_narrows_the_shipped_rule(here: Site) -> None:
    """The line with words of its own goes to the learned rule, in shadow without a contradiction; the shipped rule
    keeps every other full disk."""
    first = await here.run("leases-1", [*STEPS, LEASES.format(n=4711)])
    assert first.diagnosis.decided_by == DISK
    await here.say(first)
    rule = await here.learned(first)
    assert (rule.state, yaml.safe_load(rule.text)["overrides"]) == (SHADOW, ["no_space_left"])
    (examples,) = [gate.reason for gate in rule.gates if gate.name == ValidationCheck.SHIPPED]
    assert "takes 0 of" in examples
    await here.run("leases-2", [*STEPS, LEASES.format(n=5)])
    (hit,) = await here.store.rules.hits(rule.id, 5)
    assert (hit.attempt.job, hit.verdict) == ("leases-2", HitVerdict.OPEN)
    await here.move(rule, ACTIVE)
    third = (await here.run("leases-3", [*STEPS, LEASES.format(n=6)])).diagnosis
    assert (third.type, third.decided_by) == (FailureType.DATALOADER_KILLED, f"rule:{rule.id}")
    assert not third.grounds.stable and third.confidence <= 0.9
    assert (await here.run("disk-1", [*STEPS, FULL.format(n=1)])).diagnosis.decided_by == DISK


async def test_a_message_of_the_shipped_rule_is_narrowed_by_what_stands_beside_it(here: Site) -> None:
    """A line that reads as the shipped rule's examples is the learned one's only next to the line that came with it."""
    first = await here.run("frozen-1", [*STEPS, FROZEN.format(n=3), FULL.format(n=4711)])
    assert first.diagnosis.decided_by == DISK
    await here.say(first, root_line=ROOT + 1)
    rule = await here.learned(first)
    assert rule.state is SHADOW, rule.gates
    assert yaml.safe_load(rule.text)["near"]["patterns"]
    await here.move(rule, ACTIVE)
    again = await here.run("frozen-2", [*STEPS, FROZEN.format(n=8), FULL.format(n=5)])
    assert again.diagnosis.decided_by == f"rule:{rule.id}"
    assert (await here.run("disk-2", [*STEPS, FULL.format(n=6)])).diagnosis.decided_by == DISK


async def test_a_message_of_the_shipped_rule_with_nothing_beside_it_is_outranked(here: Site) -> None:
    """The tests say how many examples of that rule are taken, and how many attempts that nobody judged would change."""
    await here.run("late-1", [*STEPS, LATE.format(n=6)])
    first = await here.run("late-2", [*STEPS, LATE.format(n=7)])
    await here.say(first, FailureType.NODE_FAILURE)
    rule = await here.learned(first)
    assert rule.state is SHADOW, rule.gates
    reasons = {gate.name: gate.reason for gate in rule.gates}
    examples = reasons[ValidationCheck.SHIPPED]
    assert "from c10d_connect_timeout" in examples and "takes 0" not in examples
    assert "1 that nobody judged would change" in reasons[ValidationCheck.OTHERS]
    await here.move(rule, ACTIVE)
    assert (await here.run("late-3", [*STEPS, LATE.format(n=8)])).diagnosis.decided_by == f"rule:{rule.id}"


async def test_a_verdict_that_a_person_confirmed_is_not_outranked(here: Site) -> None:
    """One confirmed full disk of that shape, and the correction of another makes no rule."""
    await here.say(await here.run("disk-6", [*STEPS, FULL.format(n=6)]), None)
    first = await here.run("disk-7", [*STEPS, FULL.format(n=7)])
    await here.say(first)
    rule = await here.learned(first)
    assert rule.state is REFUSED
    assert ValidationCheck.OTHERS in refused_by(rule) and ValidationCheck.REPLAY in refused_by(rule)


async def said_over_http(here: Site, folder: Path, about: DiagnosisRecord, **words: object) -> None:
    """A person's word, by the route that pages and tools use."""
    now = NOW + next(here.numbers)
    access = JobAccess(here.store.jobs, lambda: now)
    more = {"confirmed_failures": here.confirmed_failures, "job_access": access, "clock": lambda: now}
    async with serving(folder, store=here.store, **more) as web:
        path = f"/api/v1/diagnoses/{about.id}/feedback"
        answer = await web.client.post(path, json={"verdict": "corrected", **words})
        assert answer.status_code == 200, answer.text


async def test_a_run_that_did_not_fail_narrows_the_rule_that_said_so(here: Site, tmp_path: Path) -> None:
    """The line of the false alarm is none any more; what else the rule knows is found as before, also in such a run."""
    first = await here.run("leases-1", [*STEPS, LEASES.format(n=4711)], code=None)
    assert first.diagnosis.decided_by == DISK
    await said_over_http(here, tmp_path, first, type="completed", comment="the feeder takes a new lease")
    rule = await here.learned(first)
    assert rule.state is SHADOW, rule.gates
    text = yaml.safe_load(rule.text)
    assert (text["role"], text["type"], text["overrides"]) == ("benign", "disk_full", ["no_space_left"])
    await here.run("leases-2", [*STEPS, LEASES.format(n=5)], code=None)
    (hit,) = await here.store.rules.hits(rule.id, 5)
    assert (hit.attempt.job, hit.active, hit.verdict) == ("leases-2", False, HitVerdict.OPEN)
    await here.move(rule, ACTIVE)
    third = (await here.run("leases-3", [*STEPS, LEASES.format(n=6)], code=None)).diagnosis
    assert (third.type, third.root_cause) == (FailureType.UNKNOWN, None)
    both = (await here.run("leases-4", [*STEPS, LEASES.format(n=7), FULL.format(n=1)])).diagnosis
    assert (both.decided_by, both.root_cause and both.root_cause.line) == (DISK, ROOT + 1)


async def test_a_rule_that_hid_a_failure_is_retired(here: Site, tmp_path: Path) -> None:
    """Where a person names the failure after all, the rule that took its line for none goes."""
    first = await here.run("leases-1", [*STEPS, LEASES.format(n=4711)], code=None)
    await said_over_http(here, tmp_path, first, type="completed")
    rule = await here.move(await here.learned(first), ACTIVE)
    hidden = await here.run("leases-2", [*STEPS, LEASES.format(n=5)], code=None)
    await said_over_http(here, tmp_path, hidden, type="disk_full", root_line=ROOT)
    await here.lifecycle.step()
    assert await here.learned_state(rule) is RETIRED


async def test_no_correction_puts_a_shipped_rule_out_of_force(here: Site, tmp_path: Path) -> None:
    """A line that reads as the rule's own examples, with nothing beside it, may not become one that is no failure."""
    first = await here.run("disk-1", [*STEPS, FULL.format(n=4711)], code=None)
    await said_over_http(here, tmp_path, first, type="completed")
    rule = await here.learned(first)
    assert rule.state is REFUSED
    assert refused_by(rule) == [ValidationCheck.SHIPPED]


async def test_a_line_that_the_run_survived_makes_no_rule(here: Site) -> None:
    """A step line is what training prints in health, even where no completed attempt is stored."""
    first = await here.run("steps-1", [*STEPS, QUILT.format(n=1, host="gpu-017")])
    await here.say(first, root_line=12)
    rule = await here.learned(first)
    assert rule.state is REFUSED


async def test_any_line_of_the_same_shape_shows_the_cause(here: Site) -> None:
    """Another rank prints the line first: the rule decides its case there, and that is as good."""
    lines = [f"[rank{rank}]: {QUILT.format(n=rank + 10, host='gpu-017')}" for rank in range(3)]
    first = await here.run("ranks-1", [*STEPS, *lines])
    await here.say(first, root_line=ROOT + 2)
    rule = await here.learned(first)
    assert rule.state is SHADOW, rule.gates
