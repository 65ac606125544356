"""The logs of trials that failed, handed to the service: they are diagnosed like those of any other job."""

import asyncio
from pathlib import Path

import structlog

from diagnoser.client.launch import Options
from diagnoser.client.run import ServerOptions
from diagnoser.client.send import SendOptions, hand_over
from diagnoser.client.service import Service, UsageError

log = structlog.get_logger()


class LogReporter:
    """Sends in the background: an evaluation does not wait for the service."""

    def __init__(self, server: ServerOptions) -> None:
        self._server = server
        self._sending: set[asyncio.Task[None]] = set()

    def report(self, job: str, name: str, failed_log: Path, code: int | None) -> None:
        """failed_log: of the command that failed last. code: its exit code, None where it died without one."""
        options = SendOptions(self._server, Options(job, name=name), str(failed_log), code)
        task = asyncio.create_task(asyncio.to_thread(self._send, options))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def finish(self) -> None:
        """Returns when all were sent, or given up after half a minute without an answer."""
        await asyncio.gather(*self._sending)

    def _send(self, options: SendOptions) -> None:
        """A log that cannot be sent stays in the folder of its batch."""
        try:
            why = hand_over(Service(self._server.url, self._server.token), options).failure
        except UsageError as error:
            why = str(error)
        if why:
            log.warning("trial_log_not_sent", job=options.identity.job, log=options.file, why=why)
