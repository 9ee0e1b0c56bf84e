"""Debezium's MariaDB connector in Kafka Connect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.infra.connect import HEAP_MB_MAX, ConnectWorker
from tests.infra.downloads import debezium_mariadb_jars
from tests.infra.jvm import java_command, properties_text
from tests.infra.kafka import KafkaServer, end_offsets, messages_before
from tests.infra.mariadb import USER, MariaDbServer
from tests.infra.server import Server
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


class DistributedMariaDb(DebeziumMariaDb):
    """The same in a distributed worker, which keeps offsets in a topic, as production does."""

    name = "connect-mariadb"
    busy = (409, 500, 503)  # it joins its group, or gives its connectors out anew
    offsets_topic = "connect-offsets"
    partitions = 3

    def prepare(self) -> None:
        super().prepare()
        path = self.run_folder / "worker.properties"
        topics = {"offset": self.offsets_topic, "config": "connect-configs", "status": "connect-status"}
        settings: dict[str, object] = {"group.id": "connect", "offset.storage.partitions": self.partitions}
        settings |= {f"{kind}.storage.topic": topic for kind, topic in topics.items()}
        settings |= {f"{kind}.storage.replication.factor": 1 for kind in topics}
        settings["status.storage.partitions"] = 1
        lines = path.read_text().splitlines(keepends=True)  # "file.filename" would be taken for a setting of the topic
        kept = [line for line in lines if not line.startswith("offset.storage.file.")]
        path.write_text("".join(kept) + properties_text(settings))

    def command(self) -> list[str]:
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        return java_command(self.jars(), self.run_folder, HEAP_MB_MAX, main, str(self.run_folder / "worker.properties"))

    def stored_offset(self, name: str) -> dict[str, Any]:
        offsets = self.stored_offsets(self._connectors[name]["topic.prefix"])
        return offsets[-1] if offsets else {}

    def stored_offsets(self, topic_prefix: str) -> list[dict[str, Any]]:
        """All offsets that were stored and not compacted yet, in their order."""
        ends = end_offsets(self._kafka.bootstrap, self.offsets_topic, self.partitions)
        found = messages_before(self._kafka.bootstrap, self.offsets_topic, ends)
        return [
            json.loads(message.value() or b"{}")
            for message in found
            if json.loads(message.key())[1] == {"server": topic_prefix}
        ]

    def pause(self, name: str) -> None:
        """Stops a connector for a while; returns when it has."""
        self._request("PUT", f"/connectors/{name}/pause")
        tasks = f"/connectors/{name}/status"
        wait_until(
            lambda: {one["state"] for one in self._request("GET", tasks)["tasks"]} == {"PAUSED"}, "it does not pause"
        )

    def resume(self, name: str) -> None:
        """Lets it go on."""
        self._request("PUT", f"/connectors/{name}/resume")

    def kill(self) -> None:
        Server.kill(self)  # its offsets are in no file
