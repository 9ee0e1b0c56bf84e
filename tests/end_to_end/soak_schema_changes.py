"""``make soak-schema ROUNDS=5``: tables of PostgreSQL and MariaDB altered in every way, under load, with kill -9."""

from __future__ import annotations

import argparse

from tests.end_to_end.changing_database import ChangingDatabase, ChangingMariaDb, ChangingPostgres
from tests.end_to_end.schema_changes import change_and_compare
from tests.infra.debezium import DebeziumServer
from tests.infra.debezium_mariadb import DebeziumMariaDb
from tests.infra.kafka import KafkaServer
from tests.infra.mariadb import MariaDbServer
from tests.infra.postgres import PostgresServer
from tests.infra.registry import RegistryServer
from tests.infra.server import new_run_folder


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.soak_schema_changes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often all is done, each time with other chances")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--database", choices=["postgres", "mariadb"], help="one of them only")
    parser.add_argument("--format", choices=["avro", "json"], help="one of them only")
    given = parser.parse_args()
    with (
        KafkaServer() as kafka,
        RegistryServer() as registry,
        PostgresServer() as postgres,
        MariaDbServer() as mariadb,
    ):
        for seed in range(given.seed, given.seed + given.rounds):
            for source in [given.database] if given.database else ["postgres", "mariadb"]:
                for kind in [given.format] if given.format else ["avro", "json"]:
                    folder = new_run_folder("soak-schema")
                    name = f"{source}_{kind}_{seed}"
                    print(f"--- {name} in {folder}", flush=True)
                    worker = (
                        DebeziumServer(kafka, postgres) if source == "postgres" else DebeziumMariaDb(kafka, mariadb)
                    )
                    with worker:
                        database: ChangingDatabase = (
                            ChangingPostgres(name, postgres, worker)
                            if isinstance(worker, DebeziumServer)
                            else ChangingMariaDb(name, mariadb, worker)
                        )
                        outcome = change_and_compare(
                            kafka,
                            database,
                            folder,
                            registry=registry if kind == "avro" else None,
                            sequence_by="source.lsn" if source == "postgres" else "source.pos",
                            seed=seed,
                            rounds_down=2,
                            say=lambda text: print(text, flush=True),
                        )
                    print(outcome, flush=True)
    print("every table is the database's")


if __name__ == "__main__":
    main()
