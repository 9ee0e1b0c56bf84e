"""Tables of PostgreSQL and MariaDB that are altered in every way, under load, are the same in lakebed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from tests.end_to_end.changing_database import ChangingMariaDb, ChangingPostgres
from tests.end_to_end.schema_changes import change_and_compare
from tests.infra.debezium import DebeziumServer
from tests.infra.debezium_mariadb import DebeziumMariaDb
from tests.infra.kafka import KafkaServer
from tests.infra.mariadb import MariaDbServer
from tests.infra.postgres import PostgresServer
from tests.infra.registry import RegistryServer

WIDENED = {
    "qty": pa.int64(),
    "amount": pa.decimal128(24, 4),
    "weight": pa.float64(),
    "coupon": pa.string(),
    "priority": pa.int32(),
    "at": pa.timestamp("us", "UTC"),
}


@pytest.mark.long
def test_a_table_of_postgres_is_the_same_whatever_is_done_to_its_schema(
    kafka: KafkaServer, postgres: PostgresServer, debezium: DebeziumServer, registry: RegistryServer, tmp_path: Path
) -> None:
    database = ChangingPostgres("changing", postgres, debezium)
    print(change_and_compare(kafka, database, tmp_path, registry=registry, sequence_by="source.lsn", seed=1))
    assert types_of(tmp_path / "orders", *WIDENED, "words") == WIDENED | {"words": pa.list_(pa.string())}


@pytest.mark.long
def test_a_table_of_mariadb_is_the_same_whatever_is_done_to_its_schema(
    kafka: KafkaServer,
    mariadb: MariaDbServer,
    debezium_mariadb: DebeziumMariaDb,
    registry: RegistryServer,
    tmp_path: Path,
) -> None:
    database = ChangingMariaDb("changing", mariadb, debezium_mariadb)
    print(change_and_compare(kafka, database, tmp_path, registry=registry, sequence_by="source.pos", seed=2))
    assert types_of(tmp_path / "orders", *WIDENED) == WIDENED


def types_of(path: Path, *names: str) -> dict[str, pa.DataType]:
    schema = lakebed.open(path).schema
    return {name: schema.field(name).type for name in names}
