"""What a learned Filter Rule knows of an attempt that ended, and whether hiding it would have been right. Pure."""

from dataclasses import dataclass

from diagnoser.compress import Digest, learned_filters
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.learning import filter_validation
from diagnoser.model import AttemptKey, Diagnosis, Facts, HitVerdict, Job, LearnedRule, LearnedState, RuleHit


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt to look at, once its verdict is stored."""

    attempt: AttemptKey
    job: Job
    diagnosis: Diagnosis


def hit(reader: LogAnalyzer, rule: LearnedRule, ended: Ended, digest: Digest, now: float) -> RuleHit | None:
    """None where the rule knows nothing of this log. Wrong where the verdict would be another one, or where the rule
    knows the line that the verdict points at.

    digest: without learned filters. Raises RuleFaults.
    """
    known = filter_validation.read(rule.id, rule.text)
    found = learned_filters.taken(digest.delta, known)
    if not found.lines:
        return None
    root = ended.diagnosis.root_cause
    hides = root is not None and known.takes(learned_filters.message(root.text))
    clean = not hides and filter_validation.same_verdict(
        reader, digest, (known,), Facts(ended.job, ended.attempt.number)
    )
    return RuleHit(
        rule.id,
        ended.attempt,
        now,
        verdict=HitVerdict.CONFIRMED if clean else HitVerdict.WRONG,
        active=rule.state is LearnedState.ACTIVE,
        lines=found.lines,
        bytes=found.bytes,
    )
