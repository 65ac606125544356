"""`python -m tools.calibrate DATE [FOLDER ...]`: writes `rules/calibration.yaml` anew, and prints what it says.

Rules are written with the labelled logs in sight, so their share of right verdicts there is better than elsewhere. The
table is therefore made of trials, most of which take each case as one of a framework that nobody has met:

* as it is, which for the newest families is their first sight;
* without the rules that decided only cases of its own framework;
* without a part of all rules that know a message, drawn by name, as a site's software prints other messages;
* the last also with the exit status of the run, as a scheduler reports it.

A kind's confidence is its share of right verdicts in the trials, smoothed towards the kind above it, and no more than
its share where whole generations of families were first met: trials forget rules, but not what a mechanism learned from
the same logs. An older generation does not count for a decider that is right significantly more or less often by now.
What the table is worth is shown on each first sight with the others alone.

The second table says how often verdicts were wrong on these logs as they are, for asking a language model where that
pays; the curve of what it finds is shown with each framework left out.

FOLDER: more labelled logs, beside those of the corpus and the project's samples.
"""

import argparse
import csv
import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import yaml

from diagnoser.accuracy import scoring
from diagnoser.accuracy.scoring import Label
from diagnoser.diagnosis import pipeline
from diagnoser.diagnosis.pipeline import RuleKnowledge
from diagnoser.model import Event, EventKind, Evidence, Facts
from diagnoser.rules.calibration import Calibration, Decider, VerdictKind
from diagnoser.rules.engine import Engine, Hit
from diagnoser.rules.schema import Specificity
from tests import accuracy_bars
from tests.corpus import CORPUS
from tools.real_runs import measure
from tools.real_runs.cases import read_labels

TABLE = Path(__file__).resolve().parents[1] / "rules" / "calibration.yaml"
FIRST_SIGHTS = Path(__file__).parent / "real_runs" / "first_sight_kinds.csv"
"""How often each kind was right when nobody had read the logs; a generation of families is added, never scored anew."""
FITTED = 3
"""The newest generation to which the table is fitted; what it states is tested on later ones. Fitted to those as well,
it would err by 0.11 to 0.13 there in place of 0.16 to 0.20, but by 0.19 on known logs in place of 0.08."""
FLOOR, SANDBOX, LEARNED = 0.3, 0.5, 0.9
"""Confidence below which the answer is unknown; what a sandbox rule (untested: even odds) and a learned one (as much as
a confirmed failure) may say at most."""
CONTESTED = 0.5
"""What a verdict may say at most that a root of another type contests."""
LEFT_OUT = (0.25, 0.5, 0.75)
"""Shares of the rules that know a message which trials go without."""
FEW = 8 * (len(LEFT_OUT) + 3)
"""How many trials of the kind above smooth a kind that was seldom seen: those of eight cases."""
FEW_SIGHTS = 24
"""How many first sights of the kind above smooth a kind that was seldom met: the error with a generation left out is
least about here."""
CHANGED = 2.58
"""Standard errors between two generations' shares that chance explains in one case of a hundred."""
FEW_REVIEWS = 8
"""How many cases of the kind above smooth the share of wrong verdicts of a kind that was seldom seen."""
LEARNED_HERE = frozenset({Decider.GUESS})
"""Deciders whose tables were learned from these logs with their labels, and of which no first sight was measured: on
these logs they are hardly ever wrong, and their prior counts."""
REVIEWED = 0.15
"""The share of these logs that a language model is asked about at most."""
ASKED = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
"""Shares of verdicts asked about for which the curve is shown."""
WITH_STATUS = 0.5
"""The share of the trial that knows the exit status."""
PRIOR = {
    Decider.SPECIFIC_RULE: 0.9,
    Decider.GENERIC_RULE: 0.75,
    Decider.EXCEPTION: 0.5,
    Decider.WORDS: 0.6,
    Decider.CLEAN_END: 0.9,
    Decider.KILLED: 0.4,
    Decider.EXIT: 0.5,
    Decider.STRUCTURE: 0.7,
    Decider.REPORT: 0.97,
    Decider.GUESS: 0.41,
    Decider.NOTHING: 0.05,
    Decider.OTHER: 0.6,
}
"""What a decider is worth that nothing has measured. A guess: what it was worth with all families of its generation
left out; below a half, so that it leads to no action but a look."""
MOST = {Decider.KILLED: 0.48}
"""What a decider may say at most: a kill does not say who killed."""
MOST_SURE = 0.99
"""Some hundred logs do not prove more."""
LEAST_SURE = FLOOR
"""A cause that is named stays named, as a guess: trials are too few to take its name away."""
HEAD = """\
# How sure a verdict is, by kind: what decided, how exactly, and the facts that bear on it; the finest kind that stands
# here counts. cases, right: trials with the framework of each case left out, and the share of them that was right.
# said: that share, smoothed, or less where such verdicts were right less often at the first sight of families.
# review: verdicts on the logs as they are, and how many named a wrong type; from the share ``review_from`` a language
# model is asked.
# Made by `python -m tools.calibrate DATE`.
"""


