"""PostgreSQL under pgbench arrives in lakebed row for row, whoever reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.captured import Servers, assert_everything_awkward_happened, load_and_compare
from tests.infra.debezium import DebeziumServer
from tests.infra.foreign_duckdb import ForeignDuckDB
from tests.infra.kafka import KafkaServer
from tests.infra.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS, TRANSACTIONS_PER_SECOND, ACCOUNTS = 5, 200, 5_000


@pytest.mark.long
def test_every_reader_sees_what_postgres_holds_after_pgbench(
    kafka: KafkaServer,
    postgres: PostgresServer,
    debezium: DebeziumServer,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    with ForeignDuckDB() as duckdb:
        servers = Servers(kafka, postgres, debezium, spark, duckdb)
        outcome = load_and_compare(servers, tmp_path, SECONDS, TRANSACTIONS_PER_SECOND, accounts=ACCOUNTS)
    print(outcome)
    assert_everything_awkward_happened(outcome)
