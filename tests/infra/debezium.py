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

    def wait_until_sent(self, name: str) -> None:
        """Returns when the connector has sent, and Kafka has acknowledged, everything until now.

        The connector confirms where the last event was that it saw; what a checkpoint or a vacuum wrote later is none. So it is
        sent messages until it says that it has passed.
        """
        database = self._connectors[name]["database.dbname"]
        [[here]] = self._postgres.sql("select pg_current_wal_lsn()")
        reached = f"select confirmed_flush_lsn >= '{here}' from pg_replication_slots where slot_name = '{name}'"

        def passed() -> bool:
            self.check(name)
            self._postgres.sql("select pg_logical_emit_message(false, 'lakebed', '')", database)
            return self._postgres.sql(reached) == [["t"]]

        wait_until(passed, f"Debezium did not send everything up to {here}")

    def is_following(self, name: str) -> bool:
        return self._postgres.sql(f"select active from pg_replication_slots where slot_name = '{name}'") == [["t"]]
