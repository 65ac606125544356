"""Reading logs as a site does."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from diagnoser import compress
from diagnoser.compress import AttemptLog
from diagnoser.diagnosis.llm_stage import LLMStage
from diagnoser.failure_agent.agent import FailureAgent
from diagnoser.failure_agent.consultation import ConsultationInput
from diagnoser.model import AskReason, AttemptKey, Diagnosis, Facts, Judgement, LineBlock, Plan, Stream
from diagnoser.model.queries import PlanFilter
from diagnoser.model.taxonomy import Outcome
from diagnoser.model.work import DiagnosisRecord
from diagnoser.retrieval.confirmed_failures import ConfirmedFailures, SimilarFailures
from tests.rule_files import ANALYZER

RECEIVED = 1_790_000_000.0


def running(zone: int) -> bytes:
    """The delta of a run of 4 s a step; its own clock is ``zone`` hours off, its last line came at RECEIVED."""
    lines = (
        f" [2026-09-21 {13 + zone:02}:{step * 4 // 60:02}:{step * 4 % 60:02}] iteration {step}/ 500 | "
        f"elapsed time per iteration (ms): 4000.0 | lm loss: 2.3E+00 | grad norm: 0.2 |"
        for step in range(1, 41)
    )
    compressor = ANALYZER.compressor()
    compressor.feed(LineBlock(Stream(), "\n".join(lines).encode(), 1, None, RECEIVED))
    return compress.to_bytes(compressor.take())


def outcome(zone: int, silent: float) -> Outcome:
    log, facts = AttemptLog.from_deltas([running(zone)]), Facts(failed=(RECEIVED, RECEIVED))
    return ANALYZER.analyze(log, facts, RECEIVED + silent).outcome


def test_a_run_that_stopped_stepping_hangs() -> None:
    """Ten minutes without a step of four seconds are a hang; half a minute is not."""
    assert outcome(0, silent=600.0) is Outcome.HUNG
    assert outcome(0, silent=30.0) is not Outcome.HUNG


def test_a_log_in_another_time_zone_does_not_hang() -> None:
    """Silence is measured from the last line's arrival, whatever hour the log's own clock shows."""
    for zone in (-8, 8):
        assert outcome(zone, silent=30.0) is not Outcome.HUNG
        assert outcome(zone, silent=600.0) is Outcome.HUNG


class Echo:
    """Stands for a Failure Agent that has nothing to add."""

    def reasons_to_ask(self, diagnosis: Diagnosis) -> tuple[AskReason, ...]:
        return (AskReason.UNKNOWN,)

    async def consult(
        self, about: ConsultationInput, asked: tuple[AskReason, ...], confidences: Mapping[str, float]
    ) -> Diagnosis:
        return replace(about.diagnosis, notes=(*about.confirmed_failures, "nothing to add"))


async def test_how_similar_failures_were_found_is_noted() -> None:
    """What people should know of it stands behind what the model said."""

    class Remembered:
        async def describe_similar(self, record: DiagnosisRecord) -> SimilarFailures:
            return SimilarFailures(("told",), ("by hashed words",))

        async def describe_like(self, attempt: AttemptKey, text: str) -> tuple[str, ...]:
            return ()

    log = AttemptLog.from_deltas([running(0)])
    verdict = ANALYZER.analyze(log, Facts(), RECEIVED)
    record = DiagnosisRecord("d", AttemptKey("j"), 1, 0.0, True, verdict)

    class NotJudged:
        async def judgements(self, since: float, limit: int) -> list[Judgement]:
            return []

    class NoPlans:
        async def page(self, where: PlanFilter, after: str, limit: int) -> list[Plan]:
            return []

    remembered = cast(ConfirmedFailures, Remembered())
    stage = LLMStage(
        cast(FailureAgent, Echo()), remembered, cast(Any, NotJudged()), ANALYZER.knowledge, cast(Any, NoPlans())
    )
    better = await stage.run(record, log, Facts())
    assert better is not None
    assert better.notes == ("told", "nothing to add", "by hashed words")
