"""Debezium's MariaDB connector in Kafka Connect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.infra.connect import ConnectWorker
from tests.infra.downloads import debezium_mariadb_jars
from tests.infra.kafka import KafkaServer
from tests.infra.mariadb import USER, MariaDbServer
from tests.waiting import wait_until


class DebeziumMariaDb(ConnectWorker):
    """A worker that captures tables (``database.table``) into topics ``<topic_prefix>.<database>.<table>``."""

    name = "debezium-mariadb"

    def __init__(self, kafka: KafkaServer, mariadb: MariaDbServer, run_folder: Path | None = None) -> None:
        super().__init__(kafka, run_folder)
        self._mariadb = mariadb
        self._server_ids = 5400

    def jars(self) -> Path:
        return debezium_mariadb_jars()

    def connector(self, database: str, tables: Sequence[str], topic_prefix: str) -> dict[str, str]:
        self._server_ids += 1  # a connector is a replica to MariaDB, and replicas have numbers of their own
        return {
            "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
            "database.server.id": str(self._server_ids),
            "database.port": str(self._mariadb.port),
            "database.user": USER,
            "database.password": "",
            "database.ssl.mode": "disable",
            "database.include.list": database,
            "schema.history.internal.kafka.bootstrap.servers": self._kafka.bootstrap,
            "schema.history.internal.kafka.topic": f"{topic_prefix}.history",
            "include.schema.changes": "false",
        }

    def is_following(self, name: str) -> bool:
        # MariaDB does not tell which of its readers is whose.
        readers = "select count(*) from information_schema.processlist where command like 'Binlog Dump%'"
        return int(self._mariadb.sql(readers)[0][0]) >= len(self._connectors)

    def wait_until_sent(self, name: str) -> None:
        """Returns when the connector has sent, and Kafka has acknowledged, everything until now."""
        here = self._mariadb.position()
        self._mariadb.sql("create database if not exists nudges; create table if not exists nudges.one (n int)")

        def passed() -> bool:
            # An offset is stored when something comes after it, even what the connector leaves out.
            self._mariadb.sql("insert into nudges.one values (1); delete from nudges.one")
            self.check(name)
            offset = self.stored_offset(name)
            return bool(offset) and (offset["file"], offset["pos"]) >= here

        wait_until(passed, lambda: f"Debezium did not send everything up to {here}, only {self.stored_offset(name)}")
