"""Which position a connector has reached, by the offsets that Connect stores: what is not sure is not confirmed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Producer

from lakebed.errors import InvalidInput
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.verify.mariadb import transactions_of
from lakebed.verify.stored_offsets import BinlogConnector, Offset, StoredOffsets, connector_of
from tests.infra.kafka import KafkaServer

TOPIC = "connect-offsets-of-verify"
FILE = 3 << 40


@dataclass
class Log:
    """The binary log of a server, and the offsets that are stored."""

    end: int = FILE + 1000
    transactions: str = "0-1-50"
    is_idle: bool = False
    offsets: dict[str, Offset] = field(default_factory=dict)

    def position(self) -> int:
        return self.end

    def transactions_before(self, position: int) -> Mapping[tuple[str, str], int]:
        return transactions_of(self.transactions) if position == self.end else {}

    def file_of(self, position: int) -> tuple[str, int]:
        return f"binlog.{position >> 40:06d}", position % (1 << 40)

    def has_rows_between(self, begin: int, end: int) -> bool:
        return not self.is_idle

    def newest(self) -> Mapping[str, Offset]:
        return self.offsets

    def close(self) -> None:
        pass

    def connector(self, name: str | None = None) -> BinlogConnector:
        return BinlogConnector(log=self, stored=self, topic=TOPIC, prefix="shop", name=name)


def at(pos: int, **more: Any) -> dict[str, Any]:
    return {"file": "binlog.000003", "pos": pos, "gtids": "0-1-50", "ts_sec": 1, **more}


@pytest.mark.parametrize(
    ("offset", "why"),
    [
        (at(1000), ""),
        (
            at(999),
            "the connector has stored the offset binlog.000003:999, and binlog.000003:1000 is needed: does it run?",
        ),
        (at(999, event=2, row=1), "binlog.000003:1000 is needed"),
        ({**at(4), "file": "binlog.000002"}, "binlog.000003:1000 is needed"),
        (at(1000, snapshot="INITIAL"), "since its first snapshot"),
        (at(1001), "it is of another server, or from before its log was reset"),
        ({**at(4), "file": "binlog.000412"}, "it is of another server"),
        ({**at(1000), "file": "mysql-bin.000003"}, "it is of another server"),
        (at(1000, gtids="0-1-49"), "it lacks the transaction 0-1-50"),
        (at(1000, gtids="0-2-51"), "it lacks the transaction 0-1-50"),
        (at(1000, gtids="0-1-50,7-1-3"), ""),
        (at(1000, gtids="7-1-3"), ""),
        (at(1000, gtids=None), ""),
    ],
)
def test_what_an_offset_confirms(offset: dict[str, Any], why: str) -> None:
    log = Log(offsets={"shop": offset})
    said = log.connector().missing(log.end)
    assert (said == "") == (why == "")
    assert why in said


def test_an_offset_behind_the_position_confirms_it_if_nothing_in_between_changed_a_row() -> None:
    assert Log(offsets={"shop": at(900)}, is_idle=True).connector().missing(FILE + 1000) == ""


def test_an_offset_is_not_of_the_future_if_the_log_went_on() -> None:
    log = Log(end=FILE + 2000, offsets={"shop": at(1500)})
    assert log.connector().missing(FILE + 1000) == ""


def test_the_connector_is_known_or_must_be_said() -> None:
    log = Log(offsets={"old": at(4), "new": at(1000)})
    with pytest.raises(
        InvalidInput, match=r"connectors new, old with the topic.prefix shop; set database.verify.connector"
    ):
        log.connector().missing(log.end)
    assert log.connector("new").missing(log.end) == ""
    assert "has no offset of the connector other" in log.connector("other").missing(log.end)
    assert "no offset of a connector with the topic.prefix shop" in Log().connector().missing(log.end)


def test_an_offset_of_another_kind_of_connector_is_an_error() -> None:
    log = Log(offsets={"shop": {"lsn": 17}})
    with pytest.raises(InvalidInput, match="is no place in a binary log"):
        log.connector().missing(log.end)


def test_keys_of_other_connectors_are_passed_over() -> None:
    assert connector_of(b'["a",{"server":"shop"}]', "shop") == "a"
    for key in (b'["a",{"server":"shops"}]', b'["a",{"file":"x"}]', b"a", b"[1]", None, b"\xff"):
        assert connector_of(key, "shop") is None


@pytest.fixture
def topic(kafka: KafkaServer) -> Iterator[str]:
    yield kafka.create_topic(TOPIC, 3, {"cleanup.policy": "compact"})


def test_the_newest_offset_of_each_connector_counts(kafka: KafkaServer, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})

    def store(connector: str, pos: int | None, prefix: str = "shop") -> None:
        value = None if pos is None else json.dumps(at(pos))
        producer.produce(topic, value, json.dumps([connector, {"server": prefix}]))
        producer.flush(30)

    settings = KafkaSettings(config={"bootstrap.servers": kafka.bootstrap}, topic_pattern="shop.*")
    with closing(StoredOffsets(settings, topic, "shop")) as stored:
        assert stored.newest() == {}
        for pos in (1, 2, 3):
            store("a", pos)
            store("b", 10 * pos, "other")
        assert stored.newest() == {"a": at(3)}
        store("a", 2)
        store("c", 7)
        assert stored.newest() == {"a": at(2), "c": at(7)}
        store("a", None)
        assert stored.newest() == {"c": at(7)}
    with pytest.raises(InvalidInput, match="there is no topic connect-offset"):
        StoredOffsets(settings, "connect-offset", "shop")


def test_offsets_of_a_worker_that_sends_exactly_once_are_read_to_their_end(kafka: KafkaServer) -> None:
    """Behind the last record of a transaction is its mark, which is no record."""
    topic = kafka.create_topic(f"{TOPIC}-once", 1)
    settings = KafkaSettings(config={"bootstrap.servers": kafka.bootstrap}, topic_pattern="shop.*")
    once = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    once.init_transactions(30)
    once.begin_transaction()
    once.produce(topic, json.dumps(at(1)), json.dumps(["a", {"server": "shop"}]))
    once.commit_transaction(30)
    with closing(StoredOffsets(settings, topic, "shop")) as stored:
        assert stored.newest() == {"a": at(1)}
        once.begin_transaction()
        once.produce(topic, json.dumps(at(2)), json.dumps(["a", {"server": "shop"}]))
        once.flush(30)
        assert stored.newest() == {"a": at(1)}, "it may be taken back"
        once.abort_transaction(30)
        assert stored.newest() == {"a": at(1)}
        plain = Producer({"bootstrap.servers": kafka.bootstrap})
        plain.produce(topic, json.dumps(at(3)), json.dumps(["a", {"server": "shop"}]))
        plain.flush(30)
        assert stored.newest() == {"a": at(3)}
