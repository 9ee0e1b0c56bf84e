"""One system's run, driven and measured from outside its process.

1. Start the runner in the system's environment; it says what step comes, and waits.
2. At each such mark look at the bytes written so far and at the CPU seconds of the process tree.
3. At the end compare the final rows with the oracle. A run whose rows differ has no figures.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.peers.environments import REPOSITORY
from benchmarks.peers.given import Given, Scale, difference
from benchmarks.peers.systems import System
from benchmarks.peers.watch import EventsLost, FolderWatch, Written, cpu_seconds, stored
from benchmarks.workload import median, p95

_COUNTED = ("apply", "maintain", "rest", "read", "plain", "between", "finish")
_LOOK_SECONDS = 0.02
_END_SECONDS_MAX = 60


@dataclass(slots=True)
class Window:
    """What was used between two marks."""

    kind: str
    number: int
    cpu_seconds: float
    written: Written
    local_bytes: int


@dataclass(slots=True)
class Run:
    """What was seen of one run; ``error`` tells why there are no figures."""

    system: str
    round: int
    error: str | None = None
    spark: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    resolves: bool = True
    seconds: dict[str, dict[int, float]] = field(default_factory=dict)
    queries: list[dict[str, Any]] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Ratios:
    """A query against plain sorted Parquet: medians of each time that was looked, as ratios."""

    median: float
    max: float
    last: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What is printed of a run. Batches are the measured ones; a batch's seconds have the maintenance that it waited for.

    ``write_amplification``: bytes that came into the table's folder, over bytes of changes; ``write_amplification_running``:
    without ``owed_bytes``, those of the last step, in which what is on the local disk alone is uploaded.
    """

    batch_seconds: list[float]
    plain_seconds: list[float]
    batch_median: float
    batch_p95: float
    batch_max: float
    times_plain: float
    stalls: int
    maintenance_seconds: float
    rest_seconds: float
    cpu_seconds: float
    data_bytes: int
    metadata_bytes: int
    local_bytes: int
    write_amplification: float
    write_amplification_running: float
    owed_bytes: int
    files: int
    bytes: int
    create_seconds: float
    reads: dict[str, Ratios]


class Drain:
    """Looks at the folders again and again: the kernel's queue is finite, and a file may be gone a moment later."""

    def __init__(self, table: FolderWatch, local: FolderWatch) -> None:
        self._watches = table, local
        self._over, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def look(self) -> tuple[Written, Written]:
        """What came into the table's folder and into the local one until now. Raises EventsLost."""
        with self._lock:
            return self._watches[0].look(), self._watches[1].look()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for watch in self._watches:
            watch.close()

    def _run(self) -> None:
        with suppress(EventsLost):  # raised again by the next look
            while not self._over.wait(_LOOK_SECONDS):
                self.look()


def run_system(
    name: str, system: System, python: str, scale: Scale, given: Given, folder: Path, *, number: int, reads: int
) -> Run:
    """Run one system in a folder of its own, which is removed but for its log."""
    run = Run(name, number)
    table, local = folder / "table", folder / "local"
    for each in (table, local):
        each.mkdir(parents=True)
    task = folder / "task.json"
    task.write_text(
        json.dumps(
            {
                "module": system.module, "name": system.name, "variant": system.variant, "memory": scale.memory,
                "place": {
                    "table": str(table), "local": str(local), "rows": scale.rows, "append_only": scale.append_only,
                },
                "initial": given.initial, "batches": given.batches, "warmup": scale.warmup, "checks": given.checks,
                "queries": given.queries, "reads": reads, "plain": str(folder / "plain"), "final": str(folder / "final"),
            }
        )
    )  # fmt: skip
    drain = Drain(FolderWatch(table), FolderWatch(local))
    try:
        _drive(run, [python, "-m", "benchmarks.peers.runner", str(task)], folder, drain)
        if run.error is None:
            run.error = difference(given, folder / "final", run.resolves)
    except EventsLost as error:
        run.error = str(error)
    finally:
        drain.close()
        for each in (table, local, folder / "plain", folder / "final"):
            shutil.rmtree(each, ignore_errors=True)
    return run


@dataclass(frozen=True, slots=True)
class Runner:
    """A runner's process, and this end of the pipes to it."""

    process: subprocess.Popen[bytes]
    events: IO[str]
    answers: IO[str]
    log: Path


