"""A standalone Spark cluster out of the pyspark wheel: one master, several workers, jobs in processes of their own.

Invariants:

- The job's process, the workers and the executors use the Python that runs the tests.
- lakebed reaches the executors as a wheel, as it would on a real cluster: never by a path they happen to share.

Steps of ``run``:

1. Build lakebed's wheel, if its source changed.
2. Start the script with ``python``, the master's address in ``SPARK_MASTER`` and the wheel in ``SPARK_PY_FILES``; the
   script builds its session from them.
3. Wait for its end and return what it printed; a failure or a timeout is an error with the end of its output.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from tests.infra import machines
from tests.infra.downloads import lakebed_wheel
from tests.infra.machines import Machine, Machines
from tests.infra.server import HOST, Server, ServerFailed, new_run_folder
from tests.infra.spark_start import spark_environment, spark_options

DAEMON_MEMORY = "256m"


@lru_cache(maxsize=1)
def spark_home() -> Path:
    """The folder of the pyspark wheel, found without importing it."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise ServerFailed("pyspark is not installed in this Python: run `make setup`")
    return Path(found.origin).parent


class _SparkDaemon(Server):
    stop_seconds_max = 10

    def prepare(self) -> None:
        return

    def environment(self) -> dict[str, str]:
        return {
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": spark_options(),
            **spark_environment(),
            "PYSPARK_PYTHON": sys.executable,
        }

    def daemon_command(self, main: str, *arguments: str) -> list[str]:
        return [str(spark_home() / "bin" / "spark-class"), main, *arguments]


class SparkMaster(_SparkDaemon):
    """The master; it loses its memory of workers and jobs in a restart, and workers report again by themselves."""

    name = "spark-master"
    ports_needed = 2

    def __init__(self, run_folder: Path, host: str = HOST) -> None:
        super().__init__(run_folder)
        self._host = host

    @property
    def url(self) -> str:
        return f"spark://{self._host}:{self.ports[0]}"

    def environment(self) -> dict[str, str]:
        return super().environment() | {"SPARK_LOCAL_IP": self._host}

    def command(self) -> list[str]:
        port, web_port = (str(port) for port in self.ports)
        return self.daemon_command(
            "org.apache.spark.deploy.master.Master", "--host", self._host, "--port", port, "--webui-port", web_port
        )

    def is_ready(self) -> bool:
        try:
            return bool(self.state()["status"] == "ALIVE")
        except json.JSONDecodeError:  # while it starts, its front page answers for every path
            return False

    def state(self) -> dict[str, object]:
        """What the master knows of itself, its workers and its jobs."""
        with urllib.request.urlopen(f"http://{self._host}:{self.ports[1]}/json/", timeout=5) as response:
            return dict(json.load(response))

    def live_worker_ports(self) -> set[int]:
        """The ports of the workers that the master believes alive."""
        workers = self.state()["workers"]
        assert isinstance(workers, list)
        return {int(worker["port"]) for worker in workers if worker["state"] == "ALIVE"}


class SparkWorker(_SparkDaemon):
    """A worker; ``kill`` takes its executors with it, as a machine that is gone would."""

    ports_needed = 2

    def __init__(
        self,
        master: SparkMaster,
        number: int,
        cores: int,
        memory: str,
        run_folder: Path,
        place: str | Machine = HOST,
    ) -> None:
        """``place``: an address of this machine, or another machine."""
        self._machine = None if isinstance(place, str) else place
        self._host = place if isinstance(place, str) else place.address
        self.name = f"spark-worker-{number}"
        super().__init__(run_folder)
        self._master = master
        self._cores = cores
        self._memory = memory

    def environment(self) -> dict[str, str]:
        own = super().environment() | {"SPARK_LOCAL_IP": self._host}
        if self._machine:
            own |= {"SPARK_HOME": machines.SPARK_HOME, "PYSPARK_PYTHON": ""}
        return own

    def command(self) -> list[str]:
        port, web_port = (str(port) for port in self.ports)
        limits = ["--cores", str(self._cores), "--memory", self._memory]
        places = [
            "--host",
            self._host,
            "--port",
            port,
            "--webui-port",
            web_port,
            "--work-dir",
            machines.WORK if self._machine else str(self.run_folder / self.name),
        ]
        command = self.daemon_command("org.apache.spark.deploy.worker.Worker", *limits, *places, self._master.url)
        if self._machine is None:
            return command
        command[0] = f"{machines.SPARK_HOME}/bin/spark-class"
        return self._machine.command(spark_home(), command)

    def is_ready(self) -> bool:
        return self.ports[0] in self._master.live_worker_ports()


class SparkCluster:
    """A master and its workers; each can be killed and restarted by itself."""

    def __init__(
        self,
        worker_count: int = 2,
        worker_cores: int = 1,
        worker_memory: str = "1g",
        hosts: Sequence[str] = (HOST, HOST),
        others: Machines | None = None,
    ) -> None:
        """``hosts``: the addresses of this machine that the workers have; ``others``: where they run instead, one on each."""
        self.run_folder = new_run_folder("spark-cluster")
        self.master = SparkMaster(self.run_folder, others.here if others else HOST)
        places = others.all if others else [hosts[number % len(hosts)] for number in range(worker_count)]
        self.workers = [
            SparkWorker(self.master, number, worker_cores, worker_memory, self.run_folder, place)
            for number, place in enumerate(places)
        ]

    @property
    def url(self) -> str:
        return self.master.url

    def start(self) -> Self:
        self.master.start()
        for worker in self.workers:
            worker.start()
        return self

    def stop(self) -> None:
        for server in (*self.workers, self.master):
            server.stop()

    def kill(self) -> None:
        for server in (*self.workers, self.master):
            server.kill()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.run_folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *raised: object) -> None:
        self.close()

    def environment(self) -> dict[str, str]:
        """What a job's process needs in its environment besides what this one has."""
        return {
            "SPARK_MASTER": self.url,
            "SPARK_PY_FILES": str(self.lakebed_zip()),
            "SPARK_EXECUTOR_OPTIONS": spark_options(),
            **spark_environment(),
            "SPARK_LOCAL_IP": HOST,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }

    def lakebed_zip(self) -> Path:
        """lakebed's wheel under a name that Spark puts on the executors' path: it knows .zip, not .whl."""
        wheel = lakebed_wheel()
        shipped = self.run_folder / f"{wheel.stem}-{wheel.parent.name}.zip"
        if not shipped.exists():
            shutil.copy(wheel, shipped)
        return shipped

    def submit(
        self, script: Path | str, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts a script as a job's driver and returns its process; the caller waits for it or ends it."""
        if isinstance(script, str):
            path = self.run_folder / "job.py"
            path.write_text(script)
        else:
            path = script
        with (self.run_folder / "job.errors").open("w") as errors:
            return subprocess.Popen(
                [sys.executable, str(path), *arguments],
                cwd=self.run_folder,
                env={**os.environ, **self.environment(), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def errors(self) -> str:
        return "\n".join((self.run_folder / "job.errors").read_text().splitlines()[-25:])
