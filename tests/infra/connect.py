"""Kafka Connect (standalone) with Debezium: changes of real tables arrive in real topics.

Invariants, so that a test may kill the worker at any time and still compare topics with tables:

- ``run`` returns when the connector streams and has stored its offset. Killed before that, it would begin again with a
  snapshot, which does not tell of rows deleted meanwhile. Heartbeats make it store one if nothing changes.
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
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.infra.jvm import java_command, properties_text
from tests.infra.kafka import KafkaServer
from tests.infra.registry import RegistryServer
from tests.infra.server import HOST, Server, ServerFailed
from tests.waiting import wait_until

HEAP_MB_MAX = 512
JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
AVRO_CONVERTER = "io.apicurio.registry.utils.converter.AvroConverter"


def avro_converters(registry: RegistryServer) -> dict[str, str]:
    """Settings of a connector that writes keys and values as Avro, in Confluent's wire format with its subjects' names."""
    converter = {
        "": AVRO_CONVERTER,
        ".apicurio.registry.url": registry.native_url,
        ".apicurio.registry.auto-register": "true",
        ".apicurio.registry.as-confluent": "true",
        ".apicurio.registry.use-id": "contentId",
        ".apicurio.registry.headers.enabled": "false",
    }
    return {f"{part}.converter{option}": value for part in ("key", "value") for option, value in converter.items()} | {
        # Columns and topics may have names that Avro's have no room for.
        "field.name.adjustment.mode": "avro",
        "schema.name.adjustment.mode": "avro",
    }


class ConnectWorker(Server):
    """One Connect worker. ``capture`` starts a connector; connectors come back after ``kill`` and ``start``."""

    busy: tuple[int, ...] = ()
    """The codes of answers that ask to come again."""

    def __init__(self, kafka: KafkaServer, run_folder: Path | None = None) -> None:
        super().__init__(run_folder)
        self._kafka = kafka
        self._connectors: dict[str, dict[str, str]] = {}

    @abstractmethod
    def jars(self) -> Path:
        """The folder with the jars of Connect and the connector."""

    @abstractmethod
    def connector(self, database: str, tables: Sequence[str], topic_prefix: str) -> dict[str, str]:
        """The configuration of a connector that captures tables, without what all databases have in common."""

    @abstractmethod
    def is_following(self, name: str) -> bool:
        """Whether the database serves the connector its changes."""

    def capture(
        self,
        database: str,
        tables: Sequence[str],
        topic_prefix: str,
        settings: Mapping[str, object] | None = None,
    ) -> str:
        """Starts capturing tables of a database into topics ``<topic_prefix>.<table with its schema or database>``.

        ``settings`` adds to or replaces the connector's configuration. Returns the connector's name when the snapshot
        is over and every later change of the tables will arrive.
        """
        name = slot_name(topic_prefix)
        self._connectors[name] = {
            "tasks.max": "1",
            "database.hostname": HOST,
            "topic.prefix": topic_prefix,
            "table.include.list": ",".join(tables),
            "snapshot.mode": "initial",
            "poll.interval.ms": "50",
            "heartbeat.interval.ms": "200",
            **self.connector(database, tables, topic_prefix),
            **{key: str(value) for key, value in (settings or {}).items()},
        }
        self._put(name)
        self._wait_until_streaming(name)
        return name

    def release(self, name: str) -> None:
        """Stops a connector."""
        self._connectors.pop(name, None)  # it may have come through the REST interface
        self._request("DELETE", f"/connectors/{name}")

    def status(self, name: str) -> dict[str, Any]:
        """The connector's and its task's state, as Connect tells it."""
        return dict(self._request("GET", f"/connectors/{name}/status"))

    def check(self, name: str) -> int:
        """The number of the connector's tasks. Raises ServerFailed with the reason if it, or one of them, has failed."""
        status = self.status(name)
        failed = [
            one.get("trace", "no trace") for one in (status["connector"], *status["tasks"]) if one["state"] == "FAILED"
        ]
        if failed:
            raise ServerFailed(f"connector {name} failed: {failed[0]}")
        return len(status["tasks"])

    def start(self) -> Self:
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
        return java_command(self.jars(), self.run_folder, HEAP_MB_MAX, main, configuration)

    def is_ready(self) -> bool:
        self._request("GET", "/connectors")
        return True

    def stored_offset(self, name: str) -> dict[str, Any]:
        """How far the connector came, as Connect has stored it; empty before its first offset, and while the file is written."""
        topic_prefix = self._connectors[name]["topic.prefix"]
        # The file is a serialized Java map with JSON texts as keys and values. Before each is its length, which may be a "{".
        found = re.search(
            re.escape(f'{{"server":"{topic_prefix}"}}]').encode() + rb"[^{]*{?({\"[^}]*})", self._offsets()
        )
        return dict(json.loads(found[1])) if found else {}

    def _put(self, name: str) -> None:
        self._request("PUT", f"/connectors/{name}/config", self._connectors[name])

    def _wait_until_streaming(self, name: str) -> None:
        def is_streaming() -> bool:
            try:
                tasks = self.check(name)
            except urllib.error.HTTPError:  # not known yet
                return False
            if tasks != 1 or not self.is_following(name):
                return False
            offset = self.stored_offset(name)
            return bool(offset) and "snapshot" not in offset

        wait_until(
            is_streaming, lambda: f"connector {name} does not stream; the end of {self.log_path}:\n{self.log_tail()}"
        )

    def _offsets(self) -> bytes:
        path = self.run_folder / "offsets"
        return path.read_bytes() if path.exists() else b""

    def _request(self, method: str, path: str, body: object = None) -> Any:
        answers: list[Any] = []

        def is_answered() -> bool:
            try:
                answers.append(self._requested(method, path, body))
            except urllib.error.HTTPError as error:
                if error.code not in self.busy:
                    raise
            return bool(answers)

        wait_until(is_answered, f"Connect does not answer {method} {path}")
        return answers[0]

    def _requested(self, method: str, path: str, body: object) -> Any:
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
