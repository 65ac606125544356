"""Carries a batch out on its node: ``python -m diagnoser.evaluations.runner FOLDER [--lock FD] [--owner ID]``.

The order is in FOLDER; results go there, each by rename, so that whoever looks sees a whole result or none. Nothing
here needs the coordinator: a batch goes on when that is gone. Standard library only.
"""

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnoser.evaluations.model_server import ModelServer, filled
from diagnoser.evaluations.weights import CopyLimits, Weights, weights

TAIL = 4000
"""Bytes of a failed command's log that the result carries."""
LOADED = "DIAGNOSER_TRIAL_LOADED"
"""Name of the variable that names a file: a command may make it once its model is loaded."""
URL, PORT = "DIAGNOSER_TRIAL_URL", "DIAGNOSER_TRIAL_PORT"
"""Names of the variables with the address and the port of the suite's server."""
KEY = "DIAGNOSER_TRIAL_KEY"
"""Name of the variable with a secret of the batch, which its server and its commands have, and nobody else."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lock", type=int, default=-1)
    parser.add_argument("--owner", default="")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if not _is_first(given.folder, given.owner):
        return
    order = json.loads((given.folder / "order.json").read_text())
    os.chdir(order["directory"])  # a checkpoint may be named from there
    kept = []
    if given.lock >= 0:
        kept.append(given.lock)
    with weights(order["checkpoint"], CopyLimits(**order["copies"])) as found:
        write(given.folder / "weights.json", {"path": found.path, "reason": found.reason, "seconds": found.seconds})
        if found.fd >= 0:
            kept.append(found.fd)
        environment = {**os.environ, **order["environment"], KEY: secrets.token_hex(16)}
        with ExitStack() as ends:
            server = None
            if order.get("server"):  # the first of the commands starts it
                server = ModelServer(order["server"], found.path, given.folder / "server.log", environment, kept)
                ends.callback(server.close)
            batch = _Batch(given.folder, order, found, kept, environment, server)
            for place, command in enumerate(order["commands"]):
                if not (given.folder / f"{place}.json").exists():
                    write(given.folder / f"{place}.json", batch.run(place, command))
    write(given.folder / "ended", {})


def log_of(folder: Path, place: int) -> Path:
    """Log of the command at this place of the order; absent where it has not begun."""
    return folder / f"{place}.log"


def write(path: Path, value: Mapping[str, Any]) -> None:
    draft = path.with_name(f"{path.name}.draft-{os.getpid()}")
    draft.write_text(json.dumps(value))
    draft.replace(path)


def _is_first(folder: Path, owner: str) -> bool:
    """A batch that was started twice runs once; a job that its scheduler starts again (the same owner) goes on."""
    started = folder / "started"
    draft = started.with_name(f"started.draft-{owner}-{os.getpid()}")
    draft.write_text(json.dumps({"owner": owner, "pid": os.getpid()}))
    try:
        os.link(draft, started)
        return True
    except FileExistsError:
        return bool(owner) and json.loads(started.read_text())["owner"] == owner
    finally:
        draft.unlink()


_ENDED_BY_OTHERS = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of a command, or of the shell around it, that did not fail but was told to end."""


@dataclass(frozen=True, slots=True)
class _Batch:
    folder: Path
    order: dict[str, Any]
    weights: Weights
    kept: Sequence[int]
    environment: Mapping[str, str]
    server: ModelServer | None

    def run(self, place: int, command: dict[str, Any]) -> dict[str, Any]:
        begun, output = time.time(), Path(command["output"])
        if output.exists():
            return {"output": str(output), "code": 0, "seconds": 0.0}
        draft = output.with_name(f"{output.name}.draft-{self.order['batch']}")
        waited = self._wait_for_server()
        code, load = self._run_command(place, command, draft)
        if code == 0 and not _is_written(draft):
            code = 1
            with log_of(self.folder, place).open("a") as log:
                log.write(f"it ended well, and wrote nothing to {{{self._output}}}\n")
        if code == 0:
            _publish(draft, output)
        shutil.rmtree(draft, ignore_errors=True)
        if code in _ENDED_BY_OTHERS:
            sys.exit(128 + signal.SIGTERM)  # a scheduler ends both; the command may only have been the first to go
        copied = self.weights.seconds if place == 0 else 0.0
        took = {"seconds": time.time() - begun + copied, "load": load + copied + waited}
        tail = _tail(log_of(self.folder, place)) if code else ""
        return {"output": str(output), "code": code, **took, "tail": tail}

    def _wait_for_server(self) -> float:
        """Seconds until the server was ready, 0 where there is none. Raises SystemExit where it does not get ready: the
        batch is lost then, and its other commands are tried elsewhere."""
        begun = time.time()
        if self.server is None:
            return 0.0
        self.server.wait_ready()
        return time.time() - begun

    @property
    def _output(self) -> str:
        """Placeholder of what its commands write."""
        return "scores" if self.order["kind"] == "score" else "samples"

    def _run_command(self, place: int, command: dict[str, Any], draft: Path) -> tuple[int, float]:
        """(exit code, seconds until its model was loaded)."""
        draft.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(draft, ignore_errors=True)
        if self._output == "samples":
            draft.mkdir()
        mark = self.folder / f"{place}.loaded"
        own = {"checkpoint": self.weights.path}
        environment = {**self.environment, LOADED: str(mark)}
        if self.server is not None:
            own |= self.server.values
            environment |= {URL: own["url"], PORT: own["port"]}
        values = {**own, **command["values"], self._output: str(draft)}
        words = filled(command["words"], values)
        begun = time.time()
        with log_of(self.folder, place).open("wb") as log:
            try:
                done = subprocess.run(  # noqa: S603 - the suite's own command, as words
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    pass_fds=self.kept,
                    check=False,
                )
            except OSError as error:
                log.write(f"{words[0]}: {error.strerror}\n".encode())
                return 127, 0.0
        if not mark.exists():
            return done.returncode, 0.0
        return done.returncode, max(0.0, mark.stat().st_mtime - begun)


def _publish(draft: Path, output: Path) -> None:
    """Move the draft to its place. Samples that another batch published first stay: nobody reads samples of both."""
    try:
        draft.rename(output)
    except OSError:
        if not output.is_dir():
            raise


def _is_written(output: Path) -> bool:
    if output.is_dir():
        return any(output.iterdir())
    return output.is_file()


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL))
        return file.read().decode("utf-8", "replace")


if __name__ == "__main__":
    main()
