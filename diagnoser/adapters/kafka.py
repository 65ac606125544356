"""``ports.MessageSource`` over librdkafka: one member of a consumer group.

The brokers are not asked where to go on: that stands in our database, beside the lines. All calls of the client run in
one thread of their own, and so do its callbacks, from within ``poll``.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar, cast

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import Message as KafkaMessage

from diagnoser.model.errors import BadInput
from diagnoser.model.logs import Partition
from diagnoser.ports import Message
from diagnoser.ports.messages import StoredOffsets

T = TypeVar("T")

DEFAULTS: Mapping[str, str | int] = {
    "client.id": "diagnoser",
    "queued.max.messages.kbytes": 16_384,  # what waits in memory for us, over all partitions
    "fetch.max.bytes": 8 << 20,
    "topic.metadata.refresh.interval.ms": 30_000,  # a topic, or a partition of it, that is made later
}
"""What an operator's file may set otherwise."""

FIXED: Mapping[str, str | int | bool] = {
    "enable.auto.commit": True,  # only what ``note_stored`` says, and only for those who watch the lag at the brokers
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",  # an offset that is not there (any more) is ours to decide about
    "partition.assignment.strategy": "cooperative-sticky",
    "enable.partition.eof": False,
}
"""What makes each message count once."""

BROKER_SECONDS = 5.0
"""How long an answer of the brokers is waited for, before it is asked for again."""

_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
    }
)
"""Trying again does not help: a person must change something."""


