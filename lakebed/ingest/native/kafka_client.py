"""A Kafka consumer whose records go straight into Arrow columns (kafka_to_arrow.c).

It uses the librdkafka that confluent-kafka brought and has loaded; no second copy is.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import confluent_kafka.cimpl
import pyarrow as pa

from lakebed.ingest.native.library import NO_MEMORY, TOO_LARGE, ArrowArray, library

GOES_ON, FULL, FINISHED, TROUBLE = range(4)
COLUMNS = pa.schema(
    [
        ("key", pa.binary()), ("value", pa.binary()), ("offset", pa.int64()), ("timestamp", pa.timestamp("ms", "UTC")),
    ]
)  # fmt: skip
HEADER_COLUMNS = pa.schema([("row", pa.int64()), ("name", pa.int64()), ("value", pa.binary())])
_POLL_MILLIS = 200
_CONSUMER = 1
_POINTERS = (
    "rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_queue_get_consumer", "rd_kafka_topic_partition_list_new",
    "rd_kafka_topic_partition_list_add",
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
    """A consumer of one partition at a time. Must be closed by the process that made it.

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
        atexit.register(self.close)

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Raises ``Refused``."""
        api, name = self.api, topic.encode()
        listed = _pointer(api.rd_kafka_topic_partition_list_new(1))
        api.rd_kafka_topic_partition_list_add(listed, name, ctypes.c_int32(partition))
        api.rd_kafka_topic_partition_list_set_offset(listed, name, ctypes.c_int32(partition), ctypes.c_int64(offset))
        error = api.rd_kafka_assign(self.handle, listed)
        api.rd_kafka_topic_partition_list_destroy(listed)
        if error:
            raise Refused(f"assign {topic} {partition}")

    def unassign(self) -> None:
        self.api.rd_kafka_assign(self.handle, None)

    def close(self) -> None:
        atexit.unregister(self.close)
        if self.handle and self._pid == os.getpid():
            self.api.rd_kafka_queue_destroy(self._queue)
            self.api.rd_kafka_consumer_close(self.handle)
            self.api.rd_kafka_destroy(self.handle)
            self.handle = _pointer(None)

    def functions(self) -> Client:
        """What C code calls."""

        def address(name: str) -> int | None:
            return ctypes.cast(getattr(self.api, name), ctypes.c_void_p).value

        return Client(
            consume=address("rd_kafka_consume_batch_queue"),
            destroy=address("rd_kafka_message_destroy"),
            timestamp=address("rd_kafka_message_timestamp"),
            topic_name=address("rd_kafka_topic_name"),
            queue=self._queue,
            headers=address("rd_kafka_message_headers"),
            header=address("rd_kafka_header_get_all"),
        )


class RangeReader:
    """Reads the records of one range of the partition that is assigned to the client at its first offset."""

    def __init__(
        self,
        client: KafkaClient,
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
        """The headers of the rows that are taken next, in ``HEADER_COLUMNS``: of which row, which of the names, and the value.

        None if these rows have no headers, of any name.
        """
        out, has_headers = ArrowArray(), ctypes.c_int()
        _check(self._library.lakebed_range_take_headers(self._range, ctypes.byref(out), ctypes.byref(has_headers)))
        headers = pa.RecordBatch._import_from_c(ctypes.addressof(out), HEADER_COLUMNS)
        return headers if has_headers.value else None

    def close(self) -> None:
        self._library.lakebed_range_close(self._range)
        self._range = _pointer(None)


def _check(result: int) -> None:
    if result == NO_MEMORY:
        raise MemoryError
    if result == TOO_LARGE:
        raise OverflowError("a column of more than 2 GiB")
