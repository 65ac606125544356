"""Where rules grow up: a confirmed case becomes a proposal, the gates decide, shadow counts, evidence or a person
promotes. Each step is one row that changes; a process that dies between two steps is taken over by another one.
"""

import asyncio
import hashlib
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from diagnoser.learning import rule_context, rule_registry, rule_writer, template_rules, validation
from diagnoser.learning.replay_history import ReplayGroup, ReplayHistory
from diagnoser.learning.rule_context import LabelledCase
from diagnoser.learning.rule_registry import RuleRegistry
from diagnoser.learning.rule_writer import LLMRuleWriter
from diagnoser.learning.template_rules import RuleDraft
from diagnoser.learning.validation import RuleHistory
from diagnoser.model import LOADED, Author, Diagnosis, HitVerdict, LearnedRule, LearnedState, Line, ValidationResult
from diagnoser.model.errors import BadInput, Conflict, NotFound, Unavailable, existing
from diagnoser.model.queries import LearnedRuleQuery
from diagnoser.model.taxonomy import FailureType, category_of
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import Clock, Pause
from diagnoser.redaction.redact import Redactor
from diagnoser.rules.calibration import LEARNED_PREFIX
from diagnoser.rules.schema import Role, Rule, RuleSet
from diagnoser.worker.repeat import repeat

US = "diagnoser"
log = structlog.get_logger()
_COMPLETED_READ = 3
"""Completed attempts that counter-examples are read from."""
_HITS = 200


@dataclass(frozen=True, slots=True)
class RuleLearningConfig:
    """How a site learns. promote_after: confirmed hits in shadow, with none wrong, that promote a rule; 0: only people
    do. lease: seconds that one step on one rule may take. poll: seconds between two looks."""

    mask: Redactor
    promote_after: int = 3
    lease: float = 300.0
    poll: float = 2.0

    def is_proved(self, rule: LearnedRule) -> bool:
        """Tell whether what it did in shadow promotes a rule."""
        if rule.counts.wrong:
            return False
        return 0 < self.promote_after <= rule.counts.confirmed


