"""``lakebed verify --repair`` with real databases, Debezium and Kafka: what differs is mended while all of them go on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import main
from lakebed.log.holds import holds_of
from lakebed.monitoring.metrics import Metrics
from lakebed.pipeline.database.work import DatabaseWork
from lakebed.pipeline.settings import DatabasePipeline, load
from lakebed.positions.resnapshots import active, resnapshot_of
from lakebed.verify.repair import KEYS_AT_ONCE
from tests.end_to_end.every_type import Reading as PipelineReading
from tests.end_to_end.meanwhile import meanwhile
from tests.end_to_end.test_resnapshot import Reading, settings_of
from tests.end_to_end.test_verify_mariadb import SETTINGS
from tests.infra.connect import avro_converters
from tests.infra.debezium import DebeziumServer
from tests.infra.debezium_mariadb import DistributedMariaDb
from tests.infra.kafka import KafkaServer
from tests.infra.mariadb import MariaDbServer
from tests.infra.postgres import PostgresServer
from tests.infra.registry import RegistryServer
from tests.infra.server import HOST
from tests.internals import log_of
from tests.verify.test_tables import void
from tests.waiting import wait_until

TABLES = r"""
create table orders (place varchar(20), id int, note text, primary key (place, id));
create table debezium_signal (id varchar(64) primary key, type varchar(32) not null, data text);
insert into orders select case n %% 3 when 0 then 'it''s %s here?' when 1 then 'B;--' else 'ä' end, n, concat('note ', n) from %s;
"""
FILE = """
database:
  path: %s
  exclude: ["%s\\\\.debezium_.*"]
  signal_topic: {name}-signal
  notification_topic: {name}-told
  verify: {url: '%s', %s, wait_seconds: 60}
