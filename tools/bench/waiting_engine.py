"""An engine that waits where a real one computes, for evaluations on a real Slurm.

    waiting_engine.py serve PORT SECONDS
    waiting_engine.py infer TASK FIRST LAST SAMPLES SECONDS [URL]
    waiting_engine.py score SAMPLES SCORES SECONDS

SECONDS is what a start, a sample, and a metric take. An answer depends on task and number alone.
"""

import hashlib
import http.server
import json
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path


def main() -> None:
    command, *words = sys.argv[1:]
    commands: dict[str, Callable[..., None]] = {"serve": serve, "infer": infer, "score": score}
    commands[command](*words)


def serve(port: str, seconds: str) -> None:
    time.sleep(float(seconds))
    http.server.HTTPServer(("127.0.0.1", int(port)), _Ready).serve_forever()


class _Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def infer(task: str, first: str, last: str, samples: str, seconds: str, url: str = "") -> None:
    if url:
        urllib.request.urlopen(url).close()
    numbers = range(int(first), int(last))
    time.sleep(float(seconds) * len(numbers))
    answers = [hashlib.sha256(f"{task} {number}".encode()).hexdigest() for number in numbers]
    Path(samples, "answers.txt").write_text("\n".join(answers))


def score(samples: str, scores: str, seconds: str) -> None:
    answers = []
    for path in sorted(Path(samples).iterdir()):
        answers += path.read_text().split()
    time.sleep(float(seconds))
    passed = sum(answer < "b" for answer in answers)
    Path(scores).write_text(json.dumps({"passed": passed / len(answers), "samples": len(answers)}))


if __name__ == "__main__":
    main()