@contextmanager
def started(command: Sequence[str], folder: Path) -> Iterator[Runner]:
    """Start a runner in a session of its own, with its output in the folder; it gets the numbers of its pipes as arguments.

    At the end its pipes are closed, which ends it; it is killed if that takes longer than a minute.
    """
    events_read, events_write = os.pipe()
    answers_read, answers_write = os.pipe()
    log = folder / "log.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, str(events_write), str(answers_read)],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(events_write, answers_read),
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))},
        )
    os.close(events_write)
    os.close(answers_read)
    try:
        with os.fdopen(events_read) as events, os.fdopen(answers_write, "w") as answers:
            yield Runner(process, events, answers, log)
    finally:
        try:
            process.wait(_END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _drive(run: Run, command: Sequence[str], folder: Path, drain: Drain) -> None:
    ended = "the runner ended without a word"
    step: tuple[str, int] | None = None
    cpu, written, local = 0.0, Written(), 0
    with started(command, folder) as runner:
        answers = runner.answers
        for line in runner.events:
            event = json.loads(line)
            match event.pop("event"):
                case "mark":
                    table_written, local_written = drain.look()
                    now = cpu_seconds(runner.process.pid), table_written, local_written.bytes
                    if step is not None:
                        run.windows.append(Window(*step, now[0] - cpu, now[1] - written, now[2] - local))
                    cpu, written, local = now
                    step = event["kind"], event["number"]
                    _answer(answers)
                case "step":
                    run.seconds.setdefault(event["kind"], {})[event["number"]] = event["seconds"]
                case "query":
                    run.queries.append(event)
                case "ready":
                    run.spark, run.settings, run.resolves = event["spark"], event["settings"], event["resolves"]
                case "size":
                    run.files, run.bytes = stored(folder / "table")
                    _answer(answers)
                case "failed":
                    ended = event["error"]
                case "done":
                    ended = ""
    if ended:
        run.error = f"{ended} (see {runner.log})"


def _answer(answers: Any) -> None:
    answers.write("\n")
    answers.flush()


def figures(run: Run, scale: Scale, given: Given) -> Figures:
    """What a run that was verified comes to."""
    measured = range(scale.warmup, scale.warmup + scale.batches)
    plain = [run.seconds["plain"][number] for number in measured]
    batches = [run.seconds["apply"][number] + run.seconds["maintain"][number] for number in measured]
    typical = median(batches)
    counted = [window for window in run.windows if window.number >= scale.warmup and window.kind in _COUNTED]
    owed = sum(window.written.bytes for window in counted if window.kind == "finish")
    data = sum(window.written.data for window in counted)
    metadata = sum(window.written.metadata for window in counted)
    plain_cpu = [window.cpu_seconds for window in counted if window.kind == "plain"]
    # Maintenance beside runs on during the plain append: what that took above its usual is the system's. Reads are not.
    working = sum(window.cpu_seconds for window in counted if window.kind != "read")
    return Figures(
        batch_seconds=batches,
        plain_seconds=plain,
        batch_median=typical,
        batch_p95=p95(batches),
        batch_max=max(batches),
        times_plain=typical / median(plain),
        stalls=sum(1 for seconds in batches if seconds > 2 * typical),
        maintenance_seconds=sum(run.seconds["maintain"][number] for number in measured),
        rest_seconds=sum(seconds for number, seconds in run.seconds.get("rest", {}).items() if number in measured),
        cpu_seconds=working - statistics.median(plain_cpu) * len(plain_cpu),
        data_bytes=data,
        metadata_bytes=metadata,
        local_bytes=sum(window.local_bytes for window in counted),
        write_amplification=(data + metadata) / given.change_bytes,
        write_amplification_running=(data + metadata - owed) / given.change_bytes,
        owed_bytes=owed,
        files=run.files,
        bytes=run.bytes,
        create_seconds=run.seconds["create"][0],
        reads=_reads(run, measured),
    )


def _reads(run: Run, measured: range) -> dict[str, Ratios]:
    grouped: dict[str, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for query in run.queries:
        if query["number"] in measured:
            grouped[query["name"]][query["number"]].append((query["plain_seconds"], query["fresh_seconds"]))
    out = {}
    for name, times in grouped.items():
        ratios = [median([b for _, b in pairs]) / median([a for a, _ in pairs]) for pairs in times.values()]
        seconds = median([fresh for pairs in times.values() for _, fresh in pairs])
        out[name] = Ratios(median(ratios), max(ratios), ratios[-1], seconds)
    return out


def as_json(run: Run, scale: Scale, given: Given) -> dict[str, Any]:
    """All that is known of a run; without figures if it failed."""
    out = asdict(run)
    out["figures"] = None if run.error else asdict(figures(run, scale, given))
    return out
