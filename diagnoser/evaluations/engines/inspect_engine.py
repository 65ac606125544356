"""Adds what inspect_ai lacks as an engine: an exit code, and one log of many shards.

It runs on the node with the Python that ``python3`` is there, so it needs nothing but the standard library.

    infer FOLDER COMMAND...        runs the command; fails where a log in FOLDER does not say success
    score FOLDER FILE COMMAND...   joins the logs in FOLDER, scores them with the command, writes the metrics to FILE
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(arguments: Sequence[str]) -> None:
    """Raises SystemExit with what is wrong, CalledProcessError where the command fails."""
    mode, folder, *rest = arguments
    if mode == "infer":
        subprocess.run(rest, check=True)  # noqa: S603 - the suite's own command, as words
        logs_of(Path(folder))
        return
    scores, *command = rest
    joined, scored = Path(scores + ".joined.json"), Path(scores + ".scored.json")
    joined.write_text(json.dumps(joined_log(logs_of(Path(folder)))))
    subprocess.run([*command, str(joined), "--output-file", str(scored), "--overwrite"], check=True)  # noqa: S603
    Path(scores).write_text(json.dumps(metrics_of(json.loads(scored.read_text()))))
    joined.unlink()
    scored.unlink()


def logs_of(folder: Path) -> list[dict[str, Any]]:
    """The logs in the order of their names. inspect ends with 0 even when it failed, so each has to say success."""
    logs = {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    if not logs:
        raise SystemExit("inspect wrote no log")
    for name, log in logs.items():
        if log["status"] != "success":
            raise SystemExit(f"{name}: {log['status']}: {(log.get('error') or {}).get('message', '')}"[:2000])
    return list(logs.values())


def joined_log(logs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One log of the samples of all, as if they had run in one go."""
    samples: list[dict[str, Any]] = []
    ids, known = dict[Any, None](), set[tuple[str, int]]()
    for log in logs:
        for sample in log["samples"]:
            samples.append(sample)
            known.add((str(sample["id"]), sample["epoch"]))
            ids[sample["id"]] = None  # in their order, each once
    if len(known) < len(samples):
        raise SystemExit("a sample is in two logs: does the task shuffle its data set?")
    joined = logs[0]
    joined["eval"]["dataset"]["sample_ids"] = list(ids)
    joined["eval"]["config"]["limit"] = None
    return {**joined, "samples": samples, "results": None}


def metrics_of(log: dict[str, Any]) -> dict[str, float]:
    """Read metrics by scorer and metric, such as "match/accuracy"."""
    scores = (log.get("results") or {}).get("scores") or []
    metrics: dict[str, float] = {}
    for score in scores:
        for name, metric in score["metrics"].items():
            if isinstance(metric["value"], int | float):
                metrics[f"{score['name']}/{name}"] = metric["value"]
    return metrics


if __name__ == "__main__":
    main(sys.argv[1:])
