"""Some types of each database come through Debezium, Kafka and a pipeline as they are; ``make types`` tries all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.end_to_end.every_type import DIALECTS, STEPS, run
from tests.infra.debezium import DebeziumServer
from tests.infra.debezium_mariadb import DebeziumMariaDb
from tests.infra.kafka import KafkaServer
from tests.infra.mariadb import MariaDbServer
from tests.infra.postgres import PostgresServer

pytestmark = pytest.mark.slow
TYPES = ("numeric(12,2)", "bytea", "timestamptz", "uuid[]", "point")


def test_rows_of_some_types_are_those_of_the_database(
    kafka: KafkaServer, postgres: PostgresServer, debezium: DebeziumServer, tmp_path: Path
) -> None:
    postgres.create_database("types")
    dialect = DIALECTS["postgres"]
    dialect = replace(dialect, cases=[case for case in dialect.cases if case.type in TYPES], begin="")
    for outcome in run(dialect, postgres, debezium, kafka, tmp_path):
        large = "quarantine" if outcome.case.large else ""
        assert outcome.steps == {**dict.fromkeys(STEPS, ""), "key change": large}, outcome


@pytest.mark.long
def test_rows_of_some_types_are_those_of_mariadb(
    kafka: KafkaServer, mariadb: MariaDbServer, debezium_mariadb: DebeziumMariaDb, tmp_path: Path
) -> None:
    mariadb.sql("create database types")
    dialect = DIALECTS["mariadb"]
    dialect = replace(dialect, cases=[case for case in dialect.cases if case.type in ("decimal(12,2)", "blob", "date")])
    for outcome in run(dialect, mariadb, debezium_mariadb, kafka, tmp_path):
        assert outcome.steps == dict.fromkeys(STEPS, ""), outcome
