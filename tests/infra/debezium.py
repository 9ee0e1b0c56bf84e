"""Debezium's PostgreSQL connector in Kafka Connect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.infra.connect import ConnectWorker, slot_name
from tests.infra.downloads import debezium_jars
from tests.infra.kafka import KafkaServer
from tests.infra.postgres import SUPERUSER, PostgresServer
from tests.waiting import wait_until


class DebeziumServer(ConnectWorker):
    """A worker that captures tables (``schema.table``) into topics ``<topic_prefix>.<schema>.<table>``."""

    name = "debezium"

    def __init__(self, kafka: KafkaServer, postgres: PostgresServer, run_folder: Path | None = None) -> None:
        super().__init__(kafka, run_folder)
        self._postgres = postgres

    def jars(self) -> Path:
        return debezium_jars()

    def connector(self, database: str, tables: Sequence[str], topic_prefix: str) -> dict[str, str]:
        name = slot_name(topic_prefix)
        return {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "publication.autocreate.mode": "filtered",
            "publication.name": name,
            "slot.name": name,
            "database.port": str(self._postgres.port),
            "database.user": SUPERUSER,
            "database.password": "trusted",
            "database.dbname": database,
        }

    def release(self, name: str) -> None:
        """Stops a connector and drops its replication slot."""
        super().release(name)
        unused = f"select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = '{name}'"
        wait_until(lambda: not self.is_following(name), f"connector {name} did not let go of its replication slot")
        self._postgres.sql(unused)

    def is_following(self, name: str) -> bool:
        return self._postgres.sql(f"select active from pg_replication_slots where slot_name = '{name}'") == [["t"]]
