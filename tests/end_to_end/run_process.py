"""``lakebed run`` as a process of a test: started, killed with all it started or alone, and waited for."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tests.end_to_end.progress import ingested_ends
from tests.infra.downloads import REPOSITORY
from tests.infra.processes import descendants, is_alive, started_at
from tests.infra.server import Server
from tests.infra.spark_start import spark_environment
from tests.waiting import length_of, wait_until


class RunProcess(Server):
    """``lakebed run`` of a pipeline; ready when its table, or one of its database, has a commit that it did not have before."""

    ports_needed = 0

    def __init__(self, name: str, folder: Path, pipeline: Mapping[str, Any]) -> None:
        self.name = name
        super().__init__(folder)
        self.table = Path(pipeline["table" if "table" in pipeline else "database"]["path"])
        self.ready_after_seconds: float | None = None
        self._started = 0.0
        self._version = -1
        # When each began goes with its pid: the system gives pids to new processes, and those are nobody's orphans.
        self._orphans: dict[int, str | None] = {}
        self.file = folder / f"{name}.yml"
        self.file.write_text(yaml.safe_dump(dict(pipeline)))

    def prepare(self) -> None:
        self._started = time.monotonic()
        self._version = max(0, self.version())  # creating the table is not yet a commit of ours

    def command(self) -> list[str]:
        return [
            sys.executable,
            "-c",
            "import sys; from lakebed.cli import main; sys.exit(main())",
            "run",
            str(self.file),
        ]

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        return {"LAKEBED_CACHE_DIR": str(self.run_folder / "cache"), "PYTHONPATH": path, **spark_environment()}

    def is_ready(self) -> bool:
        if self.ready_after_seconds is not None:
            return time.monotonic() - self._started >= self.ready_after_seconds
        return self.version() > self._version

    def version(self) -> int:
        """Grows with each commit of the pipeline."""
        return newest_version(self.table)

    def kill(self) -> None:
        """SIGKILL to everything at once."""
        if self.pid is not None:
            kill_all(begun([self.pid, *descendants(self.pid)]))
        super().kill()

    def kill_alone(self) -> None:
        """SIGKILL to the first process; those that it started have to notice by themselves."""
        process, self._process = self._process, None
        assert process is not None
        self._orphans |= begun(descendants(process.pid))
        process.kill()
        process.wait()

    def wait_for_orphans(self) -> None:
        """Returns when nothing is left of processes that were killed alone. Raises AssertionError if they stay."""
        try:
            wait_until(
                lambda: not any(lives(*orphan) for orphan in self._orphans.items()),
                "processes outlived the pipeline that started them",
            )
        finally:
            kill_all(self._orphans)


def catch_up(processes: Iterable[RunProcess], ends: dict[tuple[str, int], int]) -> None:
    """Runs pipelines side by side until each has ingested all there is, and kills them."""
    running = list(processes)
    for process in running:
        process.ready_after_seconds = 0.0
        process.start()
    for process in running:
        wait_until_ingested(process, ends)
        process.kill()


def wait_until_ingested(process: RunProcess, ends: dict[tuple[str, int], int]) -> None:
    """Returns when the pipeline, which runs, has ingested all there is. Raises AssertionError if it ends before."""
    wait_until(
        lambda: ingested_ends(process.table) == ends or not process.is_running,
        lambda: f"{process.name} did not catch up:\n{process.log_tail()}",
        moving=length_of(process.log_path),
    )
    assert process.is_running, f"{process.name} ended by itself:\n{process.log_tail()}"


def begun(pids: Iterable[int]) -> dict[int, str | None]:
    """With each pid when its process began; together they name it for good."""
    return {pid: started_at(pid) for pid in pids}


def lives(pid: int, started: str | None) -> bool:
    return started is not None and is_alive(pid) and started_at(pid) == started


def kill_all(processes: Mapping[int, str | None]) -> None:
    for pid, started in processes.items():
        if lives(pid, started):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def newest_version(table: Path) -> int:
    commits = (path.stem for path in (table / "_delta_log").glob("*.json"))
    return max((int(name) for name in commits if name.isdigit()), default=-1)