@dataclass(eq=False)
class RuleLifecycle:
    """One a process; ``run`` it as a task, or ``step`` it in a test.

    llm_writer: the model that writes rules; without one rules come from the shape of the line.
    """

    cases: ReplayHistory
    registry: RuleRegistry
    clock: Clock
    config: RuleLearningConfig
    metrics: Metrics
    llm_writer: LLMRuleWriter | None = None

    async def run(self, pause: Pause = asyncio.sleep) -> None:
        """Run until cancelled; waits while the database is away. pause: between two looks."""
        await repeat(self.step, self.config.poll, "rule_learning_waits", pause)

    async def step(self) -> int:
        """One step on a waiting rule, then promotions and retirements. Returns how many rules changed."""
        waiting = LearnedRuleQuery((LearnedState.PROPOSED,))
        changed = 0
        if await self.cases.store.rules.page(waiting, "", 1):
            for rule in await self.cases.store.rules.claim(self.clock(), self.config.lease, 1):
                changed += await self._try_step(rule)
        return changed + await self._judge()

    async def _try_step(self, rule: LearnedRule) -> bool:
        try:
            after = await self._next(rule)
            await self.cases.store.rules.change(rule, after)
        except (Conflict, NotFound):  # somebody else was faster
            return False
        except Unavailable:
            raise
        except Exception as error:  # one bad rule must not stop the others; it is retried when its lease runs out
            log.error("rule_failed", rule=rule.id, error_class=type(error).__name__, exc_info=error)
            return False
        self._announce(rule, after)
        if after.state is LearnedState.SHADOW and after.replaces:
            await self._retire_replaced(after)
        return True

    async def _retire_replaced(self, by: LearnedRule) -> None:
        """Retire the rule that a person edited, unless it is in force or changes at this moment."""
        old = await self.cases.store.rules.find(by.replaces)
        if old is None:
            return
        if old.state not in (LearnedState.PROPOSED, LearnedState.SHADOW):
            return
        why = f"replaced by {by.id}"
        retired = old.with_state(LearnedState.RETIRED, by=by.by, why=why, now=self.clock())
        with suppress(Conflict, NotFound):
            self._announce(old, await self.cases.store.rules.change(old, retired))

    def _announce(self, before: LearnedRule, after: LearnedRule) -> None:
        why = "written" if after.state is before.state else after.history[-1].why
        log.info("rule_handled", rule=after.id, state=str(after.state), why=why)
        if after.state is not before.state:
            self.metrics.learned.labels(after.state).inc()

    async def suggestion(self, source: str) -> RuleDraft | None:
        """What a rule for a diagnosis could say, from the shape of the line that shows its cause; None where nothing
        does."""
        record = await self.cases.store.diagnoses.find(source)
        if record is None:
            return None
        case = await self.cases.case_of(record)
        root = rule_context.root_of(case)
        if root is None:
            return None
        return template_rules.from_shape(await self._rule_context(case, root))

    async def propose(
        self, source: str, draft: RuleDraft, by: str, replaces: str
    ) -> tuple[LearnedRule, tuple[ValidationResult, ...]]:
        """Store the rule that a person wrote for the confirmed failure ``source``, to be tested like any other.

        Returns it with the checks that need no history; where one failed, nothing is stored. The id follows from what
        the rule says, so that saving it twice stores one rule. replaces: as in ``LearnedRule``. Raises NotFound,
        BadInput where nobody judged the failure or no line shows it.
        """
        record = existing(await self.cases.store.diagnoses.find(source), f"there is no diagnosis {source!r}")
        if not record.feedback:
            raise BadInput("confirm or correct the diagnosis first: a rule is written for a cause that a person named")
        case = await self.cases.case_of(record)
        root = rule_context.root_of(case)
        if root is None:
            raise BadInput("no kept line is known to show the cause: say its number on the page of the diagnosis")
        context = await self._rule_context(case, root)
        # The id is part of the text: what it is made from is the text without it.
        digest = hashlib.sha256(f"{source}\0{template_rules.rule_text('', context, draft)}".encode()).hexdigest()
        now, rule_id = self.clock(), f"{LEARNED_PREFIX}{case.known_type}_{digest[:8]}"
        if stored := await self.cases.store.rules.find(rule_id):
            return stored, stored.gates
        text = template_rules.rule_text(rule_id, context, draft)
        rule = LearnedRule(
            rule_id,
            source,
            now,
            type=str(case.known_type),
            text=text,
            by=by,
            author=Author(rule_writer.PERSON),
            replaces=replaces,
        ).with_state(LearnedState.PROPOSED, by=by, why="written in the rule workbench", now=now)
        results, _ = await asyncio.to_thread(self._quick_checks, rule, text, case, root)
        if validation.passed(results):
            await self.cases.store.rules.propose(rule)
        return rule, validation.masked(results, self.config.mask)

    async def _next(self, rule: LearnedRule) -> LearnedRule:
        """The rule one step further: written, or tested."""
        record = await self.cases.store.diagnoses.find(rule.source)
        if record is None:
            return self._refused(rule, "the diagnosis that it is learned from is gone")
        case = await self.cases.case_of(record)
        root = rule_context.root_of(case)
        if root is None:
            return self._refused(rule, "no kept line is known to show the cause: say its number with the feedback")
        if rule.text:
            return await self._test(rule, case, root)
        return await self._write(rule, case, root)

    async def _write(self, rule: LearnedRule, case: LabelledCase, root: Line) -> LearnedRule:
        if other := await self._already_known(rule, case, root):
            return self._refused(rule, f"{other} knows this failure already")
        context = await self._rule_context(case, root)

        def sound(text: str) -> str:
            """Check the text, as far as no history is needed."""
            results = self._quick_checks(rule, text, case, root)[0]
            return "; ".join(f"{gate.name}: {gate.reason}" for gate in results if not gate.passed)

        text, author = await rule_writer.write(self.llm_writer, rule.id, context, sound)
        self.metrics.observe_calls(author)
        if not text:
            return self._refused(replace(rule, author=author), "the line says no more than any failure does")
        return replace(rule, text=text, author=author, changed=self.clock())

    async def _rule_context(self, case: LabelledCase, root: Line) -> rule_context.RuleContext:
        mask = self.config.mask
        completed = await self.cases.completed(_COMPLETED_READ, case.facts.job.tenant)
        healthy = list[str]()
        for healthy_case in completed:
            healthy += rule_context.routine(healthy_case, mask)
        return rule_context.from_case(case, root, healthy, mask, self._overruled(case))

    def _overruled(self, case: LabelledCase) -> Rule | None:
        """The site's own rule whose verdict on the case was corrected."""
        return rule_context.overruled(case, self.registry.base.knowledge.engine.ruleset)

    async def _already_known(self, rule: LearnedRule, case: LabelledCase, root: Line) -> str:
        """The learned rule that recognises this root line as the same type, if one does."""
        for other in await self.cases.store.rules.page(LearnedRuleQuery(LOADED), "", 1000):
            if other.type != rule.type:
                continue
            for read in rule_registry.read([other]).rules[:1]:
                if root.text in validation.hits(read, case.evidence):
                    return other.id
        return ""

    async def _test(self, rule: LearnedRule, case: LabelledCase, root: Line) -> LearnedRule:
        results, ruleset = await asyncio.to_thread(self._quick_checks, rule, rule.text, case, root)
        if validation.passed(results) and ruleset:
            results += await self._history_checks(ruleset, case, root)
        tested = replace(rule, gates=validation.masked(results, self.config.mask))
        if validation.passed(results):
            return tested.with_state(LearnedState.SHADOW, by=US, why="passed every gate", now=self.clock())
        return await self._fall_back(tested, case, root)

    async def _fall_back(self, rule: LearnedRule, case: LabelledCase, root: Line) -> LearnedRule:
        """A gate refused a model's rule: try one made from the shape of the line."""
        why = next(f"{gate.name}: {gate.reason}" for gate in rule.gates if not gate.passed)
        context = await self._rule_context(case, root)
        draft = None
        if rule.author.name.startswith(rule_writer.MODEL):
            draft = template_rules.from_shape(context)
        if draft is None:
            return self._refused(rule, why)
        author = replace(rule.author, name=rule_writer.TEMPLATE, failure=f"the model's rule was refused: {why}"[:300])
        text = template_rules.rule_text(rule.id, context, draft)
        retry = replace(rule, text=text, author=author)
        return retry.with_state(LearnedState.PROPOSED, by=US, why=author.failure, now=self.clock())

    def _quick_checks(
        self, rule: LearnedRule, text: str, case: LabelledCase, root: Line
    ) -> tuple[tuple[ValidationResult, ...], RuleSet | None]:
        """Gates that need only the rule and its own case."""
        compiled, ruleset = validation.compiles(rule.id, text, rule.type, self._overruled(case))
        if ruleset is None:
            return (compiled,), None
        analyzer, (parsed,) = self.registry.analyzer, ruleset.rules
        verdict = analyzer.with_rules(ruleset).diagnose_with_node_logs(case.evidence, case.facts)
        return (
            compiled,
            validation.specific(parsed, root.body),
            validation.its_examples(ruleset, analyzer),
            validation.own_case(parsed, root, verdict),
        ), ruleset

    async def _history_checks(self, ruleset: RuleSet, case: LabelledCase, root: Line) -> tuple[ValidationResult, ...]:
        """Gates that need other rules' examples and the stored history."""
        analyzer, (rule,) = self.registry.analyzer, ruleset.rules
        shipped = validation.shipped_examples(
            rule, await asyncio.to_thread(validation.foreign_examples, analyzer, rule)
        )
        extended = analyzer.with_rules(ruleset)

        def diagnose(replayed: LabelledCase, with_rule: bool) -> Diagnosis:
            return (extended if with_rule else analyzer).diagnose_with_node_logs(replayed.evidence, replayed.facts)

        history = RuleHistory(rule, diagnose)
        history.own(case, root)
        collect = {
            ReplayGroup.COMPLETED: history.completed,
            ReplayGroup.OTHER_TYPE: history.of_other_type,
            ReplayGroup.CONFIRMED: history.a_confirmed,
        }
        async for group, other in self.cases.history(case.known_type, case.record.attempt):
            await asyncio.to_thread(collect[group], other)
        if rule.role is not Role.BENIGN and await self.cases.in_clean_runs(case, root):
            history.against[validation.ValidationCheck.HEALTHY] = "clean runs of this job family print such a line"
        return (shipped, *history.gates())

    async def _judge(self) -> int:
        """Promote what proved itself in shadow; retire what a person found wrong in force."""
        changed = 0
        for rule in await self.cases.store.rules.page(LearnedRuleQuery(LOADED), "", 1000):
            after = await self._verdict_on(rule)
            if after:
                try:
                    await self.cases.store.rules.change(rule, after)
                except (Conflict, NotFound):
                    continue
                self._announce(rule, after)
                changed += 1
        return changed

    async def _verdict_on(self, rule: LearnedRule) -> LearnedRule | None:
        """The rule in its next state; None where it stays as it is."""
        if rule.state is LearnedState.SHADOW:
            return self._promotion(rule)
        if rule.state is LearnedState.ACTIVE:
            return await self._retirement(rule)
        return None

    def _promotion(self, rule: LearnedRule) -> LearnedRule | None:
        if not self.config.is_proved(rule):
            return None
        why = f"{rule.counts.confirmed} confirmed hits in shadow, none wrong"
        return rule.with_state(LearnedState.ACTIVE, by=US, why=why, now=self.clock())

    async def _retirement(self, rule: LearnedRule) -> LearnedRule | None:
        if not rule.counts.wrong:
            return None
        since = max(turn.time for turn in rule.history if turn.state is LearnedState.ACTIVE)
        for hit in await self.cases.store.rules.hits(rule.id, _HITS):
            if hit.time < since:
                continue  # of an earlier time in force
            if (hit.active, hit.verdict) == (True, HitVerdict.WRONG):
                why = f"a person named another cause for {hit.attempt.job}/{hit.attempt.number}"
                return rule.with_state(LearnedState.RETIRED, by=US, why=why, now=self.clock())
        return None

    def _refused(self, rule: LearnedRule, why: str) -> LearnedRule:
        return rule.with_state(LearnedState.REFUSED, by=US, why=self.config.mask(why), now=self.clock())


