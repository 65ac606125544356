"""The processes of a service: one for each part, with their sockets and signals. `app.py` says what runs in each."""

import asyncio
import ctypes
import errno
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
import uvicorn

from diagnoser.adapters.sql.administration import check_place
from diagnoser.adapters.sql.migrations import upgrade
from diagnoser.adapters.wake_signals import PipeWakeSignal
from diagnoser.app import Shared, load_shared, running
from diagnoser.config import alerting, tls
from diagnoser.config.allowed_hosts import trusted_proxies
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.model.errors import BadInput, Unavailable, os_reason
from diagnoser.observability import logging
from diagnoser.observability.metrics import share
from diagnoser.supervisor import STOP, Part, Supervisor
from diagnoser.supervisor import STOP_SECONDS as LAST_SECONDS
from diagnoser.web.http.http_protocol import bounded

STOP_SECONDS = 3
"""For requests that are under way when the service stops. The supervisor ends what is left soon after."""
BACKLOG = 2048
"""Connections that wait to be accepted: as many as uvicorn lets wait."""
KEEP_ALIVE_SECONDS = 75
"""Longer than shippers wait between two requests, and than proxies keep a connection: ours must not be the side that
closes it."""
_ADDRESS_SECONDS = 3.0
_M_ARENA_MAX = -8
"""A parameter of glibc's `mallopt`."""


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. A part that fails is started again; one that cannot work as it is set up ends all
    of it: then this raises BadInput."""
    _limit_malloc_arenas()
    logging.set_up(as_json=settings.log_format == "json", level=settings.log_level)
    tls.check_certificate(settings)
    trusted_proxies(settings)
    _wait_for_address(settings)  # a taken port is reported before a database is made
    shared = load_shared(settings)
    if check_place(settings.database_url, Settings.model_fields["database_url"].default):
        structlog.get_logger().warning("new_database", url=settings.database_url)
    asyncio.run(upgrade(settings.database_url))  # before any part uses it
    _log_startup(settings, shared.analyzer)
    gc.freeze()  # rules and code live as long as the process: no collection has to look at them again
    gc.enable()
    names = _process_names(settings)
    if len(names) == 1:
        socket = _listen(settings, shared=False)
        asyncio.run(_serve(settings, shared, socket, (signal.SIGTERM, signal.SIGINT)))
        return
    with TemporaryDirectory(prefix="diagnoser-metrics-") as folder:
        if not _supervise(settings, names, shared, Path(folder)):
            raise BadInput("the service ended: see the message above")


def _limit_malloc_arenas() -> None:
    """glibc gives each thread an arena, and memory that was freed in one is not used by another: it grew as long as
    there was work. A single arena makes threads wait for each other. Other C libraries have no such setting."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def _process_names(settings: Settings) -> list[str]:
    """Names of the processes that make up the role."""
    requests = ["api"]
    if settings.workers > 1:
        requests = [f"api-{number}" for number in range(settings.workers)]
    return {"all": [*requests, "worker"], "api": requests, "worker": ["worker"]}[settings.role]


def _supervise(settings: Settings, names: Sequence[str], base: Shared, metrics: Path) -> bool:
    """Each of ``names`` in a process of its own. base: what they have in common but for the signals among them.
    metrics: where they count."""
    supervisor = Supervisor(names)

    async def check_worker() -> str:
        if not supervisor.is_running("worker"):
            raise Unavailable("it died and is started again")
        return "runs"

    shared = replace(base, attempts=PipeWakeSignal(), outbox=PipeWakeSignal())
    if "worker" in names:
        shared = replace(shared, check_worker=check_worker)

    def part(name: str) -> Part:
        own, socket = settings.model_copy(update={"role": "worker"}), None
        if name != "worker":
            own = settings.model_copy(update={"role": "api"})
            # Of the parent's, so that connections wait in it while the process is started again.
            socket = _listen(settings, shared=settings.workers > 1)

        def run() -> None:
            share(metrics, name)
            asyncio.run(_serve(own, shared, socket, (STOP,)))

        return Part(name, run)

    return supervisor.run(list(map(part, names)))


def _wait_for_address(settings: Settings) -> None:
    """Wait until the address is free, for a moment: the parts of a service that was killed end with it, but not in the
    same instant. Raises BadInput where it stays taken, or cannot be listened on."""
    until = time.monotonic() + _ADDRESS_SECONDS
    while True:
        try:
            return _listen(settings, shared=settings.workers > 1).close()
        except BadInput as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise
        time.sleep(0.05)


def _listen(settings: Settings, *, shared: bool) -> socket.socket:
    """shared: with the other sockets of this service, among which the kernel deals out connections.

    Raises BadInput where the address cannot be listened on.
    """
    family = socket.AF_INET
    if ":" in settings.host:
        family = socket.AF_INET6
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((settings.host, settings.port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise BadInput(f"cannot listen on {settings.host}:{settings.port}: {os_reason(error)}") from error
    return listening


async def _serve(
    settings: Settings, shared: Shared, listening: socket.socket | None, stop_signals: Sequence[signal.Signals]
) -> None:
    """The part of this process. A loop that fails for good takes the process down."""
    stopping = asyncio.Event()
    async with running(settings, stopping, shared) as app:
        if listening is None:
            for number in stop_signals:
                asyncio.get_running_loop().add_signal_handler(number, stopping.set)
            await stopping.wait()
            return
        config = uvicorn.Config(
            app,
            http=bounded(settings.max_connections, settings.request_head_seconds),
            ws="none",
            lifespan="off",  # ``running`` starts and ends what the application needs
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
            ssl_certfile=settings.tls_certificate,
            ssl_keyfile=settings.tls_key,
            forwarded_allow_ips=trusted_proxies(settings),
        )
        server = _UvicornServer(config, stopping)
        _stop_on_signals(server, stopping, stop_signals)
        await server.serve(sockets=[listening])


class _UvicornServer(uvicorn.Server):
    """A server that leaves signals to us: uvicorn raises them again at its end, before our own parts are closed.

    It wakes once a second, for the date of its answers, and when it shall end, where uvicorn looks ten times.
    """

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 1.0)


def _stop_on_signals(server: uvicorn.Server, stopping: asyncio.Event, numbers: Sequence[signal.Signals]) -> None:
    """The first signal ends live streams and waits for requests, the second does not wait. What still runs after the
    last second, such as the reading of a huge log, is handed over already, and ends with the process."""

    def stop() -> None:
        last = threading.Timer(LAST_SECONDS, os._exit, (os.EX_OK,))
        last.daemon = True
        last.start()
        server.force_exit = server.should_exit
        server.should_exit = True
        stopping.set()

    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, stop)


def _log_startup(settings: Settings, analyzer: LogAnalyzer) -> None:
    webhook = model = "none"
    if settings.webhook_url:
        webhook = "on"
    if settings.llm_url:
        model = settings.llm_model
    structlog.get_logger().info(
        "serving",
        url=tls.address(settings),
        database=settings.database_url.partition(":")[0],
        rules=len(analyzer.knowledge.engine.ruleset.rules),
        model=model,
        webhook=webhook,
        alerts=", ".join(alerting.receiver_names(settings)) or "none",
        processes=_process_names(settings),
        recovery=settings.recovery_mode,
    )
    sys.stderr.flush()
