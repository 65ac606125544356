"""Scores diagnoses against labels: pure, so that the command line, the tests and CI agree.

The shares are those of the project's outside scorer, definition by definition; what it does not measure (intervals,
confusion, top-3) is added beside them.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from diagnoser.model import Diagnosis, EvidenceLine, Rejected

_BESIDES: dict[str, frozenset[str]] = {
    "connection_error": frozenset({"resubmit", "check_and_resubmit"}),
    "filesystem_error": frozenset({"resubmit", "check_and_resubmit"}),
    "container_runtime_error": frozenset({"resubmit", "check_and_resubmit", "notify_user"}),
    "model_loading_error": frozenset({"notify_user", "rollback_and_resubmit"}),
}
"""Further actions that count as right for a type."""
_NODE_GIVEN_AWAY = frozenset({"cordon_and_resubmit", "check_and_resubmit"})
"""Right actions for which a cordon is no harm to a healthy node."""
_FOLD_FIELDS = ("framework", "launcher", "scenario", "source")
"""Fields of a label that say where a case comes from."""
_FOLD_LEAST = 5
"""Fewest cases of a fold that is reported by itself."""
OTHERS = "others"
_BINS = 10
_SURE = 0.9
"""Confidence above which a wrong type does harm: people act on it without a second look."""
_ROUNDS = 1000
_SMALL_WEIGHT = 0.05
"""GPU-time weight of a type that the paper's table does not have."""


@dataclass(frozen=True, slots=True)
class Label:
    """One labelled case. Empty root_lines: no line shows the cause. type_visible False: abstaining is right.

    also: further types that are as right where the taxonomy leaves a choice; ``type`` alone counts strictly.
    event_lines: other prints of the event that ``root_lines`` shows.
    origin: where the case comes from, such as ``{"framework": "Ray"}``.
    """

    id: str
    category: str
    type: str
    root_lines: tuple[int, ...]
    root_text: str
    recovery: str
    node: str | None = None
    rank: int | None = None
    silent: bool = False
    type_visible: bool = True
    also: tuple[str, ...] = ()
    event_lines: tuple[int, ...] = ()
    origin: Mapping[str, str] = field(default_factory=dict, hash=False)


def label_of(data: Mapping[str, object]) -> Label:
    """Read a label from an object of ``labels.jsonl``. Raises KeyError when a needed field is missing."""
    rank = data.get("rank")
    return Label(
        id=str(data["id"]),
        category=str(data["category"]),
        type=str(data["type"]),
        root_lines=tuple(map(int, _listed(data["root_lines"]))),
        root_text=str(data.get("root_text") or ""),
        recovery=str(data["recovery"]),
        node=str(data["node"]) if data.get("node") else None,
        rank=rank if isinstance(rank, int) else None,
        silent=bool(data.get("silent")),
        type_visible=data.get("type_visible") is not False,
        also=tuple(map(str, _listed(data.get("also")))),
        event_lines=tuple(map(int, _listed(data.get("event_lines")))),
        origin={name: str(data[name]) for name in _FOLD_FIELDS if data.get(name)},
    )


def _listed(value: object) -> list[Any]:
    """The items of a field that holds a list; none where it holds anything else."""
    if isinstance(value, list):
        return value
    return []


@dataclass(frozen=True, slots=True)
class ScoredVerdict:
    """How one case came out; None where the measure does not apply.

    type_also: whether the type is the label's, or one that the label takes as well.
    asked: why a model would be asked about it. review_kind: the verdicts that are wrong about as often.
    """

    label: Label
    said_category: str
    said_type: str
    decided_by: str
    confidence: float
    category: bool
    type: bool
    type_also: bool
    action: bool
    root: bool | None
    root_top3: bool | None
    rank: bool | None
    node: bool | None
    false_cordon: bool
    wrong_node_cordon: bool
    false_alarm: bool
    false_stop: bool
    asked: tuple[str, ...] = ()
    review_kind: str = ""


@dataclass(frozen=True)
class AccuracyReport:
    """shares: name -> share in 0..1 or None. counts: name -> number, among them the cases that a model is asked about,
    in all and by reason (one case may have several). intervals: name -> 95 % bootstrap interval.

    node: of all cases with a known node. node_attributable: of those where some line of the log shows the cause.

    confusion: (label, said) -> cases, for wrong types. by_type: type -> (right, cases).
    """

    shares: Mapping[str, float | None]
    counts: Mapping[str, int]
    intervals: Mapping[str, tuple[float, float]]
    confusion: Mapping[tuple[str, str], int]
    by_type: Mapping[str, tuple[int, int]]
    misses: tuple[ScoredVerdict, ...] = field(default=(), repr=False)


