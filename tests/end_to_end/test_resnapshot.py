"""``lakebed resnapshot`` with a real connector: rows of PostgreSQL come again, and the command tells how far it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakebed.cli import main
from tests.infra.debezium import DebeziumServer
from tests.infra.kafka import KafkaServer, end_offsets, messages_before
from tests.infra.postgres import PostgresServer
from tests.waiting import wait_until

DATABASE = PREFIX = "again"
FILE = """
database: {path: %s, exclude: ["public\\\\.debezium_.*"], signal_topic: again-signal, notification_topic: again-told}
source: {kind: kafka, topic_pattern: "again\\\\..*", config: {bootstrap.servers: "%s"}}
format: debezium-json
"""
TABLES = """
create table orders (id int primary key, note text);
create table lines (what text);
create table debezium_signal (id text primary key, type text not null, data text);
insert into orders select n, 'note ' || n from generate_series(1, 2500) n;
insert into lines values ('a');
"""


def rows_again(kafka: KafkaServer, topic: str) -> list[dict[str, Any]]:
    """The events of rows that an incremental snapshot sent."""
    ends = end_offsets(kafka.bootstrap, topic, 1)
    events = [json.loads(one.value()) for one in messages_before(kafka.bootstrap, topic, ends) if one.value()]
    return [one for one in events if one["source"]["snapshot"] == "incremental"]


def test_a_connector_sends_rows_again_when_it_is_asked(
    kafka: KafkaServer,
    postgres: PostgresServer,
    debezium: DebeziumServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    postgres.create_database(DATABASE)
    postgres.sql(TABLES, DATABASE)
    for topic in ("orders", "lines", "debezium_signal"):
        kafka.create_topic(f"{PREFIX}.public.{topic}")
    for topic in ("again-signal", "again-told"):
        kafka.create_topic(topic)
    settings = {
        "signal.enabled.channels": "source,kafka",
        "signal.data.collection": "public.debezium_signal",
        "signal.poll.interval.ms": "200",
        "signal.kafka.topic": "again-signal",
        "signal.kafka.bootstrap.servers": kafka.bootstrap,
        "notification.enabled.channels": "sink",
        "notification.sink.topic.name": "again-told",
    }
    file = tmp_path / "again.yml"
    file.write_text(FILE % (tmp_path / "lake", kafka.bootstrap))
    name = debezium.capture(DATABASE, ["public\\..*"], PREFIX, settings)
    try:
        assert main(["resnapshot", str(file), "public.order"]) == 2
        assert "there is no table public.order" in capsys.readouterr().err

        assert main(["resnapshot", str(file), "public.orders", "--wait"]) == 0
        assert (
            capsys.readouterr().out == "public.orders: the connector has read 2,500 rows; they come through its topic\n"
        )
        wait_until(lambda: len(rows_again(kafka, f"{PREFIX}.public.orders")) >= 2500)
        again = rows_again(kafka, f"{PREFIX}.public.orders")
        assert {one["op"] for one in again} == {"r"}
        assert sorted(one["after"]["id"] for one in again) == list(range(1, 2501))

        assert main(["resnapshot", str(file), "public.orders", "--where", "id <= 7", "--wait"]) == 0
        assert "public.orders: the connector has read 7 rows" in capsys.readouterr().out

        assert main(["resnapshot", str(file), "public.lines", "--wait"]) == 1  # it has no primary key
        assert "public.lines: the connector sends no rows: NO_PRIMARY_KEY" in capsys.readouterr().err

        file.write_text(file.read_text().replace("again-signal", "wide-signal"))
        kafka.create_topic("wide-signal", 2)
        assert main(["resnapshot", str(file), "public.orders"]) == 2
        assert "wide-signal has 2 partitions" in capsys.readouterr().err
    finally:
        debezium.release(name)