class KafkaSource:
    """properties: of librdkafka, with ``bootstrap.servers`` and ``group.id``. Raises BadInput for a faulty one."""

    def __init__(self, properties: Mapping[str, str | int], topic: str) -> None:
        self._topic = topic
        self._group = str(properties["group.id"])
        self._cluster = ""
        self._brokers = str(properties["bootstrap.servers"])
        self._log = structlog.get_logger().bind(topic=topic, group=self._group)
        self._partitions: dict[int, Partition] = {}  # ours now
        self._received: list[Message] = []
        self._is_paused = self._is_away = False
        self._refusal: BadInput | None = None
        self._waiting: Future[Mapping[Partition, int]] | None = None  # an assignment, for our database
        own = {"error_cb": self._handle, "logger": _ClientLog()}
        try:
            self._client = Consumer({**DEFAULTS, **properties, **FIXED, **own})
        except (KafkaException, ValueError, TypeError) as error:
            raise BadInput(f"Kafka: {_without_values(_reason(error), properties)}") from None
        self._thread = ThreadPoolExecutor(1, "kafka")

    async def subscribe(self, stored: StoredOffsets) -> None:
        self._loop = asyncio.get_running_loop()
        self._stored = stored
        while not await self._call(self._connect):
            pass  # it has waited for the brokers

    async def receive(self, size: int, wait: float) -> list[Message]:
        return await self._call(lambda: self._receive(size, wait))

    async def keep_alive(self) -> None:
        await self._call(self._stay)

    async def rewind(self, partitions: Collection[Partition]) -> None:
        offsets = await self._stored(partitions)
        await self._call(lambda: self._seek({p: offsets.get(p, OFFSET_BEGINNING) for p in partitions}))

    async def note_stored(self, offsets: Mapping[Partition, int]) -> None:
        await self._call(lambda: self._note(offsets))

    async def lag(self, offsets: Mapping[Partition, int]) -> int:
        return await self._call(lambda: sum(self._behind(p, offset) for p, offset in offsets.items()))

    def owned(self) -> frozenset[Partition]:
        return frozenset(self._partitions.values())

    async def close(self) -> None:
        """Close the consumer, also where ``subscribe`` has failed or an assignment waits for our database."""
        if self._waiting:
            self._waiting.cancel()
        await self._call(self._client.close)
        self._thread.shutdown()

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    # Below runs in the client's thread.

    def _connect(self) -> bool:
        """Learn the id of the cluster, and join the group. False while no broker answers. Raises BadInput."""
        try:
            about = self._client.list_topics(self._topic, timeout=BROKER_SECONDS)
        except KafkaException as error:
            self._client.poll(1.0)  # brings the reason to ``_handle``
            self._raise_refusal()
            self._note_away(_reason(error))
            return False
        topic = about.topics.get(self._topic)
        if topic and topic.error:
            self._handle(topic.error)
        self._cluster = about.cluster_id or ""
        self._client.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )
        return True

    def _receive(self, size: int, wait: float) -> list[Message]:
        if self._is_paused:
            self._client.resume(self._client.assignment())
            self._is_paused = False
        self._received, left = [], size
        kafka_message = self._client.poll(wait)
        while kafka_message is not None:
            if error := kafka_message.error():
                self._handle(error, kafka_message)
            elif partition := self._partitions.get(_number(kafka_message)):
                message = _message(partition, kafka_message)
                self._received.append(message)
                left -= len(message.value) + len(message.key)
                self._note_back()
            if left <= 0:
                break
            kafka_message = self._client.poll(0)
        self._raise_refusal()
        return self._received

    def _stay(self) -> None:
        if not self._is_paused:
            self._client.pause(self._client.assignment())
            self._is_paused = True
        kafka_message = self._client.poll(0.1)
        if kafka_message is None:
            pass
        elif error := kafka_message.error():
            self._handle(error, kafka_message)
        elif partition := self._partitions.get(_number(kafka_message)):
            self._seek({partition: cast(int, kafka_message.offset())})  # came all the same: to be read again
        self._raise_refusal()

    def _seek(self, offsets: Mapping[Partition, int]) -> None:
        """Seek by giving the partition back and taking it again: that also ends what is under way for it."""
        places = [
            TopicPartition(self._topic, partition.number, offset)
            for partition, offset in offsets.items()
            if partition in self.owned()
        ]
        if places:
            self._client.incremental_unassign(places)
            self._client.incremental_assign(places)
            if self._is_paused:
                self._client.pause(places)

    def _note(self, offsets: Mapping[Partition, int]) -> None:
        places = [TopicPartition(self._topic, p.number, offset) for p, offset in offsets.items() if p in self.owned()]
        with suppress(KafkaException):  # taken from us this moment
            if places:
                self._client.store_offsets(offsets=places)

    def _behind(self, partition: Partition, offset: int) -> int:
        _, high = self._client.get_watermark_offsets(TopicPartition(self._topic, partition.number), cached=True)
        return max(0, high - offset)  # a negative one stands for what is not known yet

    def _on_assign(self, client: Consumer, places: list[TopicPartition]) -> None:
        """Waits for our database however long it is away: without it nobody knows where to go on."""
        partitions = {
            place.partition: Partition(self._cluster, self._group, self._topic, place.partition) for place in places
        }
        self._waiting = asyncio.run_coroutine_threadsafe(self._stored(partitions.values()), self._loop)
        stored = self._waiting.result()
        for place in places:
            place.offset = stored.get(partitions[place.partition], OFFSET_BEGINNING)
        client.incremental_assign(places)
        if self._is_paused:
            client.pause(places)
        self._partitions |= partitions
        self._note_back()
        self._log.info("partitions_assigned", partitions=sorted(partitions), ours=sorted(self._partitions))

    def _on_revoke(self, client: Consumer, places: list[TopicPartition]) -> None:
        """Drop what was received of the partitions: it is for their next owner."""
        for place in places:
            self._partitions.pop(place.partition, None)
        ours = self.owned()
        self._received[:] = [message for message in self._received if message.partition in ours]
        gone = sorted(place.partition for place in places)
        self._log.info("partitions_revoked", partitions=gone, ours=sorted(self._partitions))

    def _handle(self, error: KafkaError, message: KafkaMessage | None = None) -> None:
        code = error.code()
        if code in _REFUSED or error.fatal():
            self._refusal = BadInput(f"Kafka: the brokers at {self._brokers} refuse us: {error.str()}")
        elif code == KafkaError._AUTO_OFFSET_RESET and message is not None:
            self._begin_anew(_number(message))
        elif code == KafkaError._ALL_BROKERS_DOWN:
            self._note_away(error.str())
        elif code in (KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT):
            self._log.debug("kafka", error=error.name(), detail=error.str())  # one connection of several
        else:
            self._log.warning("kafka", error=error.name(), detail=error.str())

    def _begin_anew(self, number: int) -> None:
        """The offset to go on from is not there: older messages expired, or the topic was made anew. Both go on with
        the oldest message that there is."""
        partition = self._partitions.get(number)
        if partition is None:
            return
        self._log.error("offset_out_of_range", partition=number, why=LOST)
        self._seek({partition: OFFSET_BEGINNING})

    def _raise_refusal(self) -> None:
        if self._refusal:
            raise self._refusal

    def _note_away(self, reason: str) -> None:
        """Said once, until they answer again: the client goes on trying by itself."""
        if not self._is_away:
            self._log.warning("brokers_away", brokers=self._brokers, reason=reason, what="trying again")
        self._is_away = True

    def _note_back(self) -> None:
        if self._is_away:
            self._log.info("brokers_back", brokers=self._brokers)
        self._is_away = False


LOST = "messages expired before they were read, or the topic was made anew: reading goes on with the oldest there is"


class _ClientLog:
    """librdkafka's own log, which repeats what the callbacks say, among our debugging lines."""

    def log(self, level: int, format: str, *values: object) -> None:
        structlog.get_logger().debug("librdkafka", text=format % values)


def _number(message: KafkaMessage) -> int:
    """A message that a consumer receives always has its partition."""
    return cast(int, message.partition())


def _message(partition: Partition, message: KafkaMessage) -> Message:
    kind, milliseconds = message.timestamp()
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    return Message(
        partition=partition,
        offset=cast(int, message.offset()),
        key=message.key() or b"",
        value=message.value() or b"",
        headers=tuple((name, value or b"") for name, value in headers),
        time=float("nan") if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds / 1000,
    )


def _reason(error: Exception) -> str:
    first = error.args[0] if error.args else error
    return first.str() if isinstance(first, KafkaError) else str(error)


def _without_values(text: str, properties: Mapping[str, str | int]) -> str:
    """The client quotes the value that it cannot use, which may be a secret; its name tells enough."""
    for value in properties.values():
        if len(str(value)) > 3:
            text = text.replace(str(value), "***")
    return text
