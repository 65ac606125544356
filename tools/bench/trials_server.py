"""Measures what a warm model server saves: 20 tasks of a tiny transformers model, one slot, cold and warm.

    ENGINES_FOLDER=... python -m tools.bench.trials_server

Cold, each task starts an engine that imports torch, loads the model and generates. Warm, one server does that once,
and the tasks ask it. Compared is the time of engine starts, as each engine measures it: until its model is loaded.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.environments import ENGINES
from tests.integration.test_trial_engines import MODEL

TASKS, SAMPLES = 20, 4
LOAD = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer, model = AutoTokenizer.from_pretrained(checkpoint), AutoModelForCausalLM.from_pretrained(checkpoint)
def answer(prompt):
    words = tokenizer(prompt, return_tensors="pt").input_ids
    return tokenizer.decode(model.generate(words, max_new_tokens=4, do_sample=False)[0, words.shape[1]:])
"""
COLD = f"""
import json, os, sys
checkpoint, task, first, last, samples = sys.argv[1:]
{LOAD}
open(os.environ["DIAGNOSER_TRIAL_LOADED"], "w").close()
with open(samples + "/answers.jsonl", "w") as file:
    for number in range(int(first), int(last)):
        file.write(json.dumps(answer(f"{{task}} {{number}}")) + "\\n")
"""
SERVE = f"""
import http.server, json, sys, urllib.parse
checkpoint, port = sys.argv[1:]
{LOAD}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer(urllib.parse.unquote(self.path[1:]))).encode())
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""
WARM = """
import sys, urllib.parse, urllib.request
task, first, last, samples, url = sys.argv[1:]
with open(samples + "/answers.jsonl", "wb") as file:
    for number in range(int(first), int(last)):
        with urllib.request.urlopen(url + urllib.parse.quote(f"{task} {number}")) as answer:
            file.write(answer.read() + b"\\n")
"""
SCORE = """
import json, pathlib, sys
answers = [path.read_text() for path in sorted(pathlib.Path(sys.argv[1]).iterdir())]
json.dump({"letters": sum(map(len, answers))}, open(sys.argv[2], "w"))
"""


def main() -> None:
    if ENGINES.missing:
        raise SystemExit(ENGINES.missing)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        python = str(ENGINES.python)
        subprocess.run([python, "-c", MODEL, str(folder / "step-100")], check=True, capture_output=True)
        for name, program in (("cold", COLD), ("serve", SERVE), ("warm", WARM), ("score", SCORE)):
            (folder / f"{name}.py").write_text(program)
        place = ["{task}", "{first}", "{last}", "{samples}"]
        cold = run(folder, "cold", {"infer": [python, "cold.py", "{checkpoint}", *place]}, {})
        server = {"command": [python, "serve.py", "{checkpoint}", "{port}"], "ready": "/ready", "url": "/"}
        warm = run(
            folder, "warm", {"infer": [sys.executable, "-I", "-S", "warm.py", *place, "{url}"]}, {"server": server}
        )
        same = "the same scores" if cold["scores"] == warm["scores"] else "DIFFERENT scores"
        saved = 1 - warm["starts"] / cold["starts"]
        sys.stdout.write(
            f"{TASKS} tasks: cold {cold['seconds']:.0f} s, {cold['starts']:.0f} s of them in engine starts; "
            f"warm {warm['seconds']:.0f} s, {warm['starts']:.0f} s; {100 * saved:.0f} % of the starts saved, {same}\n"
        )


def run(folder: Path, name: str, engine: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Carry the suite out on one slot. Returns seconds, seconds of engine starts, and scores."""
    tasks = [{"name": f"task-{number}", "samples": SAMPLES, "sample_seconds": 0.1} for number in range(TASKS)]
    score = [sys.executable, "-I", "-S", "score.py", "{samples}", "{scores}"]
    suite = {"name": name, "checkpoints": [str(folder / "step-100")], "engine": {**engine, "score": score}}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({**suite, **more, "tasks": tasks}))
    words = [sys.executable, "-m", "diagnoser", "evaluations", "run", str(folder / f"{name}.yaml"), "--json"]
    words += ["--node", "here=1", "--folder", str(folder / "runs")]
    environment = os.environ | {"DIAGNOSER_DATABASE_URL": f"sqlite:///{folder}/{name}.db"}
    done = json.loads(subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    starts = 0.0
    for path in Path(done["folder"]).glob("batches/*/[0-9]*.json"):
        starts += json.loads(path.read_text()).get("load", 0.0)
    scores = {trial["task"]: trial["scores"] for trial in done["trials"]}
    return {"seconds": done["seconds"], "starts": starts, "scores": scores}


if __name__ == "__main__":
    main()
