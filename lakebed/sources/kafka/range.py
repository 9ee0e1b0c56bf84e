"""Read the records of one range of one topic partition, exactly: start <= offset < end.

Offsets of a partition are not dense: compaction leaves gaps, transactions leave markers and aborted records. So not a
count but the position shows when a range is finished:

    1.  Assign the partition at ``start``.
    2.  Consume in batches, never more than is left, because the client waits until it has as many records as were asked
        for. Records from ``end`` on are dropped.
    3.  The range is finished when a record arrives at or beyond ``end``, or the partition ends at or beyond ``end``.
    4.  If the broker reports that the position is out of range, or the partition ends before ``end``, records are lost.
        This raises ``DataLoss``, or, where the caller counts losses, reading continues at the oldest record.
    5.  If a broker reports that it does not host the partition, which may be temporary, or there is no progress for a
        while, ask whether the partition still exists, because the client does not report that it is gone. Only a definite
        no is a loss. Without progress for ``timeout_seconds`` this raises ``Retry``: Spark runs the task again with the same
        range.

A process keeps its consumers between ranges (``clients``).

**By native code**, where it is built, a range is read as long as nothing but records comes (``_read_natively``).

    1.  The range ends with a record at or beyond its end, or with the end of the partition there.
    2.  Anything else hands the rest of the range over to the consumer: an error, an end of the partition too early, no progress
        for a while. So what such things mean is decided in one place.

A range that is assigned together with others is read from its queue there first (``kafka.assignment``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from lakebed.decode.decoder import RECORD_SCHEMA
from lakebed.decode.metadata import READ, Headers, with_few_headers, with_headers
from lakebed.decode.native.library import library
from lakebed.errors import DataLoss, InvalidInput, LakebedError, Retry
from lakebed.sources.kafka.assignment import queue_of
from lakebed.sources.kafka.clients import FULL, GOES_ON, KafkaClient, KeptClients, PartitionQueue, RangeReader, Refused
from lakebed.sources.kafka.settings import GONE, REFUSED, KafkaSettings, kafka_error_of, without_secrets
from lakebed.sources.source import Place
from lakebed.waits import waiting_for

# -- By native code ----------------------------------------------------------------------------------------------------


TABLE_RECORDS_MAX = 16_384
TABLE_BYTES_MAX = 32 * 1024 * 1024
_PATIENCE_SECONDS = 5.0
ASSIGNED_PATIENCE_SECONDS = 2.0
_kept_clients: KeptClients[KafkaClient] = KeptClients(KafkaClient.close)


def _read_natively(
    settings: KafkaSettings, topic: str, partition: int, start: int, end: int, headers: Sequence[str] = READ
) -> Generator[pa.Table, None, int]:
    """Yields tables of ``RECORD_SCHEMA``, with headers where records have some.

    ``headers``: the names of those that are read. Returns the offset from which the rest must be read in another way, or ``end``.
    """
    if library() is None:
        return start
    place, names = (topic, partition), pa.array(headers, pa.string())
    if (queue := queue_of(settings, place, start)) is not None:
        is_stalled = False
        try:
            start, is_stalled = yield from _read(queue.queue, place, start, end, names, ASSIGNED_PATIENCE_SECONDS)
        finally:
            queue.close(is_stalled=is_stalled)
        if start >= end:
            return start
    config = settings.range_config()
    key = repr(sorted(config.items()))
    is_healthy = False
    try:
        client = _kept_clients.take(key) or KafkaClient(config)
    except Refused:
        return start
    try:
        client.assign({place: start})
        patience = min(_PATIENCE_SECONDS, settings.timeout_seconds)
        start, _ = yield from _read(client, place, start, end, names, patience)
        is_healthy = start >= end
    except GeneratorExit:
        is_healthy = True  # the caller wants no more of a range that went well
        raise
    except Refused:
        pass
    finally:
        _give_back_client(key, client, is_healthy)
    return start


def _give_back_client(key: str, client: KafkaClient, is_healthy: bool) -> None:
    if not is_healthy:
        client.close()
        return
    client.unassign()
    _kept_clients.give_back(key, client)


def _read(
    records: KafkaClient | PartitionQueue, place: Place, start: int, end: int, names: pa.StringArray, patience: float
) -> Generator[pa.Table, None, tuple[int, bool]]:
    """Returns up to where the range was read, and whether nothing came for so many seconds."""
    reader = RangeReader(
        records, *place, start, end, rows_max=TABLE_RECORDS_MAX, bytes_max=TABLE_BYTES_MAX, headers=names.to_pylist()
    )
    try:
        progress = time.monotonic()
        while True:
            before = reader.position
            state = reader.read()
            if reader.position > before:
                progress = time.monotonic()
            is_stalled = time.monotonic() - progress > patience
            goes_on = state in (FULL, GOES_ON) and not is_stalled
            if reader.rows and (state == FULL or not goes_on):
                found = reader.take_headers()
                yield _table(reader.take(), found, names, *place)
                progress = time.monotonic()  # the caller's time is not the brokers'
            if not goes_on:
                return reader.position, is_stalled
    finally:
        reader.close()


def _table(
    rows: pa.RecordBatch, headers: pa.RecordBatch | None, names: pa.StringArray, topic: str, partition: int
) -> pa.Table:
    columns = [
        rows.column("key"),
        rows.column("value"),
        pa.repeat(pa.scalar(topic, pa.string()), len(rows)),
        pa.repeat(pa.scalar(partition, pa.int32()), len(rows)),
        rows.column("offset"),
        rows.column("timestamp"),
    ]
    table = pa.Table.from_arrays(columns, schema=RECORD_SCHEMA)
    if headers is None:
        return table
    of_rows = headers.column("row").to_numpy()
    return with_few_headers(table, of_rows, names.take(headers.column("name")), headers.column("value"))


# -- As librdkafka gives records to Python -----------------------------------------------------------------------------


CONSUME_RECORDS_MAX = 500
"""This many messages stay in the processor's cache until they are read; with 20 times as many, each takes twice the time."""
CONSUME_RECORDS_MIN = 32
_POLL_SECONDS = 0.2
_STALL_SECONDS = 2.0
_TOPIC_SECONDS = 1.0