source: {kind: kafka, topic_pattern: "{name}\\\\..*", config: {bootstrap.servers: "%s"}}
format: debezium-json
"""


@dataclass(frozen=True, kw_only=True)
class Database:
    """One that is captured. ``schema``: what its tables are in; ``verify``: what the file says besides its address."""

    schema: str
    order: str
    url: str
    verify: str
    sql: Callable[[str], object]
    release: Callable[[], None]


def postgres_of(name: str, request: pytest.FixtureRequest, settings: dict[str, str]) -> Database:
    postgres: PostgresServer = request.getfixturevalue("postgres")
    debezium: DebeziumServer = request.getfixturevalue("debezium")
    postgres.create_database(name)
    postgres.sql(TABLES % ("\\", "generate_series(1, 600) n"), name)
    slot = debezium.capture(name, ["public\\..*"], name, settings)
    return Database(
        schema="public",
        order="source.lsn",
        url=f"postgresql://postgres@{HOST}:{postgres.port}/{name}",
        verify=f"slot: {slot}",
        sql=lambda text: postgres.sql(text, name),
        release=lambda: debezium.release(slot),
    )


def mariadb_of(name: str, request: pytest.FixtureRequest, settings: dict[str, str]) -> Database:
    mariadb: MariaDbServer = request.getfixturevalue("mariadb")
    debezium: DistributedMariaDb = request.getfixturevalue("debezium_mariadb")
    tables = TABLES % ("\\\\", "(select seq as n from seq_1_to_600) s")
    mariadb.sql(f"create database {name} character set utf8mb4; use {name}; {tables}")
    signals = {"signal.data.collection": f"{name}.debezium_signal"}
    connector = debezium.capture(name, [f"{name}\\..*"], name, {**SETTINGS, **settings, **signals})
    return Database(
        schema=name,
        order="source.pos",
        url=f"mariadb://root@{HOST}:{mariadb.port}/",
        verify=f"offsets_topic: {debezium.offsets_topic}",
        sql=lambda text: mariadb.sql(text, name),
        release=lambda: debezium.release(connector),
    )


@pytest.mark.long
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(("prefix", "captured"), [("mended", postgres_of), ("mendedmaria", mariadb_of)])
def test_rows_that_differ_are_sent_again_and_others_are_removed(
    prefix: str,
    captured: Callable[[str, pytest.FixtureRequest, dict[str, str]], Database],
    request: pytest.FixtureRequest,
    kafka: KafkaServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for topic in ("signal", "told"):
        kafka.create_topic(f"{prefix}-{topic}")
    settings = {key: text.replace("again-", f"{prefix}-") for key, text in settings_of(kafka).items()}
    database = captured(prefix, request, settings)
    file, name = tmp_path / "mended.yml", f"{database.schema}.orders"
    said_of = (tmp_path / "lake", database.schema, database.url, database.verify, kafka.bootstrap)
    file.write_text(FILE.replace("{name}", prefix) % said_of)
    columns = pa.schema([("place", pa.string()), ("id", pa.int32()), ("note", pa.string())])
    path = tmp_path / f"lake/{database.schema}/orders"
    table = lakebed.create(path, columns, keys=["place", "id"], sequence_by=database.order)
    wait_until(lambda: f"{prefix}.{name}" in kafka.admin().list_topics(timeout=10).topics)
    reading = Reading(table.path, kafka, f"{prefix}.{name}", ("place", "id"), database.order)

    def rows() -> int:
        reading.on()
        return int(table.to_arrow().num_rows)

    def goes_on(number: int) -> None:
        database.sql(f"update orders set note = 'changed {number}' where id > 50 and id % 50 = {number % 50}")
        reading.on()

    wait_until(lambda: rows() == 600)
    pipeline = load(file)
    assert isinstance(pipeline, DatabasePipeline)
    work = DatabaseWork(pipeline, Metrics(), None)  # what a run does beside its query
    work.watch()
    try:
        table.update({"note": "'wrong'"}, "id between 3 and 5")
        table.delete("id between 7 and 9")
        table.apply([{"place": "it's \\ gone?", "id": 700 + n, "note": "x", database.order: 1} for n in range(3)])
        with meanwhile(goes_on):
            code = main(["verify", str(file), name, "--repair"])
            said = capsys.readouterr()
            assert main(["verify", str(file), name]) == 0  # while the table still follows
        assert code == 0, said.out + said.err
        assert "9 keys differed from the source at " in said.out
        assert "  repaired: 6 keys sent again, 3 rows removed; all are equal at " in said.out
        assert table.status().verified.startswith("equal to the source at ")
    finally:
        work.end_ingest()
        database.release()


@pytest.mark.long
@pytest.mark.usefixtures("own_cache")
def test_a_repair_of_many_keys_in_avro_goes_on_after_it_was_terminated(
    request: pytest.FixtureRequest,
    kafka: KafkaServer,
    registry: RegistryServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakebed.verify.proof.DIFFERENCES_MAX", 2 * KEYS_AT_ONCE)
    prefix, wrong = "mendedavro", 3 * KEYS_AT_ONCE + 500
    for topic in ("signal", "told"):
        kafka.create_topic(f"{prefix}-{topic}")
    settings = {key: text.replace("again-", f"{prefix}-") for key, text in settings_of(kafka).items()}
    database = postgres_of(prefix, request, {**settings, **avro_converters(registry)})
    database.sql(f"insert into orders select 'many', n, 'note ' || n from generate_series(1, {wrong + 500}) n")
    form = f"debezium-avro\nregistry: {{url: '{registry.url}'}}"
    file = tmp_path / "mended.yml"
    said_of = (tmp_path / "lake", "public", database.url, database.verify, kafka.bootstrap)
    file.write_text((FILE.replace("{name}", prefix) % said_of).replace("debezium-json", form))
    name, reading = "public.orders", PipelineReading(prefix, kafka, tmp_path / "lake", form)
    wait_until(lambda: f"{prefix}.{name}" in kafka.admin().list_topics(timeout=10).topics)
    table = reading.table(name)
    assert isinstance(table, lakebed.Table), table
    wait_until(lambda: reading.table(name) is not None and table.to_arrow(["id"]).num_rows == wrong + 1_100)
    pipeline = load(file)
    assert isinstance(pipeline, DatabasePipeline)
    work = DatabaseWork(pipeline, Metrics(), None)
    work.watch()
    log = log_of(table)
    try:
        table.update({"note": "'wrong'"}, f"place = 'many' and id <= {wrong}")
        with meanwhile(lambda _: void(reading.table(name))):
            command = [sys.executable, "-c", "import sys; from lakebed.cli import main; sys.exit(main())"]
            first = subprocess.Popen([*command, "verify", str(file), name, "--repair"])
            wait_until(lambda: resnapshot_of(log.refresh()) is not None or first.poll() is not None)
            first.terminate()
            assert first.wait() not in (0, 1)
            wait_until(lambda: active(log.refresh()) is None)
            assert not holds_of(log.refresh().domains)
            codes = [main(["verify", str(file), name, "--repair"]) for _ in range(2)]
            said = capsys.readouterr()
        assert codes == [1, 0], said.out + said.err
        assert "keys sent again, 0 rows removed; all are equal at" in said.out
        assert main(["verify", str(file), name]) == 0
        assert table.to_arrow(["id"], where="note = 'wrong'").num_rows == 0
    finally:
        work.end_ingest()
        database.release()
