"""Engines that people use, run for real on a tiny model: the scores of a run are those of the engine alone."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.evaluations.lm_eval_engine import metrics_of
from diagnoser.evaluations.local import LocalExecutor
from diagnoser.evaluations.suite import read_suite
from diagnoser.model.evaluations import Node, TrialRun
from tests.databases import sqlite_store
from tests.environments import ENGINES
from tests.trial_runs import FAST, carry_out, coordinator, copies

pytestmark = pytest.mark.skipif(bool(ENGINES.missing), reason=ENGINES.missing)
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


@pytest.mark.timeout(900)
async def test_lm_eval_gives_the_scores_of_the_plain_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut into shards that one process infers on each slot, and scored from their answers by lm_eval itself."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    for name, value in offline.items():
        monkeypatch.setenv(name, value)
    tasks, model = tmp_path / "tasks", tmp_path / "step-100"
    tasks.mkdir()
    for name, samples in TASKS.items():
        _task(tasks, name, samples)
    _run([ENGINES.python, "-c", MODEL, model])
    words = ["-m", "lm_eval", "run", "--model", "hf", "--model_args", f"pretrained={model}", "--device", "cpu"]
    _run(
        [
            ENGINES.python,
            *words,
            "--tasks",
            ",".join(TASKS),
            "--include_path",
            tasks,
            "--output_path",
            tmp_path / "plain",
        ]
    )
    (plain,) = (tmp_path / "plain").rglob("results_*.json")
    engine = {"python": str(ENGINES.python), "include": str(tasks), "run": ["--device", "cpu"]}
    given: dict[str, Any] = {"name": "small", "checkpoints": [str(model)], "engine": {"lm_eval": engine}}
    known = {"sample_seconds": 1, "score_seconds": 1}
    given |= {"tasks": [{"name": name, "samples": samples, **known} for name, samples in TASKS.items()]}
    suite = read_suite("SUITE.yaml", yaml.safe_dump(given))
    store: SqlStore = await sqlite_store(tmp_path / "test.db")
    folder = tmp_path / "r1"
    folder.mkdir()
    await store.trials.add_run(TrialRun("r1", suite, "local", str(folder), str(tmp_path), time.time()))
    nodes = [Node("east", 1), Node("west", 1)]
    progress = await carry_out(coordinator(store, LocalExecutor(nodes, copies(tmp_path)), FAST), "r1")
    await store.close()
    expected = json.loads(plain.read_text())["results"]
    assert {trial.task: trial.scores for trial in progress.trials} == {
        name: metrics_of(expected[name]) for name in TASKS
    }, progress.trials
    assert set(progress.trials[0].scores) == {"acc,none", "acc_stderr,none", "acc_norm,none", "acc_norm_stderr,none"}
    assert len(list(folder.glob("batches/*/server.log"))) == len(nodes) < len(progress.inferred)


def _run(words: list[Any]) -> None:
    done = subprocess.run(list(map(str, words)), env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
