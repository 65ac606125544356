"""`python -m tools.likely_lines [--measure] [FOLDER ...]`: makes `rules/line_weights.yaml` from labelled logs.

Each log teaches which of its lines shows the cause, and which do not; a completed run teaches only the latter. A log
weighs the same however many lines it has. Two linear models are fitted and added up: one asks of each line whether it
is a root (it finds more of them), the other of each log which of its lines is, if any (it knows healthy logs better).
`--measure` writes nothing and shows how often the likeliest line is a root line, the whole folder that a log is from
left out: its families (frameworks, launchers and loggers) are in no other.

FOLDER: more labelled logs, beside those of the corpus and the project's samples.

Needs scikit-learn: `pip install -r tools/exception_words/requirements.txt` in an environment that holds the package.
"""

import argparse
import random
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_matrix
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression

from diagnoser.accuracy.scoring import Label
from diagnoser.diagnosis import pipeline
from diagnoser.rules import left_behind
from diagnoser.rules.likely_lines import FILE, LineRanker, LineWeightRows, features
from tests import accuracy_bars
from tests.corpus import CORPUS
from tools.calibrate import Case, read_cases
from tools.real_runs import measure

WEIGHTS = Path(__file__).resolve().parents[1] / "rules" / FILE
INVERSE_PENALTY, OTHERS_WEIGHT, SCALE = 0.1, 3.0, 5.0
"""How freely the model may trust a feature; what the other lines of a log weigh against its root; both times this."""
OTHERS, SEED = 40, 1
"""Lines of a log that show no cause and are learned from, drawn by this seed."""
NORMAL = "normal"
"""The folder of published logs of healthy runs, some of which were cut."""
FRAMEWORKS, LEAST_WEIGHT = 4, 0.1
"""Frameworks whose logs must hold a word that is weighed; the least weight that stays in the table."""
STRENGTH, ROUNDS = 1.0, 120
"""How freely the model of logs may trust a feature; the most rounds in which it is fitted."""
LEAST = {"reported": 0.04, "denied": 0.95, "telling": 0.12, "failed": 0.5, "completed": 0.4}
"""Probability from which the likeliest line, or an end, is named, by ``Shown``."""
END_FOLDS, END_STRENGTH = 5, 1.0
"""Parts of the frameworks that are left out in turn, so that the ends learn from lines as strangers show them; how
freely the model of ends may trust a feature."""
LEAST_END_WEIGHT = 0.15
"""The least weight that stays in the tables of ends."""
HEAD = (
    "# How the features of a line (diagnoser/rules/likely_lines.py) speak for it being the root: log-odds.\n"
    "# Made by `python -m tools.likely_lines`; not to be edited.\n"
)


@dataclass(frozen=True, slots=True)
class LabelledLine:
    """log: where it stands, by number. framework: of the log."""

    log: int
    framework: str
    features: frozenset[str]
    is_root: bool


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.likely_lines", description=__doc__)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("folders", type=Path, nargs="*", help="more labelled logs")
    chosen = parser.parse_args()
    known = [CORPUS / name for name in accuracy_bars.FOLDERS]
    if chosen.measure:
        sys.stdout.writelines(measured([*known, measure.SAMPLES], chosen.folders))
        return
    cases = [*read([*known, measure.SAMPLES, *chosen.folders]), *healthy()]
    text = yaml.safe_dump({**fit(list(labelled(cases))), "ends": fit_ends(cases)}, width=150)
    WEIGHTS.write_text(HEAD + text, "utf-8")


def measured(known: Sequence[Path], folders: Sequence[Path]) -> Iterator[str]:
    """A line for each of the folders, left out in turn."""
    cases = {folder: read([folder]) for folder in [*known, *folders]}
    for left_out in folders:
        seen = [case for folder, group in cases.items() if folder != left_out for case in group]
        ranker = _ranker(seen)
        hits = [_is_root_found(case, ranker) for case in cases[left_out] if case.label.root_lines]
        yield f"{left_out}: {len(hits)} logs with a root line, {sum(hits) / len(hits):.2f} found\n"