_OUT_OF_RANGE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._NO_OFFSET)
_NO_TIME = -1
_TIME = itemgetter(1)
_kept: KeptClients[Consumer] = KeptClients(Consumer.close)


def consume_range(
    settings: KafkaSettings,
    topic: str,
    partition: int,
    start: int,
    end: int,
    on_loss: Callable[[int], None] | None = None,
    *,
    headers: Sequence[str] = READ,
) -> Iterator[pa.Table]:
    """Tables of ``RECORD_SCHEMA``, with headers where records have some.

    ``on_loss`` takes the number of lost offsets; without it a loss is ``DataLoss``. ``headers``: the names of those that count.
    """
    if start >= end:
        return
    start = yield from _read_natively(settings, topic, partition, start, end, headers)
    if start >= end:
        return
    consumer = _take(settings)
    healthy = False
    try:
        yield from _Range(
            consumer, settings, topic, partition, start=start, end=end, on_loss=on_loss, headers=headers
        ).tables()
        healthy = True
    except KafkaException as error:
        raise _translated(kafka_error_of(error), settings, topic, partition) from None
    finally:
        _give_back(settings, consumer, healthy)


def _key(settings: KafkaSettings) -> str:
    return repr(sorted(settings.range_config().items()))


def _take(settings: KafkaSettings) -> Consumer:
    kept = _kept.take(_key(settings))
    if kept is not None:
        return kept
    config = settings.range_config()
    try:
        return Consumer({**config, "error_cb": lambda error: None}, logger=_Silent())
    except (KafkaException, ValueError, TypeError) as error:
        raise InvalidInput(f"kafka: the client refuses its settings: {without_secrets(str(error), config)}") from None


def _give_back(settings: KafkaSettings, consumer: Consumer, healthy: bool) -> None:
    if not healthy:
        consumer.close()
        return
    consumer.unassign()
    _kept.give_back(_key(settings), consumer)


class _Silent:
    """Drops librdkafka's log lines, which would go to standard error; errors that matter are raised by a call."""

    def log(self, *arguments: Any, **named: Any) -> None:
        return None


def _translated(error: KafkaError, settings: KafkaSettings, topic: str, partition: int) -> LakebedError:
    text = without_secrets(error.str(), settings.config)
    if error.code() in REFUSED:
        return InvalidInput(f"kafka refuses access to topic {topic!r}: {text}; check the credentials and the ACLs")
    return Retry(f"kafka, topic {topic!r} partition {partition}: {text}")


