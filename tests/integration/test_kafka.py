"""`diagnoser consume` against brokers: each message counts once, whatever ends, stands still or goes away."""

import asyncio
import os
import signal
import sqlite3
import threading
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from prometheus_client import CollectorRegistry

pytest.importorskip("confluent_kafka", reason="the client of Kafka is not installed: pip install 'diagnoser[kafka]'")

from diagnoser.adapters.kafka import KafkaSource
from diagnoser.adapters.sql.logs import LogRepository
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.commands import consume
from diagnoser.compress import Compressor, raw_chunks
from diagnoser.ingest import RecordDefaults
from diagnoser.ingest.consumer import LogConsumer
from diagnoser.ingest.job_access import JobAccess
from diagnoser.ingest.mapping import DEFAULT
from diagnoser.ingest.messages import MessageReader
from diagnoser.ingest.service import IngestService
from diagnoser.ingest.unattributed import UnattributedStreams
from diagnoser.model import AttemptKey, Job, UnplacedReason
from diagnoser.model.errors import BadInput, Unavailable
from diagnoser.model.logs import Append, OffsetAdvance, Partition
from diagnoser.observability.metrics import Metrics
from tests import kafka_broker
from tests.databases import sqlite_store
from tests.e2e.service import DEMO_LOG, diagnosis_of, service, until
from tests.in_memory import RecentUnplaced
from tests.kafka_broker import PARTITIONS, Broker, Sent
from tests.ports import free_port
from tests.preloaded import Preloaded

QUICK = "session.timeout.ms=6000\nheartbeat.interval.ms=500\n"
"""A member that is gone is missed sooner than by default."""
JOBS = 5