def score_case(label: Label, diagnosis: Diagnosis, shift: int = 0) -> ScoredVerdict:
    """Compare a diagnosis with its label.

    shift: lines of a healthy log that were put before the case.
    """
    category = diagnosis.category == label.category
    type_ = diagnosis.type == label.type
    if not label.type_visible:
        type_ |= diagnosis.category == "unknown"  # abstaining is right
        category |= type_
    action = str(diagnosis.recovery.action)
    cordon = action == "cordon_and_resubmit"
    wrong_node = _first_suspect(diagnosis) not in ("", label.node) if label.node else False
    return ScoredVerdict(
        label=label,
        said_category=str(diagnosis.category),
        said_type=str(diagnosis.type),
        decided_by=diagnosis.decided_by,
        confidence=diagnosis.confidence,
        category=category,
        type=type_,
        type_also=type_ or diagnosis.type in label.also,
        action=action in (label.recovery, *_BESIDES.get(label.type, ())),
        root=_right_line(label, _root(diagnosis), shift),
        root_top3=_right_line(label, _top(diagnosis), shift),
        rank=_right_rank(label, diagnosis),
        node=_right_node(label, diagnosis),
        false_cordon=cordon and label.recovery not in _NODE_GIVEN_AWAY,
        wrong_node_cordon=cordon and wrong_node,
        false_alarm=label.category == "none" and diagnosis.category != "none",
        false_stop=action == "notify_user" and label.recovery not in ("notify_user", "none"),
        asked=tuple(map(str, diagnosis.doubts)),
        review_kind=diagnosis.review_kind,
    )


def report(verdicts: Sequence[ScoredVerdict], weights: Mapping[str, float], seed: int = 7) -> AccuracyReport:
    """Sum verdicts up.

    weights: share of GPU time that a type cost (the paper's Table 3).
    seed: of the bootstrap.
    """
    shares: dict[str, float | None] = {}
    counts, intervals = {"cases": len(verdicts)}, dict[str, tuple[float, float]]()
    for name, measure in _MEASURES.items():
        outcomes = [outcome for outcome in map(measure, verdicts) if outcome is not None]
        shares[name] = None
        if outcomes:
            shares[name] = sum(outcomes) / len(outcomes)
            intervals[name] = _interval(outcomes, seed)
        if name in ("rank", "node"):
            counts[f"{name}_cases"] = len(outcomes)
    shares["macro_f1"] = _macro_f1(verdicts)
    shares["gpu_time_weighted_type"] = _weighted(verdicts, weights)
    shares["ece"] = calibration_error(list(map(attrgetter("confidence", "type"), verdicts)))
    shares["ece_also"] = calibration_error(list(map(attrgetter("confidence", "type_also"), verdicts)))
    return AccuracyReport(
        shares=shares,
        counts=counts | _counts(verdicts),
        intervals=intervals,
        confusion=Counter((case.label.type, case.said_type) for case in verdicts if not case.type),
        by_type=_by_type(verdicts),
        misses=tuple(filter(_is_miss, verdicts)),
    )


def _is_miss(case: ScoredVerdict) -> bool:
    return False in (case.category, case.type, case.root)


def _attributable(case: ScoredVerdict) -> bool | None:
    if case.label.silent:
        return None
    return case.node


_MEASURES: Mapping[str, Callable[[ScoredVerdict], bool | None]] = {
    "category": lambda case: case.category,
    "type": lambda case: case.type,
    "type_also": lambda case: case.type_also,
    "root_line": lambda case: case.root,
    "root_line_top3": lambda case: case.root_top3,
    "action": lambda case: case.action,
    "rank": lambda case: case.rank,
    "node": lambda case: case.node,
    "node_attributable": _attributable,
    "abstain": lambda case: case.said_category == "unknown",
}
"""Shares of the report; None where a case does not count for it."""


def _counts(verdicts: Sequence[ScoredVerdict]) -> dict[str, int]:
    """Count what must not happen, and the cases that a model is asked about."""
    counts = {}
    for name in ("false_cordon", "wrong_node_cordon", "false_alarm", "false_stop", "asked"):
        counts[name] = len(list(filter(attrgetter(name), verdicts)))
    wrong = [case for case in verdicts if not case.type]
    counts["wrong"] = len(wrong)
    counts[f"wrong_above_{_SURE}"] = sum(case.confidence > _SURE for case in wrong)
    reasons = Counter(chain.from_iterable(map(attrgetter("asked"), verdicts)))
    for reason, cases in sorted(reasons.items()):
        counts[f"asked_{reason}"] = cases
    return counts


def _by_type(verdicts: Sequence[ScoredVerdict]) -> dict[str, tuple[int, int]]:
    by_type: dict[str, tuple[int, int]] = {}
    for case in sorted(verdicts, key=lambda case: case.label.type):
        right, cases = by_type.get(case.label.type, (0, 0))
        by_type[case.label.type] = right + case.type, cases + 1
    return by_type