class _Range:
    def __init__(
        self,
        consumer: Consumer,
        settings: KafkaSettings,
        topic: str,
        partition: int,
        *,
        start: int,
        end: int,
        on_loss: Callable[[int], None] | None,
        headers: Sequence[str],
    ) -> None:
        self._headers = frozenset(headers)
        self._consumer = consumer
        self._settings = settings
        self._topic = topic
        self._partition = partition
        self._position = start
        self._end = end
        self._on_loss = on_loss

    def tables(self) -> Iterator[pa.Table]:
        self._seek(self._position)
        self._ask_about_topic()
        held = _Held(names=self._headers)
        progress = checked = time.monotonic()
        while self._position < self._end:
            before = self._position
            wanted = min(CONSUME_RECORDS_MAX, TABLE_RECORDS_MAX - len(held), self._end - self._position)
            with waiting_for(f"records of {self._name()}", since=progress):
                messages = self._consumer.consume(min(wanted, held.fitting()), _POLL_SECONDS)
            held.add(messages if self._all_wanted(messages) else self._walk(messages))
            if held.is_full():
                yield self._table(held)
                held = _Held(names=self._headers, record_bytes=held.record_bytes)
            if self._position > before:
                progress = checked = time.monotonic()
            elif time.monotonic() - progress > self._settings.timeout_seconds:
                brokers = self._settings.config["bootstrap.servers"]
                raise Retry(
                    f"kafka sent nothing of {self._name()} at offset {self._position} (the range ends at {self._end}) "
                    f"for {self._settings.timeout_seconds:g} s; are the brokers {brokers} up?"
                )
            elif time.monotonic() - checked > _STALL_SECONDS:
                self._check_still_there()
                checked = time.monotonic()
        if len(held):
            yield self._table(held)

    def _all_wanted(self, messages: list[Message]) -> bool:
        """Whether these are all records of the range, in order; if so, moves the position behind the last one."""
        if not messages or any(message.error() is not None for message in messages):
            return False
        offsets = np.fromiter(map(Message.offset, messages), np.int64, len(messages))
        if offsets[0] < self._position or offsets[-1] >= self._end or (np.diff(offsets) <= 0).any():
            return False
        self._position = int(offsets[-1]) + 1
        return True

    def _walk(self, messages: list[Message]) -> list[Message]:
        """The records of the range among ``messages``, taken one by one; handles the errors among them."""
        wanted = []
        for message in messages:
            error = message.error()
            if error is not None:
                self._event(error, message)
            elif self._position <= message.offset() < self._end:
                wanted.append(message)
                self._position = message.offset() + 1
            else:
                self._position = max(self._position, min(message.offset(), self._end))
            if self._position >= self._end:
                break
        return wanted

    def _name(self) -> str:
        return f"topic {self._topic!r} partition {self._partition}"

    def _seek(self, offset: int) -> None:
        self._position = offset
        self._consumer.assign([TopicPartition(self._topic, self._partition, offset)])

    def _ask_about_topic(self) -> None:
        """Ask the brokers about the topic at once: by itself, the client looks at new topics once a second."""
        with suppress(KafkaException):  # the brokers may come back
            self._consumer.list_topics(self._topic, timeout=_TOPIC_SECONDS)

    def _event(self, error: KafkaError, message: Message) -> None:
        """Handles an error that came in place of a record."""
        code = error.code()
        if message.topic() not in (None, self._topic) or message.partition() not in (None, -1, self._partition):
            return  # a late error of the previous range
        if code == KafkaError._PARTITION_EOF:
            self._at_end_of_partition(message.offset())
        elif code in _OUT_OF_RANGE:
            self._out_of_range()
        elif code in GONE:
            self._check_still_there()
        elif code in REFUSED or error.fatal():
            raise KafkaException(error)
        # librdkafka itself retries after any other error (a broker went away); ``timeout_seconds`` without progress ends that.

    def _at_end_of_partition(self, offset: int) -> None:
        if offset is None or offset < 0:
            return
        if offset >= self._end:
            self._position = self._end
            return
        _, high = self._watermarks()
        if high < self._end and offset >= self._position:
            self._lose(self._end, f"the partition ends at offset {high} now; was the topic deleted and created again?")

    def _out_of_range(self) -> None:
        low, high = self._watermarks()
        if low > self._position:
            self._lose(min(low, self._end), f"the oldest record there is at offset {low}")
            if self._position < self._end:
                self._seek(self._position)
        elif high < self._end:
            self._lose(self._end, f"the partition ends at offset {high} now; was the topic deleted and created again?")
        else:
            self._seek(self._position)

    def _check_still_there(self) -> None:
        """Counts the rest of the range as lost if the brokers report that the topic or partition does not exist."""
        try:
            found = self._consumer.list_topics(self._topic, timeout=_STALL_SECONDS).topics.get(self._topic)
        except KafkaException:
            return  # the brokers may come back
        if found is None or (found.error is not None and found.error.code() not in GONE):
            return
        if found.error is not None or self._partition not in found.partitions:
            self._lose(self._end, "the topic or partition is gone; was it deleted?")

    def _watermarks(self) -> tuple[int, int]:
        try:
            found = self._consumer.get_watermark_offsets(
                TopicPartition(self._topic, self._partition), timeout=self._settings.timeout_seconds
            )
        except KafkaException as error:
            if kafka_error_of(error).code() in GONE:
                self._check_still_there()
            raise
        if found is None:
            raise Retry(f"kafka did not report where {self._name()} begins and ends")
        return int(found[0]), int(found[1])

    def _lose(self, upto: int, why: str) -> None:
        if self._on_loss is None:
            raise DataLoss(
                f"{self._name()}: offsets {self._position} to {upto - 1} are lost: {why}. "
                "To continue without them, set on_data_loss to 'skip'",
                topic=self._topic,
                partition=self._partition,
                records=upto - self._position,
            )
        self._on_loss(upto - self._position)
        self._position = upto

    def _table(self, held: _Held) -> pa.Table:
        count = len(held)
        times = np.array(held.times, np.int64)
        columns = [
            _binary(held.keys),
            _binary(held.values),
            pa.repeat(pa.scalar(self._topic, pa.string()), count),
            pa.repeat(pa.scalar(self._partition, pa.int32()), count),
            pa.array(held.offsets, pa.int64()),
            pa.array(times, pa.int64(), mask=times == _NO_TIME).view(pa.timestamp("ms", "UTC")),
        ]
        return with_headers(pa.Table.from_arrays(columns, schema=RECORD_SCHEMA), held.headers)


