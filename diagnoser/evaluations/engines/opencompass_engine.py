"""Adds what OpenCompass lacks as an engine: a range of samples, an exit code, and scores over many shards.

It runs on the node with the Python that has OpenCompass, whose own partitioners and runners take no part: they would
cut a second time, and end with 0 where a task of theirs failed.

    infer FOLDER CHECKPOINT TASK FIRST LAST WORDS...   infers samples of a data set; answers go to FOLDER
    score FOLDER CHECKPOINT TASK FILE WORDS...         scores the answers in FOLDER, writes the metrics to FILE

TASK is the abbr of the data set. WORDS are those of the command `opencompass` that name the model and the data sets: a
config, or options.
"""

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_CHECKPOINT = "DIAGNOSER_TRIAL_CHECKPOINT"
"""Name of the variable where a config finds the path of the checkpoint."""


def main(arguments: Sequence[str]) -> None:
    """Raises SystemExit with what is wrong, and what OpenCompass raises."""
    mode, folder, checkpoint, task, *rest = arguments
    os.environ[_CHECKPOINT] = checkpoint
    with tempfile.TemporaryDirectory() as work:
        if mode == "infer":
            first, last, *words = rest
            answers = infer(config_of(words, task, work), int(first), int(last))
            (Path(folder) / "answers.json").write_text(json.dumps(answers))
        else:
            file, *words = rest
            results = score(config_of(words, task, work), read_answers(Path(folder)))
            Path(file).write_text(json.dumps(metrics_of(results)))


def config_of(words: Sequence[str], task: str, work: str) -> Any:
    """Read the config that the words name, and leave the data set of the task alone in it."""
    from mmengine.config import Config  # type: ignore[import-not-found]
    from opencompass.cli.main import get_config_from_arg, parse_args  # type: ignore[import-not-found]
    from opencompass.utils import dataset_abbr_from_cfg  # type: ignore[import-not-found]

    sys.argv = ["opencompass", *words]
    file = Path(work, "config.py")
    get_config_from_arg(parse_args()).dump(file)
    config = Config.fromfile(file, format_python_code=False)  # now its classes are names, as the tasks need them
    datasets = {dataset_abbr_from_cfg(dataset): dataset for dataset in config["datasets"]}
    if task not in datasets:
        raise SystemExit(f"no data set has the abbr {task}; there are {', '.join(datasets)}"[:2000])
    if len(config["models"]) != 1:
        raise SystemExit("the config must have one model")
    config["datasets"], config["work_dir"] = [[datasets[task]]], work
    config.merge_from_dict({"eval.runner.task.dump_details": True})  # `opencompass` does, and some metrics need it
    return config


def infer(config: Any, first: int, last: int) -> Mapping[str, Any]:
    """Have the samples inferred. Returns the answer to each, by its number in the whole data set."""
    from opencompass.tasks import OpenICLInferTask  # type: ignore[import-not-found]

    reader = config["datasets"][0][0]["reader_cfg"]
    reader["test_range"] = f"{reader.get('test_range') or ''}[{first}:{last}]"  # within the range that the config has
    OpenICLInferTask(config).run()
    answers = json.loads(_file(config, "predictions").read_text())
    if len(answers) != last - first:
        raise SystemExit(f"OpenCompass stored {len(answers)} samples, not those from {first} to {last}")
    return {str(first + int(number)): answer for number, answer in answers.items()}


def read_answers(folder: Path) -> Mapping[str, Any]:
    """Join the answers of all shards."""
    answers: dict[str, Any] = {}
    for path in sorted(folder.glob("*.json")):
        answers |= json.loads(path.read_text())
    return answers


def score(config: Any, answers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Let OpenCompass score the answers as if it had inferred them in one piece."""
    from opencompass.tasks import OpenICLEvalTask

    predictions = _file(config, "predictions")
    predictions.parent.mkdir(parents=True)
    predictions.write_text(json.dumps(answers))
    OpenICLEvalTask(config).run()
    results: Mapping[str, Any] = json.loads(_file(config, "results").read_text())
    return results


def _file(config: Any, kind: str) -> Path:
    from opencompass.utils import get_infer_output_path

    (model,), ((dataset,),) = config["models"], config["datasets"]
    return Path(get_infer_output_path(model, dataset, str(Path(config["work_dir"], kind))))


def metrics_of(results: Mapping[str, Any]) -> dict[str, float]:
    """Keep the numbers, such as "accuracy". Raises SystemExit with the error that stands in their place."""
    if "error" in results:
        raise SystemExit(f"OpenCompass scored nothing: {results['error']}"[:2000])
    return {name: value for name, value in results.items() if type(value) in (int, float)}


if __name__ == "__main__":
    sys.path[0] = str(Path.cwd())  # not the folder of this file, whose modules have names that others have, too
    main(sys.argv[1:])
