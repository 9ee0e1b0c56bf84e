"""``lakebed verify --repair`` with a real PostgreSQL, Debezium and Kafka: what differs is mended while all of them go on."""

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
from tests.infra.debezium import DebeziumServer
from tests.infra.kafka import KafkaServer
from tests.infra.postgres import PostgresServer
from tests.infra.server import HOST
from tests.waiting import wait_until

NAME = "mended"
TABLES = r"""
create table orders (place text, id int, note text, primary key (place, id));
create table lines (what text);
create table debezium_signal (id text primary key, type text not null, data text);
insert into orders select case n % 3 when 0 then 'it''s \ here?' when 1 then 'B;--' else 'ä' end, n, 'note ' || n
    from generate_series(1, 600) n;
"""
FILE = """
database:
  path: %s
  exclude: ["public\\\\.debezium_.*", "public\\\\.lines"]
  signal_topic: mended-signal
  notification_topic: mended-told
  verify: {url: 'postgresql://postgres@%s:%d/mended', slot: %s, wait_seconds: 60}
source: {kind: kafka, topic_pattern: "mended\\\\..*", config: {bootstrap.servers: "%s"}}
format: debezium-json
"""


@pytest.mark.long
def test_rows_that_differ_are_sent_again_and_others_are_removed(
    kafka: KafkaServer,
    postgres: PostgresServer,
    debezium: DebeziumServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    own_cache: None,
) -> None:
    postgres.create_database(NAME)
    postgres.sql(TABLES, NAME)
    for topic in (f"{NAME}.public.orders", f"{NAME}.public.debezium_signal", f"{NAME}-signal", f"{NAME}-told"):
        kafka.create_topic(topic)
    settings = {name: text.replace("again-", f"{NAME}-") for name, text in settings_of(kafka).items()}
    slot = debezium.capture(NAME, ["public\\..*"], NAME, settings)
    file = tmp_path / "mended.yml"
    file.write_text(FILE % (tmp_path / "lake", HOST, postgres.port, slot, kafka.bootstrap))
    columns = pa.schema([("place", pa.string()), ("id", pa.int32()), ("note", pa.string())])
    table = lakebed.create(tmp_path / "lake/public/orders", columns, keys=["place", "id"], sequence_by="source.lsn")
    reading = Reading(table.path, kafka, f"{NAME}.public.orders", ("place", "id"))

    def rows() -> int:
        reading.on()
        return int(table.to_arrow().num_rows)

    wait_until(lambda: rows() == 600)
    pipeline = load(file)
    assert isinstance(pipeline, DatabasePipeline)
    work = DatabaseWork(pipeline, Metrics(), None)  # what a run does beside its query
    work.watch()

    def goes_on(number: int) -> None:
        postgres.sql(f"update orders set note = 'changed {number}' where id > 50 and id % 50 = {number % 50}", NAME)
        reading.on()

    try:
        table.update({"note": "'wrong'"}, "id between 3 and 5")
        table.delete("id between 7 and 9")
        table.apply([{"place": "it's \\ gone?", "id": 700 + n, "note": "x", "source.lsn": 1} for n in range(3)])
        with meanwhile(goes_on):
            assert main(["verify", str(file), "public.orders"]) == 1
            assert "9 keys differ from the source" in capsys.readouterr().out
            assert table.status().verified.startswith("9 keys differ from the source at ")
            code = main(["verify", str(file), "public.orders", "--repair"])
            said = capsys.readouterr()
            assert main(["verify", str(file), "public.orders"]) == 0  # while the table still follows
        assert code == 0, said.out + said.err
        assert "9 keys differed from the source" in said.out
        assert "  repaired: 6 keys sent again, 3 rows removed; all are equal at " in said.out
        assert table.status().verified.startswith("equal to the source at ")
    finally:
        work.end_ingest()
        debezium.release(slot)
