"""Debezium's PostgreSQL connector in Kafka Connect (standalone): changes of real tables arrive in real topics.

Invariants, so that a test may kill the worker at any time and still compare topics with tables:

- ``capture`` returns when the connector streams and has stored its offset. Killed before that, it would begin again
  with a snapshot, which does not tell of rows deleted meanwhile. Heartbeats make it store one if nothing changes.
- ``kill`` never hits while the offset file is being written. Standalone Connect truncates and rewrites it in place; a
  torn file would count as none. (A distributed worker keeps offsets in a topic and has no such moment.)
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.infra.downloads import debezium_jars
from tests.infra.jvm import java_command, properties_text
from tests.infra.kafka import KafkaServer
from tests.infra.postgres import SUPERUSER, PostgresServer
from tests.infra.server import HOST, Server, ServerFailed
from tests.waiting import wait_until

HEAP_MB_MAX = 512
JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"


class DebeziumServer(Server):
    """One Connect worker. ``capture`` starts a connector; connectors come back after ``kill`` and ``start``."""

    name = "debezium"

    def __init__(self, kafka: KafkaServer, postgres: PostgresServer, run_folder: Path | None = None) -> None:
        super().__init__(run_folder)
        self._kafka = kafka
        self._postgres = postgres
        self._connectors: dict[str, dict[str, str]] = {}

    def capture(
        self,
        database: str,
        tables: Sequence[str],
        topic_prefix: str,
        settings: Mapping[str, object] | None = None,
    ) -> str:
        """Starts capturing tables (``schema.table``) into topics ``<topic_prefix>.<schema>.<table>``.

        ``settings`` adds to or replaces the connector's configuration. Returns the connector's name when the snapshot
        is over and every later change of the tables will arrive.
        """
        name = slot_name(topic_prefix)
        self._connectors[name] = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "tasks.max": "1",
            "plugin.name": "pgoutput",
            "publication.autocreate.mode": "filtered",
            "publication.name": name,
            "slot.name": name,
            "database.hostname": HOST,
            "database.port": str(self._postgres.port),
            "database.user": SUPERUSER,
            "database.password": "trusted",
            "database.dbname": database,
            "topic.prefix": topic_prefix,
            "table.include.list": ",".join(tables),
            "snapshot.mode": "initial",
            "poll.interval.ms": "50",
            "heartbeat.interval.ms": "200",
            **{key: str(value) for key, value in (settings or {}).items()},
        }
        self._put(name)
        self._wait_until_streaming(name)
        return name

    def release(self, name: str) -> None:
        """Stops a connector and drops its replication slot."""
        self._connectors.pop(name, None)  # it may have come through the REST interface
        self._request("DELETE", f"/connectors/{name}")
        unused = f"select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = '{name}'"
        wait_until(lambda: not self._slot_is_active(name), f"connector {name} did not let go of its replication slot")
        self._postgres.sql(unused)

    def status(self, name: str) -> dict[str, Any]:
        """The connector's and its task's state, as Connect tells it."""
        return dict(self._request("GET", f"/connectors/{name}/status"))

    def start(self) -> DebeziumServer:
        super().start()
        for name in self._connectors:
            self._put(name)
        for name in self._connectors:
            self._wait_until_streaming(name)
        return self

    def kill(self) -> None:
        # Stop the world, look, and let it go on if it was writing; b"x" ends a serialized Java map.
        deadline = time.monotonic() + self.stop_seconds_max
        while self.pid is not None and self.is_running and time.monotonic() < deadline:
            os.kill(self.pid, signal.SIGSTOP)
            if self._offsets().endswith(b"x") or not self._connectors:
                break
            os.kill(self.pid, signal.SIGCONT)
            time.sleep(0.02)
        super().kill()

    def prepare(self) -> None:
        plugins = self.run_folder / "plugins"
        plugins.mkdir(exist_ok=True)
        configuration: dict[str, object] = {
            "bootstrap.servers": self._kafka.bootstrap,
            "listeners": f"http://{HOST}:{self.ports[0]}",
            "rest.advertised.host.name": HOST,
            "key.converter": JSON_CONVERTER,
            "value.converter": JSON_CONVERTER,
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": "false",
            "offset.storage.file.filename": self.run_folder / "offsets",
            "offset.flush.interval.ms": 200,
            "plugin.discovery": "service_load",
            "plugin.path": plugins,
            "producer.linger.ms": 5,
        }
        (self.run_folder / "worker.properties").write_text(properties_text(configuration))

    def command(self) -> list[str]:
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        configuration = str(self.run_folder / "worker.properties")
        return java_command(debezium_jars(), self.run_folder, HEAP_MB_MAX, main, configuration)

    def is_ready(self) -> bool:
        self._request("GET", "/connectors")
        return True

    def _put(self, name: str) -> None:
        self._request("PUT", f"/connectors/{name}/config", self._connectors[name])

    def _wait_until_streaming(self, name: str) -> None:
        topic_prefix = self._connectors[name]["topic.prefix"]

        def is_streaming() -> bool:
            try:
                status = self.status(name)
            except urllib.error.HTTPError:  # not known yet
                return False
            states = [status["connector"], *status["tasks"]]
            failed = [state.get("trace", "no trace") for state in states if state["state"] == "FAILED"]
            if failed:
                raise ServerFailed(f"connector {name} failed: {failed[0]}")
            return len(states) == 2 and self._slot_is_active(name) and self._offset_is_stored(topic_prefix)

        wait_until(
            is_streaming, lambda: f"connector {name} does not stream; the end of {self.log_path}:\n{self.log_tail()}"
        )

    def _slot_is_active(self, name: str) -> bool:
        return self._postgres.sql(f"select active from pg_replication_slots where slot_name = '{name}'") == [["t"]]

    def _offset_is_stored(self, topic_prefix: str) -> bool:
        """Whether the offset file, a serialized Java map, holds an offset past the snapshot for the connector."""
        found = re.search(re.escape(f'{{"server":"{topic_prefix}"}}]').encode() + rb"[^{]*({[^}]*})", self._offsets())
        return found is not None and b'"snapshot"' not in found[1]

    def _offsets(self) -> bytes:
        path = self.run_folder / "offsets"
        return path.read_bytes() if path.exists() else b""

    def _request(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            f"http://{HOST}:{self.ports[0]}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            text = response.read()
        return json.loads(text) if text else None


def slot_name(topic_prefix: str) -> str:
    """A replication slot's name may hold only lower-case letters, digits and underscores."""
    return "".join(char if char.isalnum() else "_" for char in topic_prefix.lower())
