"""How far Debezium's connector for MariaDB or MySQL is: by the offsets that Kafka Connect keeps in a topic.

The claim is: *every change of a row below a position is in its topic, for good*. It rests on four facts.

1. The connector reads one binary log from its beginning to its end, and gives each record the offset from which it would have to
   begin again: where the transaction of the record begins, or where the last one ended. So what is below an offset was given to
   Connect before the record was.
2. Connect stores the offset of a record only when Kafka has acknowledged it and all records before it. So no other topic says as
   much: of two records in different partitions the second may be acknowledged first, and the first be lost with the worker.
   A heartbeat, or the event of a row that somebody writes for the purpose, proves nothing of the partition beside it.
3. Acknowledged records stay. A connector that is restarted or moved begins at a stored offset, and sends again what came after
   it. So an offset that was stored once stays true, although a later one may be lower.
4. During the first snapshot the offset is where the snapshot began, with rows still to come: such an offset confirms nothing.

An offset is a place in the log of *one* server. A stored offset above the end of the log that is compared, which was asked for
later, is of another server, or from before ``RESET MASTER``: it confirms nothing. MariaDB's ids of transactions are compared
too: where the offset has those of a domain, it must have the newest one of the position. So two servers that
happen to have logs of the same length are not taken for one, unless they have the same transactions, which is as good.

A quiet database: the offset moves only with a record. Heartbeats are records (``heartbeat.interval.ms``); the connector sends
one after an event of the log, and MariaDB writes an event to a quiet reader every 48 seconds. A transaction that the connector
takes for open, as it does a DDL statement that nothing follows, keeps the offset at its beginning. Then the log itself is asked
whether anything between the offset and the position may have changed a row (``Database.has_rows_between``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from lakebed.decode.source_order import binlog_position
from lakebed.errors import InvalidInput, Retry
from lakebed.verify.mariadb import transactions_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from lakebed.sources.kafka.settings import KafkaSettings

Offset = Mapping[str, Any]
_RECORDS_AT_ONCE = 500
_POLL_SECONDS = 0.2


class _BinaryLog(Protocol):
    """What is asked of the database. See ``mariadb.Database``."""

    def position(self) -> int: ...

    def transactions_before(self, position: int) -> Mapping[tuple[str, str], int]: ...

    def file_of(self, position: int) -> tuple[str, int]: ...

    def has_rows_between(self, begin: int, end: int) -> bool: ...


class Offsets(Protocol):
    """The newest stored offsets, by connector."""

    def newest(self) -> Mapping[str, Offset]: ...

    def close(self) -> None: ...


class StoredOffsets:
    """The newest offsets in Connect's topic, by the names of connectors, of those with one ``topic.prefix``."""

    def __init__(self, settings: KafkaSettings, topic: str, prefix: str) -> None:
        """Raises InvalidInput if there is no such topic, Retry."""
        from lakebed.sources.kafka.cluster import partitions_of

        self._settings = replace(settings, topics=(topic,), topic_pattern=None, starting_offsets="earliest")
        self._topic = topic
        self._prefix = prefix
        self._partitions = partitions_of(settings, topic)
        self._read: dict[int, int] = {}
        self._found: dict[str, Offset] = {}
        self._consumer: Consumer | None = None

    def close(self) -> None:
        """Let go of the brokers."""
        if self._consumer is not None:
            with suppress(RuntimeError):
                self._consumer.close()

    def newest(self) -> Mapping[str, Offset]:
        """The offsets that were stored until now. Raises Retry if brokers do not answer."""
        from lakebed.sources.kafka.cluster import ends_of

        ends = {number: end for (_, number), end in ends_of(self._settings, self._topic).items()}
        until = time.monotonic() + self._settings.timeout_seconds
        while any(self._read.get(number, 0) < end for number, end in ends.items()):
            for message in self._messages():
                self._take(message)
            if time.monotonic() >= until:
                raise Retry(f"kafka did not give all of the topic {self._topic} in time")
        return self._found

    def _messages(self) -> list[Message]:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        if self._consumer is None:
            self._consumer = Consumer({**self._settings.consumer_config(), "log_level": 0})
            self._consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in self._partitions])
        return list(self._consumer.consume(_RECORDS_AT_ONCE, _POLL_SECONDS))

    def _take(self, message: Message) -> None:
        from confluent_kafka import KafkaError

        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            return  # the client goes on by itself, or it takes too long
        number, offset = message.partition() or 0, message.offset() or 0
        self._read[number] = max(self._read.get(number, 0), offset if error is not None else offset + 1)
        connector = None if error is not None else connector_of(message.key(), self._prefix)
        if connector is None:
            return
        stored = _parsed(message.value())
        if isinstance(stored, dict):
            self._found[connector] = stored
        else:
            self._found.pop(connector, None)