def folds(verdicts: Sequence[ScoredVerdict], origin: str) -> dict[str, list[ScoredVerdict]]:
    """Cases by where they come from, largest fold first; small folds together as ``others``.

    origin: ``framework``, ``launcher``, ``scenario`` or ``source``. What is tuned without a fold is held out from it.
    """
    by_origin: dict[str, list[ScoredVerdict]] = defaultdict(list)
    for case in verdicts:
        by_origin[_fold(case.label.origin.get(origin, ""))].append(case)
    ordered, rest = dict[str, list[ScoredVerdict]](), list[ScoredVerdict]()
    rest += by_origin.pop("", [])
    for name, cases in sorted(by_origin.items(), key=lambda fold: (-len(fold[1]), fold[0])):
        if len(cases) < _FOLD_LEAST:
            rest += cases
        else:
            ordered[name] = cases
    if rest:
        ordered[OTHERS] = rest
    return ordered


def _fold(name: str) -> str:
    """``PyTorch DDP (torchrun)`` and ``pytorch ddp`` are one source."""
    return re.split(r" ?[(,;/]", name, maxsplit=1)[0].strip().casefold()


def calibration_error(pairs: Sequence[tuple[float, bool]]) -> float:
    """Expected calibration error over ten equal bins of confidence."""
    sure_of, right_of = defaultdict[int, float](float), Counter[int]()
    for sure, right in pairs:
        number = min(_BINS - 1, int(sure * _BINS))
        sure_of[number] += sure
        right_of[number] += right
    return sum(abs(sure - right_of[number]) for number, sure in sure_of.items()) / max(1, len(pairs))


def _root(diagnosis: Diagnosis) -> list[tuple[int, str]]:
    cause = diagnosis.root_cause
    if cause:
        return [(cause.line, cause.text)]
    return []


def _top(diagnosis: Diagnosis) -> list[tuple[int, str]]:
    """The root line and the next lines the diagnosis cites or rejects, three in all."""
    root = _root(diagnosis)
    items: list[EvidenceLine | Rejected] = [*diagnosis.evidence, *diagnosis.rejected]
    others = [(item.line, item.text) for item in items if (item.line, item.text) not in root]
    return (root + others)[:3]


def _right_line(label: Label, lines: Sequence[tuple[int, str]], shift: int) -> bool | None:
    """Whether one of the lines shows the event of the cause, by its number or by its text; None where no line does."""
    if not label.root_lines:
        return None
    event = {*label.root_lines, *label.event_lines}
    if any(line - shift in event for line, _ in lines):
        return True
    root = label.root_text.split()
    if not root:
        return False
    return any(text.split() == root for _, text in lines)


def _right_rank(label: Label, diagnosis: Diagnosis) -> bool | None:
    if label.rank is None:
        return None
    if label.silent:
        return None
    cause = diagnosis.root_cause
    return cause is not None and cause.rank == label.rank


def _right_node(label: Label, diagnosis: Diagnosis) -> bool | None:
    """Whether the first suspect, or the node of the root line, is the node."""
    if not label.node:
        return None
    if _first_suspect(diagnosis) == label.node:
        return True
    cause = diagnosis.root_cause
    return cause is not None and cause.node == label.node


def _first_suspect(diagnosis: Diagnosis) -> str:
    for suspect in diagnosis.nodes:
        return suspect.node
    return ""


def _weighted(verdicts: Sequence[ScoredVerdict], weights: Mapping[str, float]) -> float | None:
    total = right = 0.0
    for case in verdicts:
        weight = weights.get(case.label.type, _SMALL_WEIGHT)
        total += weight
        right += weight * case.type
    return right / total if total else None


def _macro_f1(verdicts: Sequence[ScoredVerdict]) -> float | None:
    labelled, said, right = Counter[str](), Counter[str](), Counter[str]()
    for case in verdicts:
        labelled[case.label.type] += 1
        if case.type:
            right[case.label.type] += 1
            said[case.label.type] += 1
        else:
            said[case.said_type] += 1
    scores = [2 * right[kind] / (labelled[kind] + said[kind]) for kind in labelled]
    if scores:
        return sum(scores) / len(scores)
    return None


def _interval(outcomes: Sequence[bool], seed: int) -> tuple[float, float]:
    """The middle 95 % of the shares of resampled cases: how many of a resample are right is binomial."""
    size = len(outcomes)
    right = np.random.default_rng(seed).binomial(size, sum(outcomes) / size, _ROUNDS)
    right.sort()
    cut = math.floor(_ROUNDS * 0.025)
    return int(right[cut]) / size, int(right[-cut - 1]) / size