def promoted(rule: LearnedRule, by: str, why: str, now: float) -> LearnedRule:
    """A person lets the rule decide. Raises Conflict unless it is in shadow, and right as often as wrong at least."""
    if rule.state is not LearnedState.SHADOW:
        raise Conflict(f"rule {rule.id} is {rule.state}: only a rule in shadow can be promoted")
    counts = rule.counts
    if counts.wrong > counts.confirmed:
        raise Conflict(f"rule {rule.id} was wrong in {counts.wrong} attempts and right in {counts.confirmed}")
    return _by_person(rule, LearnedState.ACTIVE, by, why, now)


def retired(rule: LearnedRule, by: str, why: str, now: float) -> LearnedRule:
    """A person withdraws the rule. Raises Conflict unless it is in shadow or in force."""
    if rule.state not in LOADED:
        raise Conflict(f"rule {rule.id} is {rule.state}: only a rule in shadow or in force can be retired")
    return _by_person(rule, LearnedState.RETIRED, by, why, now)


def restored(rule: LearnedRule, by: str, why: str, now: float) -> LearnedRule:
    """Undo: the rule must pass the gates again, because history has grown, and is then in shadow. Raises Conflict."""
    if (rule.state, bool(rule.text)) != (LearnedState.RETIRED, True):
        raise Conflict(f"rule {rule.id} is {rule.state}: only a rule that was retired can be brought back")
    return _by_person(rule, LearnedState.PROPOSED, by, why, now)


_UNEXPLAINED = {
    LearnedState.ACTIVE: "promoted by a person",
    LearnedState.RETIRED: "retired by a person",
    LearnedState.PROPOSED: "brought back by a person",
}


def _by_person(rule: LearnedRule, state: LearnedState, by: str, why: str, now: float) -> LearnedRule:
    return rule.with_state(state, by=by, why=why or _UNEXPLAINED[state], now=now)


def file_of(rule: LearnedRule) -> str:
    """Path of the rule in a folder of rules. One for a line that is no failure stands by what the line looks like."""
    if rule.family:
        return f"filters/{rule.id}.txt"
    if rule.text and rule.type == FailureType.COMPLETED:
        return rule_registry.path(rule.text)
    return f"{category_of(FailureType(rule.type))}/{rule.id}.yaml"
