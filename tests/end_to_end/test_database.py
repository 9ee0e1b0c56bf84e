"""A database of some tables, altered under load, with kill -9 and an impossible type, is the same in lakebed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.database_process import run_and_compare
from tests.end_to_end.many_tables import ManyMariaDbTables, ManyPostgresTables
from tests.infra.debezium import DebeziumServer
from tests.infra.debezium_mariadb import DebeziumMariaDb
from tests.infra.kafka import KafkaServer
from tests.infra.mariadb import MariaDbServer
from tests.infra.postgres import PostgresServer
from tests.infra.registry import RegistryServer
from tests.infra.s3 import S3Server

POINTS = 12
"""At least, of which about half are compared."""


@pytest.mark.long
def test_every_table_is_the_databases_and_every_point_has_whole_transactions(
    kafka: KafkaServer, postgres: PostgresServer, debezium: DebeziumServer, tmp_path: Path
) -> None:
    database = ManyPostgresTables("manytables", postgres, debezium, hot=3, quiet=5)
    outcome = run_and_compare(
        kafka,
        database,
        tmp_path,
        registry=None,
        kills=1,
        seed=3,
        per_second=60,
        points=True,
        points_compared_max=12,
        max_age_seconds=0.5,
        points_min=POINTS,
        probes=1,
    )
    print(outcome)
    assert outcome.points >= POINTS // 2
    assert outcome.torn_without_points, "versions without points were whole too, so the test shows nothing"


@pytest.mark.long
def test_a_database_of_mariadb_in_an_object_store_too_and_rows_that_are_lost_are_sent_again(
    kafka: KafkaServer,
    mariadb: MariaDbServer,
    debezium_mariadb: DebeziumMariaDb,
    registry: RegistryServer,
    s3: S3Server,
    tmp_path: Path,
) -> None:
    database = ManyMariaDbTables("manymaria", mariadb, debezium_mariadb, hot=2, quiet=2)
    outcome = run_and_compare(
        kafka,
        database,
        tmp_path,
        registry=registry,
        kills=0,
        seed=168,
        per_second=40,
        points=True,
        points_compared_max=4,
        max_age_seconds=0.5,
        points_min=4,
        probes=1,
        root=f"s3://{s3.create_bucket()}/lake/shop",
    )
    print(outcome)
    assert outcome.points
