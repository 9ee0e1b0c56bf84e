"""What ``validate`` says about a database: its topics, the tables they become, what is none and why, and the bill."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer

import lakebed
from lakebed.cli import main
from tests.decode.records import event
from tests.infra.kafka import KafkaServer
from tests.pipeline.test_introducer import ROW, as_json, key_of

FILE = r"""
database:
  path: {path}
  exclude: [".*_tmp"]
{more}
source: {kind: kafka, topic_pattern: "{prefix}\\..*", config: {bootstrap.servers: "{broker}"}}
format: debezium-json
"""


@dataclass
class Shop:
    """Topics of one prefix, and a pipeline file about them."""

    kafka: KafkaServer
    folder: Path
    prefix: str

    def write(
        self, topic: str, values: Sequence[bytes | None], keys: Sequence[bytes | None], partitions: int = 1
    ) -> str:
        name = self.kafka.create_topic(f"{self.prefix}.{topic}" if topic else self.prefix, partitions)
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for value, key in zip(values, keys, strict=True):
            producer.produce(name, value, key)
        producer.flush()
        return name

    def validate(self, capsys: pytest.CaptureFixture[str], more: str = "", path: str = "") -> tuple[int, str]:
        text = FILE.replace("{path}", path or str(self.folder / "lake")).replace("{more}", more)
        text = text.replace("{prefix}", self.prefix).replace("{broker}", self.kafka.bootstrap)
        (self.folder / "shop.yml").write_text(text)
        code = main(["validate", "--connect", str(self.folder / "shop.yml")])
        told = capsys.readouterr()
        return code, told.out + told.err


@pytest.fixture
def shop(kafka: KafkaServer, tmp_path: Path) -> Iterator[Shop]:
    found = Shop(kafka, tmp_path, f"shop{time.time_ns()}")
    change = as_json(event("c", ROW))
    found.write("public.orders", [None, change, change], [key_of(id=1)] * 3)
    found.write("public.audit", [change], [None])
    found.write("public.x_tmp", [change], [None])
    found.write("public.plain", [json.dumps(event("c", ROW)).encode()], [None])
    found.write("public.empty", [], [])
    found.write("transaction", [b"{}"], [None])
    found.write("", [b"{}"], [None])
    yield found


def test_validate_tells_what_the_topics_become_and_what_a_day_costs(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = shop.validate(capsys)
    assert code == 0
    assert f"# 6 topics: 2 are tables below {shop.folder}/lake, 0 of them are there" in said
    for topic, becomes in {
        "public.orders": "public.orders will be created: 4 columns, keys id, in the order of source.lsn",
        "public.audit": "public.audit will be created: 4 columns, no keys, so it is only appended to",
        "public.x_tmp": "no table: database.exclude has '.*_tmp'",
        "public.plain": "no table yet: offset 0 of partition 0: it carries no schema",
        "public.empty": "no table yet: no record has a value yet",
        "transaction": "no table: it has the source's transactions",
    }.items():
        assert f"#   {shop.prefix}.{topic}: {becomes}" in said
    assert "# 4 records came in the last 24 hours\n" in said
    assert not (shop.folder / "lake").exists()

    points = f"  points: {{transaction_topic: {shop.prefix}.tx}}"
    assert f"there is no topic {shop.prefix}.tx yet, so there are no points" in shop.validate(capsys, points)[1]
    shop.write("tx", [], [], partitions=3)
    code, said = shop.validate(capsys, points)
    assert code == 2 and "database.points.transaction_topic: the topic" in said and "has 3 partitions" in said

    table = lakebed.create(shop.folder / "lake/public/orders", pa.schema([("id", pa.int64())]), keys=["id"])
    table.set_properties({"lakebed.source_topic": "other.public.orders"})
    code, said = shop.validate(capsys)
    assert code == 2
    assert f"#   {shop.prefix}.public.orders: wrong, see below" in said
    assert "public.audit will be created" in said
    assert f"was made for the topic other.public.orders, not for {shop.prefix}.public.orders" in said


def test_without_asking_anybody_validate_says_what_a_table_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = FILE.replace("{path}", "s3://lake/shop").replace("{more}", "").replace("{prefix}", "shop")
    (tmp_path / "shop.yml").write_text(text.replace("{broker}", "nowhere:1"))
    assert main(["validate", str(tmp_path / "shop.yml")]) == 0
    said = capsys.readouterr().out
    assert "database:\n  path: s3://lake/shop" in said
    assert "# fine; what the topics become below s3://lake/shop was not looked at" in said
    assert "# a table with a record a second costs $0.13 a day of requests" in said
    assert "max_age_seconds: 10; an idle one $0.0006 a day" in said
    assert "Iceberg" not in said
    on = text.replace("database:\n", "database:\n  properties: {lakebed.iceberg: on}\n", 1)
    (tmp_path / "shop.yml").write_text(on.replace("{broker}", "nowhere:1"))
    assert main(["validate", str(tmp_path / "shop.yml")]) == 0
    assert "costs $0.52 a day" in (said := capsys.readouterr().out) and "$0.39 of it for Iceberg's metadata" in said
    one = "table: {path: 's3://lake/orders', schema: {id: long}, properties: {lakebed.iceberg: on}}\nsource: {kind: generator}\n"
    (tmp_path / "one.yml").write_text(one)
    assert main(["validate", str(tmp_path / "one.yml")]) == 0
    assert "# Iceberg's metadata costs $0.43 a day at most" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("checkpoint: {folder}/lake/here", "checkpoint: {folder}/lake/here lies in the database's folder"),
        ("registry: {url: 'ftp://x'}", "registry: "),
    ],
)
def test_what_is_wrong_with_the_file_is_said_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, said: str
) -> None:
    text = FILE.replace("{path}", f"{tmp_path}/lake").replace("{more}", more.replace("{folder}", str(tmp_path)))
    (tmp_path / "shop.yml").write_text(text.replace("{prefix}", "shop").replace("{broker}", "nowhere:1"))
    assert main(["validate", str(tmp_path / "shop.yml")]) == 2
    assert said.replace("{folder}", str(tmp_path)) in capsys.readouterr().err