@pytest.fixture(params=["double", "tansu"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    if request.param == "double":
        with kafka_broker.double() as running:
            yield running
        return
    with kafka_broker.tansu(_program(), tmp_path) as running:
        yield running


@pytest.fixture
def double() -> Iterator[Broker]:
    with kafka_broker.double() as running:
        yield running


def _program() -> str:
    program = kafka_broker.program()
    if program is None:
        pytest.skip(kafka_broker.MISSING)
    return program


@contextmanager
def consuming(
    folder: Path, broker: str, *options: str, properties: str = QUICK, **settings: str
) -> Iterator[Preloaded]:
    """A process of `diagnoser consume`, of the topic `logs`. Its log is ``consumer.log``."""
    file = folder / "client.properties"
    file.write_text(properties)
    file.chmod(0o600)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIAGNOSER_")}
    environment |= {
        "DIAGNOSER_DATABASE_URL": f"sqlite:///{folder}/test.db",
        "DIAGNOSER_KAFKA_PROPERTIES": str(file),
        **settings,
    }
    words = ["consume", "--brokers", broker, "--topic", "logs", "--group", "g", *options]
    process = Preloaded(words, environment, folder / "consumer.log")
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGKILL)
        process.wait()


def log_of(folder: Path) -> str:
    file = folder / "consumer.log"
    return file.read_text() if file.exists() else ""


def numbered(start: int, stop: int) -> list[Sent]:
    """Lines of some jobs, each with a number of its own."""
    return [(f"job-{number % JOBS}", f"line {number}") for number in range(start, stop)]


async def stored(folder: Path) -> dict[str, list[str]]:
    """The lines of each job, as they are numbered."""
    store = await sqlite_store(folder / "test.db")
    try:
        return {f"job-{number}": await lines(store, f"job-{number}") for number in range(JOBS)}
    finally:
        await store.close()


async def lines(store: SqlStore, job: str) -> list[str]:
    blocks = [block for piece in await store.logs.pieces(AttemptKey(job, 1)) for block in raw_chunks.unpack(piece.data)]
    return [
        line
        for block in sorted(blocks, key=lambda block: (block.stream, block.first))
        for line in block.data.decode().removesuffix("\n").split("\n")
    ]


def count(folder: Path) -> int:
    return sum(map(len, asyncio.run(stored(folder)).values()))


def stop_between_commits(process: Preloaded, folder: Path) -> None:
    """SIGSTOP. A process that is stopped within a transaction keeps SQLite's lock from all others until it goes on."""
    while True:
        process.send_signal(signal.SIGSTOP)
        with closing(sqlite3.connect(folder / "test.db", timeout=20.0, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError:
                process.send_signal(signal.SIGCONT)


def check_complete(folder: Path, total: int) -> None:
    """Each of the numbered lines once, those of a job in their order."""
    assert asyncio.run(stored(folder)) == {
        f"job-{job}": [f"line {number}" for number in range(job, total, JOBS)] for job in range(JOBS)
    }


def test_the_lines_of_a_topic_are_stored_by_job(broker: Broker, tmp_path: Path) -> None:
    """The key is the job; a stop by SIGTERM ends at once and well, and a start goes on where it was."""
    broker.make_topic("logs")
    broker.send("logs", numbered(0, 1000))
    with consuming(tmp_path, broker.address) as first:
        until(lambda: count(tmp_path) == 1000, "all lines are stored")
        first.send_signal(signal.SIGTERM)
        assert first.wait(180) == 0
    broker.send("logs", numbered(1000, 1500))
    with consuming(tmp_path, broker.address):
        until(lambda: count(tmp_path) == 1500, "the lines behind them are stored")
    check_complete(tmp_path, 1500)


def test_a_failure_that_came_through_a_topic_is_diagnosed(double: Broker, tmp_path: Path) -> None:
    """Consumer and service share a database; what belongs to no job is on the service's page, and the lag is told."""
    sent = [("j", line) for line in DEMO_LOG.read_text().splitlines()]
    double.send("logs", [*sent, ("no job", "GET /cart 200")])
    port = free_port()
    with service(tmp_path) as running, consuming(tmp_path, double.address, "--metrics-port", str(port)):
        client = running.start()
        assert diagnosis_of(client, lines=len(sent))["outcome"] == "failed"
        until(lambda: "GET /cart 200" in client.get("/unplaced").text, "the page shows what has no place")
        metrics = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        assert f"diagnoser_consumed_messages_total {len(sent) + 1}.0" in metrics
        until(
            lambda: "diagnoser_consumer_lag_messages 0.0" in httpx.get(f"http://127.0.0.1:{port}/metrics").text,
            "nothing is left to read",
        )


def test_a_killed_consumer_loses_and_repeats_nothing(broker: Broker, tmp_path: Path) -> None:
    """SIGKILL in the middle of reading, several times over."""
    total = 30_000
    broker.make_topic("logs")

    def produce() -> None:
        for start in range(0, total, 1000):
            broker.send("logs", numbered(start, start + 1000))

    producer = threading.Thread(target=produce)
    producer.start()
    for share in (1, 8000, 20_000):
        with consuming(tmp_path, broker.address) as process:
            until(lambda least=share: count(tmp_path) >= least, f"{share} lines are stored")
            process.send_signal(signal.SIGKILL)
            process.wait()
    producer.join()
    with consuming(tmp_path, broker.address):
        until(lambda: count(tmp_path) >= total, "all lines are stored")
    check_complete(tmp_path, total)


def test_two_members_share_a_topic_while_one_stands_still(broker: Broker, tmp_path: Path) -> None:
    """One stops without a word, loses its partitions, wakes up with a batch in hand and joins again."""
    broker.make_topic("logs")
    broker.send("logs", numbered(0, 5000))
    with consuming(tmp_path, broker.address) as first, consuming(tmp_path, broker.address):
        until(lambda: count(tmp_path) >= 1, "reading has begun")
        stop_between_commits(first, tmp_path)
        broker.send("logs", numbered(5000, 10_000))
        until(lambda: count(tmp_path) >= 10_000, "the other member has taken over")
        first.send_signal(signal.SIGCONT)
        broker.send("logs", numbered(10_000, 15_000))
        until(lambda: count(tmp_path) >= 15_000, "all lines are stored")
    check_complete(tmp_path, 15_000)


def test_brokers_that_are_away_are_waited_for(tmp_path: Path) -> None:
    """It says so once, and begins when they are there."""
    program, port = _program(), free_port()
    with consuming(tmp_path, f"127.0.0.1:{port}") as process:
        until(lambda: "brokers_away" in log_of(tmp_path), "the log says that the brokers are away")
        with kafka_broker.tansu(program, tmp_path, port=port) as broker:
            broker.make_topic("logs")
            broker.send("logs", numbered(0, 100))
            until(lambda: count(tmp_path) == 100, "all lines are stored")
            assert process.poll() is None
            assert log_of(tmp_path).count("brokers_away") == 1
            assert "brokers_back" in log_of(tmp_path)


def test_wrong_credentials_end_it_with_a_reason(tmp_path: Path) -> None:
    """Exit 1, without a traceback and without the password."""
    with kafka_broker.tansu(_program(), tmp_path, "--authentication") as broker:
        properties = (
            "security.protocol=sasl_plaintext\nsasl.mechanism=SCRAM-SHA-256\n"
            "sasl.username=nobody\nsasl.password=a-very-secret-word\n"
        )
        with consuming(tmp_path, broker.address, properties=properties) as process:
            assert process.wait(120) == 1
    log = log_of(tmp_path)
    assert f"diagnoser: Kafka: the brokers at {broker.address} refuse us: " in log
    assert "a-very-secret-word" not in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("vouch", "cluster", "refused"),
    [
        (False, "", {"~node/east/gpu-1", "~node/west/gpu-1"}),
        (True, "", set()),
        (True, "east", {"~node/west/gpu-1", "of-west"}),
        (False, "east", {"~node/east/gpu-1", "~node/west/gpu-1", "of-west"}),
    ],
)
async def test_a_topic_speaks_of_what_the_operator_says_it_may(
    store: SqlStore, vouch: bool, cluster: str, refused: set[str]
) -> None:
    """The logs of nodes need --vouch, and --cluster keeps out jobs and nodes of others, as a token would."""
    await store.jobs.register(Job("of-west", cluster="west", created=1.0))
    await store.jobs.register(Job("of-east", cluster="east", created=1.0))
    credential = consume.credential("logs", cluster, vouch=vouch)
    jobs = ["of-west", "of-east", "new", "~node/east/gpu-1", "~node/west/gpu-1"]
    reasons = await consume.refused(JobAccess(store.jobs, lambda: 100.0), credential, jobs)
    assert reasons.keys() == refused


class Faulty:
    """Passes on to a store's logs. ``faults`` are raised by the next appends; ``poison`` is a job it cannot hold."""

    def __init__(self, store: SqlStore, faults: Sequence[Exception] = (), poison: str = "") -> None:
        self._store = store
        self._poison = poison
        self.faults = list(faults)
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store.logs, name)

    async def append(self, appends: Sequence[Append], advances: Sequence[OffsetAdvance] = ()) -> None:
        if any(append.attempt.job == self._poison for append in appends):
            raise BadInput("this job cannot be stored")
        if self.faults:
            await asyncio.sleep(1.5)  # longer than a commit may take before the brokers hear of it
            raise self.faults.pop(0)
        await self._store.logs.append(appends, advances)

    async def source_offsets(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        if self.is_away:
            raise Unavailable("away")
        return await self._store.logs.source_offsets(partitions)


class Consuming:
    """A consumer in this process."""

    def __init__(self, broker: Broker, store: SqlStore | Faulty, refused: Mapping[str, str]) -> None:
        properties: dict[str, str | int] = {"bootstrap.servers": broker.address, "group.id": "g"}
        properties["session.timeout.ms"] = 6000
        self.source = KafkaSource(properties, "logs")
        self.metrics = Metrics(CollectorRegistry())
        self.unplaced = RecentUnplaced()
        self._streams = UnattributedStreams(self.unplaced.record_unplaced, str, self.metrics)
        self._refused = refused
        logs = store.logs if isinstance(store, SqlStore) else cast(LogRepository, store)
        self.ingest = IngestService(logs, Compressor, self.metrics)
        reader = MessageReader(DEFAULT, "text", RecordDefaults(sender="kafka:logs"))
        self.consumer = LogConsumer(
            self.source, "kafka", self.ingest, logs, reader, self._streams, self._refuse, lambda: 100.0, self.metrics
        )

    async def _refuse(self, jobs: Collection[str]) -> Mapping[str, str]:
        return {job: reason for job, reason in self._refused.items() if job in jobs}

    async def reasons(self) -> list[tuple[UnplacedReason, int, str]]:
        await self._streams.flush()
        return [(stream.reason, stream.lines, stream.sample) for stream in self.unplaced.streams]


@asynccontextmanager
async def in_process(
    broker: Broker, store: SqlStore | Faulty, refused: Mapping[str, str] | None = None
) -> AsyncIterator[Consuming]:
    made, stopping = Consuming(broker, store, refused or {}), asyncio.Event()
    tasks = [asyncio.create_task(made.ingest.run()), asyncio.create_task(made.consumer.run(stopping))]
    try:
        yield made
        stopping.set()
        await tasks[1]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await made.source.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


async def eventually(store: SqlStore, job: str, expected: list[str]) -> None:
    for _ in range(2400):
        if len(await lines(store, job)) >= len(expected):
            break
        await asyncio.sleep(0.05)
    assert await lines(store, job) == expected


async def partition_of(source: KafkaSource, number: int) -> Partition:
    """Once the group has given it to us."""
    for _ in range(2400):
        for partition in source.owned():
            if partition.number == number:
                return partition
        await asyncio.sleep(0.05)
    raise AssertionError("the group gave us nothing")


async def test_while_the_database_is_away_the_batch_waits(double: Broker, store: SqlStore) -> None:
    """It is stored once, when the database is back; the member stays in the group."""
    faulty = Faulty(store, [Unavailable("away"), Unavailable("away")])
    double.send("logs", [("llm", f"line {n}") for n in range(50)])
    async with in_process(double, faulty) as running:
        await eventually(store, "llm", [f"line {n}" for n in range(50)])
        assert faulty.faults == []
        assert len(running.source.owned()) == PARTITIONS


async def test_nothing_is_read_before_the_database_says_where_to_go_on(double: Broker, store: SqlStore) -> None:
    """A member that got partitions waits for it; one that is stopped meanwhile ends."""
    faulty = Faulty(store)
    double.send("logs", [("llm", "line 0")])
    faulty.is_away = True
    async with in_process(double, faulty) as running:
        while running.source._waiting is None:  # noqa: ASYNC110 - a callback of the client
            await asyncio.sleep(0.05)
        faulty.is_away = False
        await eventually(store, "llm", ["line 0"])
    faulty.is_away = True
    stopped = Consuming(double, faulty, {})
    task = asyncio.create_task(stopped.consumer.run(asyncio.Event()))
    while stopped.source._waiting is None:  # noqa: ASYNC110 - a callback of the client
        await asyncio.sleep(0.05)
    task.cancel()
    await stopped.source.close()


async def test_what_another_member_has_stored_is_thrown_away(double: Broker, store: SqlStore) -> None:
    """The stored offset has moved on behind its back: it goes on from there."""
    double.send("logs", [("llm", "line 0")], partition=0)
    async with in_process(double, store) as running:
        await eventually(store, "llm", ["line 0"])
        partition = await partition_of(running.source, 0)
        await store.logs.append([], [OffsetAdvance(partition, 1, 3)])
        double.send("logs", [("llm", f"line {n}") for n in range(1, 6)], partition=0)
        await eventually(store, "llm", ["line 0", "line 3", "line 4", "line 5"])
        assert running.metrics.consumer_rewinds._value.get() == 1
        assert await store.logs.source_offsets([partition]) == {partition: 6}


async def test_an_offset_that_is_not_there_is_the_oldest_that_is(double: Broker, store: SqlStore) -> None:
    """A topic that was made anew is read from its beginning."""
    double.send("logs", [("other", "makes the topic")], partition=1)
    async with in_process(double, store) as running:
        partition = await partition_of(running.source, 0)
    await store.logs.append([], [OffsetAdvance(partition, None, 1000)])
    double.send("logs", [("llm", f"line {n}") for n in range(5)], partition=0)
    async with in_process(double, store):
        await eventually(store, "llm", [f"line {n}" for n in range(5)])
    assert await store.logs.source_offsets([partition]) == {partition: 5}


async def test_a_message_that_cannot_be_stored_costs_its_neighbours_nothing(double: Broker, store: SqlStore) -> None:
    """Without a place, of a foreign job, or beyond what the database holds: each is shown with its reason, and behind
    all of them reading goes on."""
    jobs = ("llm", "", "a b", "foreign", "poison") * 3
    double.send("logs", [*((job, f"{job} line") for job in jobs), ("llm", "the end")], partition=0)
    async with in_process(double, Faulty(store, poison="poison"), {"foreign": "of another cluster"}) as running:
        await eventually(store, "llm", ["llm line", "llm line", "llm line", "the end"])
        assert sorted(await running.reasons()) == [
            (UnplacedReason.NO_JOB, 3, " line"),
            (UnplacedReason.NOT_A_JOB_ID, 3, "a b line"),
            (UnplacedReason.NOT_STORED, 3, "poison line"),
            (UnplacedReason.REFUSED, 3, "foreign line"),
        ]
        assert running.metrics.consumed_messages._value.get() == 16
    assert await store.jobs.find("foreign") is None
