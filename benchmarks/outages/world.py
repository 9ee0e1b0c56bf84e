"""The servers, the load, and ``lakebed run`` between them; and each way in which one of them can be down.

``lakebed run`` and ``lakebed status`` reach Kafka, the registry and S3 through gates and a fault proxy. Everything else, such as
who compares the tables with the database, reaches them directly.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import yaml

import lakebed
from benchmarks.outages.gate import Gate, Shut
from lakebed.errors import LakebedError
from tests.infra.connect import avro_converters
from tests.infra.debezium import DebeziumServer
from tests.infra.downloads import REPOSITORY
from tests.infra.fault_proxy import SLOW_DOWN, FaultProxy, FaultRates
from tests.infra.kafka import KafkaServer
from tests.infra.postgres import PostgresServer
from tests.infra.processes import descendants
from tests.infra.registry import RegistryServer
from tests.infra.s3 import S3Server, aws_environment
from tests.infra.server import HOST, ServerFailed
from tests.infra.spark_start import spark_environment
from tests.waiting import wait_until

DATABASE = "shop"
TABLES = ("orders", "items", "customers", "payments")
KEYS = 500
WRITE_SECONDS = 0.4
DISK_MB = 512
FULL = (507, "Insufficient Storage", "XMinioStorageFull")
SHUTS: tuple[Shut, ...] = ("refuse", "stall", "lose")


class GatedKafka(KafkaServer):
    """A broker with one more listener, whose address is that of a gate in front of it."""

    ports_needed = 3
    gate: Gate

    def start(self) -> GatedKafka:
        super().start()
        return self

    def _configuration(self, data: Path) -> dict[str, object]:
        plain = super()._configuration(data)
        if not hasattr(self, "gate"):
            self.gate = Gate(self.ports[2]).__enter__()
        return plain | {
            "listeners": f"{plain['listeners']},GATED://{HOST}:{self.ports[2]}",
            "advertised.listeners": f"{plain['advertised.listeners']},GATED://{HOST}:{self.gate.port}",
            "listener.security.protocol.map": f"{plain['listener.security.protocol.map']},GATED:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
        }


class World:
    """All of it, from ``begin`` until the stack is closed. Times are seconds since ``epoch`` (monotonic)."""

    def __init__(self, stack: ExitStack, folder: Path, seed: int) -> None:
        self.folder = folder
        self.draw = random.Random(seed)
        self.kafka = stack.enter_context(GatedKafka())
        self.postgres = stack.enter_context(PostgresServer())
        self.registry = stack.enter_context(RegistryServer())
        self.s3 = stack.enter_context(S3Server())
        self.connect = stack.enter_context(DebeziumServer(self.kafka, self.postgres))
        stack.callback(self.kafka.gate.__exit__)
        self.registry_gate = stack.enter_context(Gate(self.registry.ports[0]))
        self.s3_faults = stack.enter_context(FaultProxy(self.s3.ports[0], seed))
        self.s3_gate = stack.enter_context(Gate(self.s3_faults.port))
        self.disk = folder / "disk"
        self.has_disk = _mounted(self.disk)
        if self.has_disk:
            stack.callback(lambda: subprocess.run(["umount", "-l", str(self.disk)], check=False))
        stack.enter_context(aws_environment(self.s3.endpoint))
        self.root = f"s3://{self.s3.create_bucket()}/lake/shop"
        self.epoch = time.monotonic()
        self.seq = 0
        self.unseen: deque[tuple[int, float]] = deque()  # number and time of transactions that a table may not show
        self.shown = 0
        self.lines: list[tuple[float, str]] = []
        self.run: subprocess.Popen[str] | None = None
        self._columns = 0
        self._closed = threading.Event()
        self._stack = stack

    def now(self) -> float:
        return time.monotonic() - self.epoch

    # -- begin and end -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Capture the tables, start the load and the run; returns when its rows come."""
        self.postgres.create_database(DATABASE)
        columns = "id bigint primary key, seq bigint, at timestamptz, note text"
        for table in TABLES:
            self.postgres.sql(f"create table {table} ({columns}); alter table {table} replica identity full", DATABASE)
        settings = {**avro_converters(self.registry), "retriable.restart.connector.wait.ms": "1000"}
        self._connector = self.connect.capture(DATABASE, [f"public.{name}" for name in TABLES], DATABASE, settings)
        self._start(self._write, "writer")
        self.start_run()
        self._start(self._read, "reader")
        run = self.run
        assert run is not None
        wait_until(lambda: self.shown > 0 or run.poll() is not None, lambda: "no row came:\n" + "\n".join(self._tail()))
        if run.poll() is not None:
            raise RuntimeError("the pipeline has ended:\n" + "\n".join(self._tail()))

    def _tail(self) -> list[str]:
        return [text for _, text in self.lines[-30:]]

    def start_run(self) -> None:
        """Start ``lakebed run``; its lines are noted with their times."""
        file = self.folder / "shop.yml"
        file.write_text(
            yaml.safe_dump(
                {
                    "database": {"path": self.root, "max_age_seconds": 1},
                    "source": {
                        "kind": "kafka",
                        "config": {"bootstrap.servers": f"{HOST}:{self.kafka.gate.port}"},
                        "topic_pattern": rf"{DATABASE}\.public\..*",
                    },
                    "format": {"kind": "debezium-avro"},
                    "registry": {"url": f"{self.registry_gate.url}/apis/ccompat/v7"},
                    "evolve": ["add"],
                    "checkpoint": f"{self.root.rpartition('/')[0]}/checkpoint",
                    "metrics": {"port": 0},
                    "page": {"port": 0},
                    "spark": {"master": "local[2]", "conf": {"spark.local.dir": str(self.disk)}},
                }
            )
        )
        self.run = subprocess.Popen(
            [sys.executable, "-c", "import sys; from lakebed.cli import main; sys.exit(main())", "run", str(file)],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._stack.callback(self._kill_run)
        self._start(self._note_lines, "lines")

    def environment(self) -> dict[str, str]:
        """Of lakebed's processes."""
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        return {
            **os.environ, **spark_environment(), "PYTHONPATH": path, "AWS_ENDPOINT_URL": self.s3_gate.url,
            "TMPDIR": str(self.disk), "LAKEBED_CACHE_DIR": str(self.disk / "cache"), "COLUMNS": "2000",
        }  # fmt: skip

    def end(self) -> list[str]:
        """End the load, wait until all has arrived, end the run; returns what is wrong."""
        self._closed.set()
        wrong = []
        try:
            wait_until(lambda: not self.unseen, lambda: f"transactions that no table shows: {len(self.unseen)}")
        except AssertionError as error:
            wrong.append(str(error).splitlines()[0])
        assert self.run is not None
        if self.run.poll() is not None:
            wrong.append(f"the run ended by itself with exit code {self.run.returncode}")
        else:
            self.run.send_signal(signal.SIGINT)
            try:
                code = self.run.wait(120)
                wrong += [f"the run ended with exit code {code}"] if code else []
            except subprocess.TimeoutExpired:
                wrong.append("the run did not end within 120 s")
        for table in TABLES:
            rows = self.postgres.sql(f"select id, seq from {table} order by id", DATABASE)
            expected = [(int(one), int(other)) for one, other in rows]
            found = (
                lakebed.open(f"{self.root}/public/{table}").to_arrow().select(["id", "seq"]).sort_by("id").to_pylist()
            )
            if expected != [(row["id"], row["seq"]) for row in found]:
                lost = set(expected) - {(row["id"], row["seq"]) for row in found}
                wrong.append(
                    f"{table} differs: {len(expected)} rows in the source, {len(found)} in the table, {len(lost)} lost"
                )
        return wrong

    def _start(self, work: Callable[[], None], name: str) -> None:
        threading.Thread(target=work, name=name, daemon=True).start()

    def _kill_run(self) -> None:
        assert self.run is not None
        for pid in (*descendants(self.run.pid), self.run.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # -- the load, and what is seen of it ------------------------------------------------------------------------------

    def _write(self) -> None:
        while not self._closed.wait(WRITE_SECONDS):
            seq = self.seq + 1
            key, gone = 1 + seq % KEYS, 1 + (seq * 7) % KEYS
            values = f"({{}}, {seq}, now(), repeat('x', 200))"
            newer = "on conflict (id) do update set seq = excluded.seq, at = now()"
            texts = [
                f"insert into {table} (id, seq, at, note) values {values.format(0)}, {values.format(key)} {newer}"
                + (f"; delete from {table} where id = {gone}" if gone != key else "")
                for table in TABLES
            ]
            with suppress(ServerFailed, OSError):
                self.postgres.sql(f"begin; {'; '.join(texts)}; commit", DATABASE)
                self.seq = seq
                self.unseen.append((seq, self.now()))

    def _read(self) -> None:
        """What the tables show: the least of their newest transactions."""
        tables: dict[str, lakebed.Table] = {}
        while True:
            with suppress(LakebedError, IndexError, OSError):
                newest = []
                for name in TABLES:
                    if name not in tables:
                        tables[name] = lakebed.open(f"{self.root}/public/{name}")
                    newest.append(tables[name].to_arrow(columns=["seq"], where="id = 0")["seq"][0].as_py())
                self.shown = min(newest)
                while self.unseen and self.unseen[0][0] <= self.shown:
                    self.unseen.popleft()
            time.sleep(0.7)

    @property
    def lag_seconds(self) -> float:
        """How old the oldest event is that a table does not show."""
        try:
            return self.now() - self.unseen[0][1]
        except IndexError:
            return 0.0

    def _note_lines(self) -> None:
        assert self.run is not None and self.run.stdout is not None
        with (self.folder / "run.log").open("a") as file:
            for line in self.run.stdout:
                self.lines.append((self.now(), line.rstrip()))
                file.write(f"{self.now():8.1f} {line}")
                file.flush()

    # -- outages -------------------------------------------------------------------------------------------------------

    def ways(self) -> dict[str, list[str]]:
        """Each kind of dependency, and how it can be down."""
        return {
            "kafka": [*SHUTS, "stopped"],
            "registry": [*SHUTS, "stopped"],
            "s3": [*SHUTS, "cut", "503", "507", "stopped"],
            "connector": ["stopped", "killed", "paused", "postgres"],
            **({"disk": ["full"]} if self.has_disk else {}),
        }

    @contextmanager
    def down(self, kind: str, how: str) -> Iterator[None]:
        """It is down while this lasts, and whole again when this has ended."""
        gates = {"kafka": self.kafka.gate, "registry": self.registry_gate, "s3": self.s3_gate}
        servers = {"kafka": self.kafka, "registry": self.registry, "s3": self.s3, "connector": self.connect}
        if how in ("refuse", "stall", "lose", "cut"):
            gates[kind].shut(how)  # type: ignore[arg-type]
            if kind == "registry":
                self._alter()
            yield
            gates[kind].open()
        elif how == "stopped":
            pid = servers[kind].pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            yield
            os.kill(pid, signal.SIGCONT)
        elif how in ("503", "507"):
            self.s3_faults.refusal = FULL if how == "507" else SLOW_DOWN
            self.s3_faults.set_rates(
                FaultRates(before=1.0, methods=frozenset(("PUT", "POST")) if how == "507" else None)
            )
            yield
            self.s3_faults.set_rates(FaultRates())
        elif how == "killed":
            self.connect.kill()
            yield
            self.connect.start()
        elif how == "paused":
            self._ask_connect("PUT", "pause")
            yield
            self._ask_connect("PUT", "resume")
            wait_until(lambda: self.connect.is_following(self._connector), "the connector does not resume")
        elif how == "postgres":
            self.postgres.stop()
            yield
            self.postgres.start()
            wait_until(lambda: self.connect.is_following(self._connector), "the connector does not come back")
        elif how == "full":
            ballast = self.disk / "ballast"
            with ballast.open("wb") as file, suppress(OSError):
                while True:
                    file.write(bytes(1 << 20))
                    file.flush()
            yield
            ballast.unlink()

    def _alter(self) -> None:
        """A new column: its records have a schema that the run has to ask for."""
        self._columns += 1
        self.postgres.sql(f"alter table orders add column extra_{self._columns} int", DATABASE)

    def _ask_connect(self, method: str, what: str) -> None:
        url = f"http://{HOST}:{self.connect.ports[0]}/connectors/{self._connector}/{what}"
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30):
            pass


def _mounted(folder: Path) -> bool:
    """Whether a small disk of its own is mounted there, for which one has to be root."""
    folder.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=1777", "tmpfs"]
    return (
        shutil.which("mount") is not None
        and not subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False).returncode
    )


class StatusProcess:
    """A process that runs ``lakebed status`` again and again, without the seconds that Python takes to begin."""

    PROGRAM = """
import contextlib, io, json, sys, time
from lakebed.cli import main
for path in sys.stdin:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(["status", path.strip(), "--format", "json"])
    print(json.dumps([code, out.getvalue()]), flush=True)
"""

    def __init__(self, world: World) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.PROGRAM],
            env=world.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._root = world.root

    def ask(self) -> tuple[int, str]:
        """The exit code, and what is wrong according to its output."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{self._root}\n")
        self._process.stdin.flush()
        code, output = json.loads(self._process.stdout.readline())
        wrong = []
        for line in output.splitlines():
            try:
                row = json.loads(line)
                wrong += [text for text in (row.get("what"), row.get("error")) if text]
            except (ValueError, AttributeError):
                wrong.append(line)
        return code, "; ".join(wrong)

    def close(self) -> None:
        self._process.kill()


def fetched(url: str) -> str:
    """What a page says. Raises OSError."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())