@dataclass(slots=True, kw_only=True)
class _Held:
    """Records that were consumed and are not yet in a table. The client's messages are large, so they are not kept."""

    record_bytes: float = float(TABLE_BYTES_MAX)
    """Mean size of the records in the last batch. At first it is unknown and set high, so that few are asked for."""
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    headers: list[Headers | None] = field(default_factory=list)
    names: frozenset[str]
    """Of the headers that are kept."""
    size: int = 0

    def __len__(self) -> int:
        return len(self.values)

    def add(self, messages: list[Message]) -> None:
        if not messages:
            return
        self.keys += map(Message.key, messages)
        self.values += map(Message.value, messages)
        self.offsets += map(Message.offset, messages)
        self.times += map(_TIME, map(Message.timestamp, messages))
        if self.names:
            self.headers += [_headers(message, self.names) for message in messages]
        size = sum(map(len, messages))
        self.size += size
        self.record_bytes = size / len(messages)

    def fitting(self) -> int:
        """How many more records of ``record_bytes`` the table has room for; at least ``CONSUME_RECORDS_MIN``."""
        return max(CONSUME_RECORDS_MIN, int((TABLE_BYTES_MAX - self.size) / (self.record_bytes + 1)))

    def is_full(self) -> bool:
        return len(self) >= TABLE_RECORDS_MAX or self.size >= TABLE_BYTES_MAX


def _headers(message: Message, names: frozenset[str]) -> Headers | None:
    found = message.headers()
    return {name: value for name, value in found if name in names} if found else None


def _binary(values: list[bytes | None]) -> pa.Array:
    """The same as ``pa.array(values, pa.binary())``, but faster."""
    present = [value for value in values if value is not None]
    if len(present) < len(values):
        return pa.array(values, pa.binary())
    ends = np.cumsum(np.fromiter(map(len, present), np.int64, len(present)))
    if ends[-1] >= 2**31:
        return pa.array(values, pa.binary())
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(present), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(present))]
    )
