"""OpenCompass as an engine, without OpenCompass: tasks that read and write as its own do."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diagnoser.evaluations.engines import opencompass_engine


class Task:
    """Infers ten samples, each of which is its number."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.work, self.reader = Path(config["work_dir"]), config["datasets"][0][0]["reader_cfg"]

    def run(self) -> None:
        answers, results = self.work / "predictions/model/sums.json", self.work / "results/model/sums.json"
        if answers.exists():
            stored = json.loads(answers.read_text())
            results.parent.mkdir(parents=True)
            results.write_text(json.dumps({"scored": [stored[str(place)] for place in range(len(stored))]}))
        else:
            numbers = eval(f"list(range(10)){self.reader['test_range']}")
            answers.parent.mkdir(parents=True)
            answers.write_text(json.dumps(dict(enumerate(numbers))))


@pytest.fixture(autouse=True)
def opencompass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opencompass.tasks", SimpleNamespace(OpenICLInferTask=Task, OpenICLEvalTask=Task))
    utils = SimpleNamespace(get_infer_output_path=lambda model, dataset, folder: f"{folder}/model/sums.json")
    monkeypatch.setitem(sys.modules, "opencompass.utils", utils)


def config(folder: Path, test_range: str | None = None) -> dict[str, Any]:
    return {"models": [{}], "datasets": [[{"reader_cfg": {"test_range": test_range}}]], "work_dir": str(folder)}


def test_shards_are_scored_in_the_order_of_the_data_set(tmp_path: Path) -> None:
    """Within the range of its config, whatever the order in which the shards were stored."""
    for name, first, last in (("b", 0, 2), ("a", 2, 5)):
        answers = opencompass_engine.infer(config(tmp_path / name, "[3:8]"), first, last)
        (tmp_path / f"{name}.json").write_text(json.dumps(answers))
    joined = opencompass_engine.read_answers(tmp_path)
    assert opencompass_engine.score(config(tmp_path / "score"), joined) == {"scored": [3, 4, 5, 6, 7]}


def test_a_shard_of_fewer_samples_than_the_suite_says_fails(tmp_path: Path) -> None:
    """With how many there are."""
    with pytest.raises(SystemExit, match="stored 2 samples, not those from 8 to 12"):
        opencompass_engine.infer(config(tmp_path / "work"), 8, 12)


def test_an_error_in_place_of_a_metric_fails() -> None:
    """Of results with details, the numbers alone are metrics."""
    assert opencompass_engine.metrics_of({"accuracy": 50.0, "details": {"0": {}}, "n": True}) == {"accuracy": 50.0}
    with pytest.raises(SystemExit, match="different length"):
        opencompass_engine.metrics_of({"error": "predictions and references have different length"})
