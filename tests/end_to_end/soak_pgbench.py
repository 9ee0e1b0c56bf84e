"""``make soak-pgbench DURATION=300``: minutes of pgbench through Debezium and Kafka, then every reader is compared."""

from __future__ import annotations

import argparse
import os

import lakebed
from tests.end_to_end.captured import Servers, assert_everything_awkward_happened, load_and_compare
from tests.infra.debezium import DebeziumServer
from tests.infra.foreign_duckdb import ForeignDuckDB
from tests.infra.kafka import KafkaServer
from tests.infra.postgres import PostgresServer
from tests.infra.server import new_run_folder


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.soak_pgbench", description=__doc__)
    parser.add_argument("--duration", type=int, default=300, metavar="SECONDS", help="how long pgbench runs")
    parser.add_argument("--rate", type=int, default=200, metavar="TPS", help="transactions a second over all clients")
    parser.add_argument("--inline-schemas", action="store_true", help="every event carries its schema")
    given = parser.parse_args()
    folder = new_run_folder("soak-pgbench")
    os.environ["LAKEBED_CACHE_DIR"] = str(folder / "cache")
    spark = lakebed.spark("soak-pgbench", "local[2]", s3=False)
    spark.sparkContext.setLogLevel("ERROR")
    with (
        KafkaServer() as kafka,
        PostgresServer() as postgres,
        DebeziumServer(kafka, postgres) as debezium,
        ForeignDuckDB() as duckdb,
    ):
        outcome = load_and_compare(
            Servers(kafka, postgres, debezium, spark, duckdb),
            folder,
            given.duration,
            given.rate,
            inline_schemas=given.inline_schemas,
        )
    spark.stop()
    print(outcome)
    assert_everything_awkward_happened(outcome)
    print("every reader sees what PostgreSQL holds")


if __name__ == "__main__":
    main()
