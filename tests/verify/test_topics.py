"""A table is compared with the records of its topic, which are read once more, with a real Kafka and without a database."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition

import lakebed
from lakebed.cli import main
from lakebed.discovery import TableName
from lakebed.ingest.table_batch import run_alone, run_here
from lakebed.pipeline.database.introducer import Introduced, ingest_of
from lakebed.pipeline.settings import DatabasePipeline, load
from lakebed.pipeline.sources import kafka_settings
from lakebed.sources.kafka.database_source import KafkaDatabaseReader
from lakebed.sources.source import Range
from tests.decode.records import event
from tests.infra.kafka import KafkaServer, end_offsets

pytestmark = pytest.mark.usefixtures("own_cache")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])
FILE = """
database: {path: %s, topic_prefix: %s}
source: {kind: kafka, topic_pattern: '%s\\..*', config: {bootstrap.servers: '%s'}}
format: debezium-json
"""


@dataclass
class Shop:
    """A topic of changes, and the table that is made of them."""

    kafka: KafkaServer
    folder: Path
    prefix: str
    partitions: int = 2
    config: dict[str, str] = field(default_factory=dict)
    topic_id: str | None = None  # that the table is told of
    written: int = 0

    def __post_init__(self) -> None:
        self.topic = f"{self.prefix}.public.orders"
        self.kafka.create_topic(self.topic, self.partitions, self.config)
        self.file = self.folder / "shop.yml"
        self.file.write_text(FILE % (self.folder / "lake", self.prefix, self.prefix, self.kafka.bootstrap))
        self.table = lakebed.create(
            self.folder / "lake/public/orders",
            SCHEMA,
            keys=["id"],
            sequence_by="source.lsn",
            properties={"lakebed.source_topic": self.topic},
        )

    def write(self, *changes: tuple[str, int, str | None]) -> None:
        """Operations, keys and notes."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for op, key, note in changes:
            self.written += 1
            row = {"id": key, "note": note}
            change = event(op, None if op == "d" else row, None if op == "c" else row, self.written)
            producer.produce(self.topic, json.dumps(change), json.dumps({"id": key}), key % self.partitions)
        producer.flush()

    def delete_before(self, offset: int) -> None:
        """As the brokers do with records that are too old."""
        places = [TopicPartition(self.topic, number, offset) for number in range(self.partitions)]
        admin = self.kafka.admin()  # held until the answers are here
        for answer in admin.delete_records(places).values():
            answer.result(30)

    def follow(self) -> None:
        """Bring the table up to the ends of the topic."""
        pipeline = load(self.file)
        assert isinstance(pipeline, DatabasePipeline)
        found = Introduced(TableName("public.orders"), self.table, pipeline.database.wishes_for("public.orders"))
        ingest = ingest_of(pipeline, self.topic, found, KafkaDatabaseReader(kafka_settings(pipeline.source)))
        ends = end_offsets(self.kafka.bootstrap, self.topic, self.partitions)
        ranges = [Range(self.topic, n, 0, end, topic_id=self.topic_id, is_first=True) for n, end in ends.items()]
        run_alone(ingest.batch(ranges), run_here)


def many(shop: Shop) -> None:
    shop.write(*(("c", key, f"note {key}") for key in range(60)))
    shop.follow()
    shop.write(*(("u", key, f"changed {key}") for key in range(0, 60, 3)), *(("d", key, None) for key in range(5)))
    shop.follow()
    shop.table.settle()
    shop.write(*(("c", key, "not read yet") for key in range(90, 95)))


def test_a_table_is_equal_to_the_records_that_it_has_read(
    kafka: KafkaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(kafka, tmp_path, "proved_by_topics")
    many(shop)
    assert main(["verify", str(shop.file), "--topics"]) == 0
    said = capsys.readouterr().out
    assert "public.orders: equal to the records of proved_by_topics.public.orders\n" in said
    assert "55 rows in" in said


def test_what_the_records_do_not_say_is_found(
    kafka: KafkaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(kafka, tmp_path, "differs_from_topics")
    many(shop)
    shop.table.update({"note": "'by hand'"}, "id = 7")
    shop.table.delete("id = 8")
    shop.table.apply([{"id": 1, "note": "deleted", "source.lsn": 1_000}])
    assert main(["verify", str(shop.file), "public.orders", "--topics", "--format", "json"]) == 1
    [found] = map(json.loads, capsys.readouterr().out.splitlines())
    assert {(one["key"]["id"], one["kind"]) for one in found["shown"]} == {
        ("7", "differs"),
        ("8", "missing"),
        ("1", "surplus"),
    }


def test_a_topic_without_its_oldest_records_must_be_compacted(
    kafka: KafkaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(kafka, tmp_path, "short_topics")
    many(shop)
    shop.delete_before(3)
    assert main(["verify", str(shop.file), "--topics"]) == 2
    assert (
        "the oldest records of short_topics.public.orders are gone, and it is not compacted" in capsys.readouterr().err
    )


def test_a_topic_that_was_made_anew_is_not_the_one_of_the_table(
    kafka: KafkaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many(shop := Shop(kafka, tmp_path, "topics_made_anew", topic_id="of the one before"))
    assert main(["verify", str(shop.file), "--topics"]) == 2
    assert "is not the one any more that the table was read from" in capsys.readouterr().err


def test_other_comparisons_are_not_made_at_the_same_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path / "shop.yml"), "--topics", "--repair"]) == 2
    assert "--topics asks no database" in capsys.readouterr().err


def test_columns_that_were_renamed_in_the_table_are_so_in_its_copy(
    kafka: KafkaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(kafka, tmp_path, "renamed_topics")
    many(shop)
    shop.table.alter(rename={"id": "number", "note": "remark"})
    shop.write(("c", 100, "after they were renamed"))
    shop.follow()
    assert main(["verify", str(shop.file), "--topics", "--format", "json"]) == 0
    [found] = map(json.loads, capsys.readouterr().out.splitlines())
    assert (found["outcome"], found["rows"], found["left_out"]) == ("equal", 61, {})
    shop.table.alter(add={"at": "timestamp"})
    shop.table.set_properties({"lakebed.ttl": "at: 90 days"})
    main(["verify", str(shop.file), "--topics"])
    assert "public.orders: not compared: its rows expire" in capsys.readouterr().out


def test_an_order_that_has_begun_again_has_begun_again_in_the_copy(kafka: KafkaServer, tmp_path: Path) -> None:
    shop = Shop(kafka, tmp_path, "restarted_topics")
    many(shop)
    shop.follow()
    shop.table.maintenance.restart_order()
    shop.written = 0
    shop.write(("u", 30, "of a new server"))
    shop.follow()
    assert shop.table.lookup([30])["note"].to_pylist() == ["of a new server"]
    assert main(["verify", str(shop.file), "--topics"]) == 0


def test_a_truncate_and_records_in_the_quarantine_are_no_difference(
    kafka: KafkaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(kafka, tmp_path, "quarantined_topics")
    many(shop)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(shop.topic, b"no JSON", json.dumps({"id": 7}), 1)
    producer.flush()
    shop.write(("t", 0, None), *(("c", key, "after a truncate") for key in range(200, 210)))
    shop.follow()
    assert main(["verify", str(shop.file), "--topics"]) == 0, capsys.readouterr()
