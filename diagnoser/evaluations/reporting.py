"""The logs of trials that failed, handed to the service: they are diagnosed like those of any other job."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import structlog

from diagnoser.client.launch import Options
from diagnoser.client.run import ServerOptions
from diagnoser.client.send import SendOptions, hand_over
from diagnoser.client.service import Service, UsageError

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FailedTrial:
    """log: of the command that failed last. code: its exit code, None where it died without one."""

    job: str
    name: str
    log: Path
    code: int | None


class LogReporter:
    """``coordinator.FailureReporter``. Sends in the background: an evaluation does not wait for the service."""

    def __init__(self, server: ServerOptions) -> None:
        self._server = server
        self._sending: set[asyncio.Task[None]] = set()

    def report(self, failed: FailedTrial) -> None:
        task = asyncio.create_task(asyncio.to_thread(self._send, failed))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def finish(self) -> None:
        """Returns when all were sent, or given up after half a minute without an answer."""
        await asyncio.gather(*self._sending)

    def _send(self, failed: FailedTrial) -> None:
        """A log that cannot be sent stays in the folder of its batch."""
        options = SendOptions(self._server, Options(failed.job, name=failed.name), str(failed.log), failed.code)
        try:
            why = hand_over(Service(self._server.url, self._server.token), options).failure
        except UsageError as error:
            why = str(error)
        if why:
            log.warning("trial_log_not_sent", job=failed.job, log=str(failed.log), why=why)
