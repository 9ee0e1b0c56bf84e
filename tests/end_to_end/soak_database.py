"""``make soak-database KILLS=20``: a database of a hundred tables, altered under load, and kill -9."""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from tests.end_to_end.database_process import run_and_compare
from tests.end_to_end.many_tables import ManyMariaDbTables, ManyPostgresTables, ManyTables
from tests.infra.debezium import DebeziumServer
from tests.infra.debezium_mariadb import DebeziumMariaDb
from tests.infra.kafka import KafkaServer
from tests.infra.mariadb import MariaDbServer
from tests.infra.postgres import PostgresServer
from tests.infra.registry import RegistryServer
from tests.infra.server import new_run_folder


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.soak_database", description=__doc__)
    parser.add_argument("--database", choices=["postgres", "mariadb"], default="postgres")
    parser.add_argument("--kills", type=int, default=20, help="how often the pipeline is killed")
    parser.add_argument("--hot", type=int, default=20, help="tables that pgbench changes")
    parser.add_argument("--quiet", type=int, default=80, help="other tables")
    parser.add_argument("--rate", type=int, default=100, help="transactions a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", choices=["avro", "json"], default="avro")
    parser.add_argument("--points", action="store_true", help="compare the bank at every point")
    parser.add_argument("--proofs", type=int, default=3, help="tables that lakebed verify compares after each kill")
    given = parser.parse_args()
    folder = new_run_folder("soak-database")
    print(f"folder: {folder}", flush=True)
    with ExitStack() as stack:
        kafka, registry = stack.enter_context(KafkaServer()), stack.enter_context(RegistryServer())
        database: ManyTables
        if given.database == "postgres":
            postgres = stack.enter_context(PostgresServer())
            debezium = stack.enter_context(DebeziumServer(kafka, postgres))
            database = ManyPostgresTables("shop", postgres, debezium, hot=given.hot, quiet=given.quiet)
        else:
            mariadb = stack.enter_context(MariaDbServer())
            connector = stack.enter_context(DebeziumMariaDb(kafka, mariadb))
            database = ManyMariaDbTables("shop", mariadb, connector, hot=given.hot, quiet=given.quiet)
        outcome = run_and_compare(
            kafka,
            database,
            folder,
            registry=registry if given.format == "avro" else None,
            kills=given.kills,
            seed=given.seed,
            per_second=given.rate,
            points=given.points,
            proofs=given.proofs,
            say=lambda text: print(text, flush=True),
        )
    print(outcome, flush=True)
    print("every table is the database's")


if __name__ == "__main__":
    main()
