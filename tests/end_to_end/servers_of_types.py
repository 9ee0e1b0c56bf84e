"""The servers of one run over all types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import lakebed
from lakebed.pipeline.driver import SETTINGS
from tests.infra.debezium import DebeziumServer
from tests.infra.debezium_mariadb import DebeziumMariaDb
from tests.infra.downloads import debezium_jars, debezium_mariadb_jars
from tests.infra.kafka import KafkaServer
from tests.infra.mariadb import MariaDbServer
from tests.infra.postgres import PostgresServer
from tests.infra.server import HOST

if TYPE_CHECKING:
    from tests.end_to_end.every_type import Database, Jdbc
    from tests.infra.connect import ConnectWorker


@contextmanager
def servers(name: str) -> Iterator[tuple[Database, ConnectWorker, KafkaServer]]:
    """A database, Debezium and Kafka, until the block ends."""
    with KafkaServer() as kafka:
        if name == "postgres":
            with PostgresServer() as postgres, DebeziumServer(kafka, postgres) as worker:
                postgres.create_database("types")
                yield postgres, worker, kafka
        else:
            with MariaDbServer() as mariadb, DebeziumMariaDb(kafka, mariadb) as connector:
                mariadb.sql("create database types")
                yield mariadb, connector, kafka


def jdbc_of(name: str, database: Database) -> Jdbc:
    """Spark with the driver of the database, which Debezium has too."""
    from tests.end_to_end.every_type import Jdbc

    jars, driver = (
        (debezium_jars(), "postgresql-*.jar") if name == "postgres" else (debezium_mariadb_jars(), "mariadb-java-*.jar")
    )
    spark = lakebed.spark("types", conf=SETTINGS | {"spark.jars": str(next(jars.glob(driver)))})
    if isinstance(database, PostgresServer):
        return Jdbc(spark, f"jdbc:postgresql://{HOST}:{database.port}/types", "postgres")
    assert isinstance(database, MariaDbServer)
    return Jdbc(spark, f"jdbc:mariadb://{HOST}:{database.port}/types", "root")
