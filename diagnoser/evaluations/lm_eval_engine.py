"""Adds what lm_eval lacks as an engine: a range of samples, and scores of what many shards inferred.

It runs on the node with the Python that has lm_eval, so it needs nothing else but the standard library.

    infer FOLDER TASK FIRST LAST WORDS...   runs `lm_eval run` with these words for the samples; answers go to FOLDER
    score FOLDER FILE TASK INCLUDE          lets lm_eval score the answers in FOLDER, writes the metrics to FILE
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Answers = Mapping[int, Sequence[Any]]
"""Answers to the requests of each document, by its number; several where a request was repeated."""
_NO_METRIC = {"sample_len", "samples"}
"""Numbers beside the metrics that count samples."""


def main(arguments: Sequence[str]) -> None:
    """Raises SystemExit with what is wrong, CalledProcessError where lm_eval fails."""
    mode, folder, *rest = arguments
    if mode == "infer":
        task, first, last, *words = rest
        samples = json.dumps({task: list(range(int(first), int(last)))})
        given = ("--tasks", task, "--samples", samples, "--output_path", folder, "--log_samples", "--predict_only")
        subprocess.run((sys.executable, "-m", "lm_eval", "run", *words, *given), check=True)  # noqa: S603
        stored = len(read_answers(Path(folder)))
        if stored != int(last) - int(first):
            raise SystemExit(f"lm_eval stored {stored} samples of {task}, not those from {first} to {last}")
        return
    scores, task, include = rest
    Path(scores).write_text(json.dumps(metrics_of(score(read_answers(Path(folder)), task, include))))


def read_answers(folder: Path) -> Answers:
    """Read what lm_eval logged, a folder below. Raises SystemExit where two shards answer a document differently."""
    answers: dict[int, Sequence[Any]] = {}
    for path in sorted(folder.glob("*/*.jsonl")):
        for line in path.read_text().splitlines():
            sample = json.loads(line)
            if answers.setdefault(sample["doc_id"], sample["resps"]) != sample["resps"]:
                raise SystemExit(f"document {sample['doc_id']} is in two shards: does the task sample at random?")
    return answers


def score(answers: Answers, task: str, include: str) -> Mapping[str, Any]:
    """Let lm_eval compute its own metrics: for it, the stored answers are a model."""
    from lm_eval import simple_evaluate  # type: ignore[import-not-found]
    from lm_eval.api.model import LM  # type: ignore[import-not-found]
    from lm_eval.tasks import TaskManager  # type: ignore[import-not-found]

    class StoredAnswers(LM):  # type: ignore[misc]
        def loglikelihood(self, requests: Iterable[Any]) -> list[tuple[float, bool]]:
            return [(float(value), greedy == "True") for value, greedy in stored(answers, requests)]

        def loglikelihood_rolling(self, requests: Iterable[Any]) -> list[float]:
            return list(map(float, stored(answers, requests)))

        def generate_until(self, requests: Iterable[Any]) -> list[str]:
            return stored(answers, requests)

    tasks = TaskManager(include_path=include or None)
    evaluation = simple_evaluate(StoredAnswers(), tasks=[task], task_manager=tasks, log_samples=False)
    results: Mapping[str, Any] = evaluation["results"][task]
    return results


def stored(answers: Answers, requests: Iterable[Any]) -> list[Any]:
    """Look the answer to each request up. Raises SystemExit for a document that no shard inferred."""
    repeats, resps = Counter[tuple[int, int]](), []
    for request in requests:
        place = request.doc_id, request.idx
        if request.doc_id not in answers:
            raise SystemExit(f"document {request.doc_id} was not inferred: has the task more samples than the suite?")
        resps.append(answers[request.doc_id][request.idx][repeats[place]])
        repeats[place] += 1
    return resps


def metrics_of(results: Mapping[str, Any]) -> dict[str, float]:
    """Keep the numbers that measure the model, such as "acc,none"."""
    metrics: dict[str, float] = {}
    for name, value in results.items():
        if name not in _NO_METRIC and type(value) in (int, float):
            metrics[name] = value
    return metrics


if __name__ == "__main__":
    main(sys.argv[1:])
