"""``lakebed source resnapshot`` with a real connector: rows of PostgreSQL come again, and the command tells how far it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import main
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.monitoring.metrics import Metrics
from lakebed.pipeline.database.work import DatabaseWork
from lakebed.pipeline.settings import DatabasePipeline, load
from lakebed.positions.resnapshots import resnapshot_of
from lakebed.sources.kafka.cluster import ends_of
from lakebed.sources.kafka.database_source import KafkaDatabaseReader
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.source import Range
from lakebed.table import internals_of
from tests.infra.debezium import DebeziumServer
from tests.infra.kafka import KafkaServer, end_offsets, messages_before
from tests.infra.postgres import PostgresServer
from tests.sources.memory_source import Process
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


def settings_of(kafka: KafkaServer) -> dict[str, str]:
    """Of a connector that takes signals and says how far it is."""
    return {
        "signal.enabled.channels": "source,kafka",
        "signal.data.collection": "public.debezium_signal",
        "signal.poll.interval.ms": "200",
        "signal.kafka.topic": f"{PREFIX}-signal",
        "signal.kafka.bootstrap.servers": kafka.bootstrap,
        "notification.enabled.channels": "sink",
        "notification.sink.topic.name": f"{PREFIX}-told",
    }


def rows_again(kafka: KafkaServer, topic: str) -> list[dict[str, Any]]:
    """The events of rows that an incremental snapshot sent."""
    ends = end_offsets(kafka.bootstrap, topic, 1)
    events = [json.loads(one.value()) for one in messages_before(kafka.bootstrap, topic, ends) if one.value()]
    return [one for one in events if one["source"]["snapshot"] == "incremental"]


@pytest.mark.long
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
    settings = settings_of(kafka)
    file = tmp_path / "again.yml"
    file.write_text(FILE % (tmp_path / "lake", kafka.bootstrap))
    name = debezium.capture(DATABASE, ["public\\..*"], PREFIX, settings)
    try:
        assert main(["source", "resnapshot", str(file), "public.order"]) == 2
        assert "there is no table public.order" in capsys.readouterr().err

        assert main(["source", "resnapshot", str(file), "public.orders", "--wait"]) == 0
        assert (
            capsys.readouterr().out == "public.orders: the connector has read 2,500 rows; they come through its topic\n"
        )
        wait_until(lambda: len(rows_again(kafka, f"{PREFIX}.public.orders")) >= 2500)
        again = rows_again(kafka, f"{PREFIX}.public.orders")
        assert {one["op"] for one in again} == {"r"}
        assert sorted(one["after"]["id"] for one in again) == list(range(1, 2501))

        assert main(["source", "resnapshot", str(file), "public.orders", "--where", "id <= 7", "--wait"]) == 0
        assert "public.orders: the connector has read 7 rows" in capsys.readouterr().out

        assert main(["source", "resnapshot", str(file), "public.lines", "--wait"]) == 1  # it has no primary key
        assert "public.lines: the connector sends no rows: NO_PRIMARY_KEY" in capsys.readouterr().err

        file.write_text(file.read_text().replace("again-signal", "wide-signal"))
        kafka.create_topic("wide-signal", 2)
        assert main(["source", "resnapshot", str(file), "public.orders"]) == 2
        assert "wide-signal has 2 partitions" in capsys.readouterr().err
    finally:
        debezium.release(name)


@pytest.mark.long
def test_rows_that_went_while_nobody_read_the_log_are_removed(
    kafka: KafkaServer, postgres: PostgresServer, debezium: DebeziumServer, tmp_path: Path
) -> None:
    database = prefix = "gone"
    postgres.create_database(database)
    postgres.sql(TABLES, database)
    for topic in ("public.orders", "public.lines", "public.debezium_signal"):
        kafka.create_topic(f"{prefix}.{topic}", 2)
    for topic in ("signal", "told"):
        kafka.create_topic(f"{prefix}-{topic}")
    settings = {name: text.replace("again-", "gone-") for name, text in settings_of(kafka).items()}
    file = tmp_path / "gone.yml"
    file.write_text((FILE % (tmp_path / "lake", kafka.bootstrap)).replace("again", "gone"))
    columns = pa.schema([pa.field("id", pa.int32(), False), pa.field("note", pa.string())])
    path = str(tmp_path / "lake/public/orders")
    table = lakebed.create(path, columns, keys=["id"], sequence_by="source.lsn")
    reading = Reading(path, kafka, f"{prefix}.public.orders")

    def rows() -> dict[int, str]:
        reading.on()
        return {row["id"]: row["note"] for row in table.to_arrow().to_pylist()}

    name = debezium.capture(database, ["public\\..*"], prefix, settings)
    wait_until(lambda: len(rows()) == 2500)
    debezium.release(name)  # and the slot with it
    postgres.sql("delete from orders where id % 5 = 0; update orders set note = 'new' where id % 7 = 0", database)

    pipeline = load(file)
    assert isinstance(pipeline, DatabasePipeline)
    work = DatabaseWork(pipeline, Metrics(), None)  # what a run does beside its query
    work.watch()
    try:
        anew = {"snapshot.mode": "no_data", "topic.prefix": prefix}
        name = debezium.capture(database, ["public\\..*"], "gone_too", settings | anew)
        assert main(["source", "resnapshot", str(file), "public.orders", "--mirror"]) == 0
        postgres.sql("delete from orders where id = 1; insert into orders values (9999, 'late')", database)

        def is_over() -> bool:
            reading.on()
            state = resnapshot_of(reading.internals.log.refresh())
            return state is not None and not state.is_active

        wait_until(is_over, lambda: str(resnapshot_of(reading.internals.log.refresh())))
        state = resnapshot_of(reading.internals.log.refresh())
        assert state is not None and (state.state, state.removed) == ("ended", 500), state
        debezium.wait_until_sent(name)
        expected = {int(id): note for id, note in postgres.sql("select id, note from orders", database)}
        wait_until(lambda: rows() == expected)
        assert len(expected) == 2000
        debezium.release(name)
    finally:
        work.end_ingest()


class Reading:
    """Brings a topic into a table, without Spark."""

    def __init__(
        self, path: str, kafka: KafkaServer, topic: str, keys: Sequence[str] = ("id",), order: str = "source.lsn"
    ) -> None:
        self.settings = KafkaSettings(topics=(topic,), config={"bootstrap.servers": kafka.bootstrap})
        self.topic = topic
        columns = lakebed.open(path).schema
        shape = DecoderSchema.of_table(columns, tuple(keys), order)
        reader = KafkaDatabaseReader(self.settings)
        self.process = Process(path, reader, reading=decoder("debezium-json", shape))  # type: ignore[arg-type]
        self.internals = internals_of(self.process.table)

    def ends(self, topic: str) -> dict[int, int]:
        return {number: offset for (_, number), offset in ends_of(self.settings, topic).items()}

    def on(self) -> None:
        """Read what is there."""
        self.process.run([Range(self.topic, n, 0, end, is_first=True) for n, end in self.ends(self.topic).items()])