class _Recording(Calibration):
    """Notes of which kind the verdict was; what is looked up after it are its rivals."""

    looked_up: list[VerdictKind]

    def of(self, kind: VerdictKind) -> float:
        self.looked_up.append(kind)
        return self.default


class _Without(Engine):
    """An engine that may be told to forget rules."""

    forgotten: Collection[str] = ()

    def match(self, evidence: Evidence) -> tuple[Hit, ...]:
        return tuple(hit for hit in super().match(evidence) if hit.rule.id not in self.forgotten)


@dataclass(frozen=True, slots=True)
class Case:
    folder: str
    label: Label
    evidence: Evidence

    @property
    def framework(self) -> str:
        """`PyTorch DDP (torchrun)` and `pytorch/nccl` are both of PyTorch."""
        name = self.label.origin.get("framework", self.folder)
        return re.split(r"[^a-z0-9]+", name.casefold())[0]


@dataclass(frozen=True, slots=True)
class Trial:
    framework: str
    kind: VerdictKind
    decided_by: str
    right: bool
    review_kind: str = ""


@dataclass(frozen=True)
class Counts:
    """How many trials each row has, and how many of them were right."""

    cases: Mapping[str, int]
    right: Mapping[str, int]

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> "Counts":
        cases, right = Counter[str](), Counter[str]()
        for trial in trials:
            cases.update(trial.kind.keys)
            if trial.right:
                right.update(trial.kind.keys)
        return cls(cases, right)

    def share(self, kind: VerdictKind, depth: int, few: int) -> float:
        """The smoothed share of a row that was right. depth: of the row. few: cases of the row above that smooth it."""
        share, above = PRIOR[kind.decider], 0
        for key in kind.keys[:depth]:
            cases = self.cases.get(key, 0)
            if cases != above:  # the same cases say nothing new
                share = (self.right.get(key, 0) + few * share) / (cases + few)
            above = cases
        return share


@dataclass(frozen=True)
class Fit:
    """What verdicts state by the trials and the first sights."""

    trials: Counts
    sights: Counts

    def said(self, kind: VerdictKind, depth: int = 3) -> float:
        """What a verdict states. depth: of the row, 1 for the decider alone."""
        share = min(self.trials.share(kind, depth, FEW), self.sights.share(kind, depth, FEW_SIGHTS))
        if kind.decider is not Decider.NOTHING:
            share = max(share, LEAST_SURE)
        return round(min(share, MOST_SURE, MOST.get(kind.decider, 1.0)), 3)


class Trials:
    """Diagnoses cases as if parts of what the rules know were not known."""

    def __init__(self) -> None:
        knowledge = accuracy_bars.load().knowledge
        self._engine = _Without(knowledge.engine.ruleset)
        self._recording = _Recording(
            made="",
            cases=0,
            floor=0.0,
            default=1.0,
            sandbox=1.0,
            learned=1.0,
            contested=1.0,
            kinds={},
            looked_up=[],
            review={},
            review_from=1.0,
        )
        self._knowledge: RuleKnowledge = replace(knowledge, engine=self._engine, calibration=self._recording)
        self._exact = [rule.id for rule in self._engine.ruleset.rules if rule.specificity >= Specificity.FAMILY]

    def known(self, cases: Sequence[Case]) -> list[Trial]:
        return [self._diagnosed(case) for case in cases]

    def all(self, cases: Sequence[Case], known: Sequence[Trial]) -> Iterator[Trial]:
        """Each case in all trials. known: the first of them."""
        met: dict[str, set[str]] = defaultdict(set)
        for trial in known:
            met[trial.decided_by].add(trial.framework)
        yield from known
        for case in cases:
            yield self._without_own_rules(case, met)
            for share in LEFT_OUT:
                yield self._diagnosed(case, self._drawn(case.framework, share))
            if case.label.category != "none":
                failed = Facts(events=(Event(EventKind.EXIT, 0.0, code=1),))
                yield self._diagnosed(case, self._drawn(case.framework, WITH_STATUS), failed)

    def _without_own_rules(self, case: Case, met: Mapping[str, set[str]]) -> Trial:
        forgotten: set[str] = set()
        trial = self._diagnosed(case)
        while trial.decided_by.startswith("rule:") and met[trial.decided_by] <= {case.framework}:
            forgotten.add(trial.decided_by.removeprefix("rule:"))
            trial = self._diagnosed(case, forgotten)
        return trial

    def _drawn(self, framework: str, share: float) -> set[str]:
        """Rules that a site with this framework does not have; the same ones in every run."""
        return {rule for rule in self._exact if _number(f"{framework} {rule}") < share}

    def _diagnosed(self, case: Case, forgotten: Collection[str] = (), facts: Facts | None = None) -> Trial:
        self._engine.forgotten = forgotten
        self._recording.looked_up.clear()
        diagnosis = pipeline.diagnose(case.evidence, facts or Facts(), self._knowledge)
        right = scoring.score_case(case.label, diagnosis).type
        kind = self._recording.looked_up[0]
        return Trial(case.framework, kind, diagnosis.decided_by, right, diagnosis.review_kind)


