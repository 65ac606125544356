"""Which likeness lets a confirmed failure decide: ``python -m tools.bench.likeness [HEALTHY_LOG ...]``.

Leave-one-out over the labelled logs. The rules decide nearly all of them, so each case is taken as one that they did
not decide, and all others as failures whose type a person confirmed. A decision is false when the types differ. With
healthy logs each case is also put behind each of them: then different failures share most of what they complain of.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

from diagnoser import compress
from diagnoser.accuracy.scoring import Label
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.model import (
    AttemptKey,
    ConfirmedFailure,
    Diagnosis,
    Evidence,
    FeedbackVerdict,
    LineBlock,
    Signature,
    Similar,
    Stream,
)
from diagnoser.model.taxonomy import Category, FailureType, Outcome, category_of
from diagnoser.recovery.policy import Policy
from diagnoser.retrieval import confirmed_failures, signature
from diagnoser.retrieval.index import Index
from tests import accuracy_bars
from tests.corpus import CORPUS

LEAST = (0.70, 0.80, 0.88, confirmed_failures.SAME, 0.96)
UNDECIDED = Diagnosis(Outcome.FAILED, Category.UNKNOWN, FailureType.UNKNOWN, 0.1, "heuristic:no_evidence")


@dataclass(frozen=True, slots=True)
class Known:
    label: Label
    sign: Signature


@dataclass(frozen=True, slots=True)
class Rate:
    """Of ``asked`` undecided failures: how many got the verdict of another one, and how many of these a false one."""

    least: float
    asked: int
    decided: int
    false: tuple[str, ...]


def known(analyzer: LogAnalyzer, folders: Sequence[str], healthy: Path | None = None) -> Iterator[Known]:
    """Failures with the signature that they have where no rule decides; those without a cause are left out."""
    head, shift = _head(analyzer, healthy) if healthy else (None, 0)
    for folder in folders:
        for label in accuracy_bars.labels(folder):
            if category_of(FailureType(label.type)) in (Category.NONE, Category.UNKNOWN):
                continue
            log = (CORPUS / folder / f"{label.id}.log").read_bytes()
            yield Known(label, signature.signature_of(_behind(analyzer, head, shift, log), UNDECIDED))


def rates(cases: Sequence[Known], policy: Policy, *, alone: bool = False) -> list[Rate]:
    """One rate for each threshold. alone: the threshold decides without the comparison line by line."""
    index = Index()
    for one in cases:
        index.put(_confirmed(one), signature.vector(one.sign))
    found = [(one, index.nearest(signature.vector(one.sign), confirmed_failures.RIVALS)) for one in cases]
    made = []
    for least in LEAST:
        verdicts = [
            (one, _alike(one, nearest, least) if alone else _settled(one, nearest, policy, least))
            for one, nearest in found
        ]
        decided = [(one, said) for one, said in verdicts if said.category is not Category.UNKNOWN]
        false = [f"{one.label.id} as {said.decided_by}" for one, said in decided if said.type != one.label.type]
        made.append(Rate(least, len(cases), len(decided), tuple(false)))
    return made


def _settled(one: Known, nearest: Sequence[Similar], policy: Policy, least: float) -> Diagnosis:
    return confirmed_failures.adopt_confirmed_failure(
        UNDECIDED, AttemptKey(one.label.id), one.sign, nearest, policy, least
    )


def _alike(one: Known, nearest: Sequence[Similar], least: float) -> Diagnosis:
    """What likeness by itself would say: the nearest one's type."""
    near = [other for other in nearest if other.score >= least and other.confirmed.diagnosis != one.label.id]
    if not near:
        return UNDECIDED
    kind = near[0].confirmed.type
    return replace(
        UNDECIDED, type=kind, category=category_of(kind), decided_by=f"incident:{near[0].confirmed.diagnosis}"
    )


def _confirmed(one: Known) -> ConfirmedFailure:
    key, kind = AttemptKey(one.label.id), FailureType(one.label.type)
    return ConfirmedFailure(one.label.id, key, 0.0, 0.0, kind, FeedbackVerdict.CONFIRMED, "label", one.sign)


def _head(analyzer: LogAnalyzer, healthy: Path) -> tuple[bytes, int]:
    with healthy.open("rb") as log:
        return analyzer.delta(log)


def _behind(analyzer: LogAnalyzer, head: bytes | None, shift: int, log: bytes) -> Evidence:
    if head is None:
        return analyzer.read(BytesIO(log)).evidence
    tail = analyzer.compressor()
    tail.feed(LineBlock(Stream(), log, shift + 1))
    return compress.digest(compress.merge([compress.from_bytes(head), tail.take()])).evidence


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("healthy", nargs="*", type=Path, metavar="HEALTHY_LOG", help="put each case behind it as well")
    parser.add_argument("--show", action="store_true", help="name the cases whose decision is false")
    parser.add_argument("--alone", action="store_true", help="the threshold alone, without the comparison of lines")
    chosen = parser.parse_args()
    if not CORPUS.is_dir():
        print("labelled logs absent: nothing to measure")  # noqa: T201
        return 0
    analyzer = accuracy_bars.load()
    for healthy in (None, *chosen.healthy):
        print(f"\n{healthy.name if healthy else 'as they are'}")  # noqa: T201
        cases = list(known(analyzer, accuracy_bars.FOLDERS, healthy))
        for rate in rates(cases, analyzer.knowledge.policy, alone=chosen.alone):
            share = len(rate.false) / rate.decided if rate.decided else 0.0
            print(f"{rate.least:.2f}: {rate.decided} of {rate.asked} decided, {len(rate.false)} false ({share:.1%})")  # noqa: T201
            if chosen.show:
                print("\n".join(f"      {one}" for one in rate.false))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
