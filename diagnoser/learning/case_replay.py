"""The site's own cases: every failure whose cause a person named is diagnosed again whenever rules or cases change.

So a site sees whether its diagnoses get better, and what a new release or a learned rule spoils.
"""

import asyncio
from dataclasses import dataclass

import structlog

from diagnoser.accuracy import scoring
from diagnoser.accuracy.scoring import Label
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.learning import rule_context
from diagnoser.learning.replay_history import ReplayHistory
from diagnoser.learning.rule_context import LabelledCase
from diagnoser.learning.rule_registry import RuleRegistry
from diagnoser.model import CaseOutcome, CaseReplay, FeedbackVerdict
from diagnoser.model.errors import Unavailable
from diagnoser.model.taxonomy import category_of
from diagnoser.ports import Clock
from diagnoser.recovery.policy import Policy, PolicyCase

PAUSE = 3600.0
"""Shortest seconds between two replays for new cases alone."""
POLL = 10.0
"""Seconds between two looks."""


def label_of(case: LabelledCase, policy: Policy) -> Label:
    """A case as a labelled log. Its root line is known where a person named it or confirmed the verdict; the right
    action is what the policy says for the cause that is known."""
    feedback, kind = rule_context.feedback_on(case.record), case.known_type
    node, root_lines, root_text = None, tuple[int, ...](), ""
    if feedback:
        node = feedback.node
        if feedback.root_line or feedback.verdict is FeedbackVerdict.CONFIRMED:
            root = rule_context.root_of(case)
            if root:
                root_lines, root_text = (root.number,), root.text
    framework = case.facts.job.framework
    known = PolicyCase(kind, category_of(kind), 1.0, node_named=node is not None, stable=True)
    return Label(
        id=case.record.id,
        category=str(category_of(kind)),
        type=str(kind),
        root_lines=root_lines,
        root_text=root_text,
        recovery=str(policy.advise(known).action),
        node=node,
        origin={"framework": framework} if framework else {},
    )


@dataclass(frozen=True, slots=True)
class CaseReplayer:
    """One a process; ``run`` it as a task, or ``step`` it in a test. version: of the software."""

    cases: ReplayHistory
    registry: RuleRegistry
    clock: Clock
    version: str

    async def run(self) -> None:
        """Run until cancelled; waits while the database is away."""
        while True:
            try:
                await self.step()
            except Unavailable as error:
                structlog.get_logger().warning("case_replay_waits", error=str(error))
            except Exception as error:  # one case that cannot be read must not end the service
                structlog.get_logger().error("case_replay_failed", exc_info=error)
                await asyncio.sleep(PAUSE)
            await asyncio.sleep(POLL)

    async def step(self) -> CaseReplay | None:
        """A replay where one is due: other software, other rules, or other cases and the last one some time ago."""
        store = self.cases.store
        mark = await store.cases.mark()
        if not mark.count:
            return None
        analyzer, now = self.registry.analyzer, self.clock()
        ruleset = analyzer.knowledge.engine.ruleset.hash
        last = next(iter(await store.cases.replays(1)), None)
        if last and (last.version, last.ruleset) == (self.version, ruleset):
            if last.mark == mark:
                return None
            if now - last.time < PAUSE:
                return None
        outcomes = [await asyncio.to_thread(_outcome, case, analyzer) async for case in self.cases.judged()]
        replay = CaseReplay(now, self.version, ruleset, mark, tuple(outcomes))
        await store.cases.add_replay(replay)
        structlog.get_logger().info("cases_replayed", cases=len(outcomes), right=replay.right, ruleset=ruleset)
        return replay


def _outcome(case: LabelledCase, analyzer: LogAnalyzer) -> CaseOutcome:
    record = case.record
    verdict = analyzer.diagnose_with_node_logs(case.evidence, case.facts)  # by the rules that are in force now
    score = scoring.score_case(label_of(case, analyzer.knowledge.policy), verdict)
    return CaseOutcome(
        diagnosis=record.id,
        attempt=record.attempt,
        created=record.created,
        known=case.known_type,
        said=record.diagnosis.type,
        says=verdict.type,
        root=score.root,
    )
