"""``diagnoser agent`` as a process of its own, for any scheduler."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.service import until
from tests.integration.slurm.double import Plans
from tests.preloaded import Preloaded


@dataclass
class Agent:
    """``start`` again goes on where it was. options: of the command line, after ``diagnoser agent``."""

    folder: Path
    options: Sequence[str]
    environment: Mapping[str, str]
    process: Preloaded | None = None

    def start(self, *options: str, **variables: str) -> None:
        words = ["agent", *self.options, "--state", str(self.folder), *options]
        self.process = Preloaded(words, {**self.environment, **variables}, self.folder / "agent.log")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=120)

    def stop(self) -> None:
        """If it runs."""
        if self.process and self.process.poll() is None:
            self.end()

    def log(self) -> str:
        return (self.folder / "agent.log").read_text()


def ended(found: Plans, agent: Agent, id: str) -> dict[str, Any]:
    """The plan of the double once it has ended."""
    try:
        until(lambda: found.ended(id), f"plan {id} has ended")
    except AssertionError as error:
        raise AssertionError(f"{error}: {found.plans[id]}\n{agent.log()[-3000:]}") from None
    return found.plans[id]
