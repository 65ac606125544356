"""Engines that people use, run for real on a tiny model: the scores of a run are those of the engine alone."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.evaluations.engines import inspect_engine, opencompass_engine
from diagnoser.evaluations.engines.lm_eval_engine import metrics_of
from diagnoser.evaluations.local import LocalExecutor
from diagnoser.evaluations.suite import read_suite
from diagnoser.model.evaluations import EvaluationRun, RunProgress
from tests.databases import sqlite_store
from tests.environments import ENGINES, OPENCOMPASS
from tests.thorough import THOROUGH
from tests.trial_runs import FAST, NODES, carry_out, coordinator, copies

needs_engines = pytest.mark.skipif(bool(ENGINES.missing), reason=ENGINES.missing)
needs_opencompass = pytest.mark.skipif(
    bool(OPENCOMPASS.missing) or not THOROUGH,
    reason=OPENCOMPASS.missing or "THOROUGH=1 runs OpenCompass: 90 CPU-seconds",
)
TASKS = {"sums": 7, "few": 2}
MODEL = """
import sys, torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
torch.manual_seed(1)
letters = ["<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
bytes_of = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[]))
bytes_of.pre_tokenizer, bytes_of.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_of, eos_token="<eos>", pad_token="<eos>")
tokenizer.save_pretrained(sys.argv[1])
shape = dict(vocab_size=len(letters), n_positions=256, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
GPT2LMHeadModel(GPT2Config(**shape)).save_pretrained(sys.argv[1])
"""


def _task(folder: Path, name: str, samples: int) -> None:
    """A task of multiple choice, from a file beside it."""
    lines = []
    for number in range(samples):
        choices = [str(number), str(number + 1), str(number + 2)]
        lines.append(json.dumps({"question": f"What is {number} + 1?", "choices": choices}))
    (folder / f"{name}.jsonl").write_text("\n".join(lines))
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}},
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": 1,
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))


INSPECT_TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes

@task
def letters():
    samples = [Sample(input=f"Write letter {number}", target=chr(97 + number)) for number in range(7)]
    return Task(dataset=samples, scorer=includes())
"""

COMPASS_CONFIG = """
import os
datasets = [dict(path="sums.jsonl", infer_method="ppl"), dict(path="few.jsonl", infer_method="gen", test_range="[1:]")]
models = [dict(
    type="opencompass.models.HuggingFaceBaseModel", abbr="tiny", path=os.environ["DIAGNOSER_TRIAL_CHECKPOINT"],
    model_kwargs=dict(device_map="cpu"), max_out_len=8, batch_size=4, run_cfg=dict(num_gpus=0),
)]
"""


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("PATH", f"{ENGINES.python.parent}:{OPENCOMPASS.python.parent}:{os.environ['PATH']}")


async def _scores(folder: Path, engine: str, tasks: Mapping[str, int], more: Mapping[str, Any]) -> RunProgress:
    """Carry out the suite that `evaluations init` writes, with further fields of the engine, on two nodes."""
    init = ["-m", "diagnoser", "evaluations", "init", "suite.yaml", "--engine", engine, "--checkpoint", "step-100"]
    for name, samples in tasks.items():
        init += ["--task", f"{name}={samples}"]
    _run([sys.executable, *init], folder)
    given = yaml.safe_load((folder / "suite.yaml").read_text())
    given["engine"][engine] |= more
    for task in given["tasks"]:
        task |= {"sample_seconds": 60, "score_seconds": 1}  # as if of a large model, so that a task is cut
    suite = read_suite("SUITE.yaml", yaml.safe_dump(given))
    store: SqlStore = await sqlite_store(folder / "test.db")
    (folder / "r1").mkdir()
    await store.evaluations.add_run(EvaluationRun("r1", suite, "local", str(folder / "r1"), str(folder), time.time()))
    progress = await carry_out(coordinator(store, LocalExecutor(NODES, copies(folder)), FAST), "r1")
    await store.close()
    return progress


@needs_engines
@pytest.mark.timeout(900)
async def test_lm_eval_gives_the_scores_of_the_plain_run(tmp_path: Path) -> None:
    """Cut into shards that one process infers on each slot, and scored from their answers by lm_eval itself."""
    for name, samples in TASKS.items():
        _task(tmp_path, name, samples)
    _run([ENGINES.python, "-c", MODEL, "step-100"], tmp_path)
    plain = [
        "-m",
        "lm_eval",
        "run",
        "--model_args",
        "pretrained=step-100",
        "--device",
        "cpu",
        "--include_path",
        tmp_path,
    ]
    plain += ["--include_path", ".", "--tasks", ",".join(TASKS), "--output_path", "plain"]
    _run([ENGINES.python, *plain], tmp_path)
    (results,) = (tmp_path / "plain").rglob("results_*.json")
    expected = json.loads(results.read_text())["results"]
    progress = await _scores(tmp_path, "lm_eval", TASKS, {"include": str(tmp_path), "run": ["--device", "cpu"]})
    assert {trial.task: trial.scores for trial in progress.trials} == {
        name: metrics_of(expected[name]) for name in TASKS
    }, progress.trials
    assert set(progress.trials[0].scores) == {"acc,none", "acc_stderr,none", "acc_norm,none", "acc_norm_stderr,none"}
    assert len({record.batch for record in progress.inferred}) == len(NODES) < len(progress.inferred)


@needs_engines
@pytest.mark.timeout(900)
async def test_inspect_ai_gives_the_scores_of_the_plain_run(tmp_path: Path) -> None:
    """Of a model in its own process, cut into shards whose logs it scores as one."""
    (tmp_path / "letters.py").write_text(INSPECT_TASK)
    _run([ENGINES.python, "-c", MODEL, "step-100"], tmp_path)
    words = ["-M", "model_path=step-100", "-M", "do_sample=false", "-M", "device=cpu", "--max-tokens", "8"]
    plain = ["eval", "letters.py", "--model", "hf/local", "--display", "plain", *words]
    _run(["inspect", *plain, "--log-dir", "plain", "--log-format", "json"], tmp_path)
    (log,) = (tmp_path / "plain").glob("*.json")
    progress = await _scores(tmp_path, "inspect_ai", {"letters.py": 7}, {"eval": words})
    (trial,) = progress.trials
    assert trial.scores == inspect_engine.metrics_of(json.loads(log.read_text())), trial
    assert set(trial.scores) == {"includes/accuracy", "includes/stderr"} and len(progress.inferred) > 1


@needs_opencompass
@pytest.mark.timeout(900)
async def test_opencompass_gives_the_scores_of_the_plain_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of choices and of generated text, cut into shards that its own evaluators score as one."""
    monkeypatch.setenv("DIAGNOSER_TRIAL_CHECKPOINT", "step-100")  # for the plain run
    (tmp_path / "config.py").write_text(COMPASS_CONFIG)
    for name, samples in {"sums": 7, "few": 4}.items():
        lines = []
        for number in range(samples):
            choices = {"A": str(number), "B": str(number + 1), "answer": "AB"[number % 2]}
            lines.append(json.dumps({"question": f"What is {number} + {number % 2}?", **choices}))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    _run([OPENCOMPASS.python, "-c", MODEL, "step-100"], tmp_path)
    _run([OPENCOMPASS.python, "-m", "opencompass.cli.main", "config.py", "--work-dir", "plain", "--debug"], tmp_path)
    expected = {}
    for path in (tmp_path / "plain").glob("*/results/tiny/*.json"):
        expected[path.stem] = opencompass_engine.metrics_of(json.loads(path.read_text()))
    progress = await _scores(tmp_path, "opencompass", {"sums": 7, "few": 3}, {"run": ["config.py"]})
    assert {trial.task: trial.scores for trial in progress.trials} == expected, progress.trials
    assert {*expected} == {"sums", "few"} and 0 < expected["sums"]["accuracy"] < 100
    assert len(progress.inferred) > 2


def _run(words: list[Any], folder: Path) -> None:
    done = subprocess.run(list(map(str, words)), cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
