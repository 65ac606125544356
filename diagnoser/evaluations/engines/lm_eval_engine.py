"""Adds what lm_eval lacks as an engine: a model that stays loaded, a range of samples, and scores over many shards.

It runs on the node with the Python that has lm_eval, so it needs nothing else but the standard library.

    serve PORT INCLUDE WORDS...             loads the model that these words of `lm_eval run` name, and infers for `ask`
    ask URL FOLDER TASK FIRST LAST          has the samples inferred there; answers go to FOLDER
    infer FOLDER TASK FIRST LAST WORDS...   runs `lm_eval run` with these words for the samples; answers go to FOLDER
    score FOLDER FILE TASK INCLUDE          lets lm_eval score the answers in FOLDER, writes the metrics to FILE
"""

import json
import os
import secrets
import subprocess
import sys
import traceback
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from inspect import signature
from pathlib import Path
from typing import Any

Answers = Mapping[int, Sequence[Any]]
"""Answers to the requests of each document, by its number; several where a request was repeated."""
_NO_METRIC = {"sample_len", "samples"}
"""Numbers beside the metrics that count samples."""
_KEY = "DIAGNOSER_TRIAL_KEY"
"""Name of the variable with the secret of the batch: a task can name code to run, so nobody else may ask."""


def main(arguments: Sequence[str]) -> None:
    """Raises SystemExit with what is wrong, CalledProcessError where lm_eval fails."""
    mode, *rest = arguments
    if mode == "serve":
        port, include, *words = rest
        server(int(port), engine(include, words)).serve_forever()
    elif mode == "ask":
        url, folder, task, first, last = rest
        ask(url, Path(folder), task, int(first), int(last))
    elif mode == "infer":
        folder, task, first, last, *words = rest
        infer(Path(folder), task, int(first), int(last), words)
    else:
        folder, scores, task, include = rest
        Path(scores).write_text(json.dumps(metrics_of(score(read_answers(Path(folder)), task, include))))


def infer(folder: Path, task: str, first: int, last: int, words: Sequence[str]) -> None:
    """Run an engine for these samples alone."""
    samples = json.dumps({task: list(range(first, last))})
    given = ("--tasks", task, "--samples", samples, "--output_path", str(folder), "--log_samples", "--predict_only")
    subprocess.run((sys.executable, "-m", "lm_eval", "run", *words, *given), check=True)  # noqa: S603
    _check_complete(folder, task, first, last)


def ask(url: str, folder: Path, task: str, first: int, last: int) -> None:
    """Have the samples inferred by the engine that serves there, and write its answers."""
    asked = json.dumps({"task": task, "first": first, "last": last}).encode()
    request = urllib.request.Request(url, asked, {"Authorization": os.environ[_KEY]})  # noqa: S310 - of this machine
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            lines = answer.read()
    except urllib.error.HTTPError as error:
        raise SystemExit(error.read().decode(errors="replace")) from None
    (folder / "answers").mkdir()
    (folder / "answers" / "samples.jsonl").write_bytes(lines)
    _check_complete(folder, task, first, last)


def _check_complete(folder: Path, task: str, first: int, last: int) -> None:
    stored = len(read_answers(folder))
    if stored != last - first:
        raise SystemExit(f"lm_eval stored {stored} samples of {task}, not those from {first} to {last}")


def engine(include: str, words: Sequence[str]) -> Callable[[str, int, int], str]:
    """Load the model. Returns what infers samples of a task, as lines of JSON."""
    from lm_eval import simple_evaluate  # type: ignore[import-not-found]
    from lm_eval._cli import HarnessCLI  # type: ignore[import-not-found]
    from lm_eval.api.registry import get_model  # type: ignore[import-not-found]
    from lm_eval.config.evaluate_config import EvaluatorConfig  # type: ignore[import-not-found]
    from lm_eval.utils import handle_non_serializable, sanitize_list  # type: ignore[import-not-found]

    sys.argv = ["lm_eval", "run", *words, "--tasks", "those that are asked for"]
    config = asdict(EvaluatorConfig.from_cli(HarnessCLI().parse_args()))
    device = {name: config[name] for name in ("batch_size", "max_batch_size", "device")}
    model = get_model(config["model"]).create_from_arg_obj(config["model_args"], device)
    seeds = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
    known = signature(simple_evaluate).parameters.keys() - {"tasks", "samples"}
    settings = {name: config[name] for name in known & config.keys()}
    settings |= dict(zip(seeds, config["seed"] or (None,) * len(seeds), strict=True))
    settings |= {"model": model, "model_args": None, "predict_only": True, "log_samples": True, "cache_requests": False}

    def infer(task: str, first: int, last: int) -> str:
        given = {
            "tasks": [task],
            "samples": {task: list(range(first, last))},
            "task_manager": task_manager(include, task),
        }
        samples = simple_evaluate(**settings | given)["samples"][task]
        lines = []
        for sample in samples:
            stored = {**sample, "resps": sanitize_list(sample["resps"])}
            lines.append(json.dumps(stored, default=handle_non_serializable) + "\n")
        return "".join(lines)

    return infer


def task_manager(include: str, task: str) -> Any:
    """Find what knows the task. The folder alone is read where it has it: lm_eval's own thousands take seconds."""
    if include and _task_manager(include, False).match_tasks([task]):
        return _task_manager(include, False)
    return _task_manager(include, True)


@cache
def _task_manager(include: str, include_defaults: bool) -> Any:
    from lm_eval.tasks import TaskManager  # type: ignore[import-not-found]

    return TaskManager(include_path=include or None, include_defaults=include_defaults)


def server(port: int, infer: Callable[[str, int, int], str]) -> HTTPServer:
    """Listen to ``ask``, one after the other. GET says that the model is loaded."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 30.0  # who connects and says nothing does not keep the others waiting

        def do_GET(self) -> None:
            self._answer(200, "")

        def do_POST(self) -> None:
            given = self.headers.get("Authorization", "")
            if not secrets.compare_digest(given.encode(), os.environ[_KEY].encode()):
                self._answer(401, "not a command of this batch")
                return
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                self._answer(200, infer(asked["task"], asked["first"], asked["last"]))
            except Exception:  # of a task, which may be any: the shard fails with it, and the model stays
                self._answer(500, traceback.format_exc())

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

    return HTTPServer(("127.0.0.1", port), Handler)


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
    from lm_eval import simple_evaluate
    from lm_eval.api.model import LM  # type: ignore[import-not-found]

    class StoredAnswers(LM):  # type: ignore[misc]
        def loglikelihood(self, requests: Iterable[Any]) -> list[tuple[float, bool]]:
            return [(float(value), greedy == "True") for value, greedy in stored(answers, requests)]

        def loglikelihood_rolling(self, requests: Iterable[Any]) -> list[float]:
            return list(map(float, stored(answers, requests)))

        def generate_until(self, requests: Iterable[Any]) -> list[str]:
            return stored(answers, requests)

    manager = task_manager(include, task)
    evaluation = simple_evaluate(StoredAnswers(), tasks=[task], task_manager=manager, log_samples=False)
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
