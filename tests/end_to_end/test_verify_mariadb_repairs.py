"""``lakebed verify --repair`` with a real MariaDB, Debezium and Kafka: what differs is mended while all of them go on."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import main
from lakebed.monitoring.metrics import Metrics
from lakebed.pipeline.database.work import DatabaseWork
from lakebed.pipeline.file.settings import DatabasePipeline, load
from tests.end_to_end.meanwhile import meanwhile
from tests.end_to_end.test_resnapshot import Reading, settings_of
from tests.end_to_end.test_verify_mariadb import SETTINGS
from tests.infra.debezium_mariadb import DistributedMariaDb
from tests.infra.kafka import KafkaServer
from tests.infra.mariadb import MariaDbServer
from tests.infra.server import HOST
from tests.waiting import wait_until

NAME = "mendedmaria"
TABLES = r"""
create table orders (place varchar(20), id int, note text, primary key (place, id));
create table debezium_signal (id varchar(64) primary key, type varchar(32) not null, data text);
insert into orders select case seq % 3 when 0 then 'it''s \\ here?' when 1 then 'B;--' else 'ä' end, seq, concat('note ', seq)
    from seq_1_to_600;
"""
FILE = """
database:
  path: %s
  exclude: ["mendedmaria\\\\.debezium_.*"]
  signal_topic: mendedmaria-signal
  notification_topic: mendedmaria-told
  verify: {url: 'mariadb://root@%s:%d/', offsets_topic: %s, wait_seconds: 60}
source: {kind: kafka, topic_pattern: "mendedmaria\\\\..*", config: {bootstrap.servers: "%s"}}
format: debezium-json
"""


@pytest.mark.long
def test_rows_that_differ_are_sent_again_and_others_are_removed(
    kafka: KafkaServer,
    mariadb: MariaDbServer,
    debezium_mariadb: DistributedMariaDb,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    own_cache: None,
) -> None:
    mariadb.sql(f"create database {NAME} character set utf8mb4; use {NAME}; {TABLES}")
    for topic in (f"{NAME}.{NAME}.orders", f"{NAME}.{NAME}.debezium_signal", f"{NAME}-signal", f"{NAME}-told"):
        kafka.create_topic(topic)
    settings = {name: text.replace("again-", f"{NAME}-") for name, text in settings_of(kafka).items()}
    signals = {"signal.data.collection": f"{NAME}.debezium_signal"}
    connector = debezium_mariadb.capture(NAME, [f"{NAME}\\..*"], NAME, {**SETTINGS, **settings, **signals})
    file = tmp_path / "mended.yml"
    address = HOST, mariadb.port, debezium_mariadb.offsets_topic
    file.write_text(FILE % (tmp_path / "lake", *address, kafka.bootstrap))
    columns = pa.schema([("place", pa.string()), ("id", pa.int32()), ("note", pa.string())])
    table = lakebed.create(tmp_path / f"lake/{NAME}/orders", columns, keys=["place", "id"], sequence_by="source.pos")
    reading = Reading(table.path, kafka, f"{NAME}.{NAME}.orders", ("place", "id"), "source.pos")

    def rows() -> int:
        reading.on()
        return int(table.to_arrow().num_rows)

    wait_until(lambda: rows() == 600)
    pipeline = load(file)
    assert isinstance(pipeline, DatabasePipeline)
    work = DatabaseWork(pipeline, Metrics(), None)  # what a run does beside its query
    work.watch()

    def goes_on(number: int) -> None:
        mariadb.sql(f"update orders set note = 'changed {number}' where id > 50 and id % 50 = {number % 50}", NAME)
        reading.on()

    try:
        table.update({"note": "'wrong'"}, "id between 3 and 5")
        table.delete("id between 7 and 9")
        table.apply([{"place": "it's \\ gone?", "id": 700 + n, "note": "x", "source.pos": 1} for n in range(3)])
        with meanwhile(goes_on):
            code = main(["verify", str(file), f"{NAME}.orders", "--repair"])
            said = capsys.readouterr()
            assert main(["verify", str(file), f"{NAME}.orders"]) == 0
        assert code == 0, said.out + said.err
        assert "9 keys differed from the source at binlog.0" in said.out
        assert "  repaired: 6 keys sent again, 3 rows removed; all are equal at binlog.0" in said.out
        assert table.status().verified.startswith("equal to the source at binlog.0")
    finally:
        work.end_ingest()
        debezium_mariadb.release(connector)