def _is_root_found(case: Case, ranker: LineRanker) -> bool:
    likely = ranker.likeliest(case.evidence, ())
    return likely is not None and is_root(case, likely)


def read(folders: Sequence[Path]) -> list[Case]:
    """The labelled logs, each as a diagnosis reads it."""
    exits = accuracy_bars.load().knowledge.exits
    return [replace(case, evidence=pipeline.as_read(case.evidence, exits)) for case in read_cases(folders)]


def healthy() -> Iterator[Case]:
    """Published logs of healthy runs, in which no line shows a cause."""
    knowledge = accuracy_bars.load()
    for path in sorted((CORPUS / "normal").glob("*.log")):
        with path.open("rb") as log:
            evidence = pipeline.as_read(knowledge.read(log).evidence, knowledge.knowledge.exits)
        label = Label(path.stem, "none", "completed", (), "", "none", origin={"framework": path.stem})
        yield Case(NORMAL, label, evidence)


def labelled(cases: Sequence[Case]) -> Iterator[LabelledLine]:
    """All lines of all logs. What a person or a scheduler ended, and what shows no root though it failed, has none."""
    for number, case in enumerate(cases):
        lines = [
            LabelledLine(number, case.framework, said, is_root(case, line)) for line, said in features(case.evidence)
        ]
        if case.label.type == "completed" or any(line.is_root for line in lines):
            yield from lines


def is_root(case: Case, index: int) -> bool:
    """Whether the line prints the event that the label names."""
    line, label = case.evidence.lines[index], case.label
    if label.category == "none":
        return False
    if line.number in (*label.root_lines, *label.event_lines):
        return True
    return bool(label.root_text) and line.text.split() == label.root_text.split()


def fit_ends(cases: Sequence[Case]) -> dict[str, object]:
    """The tables of weights by which a log shows that its run failed, or completed."""
    shown = list(left_out_ends(cases))
    failed = [(names, case.label.category != "none" and case.label.type_visible) for case, names in shown]
    whole = [(names, case.label.type == "completed") for case, names in shown if case.folder != NORMAL]
    return {"failed": _fit_end(failed), "completed": _fit_end(whole)}


def left_out_ends(cases: Sequence[Case]) -> Iterator[tuple[Case, Mapping[str, float]]]:
    """What the end of each log shows to a ranker that never saw its framework."""
    ends = accuracy_bars.load().knowledge.heuristics.ends
    for fold in range(END_FOLDS):
        held_out = [case for case in cases if _fold(case) == fold]
        ranker = _ranker([case for case in cases if _fold(case) != fold])
        for case in held_out:
            processes = left_behind.find_processes(case.evidence, ends.says_last_words, ends.complains)
            yield case, ranker.shown(case.evidence, (), processes)


def _fold(case: Case) -> int:
    return zlib.crc32(case.framework.encode()) % END_FOLDS


def _fit_end(rows: Sequence[tuple[Mapping[str, float], bool]]) -> dict[str, object]:
    seen = Counter(name for names, _ in rows for name in names)
    usual = [{name: value for name, value in names.items() if seen[name] >= FRAMEWORKS} for names, _ in rows]
    vectorizer = DictVectorizer()
    model = LogisticRegression(C=END_STRENGTH, max_iter=300)
    model.fit(vectorizer.fit_transform(usual), [is_so for _, is_so in rows])
    said = zip(vectorizer.get_feature_names_out(), model.coef_[0], strict=True)
    weights = {str(name): round(float(weight), 2) for name, weight in said if abs(weight) >= LEAST_END_WEIGHT}
    return {"bias": round(float(model.intercept_[0]), 2), "weights": weights}


