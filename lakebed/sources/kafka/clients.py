"""Kafka clients: those that a process keeps between ranges, and the one whose records go straight into Arrow columns.

**Kept** are clients because connecting and authenticating costs more than a small range. As many are kept as ranges were read
at once, up to ``KEPT_MAX``; each has a connection and a few threads. Only those of the settings that were used last are kept. A
process that was forked has none: the clients of its parent are not its own.

**The native client** (kafka_to_arrow.c) uses the librdkafka that confluent-kafka brought and has loaded; no second copy is.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import confluent_kafka.cimpl
import pyarrow as pa

from lakebed.decode.native.library import NO_MEMORY, TOO_LARGE, ArrowArray, library

KEPT_MAX = 8
C = TypeVar("C")


class KeptClients(Generic[C]):
    """Safe to use from several threads. A client belongs to the thread that took it, until it gives it back."""

    def __init__(self, close: Callable[[C], object]) -> None:
        self._close = close
        self._clients: list[C] = []
        self._key = (0, "")
        self._lock = threading.Lock()
        _all.add(self)

    def take(self, settings: str) -> C | None:
        """A client with these settings; None if none is kept."""
        with self._lock:
            return self._clients.pop() if self._key == (os.getpid(), settings) and self._clients else None

    def give_back(self, settings: str, client: C) -> None:
        """Keep a client that works, or close it if there are enough."""
        key, superfluous = (os.getpid(), settings), []
        with self._lock:
            if key != self._key:
                superfluous = self._clients if self._key[0] == os.getpid() else []
                self._clients, self._key = [], key
            kept = self._clients if len(self._clients) < KEPT_MAX else superfluous
            kept.append(client)
        for each in superfluous:
            self._close(each)

    def close_kept(self) -> None:
        """Close the clients that nobody uses now."""
        with self._lock:
            kept, self._clients = (self._clients if self._key[0] == os.getpid() else []), []
        for each in kept:
            self._close(each)

    def renew_lock(self) -> None:
        """In a forked process: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()


_all: weakref.WeakSet[KeptClients[Any]] = weakref.WeakSet()


def close_kept_clients() -> None:
    """Close all clients that nobody uses now: after an outage the network may have lost their connections."""
    for each in list(_all):
        each.close_kept()


def _renew_locks() -> None:
    for each in _all:
        each.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


GOES_ON, FULL, FINISHED, TROUBLE = range(4)
COLUMNS = pa.schema(
    [
        ("key", pa.binary()), ("value", pa.binary()), ("offset", pa.int64()), ("timestamp", pa.timestamp("ms", "UTC")),
    ]
)  # fmt: skip
_HEADER_COLUMNS = pa.schema([("row", pa.int64()), ("name", pa.int64()), ("value", pa.binary())])
_POLL_MILLIS = 200
_ASK_MILLIS = 3000
_CONSUMER = 1
_POINTERS = (
    "rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_queue_get_consumer", "rd_kafka_topic_partition_list_new",
    "rd_kafka_topic_partition_list_add", "rd_kafka_queue_get_partition", "rd_kafka_incremental_unassign",
    "rd_kafka_consumer_poll",
)  # fmt: skip


class Refused(RuntimeError):
    """librdkafka did not take a setting or an assignment. confluent-kafka, asked the same, gives the reason."""


class Client(ctypes.Structure):
    """``struct client`` of kafka_to_arrow.c."""

    _fields_ = [
        (name, ctypes.c_void_p)
        for name in ("consume", "destroy", "timestamp", "topic_name", "queue", "headers", "header")
    ]


@functools.cache
def _librdkafka() -> ctypes.CDLL:
    """Its functions, as they are found from confluent-kafka's module, which is linked with it. Raises ``Refused``."""
    try:
        found = ctypes.CDLL(confluent_kafka.cimpl.__file__)
        for name in _POINTERS:
            getattr(found, name).restype = ctypes.c_void_p
    except (OSError, AttributeError) as error:
        raise Refused(f"librdkafka is not found by way of confluent-kafka: {error}") from error
    return found