def connector_of(key: bytes | None, prefix: str) -> str | None:
    """The connector whose offset a record is, ``["name", {"server": prefix}]``; None for one with another ``topic.prefix``."""
    found = _parsed(key)
    if isinstance(found, list) and len(found) == 2 and isinstance(found[1], dict) and found[1].get("server") == prefix:
        return str(found[0])
    return None


def _parsed(text: bytes | str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return None


@dataclass(slots=True, kw_only=True)
class BinlogConnector:
    """One connector, for ``databases``."""

    log: _BinaryLog
    stored: Offsets
    topic: str  # of the offsets, for people
    prefix: str
    name: str | None = None  # None: the only one that has stored an offset

    def missing(self, position: int) -> str:
        """Why a position is not confirmed; empty if it is. Raises InvalidInput, Retry."""
        found = self._offset()
        if found is None:
            of = f"the connector {self.name}" if self.name else f"a connector with the topic.prefix {self.prefix}"
            return f"the topic {self.topic} has no offset of {of}: is it the worker's offset.storage.topic?"
        if found.get("snapshot"):
            return "the connector has not stored an offset since its first snapshot: is that over?"
        at = binlog_position(found.get("pos"), found.get("file"))
        if at is None:
            raise InvalidInput(f"the offset of the connector in {self.topic} is no place in a binary log: {found}")
        return self._why_not(position, at, found)

    def _why_not(self, position: int, at: int, found: Offset) -> str:
        file, place = self.log.file_of(position)
        said = f"the connector has stored the offset {found['file']}:{found['pos']}, and {file}:{place} is needed"
        done = transactions_of(str(found.get("gtids") or ""))
        needed = self.log.transactions_before(position)
        base = str(found["file"]).rpartition(".")[0]
        if base != file.rpartition(".")[0] or (at > position and at > self.log.position()):
            return f"{said}: it is of another server, or from before its log was reset; verify needs the url of the same server"
        if at < position:
            if not self.log.has_rows_between(at, position):
                return ""
            return f"{said}: does it run? On a quiet database it needs heartbeat.interval.ms"
        domains = {domain for domain, _ in done}
        if lacking := [one for one, number in needed.items() if one[0] in domains and done.get(one, 0) < number]:
            domain, server = lacking[0]
            return f"{said}; it lacks the transaction {domain}-{server}-{needed[lacking[0]]}: is the url of the same server?"
        return ""

    def nudge(self) -> None:
        """Nothing can be written into a binary log that changes nothing: a quiet database needs heartbeats."""

    def close(self) -> None:
        """See ``Connector``."""
        self.stored.close()

    def _offset(self) -> Offset | None:
        stored = self.stored.newest()
        if self.name is not None:
            return stored.get(self.name)
        if len(stored) > 1:
            raise InvalidInput(
                f"the topic {self.topic} has offsets of the connectors {', '.join(sorted(stored))} with the topic.prefix "
                f"{self.prefix}; set database.verify.connector"
            )
        return next(iter(stored.values()), None)
