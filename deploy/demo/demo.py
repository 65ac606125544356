"""The main job in one command: start the service, fetch the client from it, run a failing training below it.

make demo           keeps serving a cluster of ten jobs, so that the pages can be looked at, until Ctrl-C
make demo EXIT=1    ends after printing
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
from neighbours import rules_that_ask, send, training
from waits import console, end_on_sigterm, stop, until

RULES = Path(__file__).parents[2] / "rules"
LOG = Path(__file__).with_name("train.log")
JOB = "gpt-7b-pretrain"
NODES = ["gpu-011", "gpu-014", "gpu-017", "gpu-023"]
TRAINING = """
import sys, time
for number, line in enumerate(open(sys.argv[1])):
    sys.stdout.write(line)
    if number % 24 == 0:
        sys.stdout.flush()
        time.sleep(0.05)
sys.exit(1)
"""
"""Prints the log of a real failure as its ranks did, and ends as they did."""
READY_SECONDS, TRAINING_SECONDS = 60, 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exit", action="store_true", help="end after printing the diagnosis")
    parser.add_argument("--port", type=int, default=8321, help="port to serve on; another one if it is taken")
    args = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="diagnoser-demo-") as folder, ExitStack() as stack:
        rules = {} if args.exit else {"DIAGNOSER_RULES_DIR": str(rules_that_ask(RULES, Path(folder) / "rules"))}
        url, process = stack.enter_context(serving(folder, args.port, **rules))
        if not args.exit:
            others = stack.enter_context(httpx.Client(base_url=url, timeout=30))
            send(others, datetime.now(UTC))
            stack.enter_context(training(others, datetime.now(UTC)))
        job = {
            "id": JOB,
            "name": "GPT 7B pre-training",
            "nodes": NODES,
            "framework": "Megatron-LM",
            "labels": {"gpus": "32"},
        }
        httpx.post(f"{url}/api/v1/jobs", json=job).raise_for_status()  # as an agent beside the scheduler does
        client = Path(folder) / "client.pyz"
        client.write_bytes(httpx.get(f"{url}/client.pyz").raise_for_status().content)
        train(client)
        if not args.exit:
            console.print(f"Serving on [link={url}]{url}[/link] until Ctrl-C: ten jobs, one of them still training.")
            if has_screen():
                webbrowser.open(url)
            process.wait()


def has_screen() -> bool:
    """Whether a browser would open beside this terminal, and not in its place."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


@contextmanager
def serving(folder: str, port: int, **settings: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The service as its own process on SQLite in ``folder``; stopped at the end. settings: DIAGNOSER_... names."""
    port = free_port(port)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIAGNOSER_")}
    environment |= {
        "DIAGNOSER_PORT": str(port),
        "DIAGNOSER_DATABASE_URL": f"sqlite:///{folder}/demo.db",
        "DIAGNOSER_LOG_LEVEL": "warning",
        **settings,
    }
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([Path(sys.executable).with_name("diagnoser"), "serve"], env=environment)
    try:
        wait_until_ready(url, process)
        yield url, process
    except KeyboardInterrupt:
        console.print("Stopping.")
    finally:
        stop(process)


def free_port(wanted: int) -> int:
    for port in (wanted, 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise SystemExit("no free port on 127.0.0.1")


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    def is_ready() -> bool:
        if process.poll() is not None:
            raise SystemExit(f"the service ended with code {process.returncode}: its message is above")
        try:
            return httpx.get(f"{url}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    until(is_ready, f"the service answers at {url}", READY_SECONDS)


def train(client: Path) -> None:
    """What a person types in place of `torchrun ...`; the diagnosis follows what the training prints."""
    run = ["python3", client.name, "run", "--job", JOB, "--", "python3", "train.py"]
    console.print(f"$ {' '.join(run)}", highlight=False, style="bold")
    (client.parent / "train.py").write_text(TRAINING)
    schedulers = ("DIAGNOSER_", "SLURM_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(schedulers)}
    command = [sys.executable, *run[1:-2], sys.executable, "train.py", str(LOG)]
    try:
        ended = subprocess.run(command, cwd=client.parent, env=environment, timeout=TRAINING_SECONDS)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"gave up after {TRAINING_SECONDS} s: the training had no diagnosis") from None
    console.print(f"It ended with code {ended.returncode}, which is the training's own.", highlight=False)


if __name__ == "__main__":
    main()