def _number(name: str) -> float:
    """A number in 0..1 that only the name decides."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / 2**32


def read_cases(folders: Sequence[Path]) -> list[Case]:
    analyzer = accuracy_bars.load()
    cases = []
    for folder in folders:
        for label in map(scoring.label_of, read_labels(folder)):
            log = BytesIO((folder / f"{label.id}.log").read_bytes())
            cases.append(Case(folder.name, label, analyzer.read(log).evidence))
    return cases


def read_sights() -> dict[str, list[Trial]]:
    """The first sights of each generation of families."""
    sights = defaultdict[str, list[Trial]](list)
    with FIRST_SIGHTS.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            decider, detail, facts = row["kind"].split(".", 2)
            kind = VerdictKind(Decider(decider), detail, facts)
            for number in range(int(row["cases"])):
                sights[row["generation"]].append(Trial("", kind, "", right=number < int(row["right"])))
    return sights


def in_force(sights: Mapping[str, Sequence[Trial]]) -> list[Trial]:
    """The first sights to which the table is fitted, without those by deciders that the newest generation among them
    shows to be changed since."""
    *older, newest = (trials for generation, trials in sights.items() if int(generation) <= FITTED)
    kept = list(newest)
    for generation in older:
        changed = {decider for decider in Decider if _differ(_of(generation, decider), _of(newest, decider))}
        kept += [trial for trial in generation if trial.kind.decider not in changed]
    return kept


def _of(trials: Sequence[Trial], decider: Decider) -> list[bool]:
    return [trial.right for trial in trials if trial.kind.decider is decider]


def _differ(before: Sequence[bool], now: Sequence[bool]) -> bool:
    """Whether two shares of right verdicts differ by more than chance explains."""
    shares, variance = [], 0.0
    for group in (before, now):
        cases = len(group) + 2  # as if one more were right and one more wrong: a few cases prove little
        share = (sum(group) + 1) / cases
        variance += share * (1 - share) / cases
        shares.append(share)
    return abs(shares[0] - shares[1]) > CHANGED * math.sqrt(variance)


class Review:
    """How often verdicts of a kind were wrong."""

    def __init__(self, trials: Iterable[Trial]) -> None:
        self.cases, self.wrong = Counter[str](), Counter[str]()
        for trial in trials:
            if trial.kind.decider in LEARNED_HERE:
                continue
            rows = _rows(trial.review_kind)
            self.cases.update(rows)
            if not trial.right:
                self.wrong.update(rows)

    def share(self, kind: str) -> float:
        share = 0.0
        for row in _rows(kind):
            if "." not in row:
                share = 1 - PRIOR[Decider(row)]
            share = (self.wrong[row] + FEW_REVIEWS * share) / (self.cases[row] + FEW_REVIEWS)
        return share

    def table(self) -> dict[str, dict[str, float]]:
        rows = sorted({*self.cases, *(decider.value for decider in LEARNED_HERE)})
        return {
            row: {"cases": self.cases[row], "wrong": self.wrong[row], "share": round(self.share(row), 3)}
            for row in rows
        }

    def bound(self, trials: Sequence[Trial]) -> float:
        """The least share from which no more than ``REVIEWED`` of the trials are asked about."""
        shares = sorted((self.share(trial.review_kind) for trial in trials), reverse=True)
        first_spared = shares[int(REVIEWED * len(shares))]
        return round(min(share for share in shares if share > first_spared), 3)


def _rows(kind: str) -> list[str]:
    """A kind and those above it, the widest first."""
    rows = [kind]
    while "." in rows[0]:
        rows.insert(0, rows[0].rpartition(".")[0])
    return rows


def review_curve(trials: Sequence[Trial]) -> Iterator[str]:
    """A line for each share of verdicts that are asked about: of the wrong ones, how many are among them."""
    stated = []
    for framework in sorted({trial.framework for trial in trials}):
        review = Review(trial for trial in trials if trial.framework != framework)
        own = [trial for trial in trials if trial.framework == framework]
        stated += [(review.share(trial.review_kind), not trial.right) for trial in own]
    stated.sort(key=lambda verdict: -verdict[0])
    wrong = sum(is_wrong for _, is_wrong in stated)
    yield f"{'asked':>8}{'wrong ones among them':>24}{'yield':>8}"
    for asked in ASKED:
        picked = stated[: round(asked * len(stated))]
        caught = sum(is_wrong for _, is_wrong in picked)
        yield f"{asked:8.1%}{caught / wrong:24.1%}{caught / len(picked):8.1%}"


def table(date: str, cases: int, trials: Sequence[Trial], fit: Fit, known: Sequence[Trial]) -> dict[str, object]:
    """known: trials of the logs as they are."""
    rows: dict[str, dict[str, float]] = {}
    for decider in Decider:
        rows[decider.value] = _row(fit, VerdictKind(decider, "", ""), 1)
    for kind in sorted({trial.kind for trial in trials}, key=lambda kind: kind.keys):
        for depth in (2, 3):
            rows[kind.keys[depth - 1]] = _row(fit, kind, depth)
    mean = sum(trial.right for trial in trials) / len(trials)
    bounds = {"floor": FLOOR, "default": round(mean, 3), "sandbox": SANDBOX, "learned": LEARNED, "contested": CONTESTED}
    review = Review(known)
    reviewed = {"review_from": review.bound(known), "review": review.table()}
    return {"made": date, "cases": cases, **bounds, "kinds": rows, **reviewed}


def _row(fit: Fit, kind: VerdictKind, depth: int) -> dict[str, float]:
    key = kind.keys[depth - 1]
    cases = fit.trials.cases.get(key, 0)
    right = round(fit.trials.right.get(key, 0) / cases, 3) if cases else 0.0
    return {"cases": cases, "right": right, "said": fit.said(kind, depth)}


def left_out(trials: Counts, sights: Mapping[str, Sequence[Trial]]) -> Iterator[tuple[str, list[tuple[Trial, float]]]]:
    """Each generation, and what its first sights would have stated by the trials and by the other generations."""
    for generation, group in sights.items():
        others = {name: rest for name, rest in sights.items() if name != generation}
        fit = Fit(trials, Counts.of(in_force(others)))
        yield generation, [(trial, fit.said(trial.kind)) for trial in group]


def report(stated: Sequence[tuple[Trial, float]]) -> Iterator[str]:
    """A line for each decider: what it was worth and what it would state."""
    by_decider: dict[str, list[tuple[Trial, float]]] = {"all": list(stated)}
    for trial, said in stated:
        by_decider.setdefault(trial.kind.decider, []).append((trial, said))
    yield f"{'decider':<16}{'cases':>8}{'right':>8}{'said':>8}{'ece':>8}{'wrong':>8}{'> 0.9':>8}{'log loss':>10}"
    for decider, group in sorted(by_decider.items()):
        pairs = [(said, trial.right) for trial, said in group]
        right, said = (sum(column) / len(pairs) for column in (_column(pairs, 1), _column(pairs, 0)))
        wrong = [said for said, is_right in pairs if not is_right]
        figures = f"{right:8.3f}{said:8.3f}{scoring.calibration_error(pairs):8.3f}{len(wrong):8}"
        sure = sum(said > 0.9 for said in wrong)
        yield f"{decider:<16}{len(pairs):>8}{figures}{sure:>8}{_log_loss(pairs):>10.3f}"


def _column(pairs: Sequence[tuple[float, bool]], number: int) -> list[float]:
    return [float(pair[number]) for pair in pairs]


def _log_loss(pairs: Sequence[tuple[float, bool]]) -> float:
    return -sum(math.log(max(1e-3, said if right else 1 - said)) for said, right in pairs) / len(pairs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.calibrate", description=__doc__)
    parser.add_argument("date")
    parser.add_argument("folders", type=Path, nargs="*", help="more labelled logs")
    chosen = parser.parse_args()
    folders = (*(CORPUS / name for name in accuracy_bars.FOLDERS), measure.SAMPLES, *chosen.folders)
    cases, trials = read_cases(folders), Trials()
    known = trials.known(cases)
    trials_made = list(trials.all(cases, known))
    counts, sights = Counts.of(trials_made), read_sights()
    fit = Fit(counts, Counts.of(in_force(sights)))
    made = table(chosen.date, len(cases), trials_made, fit, known)
    TABLE.write_text(HEAD + yaml.safe_dump(made, sort_keys=False, default_flow_style=None, width=120), "utf-8")
    for generation, stated in left_out(counts, sights):
        print(f"\nFirst sight of generation {generation}, by the other ones:")  # noqa: T201
        print("\n".join(report(stated)))  # noqa: T201
    print(f"\n{len(cases)} cases as the rules know them:")  # noqa: T201
    print("\n".join(report([(trial, fit.said(trial.kind)) for trial in known])))  # noqa: T201
    print("\nAsked about, each framework left out:")  # noqa: T201
    print("\n".join(review_curve(known)))  # noqa: T201


if __name__ == "__main__":
    main()