def _ranker(cases: Sequence[Case]) -> LineRanker:
    """What learned from these logs alone, and names every line."""
    return LineRanker(LineWeightRows.model_validate({**fit(list(labelled(cases))), "least": dict.fromkeys(LEAST, 0.0)}))


def fit(lines: Sequence[LabelledLine]) -> dict[str, object]:
    """The table of weights that fits the lines."""
    frameworks = defaultdict[str, set[str]](set)
    for line in lines:
        for name in line.features:
            frameworks[name].add(line.framework)
    usual = {name for name, seen in frameworks.items() if len(seen) >= FRAMEWORKS or not name.startswith("word:")}
    vectorizer = DictVectorizer()
    matrix = vectorizer.fit_transform([dict.fromkeys(line.features & usual, 1.0) for line in lines])
    by_line, bias_by_line = _of_lines(lines, matrix)
    by_log, bias_by_log = _of_logs(lines, matrix)
    said = zip(vectorizer.get_feature_names_out(), by_line + by_log, strict=True)
    weights = {str(name): round(float(weight), 2) for name, weight in said if abs(weight) >= LEAST_WEIGHT}
    return {"version": 1, "least": LEAST, "bias": round(bias_by_line + bias_by_log, 2), "weights": weights}


def _of_lines(lines: Sequence[LabelledLine], matrix: csr_matrix) -> tuple[NDArray[np.float64], float]:
    """Weights and bias by which each line is a root or not."""
    draw, others = random.Random(SEED), defaultdict[int, list[int]](list)
    for row, line in enumerate(lines):
        if not line.is_root:
            others[line.log].append(row)
    drawn = [row for rows in others.values() for row in draw.sample(rows, min(OTHERS, len(rows)))]
    rows = [*(row for row, line in enumerate(lines) if line.is_root), *drawn]
    chosen = [lines[row] for row in rows]
    model = LogisticRegression(C=INVERSE_PENALTY, max_iter=300, tol=1e-3)
    model.fit(matrix[rows], [line.is_root for line in chosen], sample_weight=_weights(chosen))
    return model.coef_[0], float(model.intercept_[0])


def _of_logs(lines: Sequence[LabelledLine], matrix: csr_matrix) -> tuple[NDArray[np.float64], float]:
    """Weights and bias by which one line of a log is the root, or none of them is."""
    numbers = np.array([line.log for line in lines])
    starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
    log = np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, len(lines)]))
    roots = np.array([line.is_root for line in lines], dtype=float)
    has_root = np.maximum.reduceat(roots, starts)

    def loss(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights, none = values[:-1], values[-1]  # what speaks for no line at all
        scores = matrix @ weights
        most = np.maximum(np.maximum.reduceat(scores, starts), none)
        likely, likely_none = np.exp(scores - most[log]), np.exp(none - most)
        total = np.add.reduceat(likely, starts) + likely_none
        true = np.where(has_root, np.add.reduceat(likely * roots, starts), likely_none)
        surplus = likely / total[log] - has_root[log] * likely * roots / true[log]
        of_none = np.sum(likely_none / total - (1 - has_root))
        gradient = np.r_[matrix.T @ surplus + weights / STRENGTH, of_none]
        return float(np.sum(np.log(total) - np.log(true)) + weights @ weights / 2 / STRENGTH), gradient

    start = np.zeros(matrix.shape[1] + 1)
    fitted = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": ROUNDS}).x
    return fitted[:-1], -float(fitted[-1])


def _weights(lines: Sequence[LabelledLine]) -> list[float]:
    """What each line weighs, so that the roots of a log weigh one, and the others what they may."""
    counts = defaultdict[tuple[int, bool], int](int)
    for line in lines:
        counts[line.log, line.is_root] += 1
    return [SCALE * (1.0 if line.is_root else OTHERS_WEIGHT) / counts[line.log, line.is_root] for line in lines]


if __name__ == "__main__":
    main()
