"""`python -m tools.exception_words [--measure]`: makes `rules/exception_weights.yaml` from `messages.txt`.

`--measure` writes nothing and shows how often the type is right on ecosystems that were left out of the training: by
the class table and the table of words, by the classifier, and by all of them as a diagnosis uses them. The subjects
were chosen with all messages in sight, so that strangers fare worse than this table says.

Needs scikit-learn: `pip install -r tools/exception_words/requirements.txt` in an environment that holds the package.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import yaml
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression

from diagnoser.config import loader
from diagnoser.config.settings import Settings
from diagnoser.model.taxonomy import FailureType
from diagnoser.rules.candidate_sources import Heuristics
from diagnoser.rules.exception_words import FILES, Classification, ExceptionClassifier, WeightRows
from tools.exception_words.messages import LabelledException, read

WEIGHTS = Path(__file__).resolve().parents[2] / "rules" / FILES[1]
FOLDS, INVERSE_PENALTY, LEAST_WEIGHT = 5, 3.0, 0.3
PENALTY_SCALES = {"class": 2.0, "pair": 0.5, "subject": 1.0}
"""How freely the model may trust a class and a pair of subjects, against a subject alone."""
HEAD = (
    "# How the subjects of an exception (exception_subjects.yaml) speak for each type: log-odds.\n"
    "# Made by `python -m tools.exception_words`; not to be edited.\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true")
    only_measured = parser.parse_args().measure
    heuristics = loader.load_analyzer(Settings()).knowledge.heuristics
    messages = list(read(heuristics.exceptions))
    if only_measured:
        sys.stdout.write(measured(messages, heuristics) + "\n")
    else:
        text = yaml.safe_dump(fit(messages, heuristics.classifier), width=150, default_flow_style=None)
        WEIGHTS.write_text(HEAD + text, "utf-8")


def fit(messages: Sequence[LabelledException], reader: ExceptionClassifier) -> dict[str, object]:
    """The table of weights that fits the messages, without those that say little. reader: names their features."""
    vectorizer = DictVectorizer()
    rows = [dict.fromkeys(reader.features(message.raised), 1.0) for message in messages]
    matrix = vectorizer.fit_transform([{name: _scale(name) for name in row} for row in rows])
    model = LogisticRegression(C=INVERSE_PENALTY, max_iter=300, tol=1e-3)
    model.fit(matrix, [str(message.type) for message in messages])
    names, table = vectorizer.get_feature_names_out(), {}
    for kind, weights in zip(model.classes_, model.coef_, strict=True):
        said = ((name, weight * _scale(name)) for name, weight in zip(names, weights, strict=True))
        table[str(kind)] = {str(name): round(float(w), 2) for name, w in said if abs(w) >= LEAST_WEIGHT * _scale(name)}
    bias = {str(kind): round(float(w), 2) for kind, w in zip(model.classes_, model.intercept_, strict=True)}
    return {"version": 1, "bias": bias, "weights": table}


def _scale(feature: str) -> float:
    if feature.startswith("class:"):
        return PENALTY_SCALES["class"]
    return PENALTY_SCALES["pair" if "+" in feature else "subject"]


def measured(messages: Sequence[LabelledException], heuristics: Heuristics) -> str:
    """Say how often the type is right: a line for each ecosystem, and one for all."""
    counts: dict[str, list[tuple[bool, bool, bool]]] = defaultdict(list)
    sure: dict[int, list[bool]] = defaultdict(list)
    for message, classification, reader in _left_out(messages, heuristics.classifier):
        table = _named(message, replace(heuristics, classifier=ExceptionClassifier.empty()))
        kinds = table, classification.type, _named(message, replace(heuristics, classifier=reader))
        right = tuple(kind is message.type for kind in kinds)
        counts[message.ecosystem].append((right[0], right[1], right[2]))
        counts["all"].append((right[0], right[1], right[2]))
        sure[int(classification.probability * 5)].append(right[1])
    lines = [f"{'ecosystem':20} messages  tables  classifier  both"]
    for name, rights in sorted(counts.items()):
        shares = [sum(column) / len(rights) for column in zip(*rights, strict=True)]
        lines.append(f"{name:20} {len(rights):8}  {shares[0]:6.2f}  {shares[1]:10.2f}  {shares[2]:4.2f}")
    for step, hits in sorted(sure.items()):
        lines.append(f"probability from {step / 5:.1f}: {len(hits)} messages, {sum(hits) / len(hits):.2f} right")
    return "\n".join(lines)


def _named(message: LabelledException, heuristics: Heuristics) -> FailureType | None:
    named = heuristics.name(message.raised)
    return named[0] if named else message.raised.class_type


def _left_out(
    messages: Sequence[LabelledException], reader: ExceptionClassifier
) -> Iterator[tuple[LabelledException, Classification, ExceptionClassifier]]:
    """Each message with what a model says of it that never saw a message of its ecosystem."""
    ecosystems = sorted({message.ecosystem for message in messages})
    for fold in range(FOLDS):
        held_out = set(ecosystems[fold::FOLDS])
        seen = [message for message in messages if message.ecosystem not in held_out]
        classifier = reader.with_weights(WeightRows.model_validate(fit(seen, reader)))
        for message in messages:
            if message.ecosystem in held_out:
                said = classifier.classify(message.raised)
                yield message, said or Classification(FailureType.RUNTIME_ERROR, 0.0), classifier


if __name__ == "__main__":
    main()