def _pointer(address: int | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(address)


class KafkaClient:
    """A consumer of the partitions that are assigned to it. Must be closed by the process that made it.

    ``api`` is librdkafka, ``handle`` its client.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """``config``: librdkafka's settings. Raises ``Refused``, also for values that are neither text, number nor bool."""
        self.api = _librdkafka()
        self._pid = os.getpid()
        conf = _pointer(self.api.rd_kafka_conf_new())
        self.api.rd_kafka_conf_set_log_cb(conf, None)
        for name, value in config.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            is_plain = isinstance(value, str | int | float)
            if not is_plain or self.api.rd_kafka_conf_set(conf, name.encode(), text.encode(), None, ctypes.c_size_t(0)):
                self.api.rd_kafka_conf_destroy(conf)
                raise Refused(name)
        self.handle = _pointer(self.api.rd_kafka_new(_CONSUMER, conf, None, ctypes.c_size_t(0)))
        if not self.handle:
            self.api.rd_kafka_conf_destroy(conf)
            raise Refused("rd_kafka_new")
        self.api.rd_kafka_poll_set_consumer(self.handle)
        self._queue = _pointer(self.api.rd_kafka_queue_get_consumer(self.handle))
        self._known: set[str] = set()
        atexit.register(self.close)

    def assign(self, begins: Mapping[tuple[str, int], int]) -> None:
        """Assign these partitions, by topic and number, in place of all others: each from an offset on. Raises ``Refused``."""
        with self._listed(begins) as listed:
            if self.api.rd_kafka_assign(self.handle, listed):
                raise Refused(f"assign {', '.join(f'{topic} {partition}' for topic, partition in begins)}")
        topics = {topic for topic, _ in begins}
        if not topics <= self._known:
            self._ask_about_topics()
            self._known |= topics

    def _ask_about_topics(self) -> None:
        """Ask the brokers about all topics that are assigned: by itself, the client looks at new ones once a second."""
        found = ctypes.c_void_p()
        if not self.api.rd_kafka_metadata(self.handle, 0, None, ctypes.byref(found), ctypes.c_int(_ASK_MILLIS)):
            self.api.rd_kafka_metadata_destroy(found)

    @contextmanager
    def _listed(self, begins: Mapping[tuple[str, int], int]) -> Iterator[ctypes.c_void_p]:
        listed = _pointer(self.api.rd_kafka_topic_partition_list_new(len(begins)))
        for (topic, partition), offset in begins.items():
            place = listed, topic.encode(), ctypes.c_int32(partition)
            self.api.rd_kafka_topic_partition_list_add(*place)
            self.api.rd_kafka_topic_partition_list_set_offset(*place, ctypes.c_int64(offset))
        try:
            yield listed
        finally:
            self.api.rd_kafka_topic_partition_list_destroy(listed)

    def unassign(self) -> None:
        self.api.rd_kafka_assign(self.handle, None)

    def unassign_one(self, topic: str, partition: int) -> None:
        """The others stay assigned."""
        with self._listed({(topic, partition): 0}) as listed:
            if error := self.api.rd_kafka_incremental_unassign(self.handle, listed):
                self.api.rd_kafka_error_destroy(_pointer(error))

    def is_quiet(self) -> bool:
        """Whether nothing came for the queue that all partitions share, such as an error of all brokers."""
        came = self.api.rd_kafka_consumer_poll(self.handle, 0)
        if came:
            self.api.rd_kafka_message_destroy(_pointer(came))
        return not came

    def close(self) -> None:
        atexit.unregister(self.close)
        if self.handle and self._pid == os.getpid():
            self.api.rd_kafka_queue_destroy(self._queue)
            self.api.rd_kafka_consumer_close(self.handle)
            self.api.rd_kafka_destroy(self.handle)
            self.handle = _pointer(None)

    def functions(self, queue: ctypes.c_void_p | None = None) -> Client:
        """What C code calls. ``queue``: from which it reads; the one that all partitions share if None."""

        def address(name: str) -> int | None:
            return ctypes.cast(getattr(self.api, name), ctypes.c_void_p).value

        return Client(
            consume=address("rd_kafka_consume_batch_queue"),
            destroy=address("rd_kafka_message_destroy"),
            timestamp=address("rd_kafka_message_timestamp"),
            topic_name=address("rd_kafka_topic_name"),
            queue=queue or self._queue,
            headers=address("rd_kafka_message_headers"),
            header=address("rd_kafka_header_get_all"),
        )


class PartitionQueue:
    """The records of one partition of a client, apart from those of its others. Made before the partition is assigned."""

    def __init__(self, client: KafkaClient, topic: str, partition: int) -> None:
        """Raises ``Refused``."""
        self._client, self._place = client, (topic, partition)
        name, number = topic.encode(), ctypes.c_int32(partition)
        self._queue = _pointer(client.api.rd_kafka_queue_get_partition(client.handle, name, number))
        if not self._queue:
            raise Refused(f"queue of {topic} {partition}")
        client.api.rd_kafka_queue_forward(self._queue, None)

    def functions(self) -> Client:
        """See ``KafkaClient.functions``."""
        return self._client.functions(self._queue)

    def close(self) -> None:
        """Unassign the partition."""
        self._client.unassign_one(*self._place)
        self._client.api.rd_kafka_queue_destroy(self._queue)


class RangeReader:
    """Reads the records of one range of a partition that is assigned at its first offset."""

    def __init__(
        self,
        client: KafkaClient | PartitionQueue,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        rows_max: int,
        bytes_max: int,
        headers: Sequence[str] = (),
    ) -> None:
        """``headers``: the names of those that are read."""
        found = library()
        assert found is not None
        self._library = found
        self._names = (ctypes.c_char_p * (len(headers) + 1))(*(name.encode() for name in headers), None)
        functions = client.functions()
        opened = found.lakebed_range_open(
            ctypes.byref(functions), topic.encode(), partition, start, end, rows_max, bytes_max, self._names
        )
        if opened is None:
            raise MemoryError
        self._range = _pointer(opened)
        self.position = start
        self.rows = 0

    def read(self) -> int:
        """Reads on, and moves ``position`` behind what was read. Returns a state; ``GOES_ON`` if nothing more came in time."""
        position, rows = ctypes.c_int64(), ctypes.c_int64()
        state: int = self._library.lakebed_range_read(
            self._range, _POLL_MILLIS, ctypes.byref(position), ctypes.byref(rows)
        )
        _check(state)
        self.position, self.rows = position.value, rows.value
        return state

    def take(self) -> pa.RecordBatch:
        """The rows that were read since the last time, in ``COLUMNS``."""
        out = ArrowArray()
        _check(self._library.lakebed_range_take(self._range, ctypes.byref(out)))
        self.rows = 0
        return pa.RecordBatch._import_from_c(ctypes.addressof(out), COLUMNS)

    def take_headers(self) -> pa.RecordBatch | None:
        """The headers of the rows that are taken next, in ``_HEADER_COLUMNS``: of which row, which of the names, and the value.

        None if these rows have no headers, of any name.
        """
        out, has_headers = ArrowArray(), ctypes.c_int()
        _check(self._library.lakebed_range_take_headers(self._range, ctypes.byref(out), ctypes.byref(has_headers)))
        headers = pa.RecordBatch._import_from_c(ctypes.addressof(out), _HEADER_COLUMNS)
        return headers if has_headers.value else None

    def close(self) -> None:
        self._library.lakebed_range_close(self._range)
        self._range = _pointer(None)


def _check(result: int) -> None:
    if result == NO_MEMORY:
        raise MemoryError
    if result == TOO_LARGE:
        raise OverflowError("a column of more than 2 GiB")
