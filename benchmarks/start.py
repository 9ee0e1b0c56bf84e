"""How long `lakebed run` of the example takes to its first commit, and what it costs: stages, CPU seconds, memory.

    python -m benchmarks.start [--runs 3] [--after 20] [--file examples/orders.yml]

Each run starts the real command in a fresh folder. A stage is a line that the command prints, or a commit that appears in the
table's log. The CPU seconds of a kind of process are those that it had used when the stage was seen. On a machine that does
other work too, compare these, not the wall clock. ``PSS`` counts a page that several processes share once; ``RSS`` counts it
in each of them.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.steady import family
from benchmarks.workload import median, table

LOOK_SECONDS = 0.05
SECONDS_MAX = 300.0
EXAMPLE = Path(__file__).parents[1] / "examples" / "orders.yml"
FIRST_COMMIT, FIRST_SETTLE = "first commit", "first settle"
_COMMITS = {"STREAMING UPDATE": FIRST_COMMIT, "SETTLE": FIRST_SETTLE}
KINDS = ("driver", "Java's launcher", "JVM", "Python daemons", "Python workers", "other")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Stage:
    """When a stage was seen, and the CPU seconds of each kind of process until then."""

    seconds: float
    cpu: Mapping[str, float]


@dataclass(slots=True)
class Memory:
    """Of the processes of one kind: how many there are, and their memory in MB."""

    processes: int = 0
    pss: float = 0.0
    rss: float = 0.0


@dataclass(slots=True)
class Measured:
    stages: dict[str, Stage] = field(default_factory=dict)
    memory: dict[str, Memory] = field(default_factory=lambda: defaultdict(Memory))


class _Watch:
    """What a process and all below it have used. A process that ended counts as it was last seen."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._kinds: dict[int, str] = {}
        self._cpu: dict[int, float] = {}

    def look(self) -> None:
        for pid in family(self._root):
            try:
                stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                self._kinds[pid] = self._kind(pid, int(stat[1]))
            except (FileNotFoundError, ProcessLookupError):
                continue
            self._cpu[pid] = (int(stat[11]) + int(stat[12])) / _TICKS

    def cpu(self) -> dict[str, float]:
        out = dict.fromkeys(KINDS, 0.0)
        for pid, seconds in self._cpu.items():
            out[self._kinds[pid]] += seconds
        return out

    def memory(self) -> dict[str, Memory]:
        out: dict[str, Memory] = defaultdict(Memory)
        for pid in family(self._root):
            try:
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
            except (FileNotFoundError, ProcessLookupError):
                continue
            sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 / 1e6 for line in lines}
            found = out[self._kinds.get(pid, "other")]
            found.processes += 1
            found.pss += sizes.get("Pss", 0.0)
            found.rss += sizes.get("Rss", 0.0)
        return out

    def _kind(self, pid: int, parent: int) -> str:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if pid == self._root:
            return "driver"
        if b"org.apache.spark.deploy.SparkSubmit" in command and command[0].endswith(b"java"):
            return "JVM"
        if command[0].endswith((b"java", b"bash")):
            return "Java's launcher"
        if b"-m" not in command:
            return "other"
        return "Python workers" if self._kinds.get(parent) in ("Python daemons", "Python workers") else "Python daemons"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--after", type=float, default=20.0, help="seconds from the first settle to the look at memory")
    parser.add_argument("--file", type=Path, default=EXAMPLE, help="the pipeline file")
    parser.add_argument("--processes", action="store_true", help="list the processes of the last run, and their memory")
    args = parser.parse_args()
    runs = [measure(args.file.resolve(), args.after, args.processes) for _ in range(args.runs)]
    names = [name for name in runs[-1].stages if all(name in run.stages for run in runs)]
    table(
        f"{args.runs} starts of {args.file.name}, median; load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        ["stage", "wall s", "CPU s", *KINDS],
        [
            [
                name,
                median([run.stages[name].seconds for run in runs]),
                median([sum(run.stages[name].cpu.values()) for run in runs]),
                *(median([run.stages[name].cpu[kind] for run in runs]) for kind in KINDS),
            ]
            for name in names
        ],
    )
    rows = [
        [kind, *(median([getattr(run.memory[kind], name) for run in runs]) for name in Memory.__slots__)]
        for kind in KINDS
    ]
    rows = [row for row in rows if row[1]]
    total = ["all", *(sum(row[at] for row in rows) for at in (1, 2, 3))]
    table(f"memory {args.after:g} s after the first settle, MB", ["of", "processes", "PSS", "RSS"], [*rows, total])


def measure(file: Path, after_seconds: float, list_processes: bool = False) -> Measured:
    """One run, from the start of the command until ``after_seconds`` after the first settle."""
    measured = Measured()
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).with_name("lakebed")), "run", str(file), "--metrics-port", "0"]
        started = time.monotonic()
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
        )
        watch = _Watch(process.pid)
        lines = _lines(process)
        log = Path(folder, "lake", "orders", "_delta_log")
        end = started + SECONDS_MAX
        while process.poll() is None and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
            watch.look()
            for name in (*_phases(lines), *_new_commits(log, measured)):
                measured.stages.setdefault(name, Stage(time.monotonic() - started, watch.cpu()))
                if name == FIRST_SETTLE:
                    end = time.monotonic() + after_seconds
        if process.poll() is not None or FIRST_SETTLE not in measured.stages:
            process.kill()
            sys.exit(f"the run ended, or took too long: exit code {process.wait()}, saw {list(measured.stages)}")
        measured.stages["end"] = Stage(time.monotonic() - started, watch.cpu())
        measured.memory |= watch.memory()
        if list_processes:
            subprocess.run(["ps", "-o", "pid,ppid,rss,pss,times,args", "-p", ",".join(map(str, family(process.pid)))])
        process.send_signal(signal.SIGINT)
        process.wait()
    return measured


def _lines(process: subprocess.Popen[str]) -> queue.SimpleQueue[str]:
    found: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert process.stdout is not None
    out = process.stdout

    def read() -> None:
        for line in out:
            found.put(line.strip())

    threading.Thread(target=read, daemon=True).start()
    return found


def _phases(lines: queue.SimpleQueue[str]) -> Iterator[str]:
    """The phases that were printed since the last call: "22:51:03 starting Spark"."""
    while not lines.empty():
        words = lines.get().split(" ", 1)
        if len(words) == 2 and words[0].count(":") == 2 and "·" not in words[1]:
            yield words[1].split(";")[0]


def _new_commits(log: Path, measured: Measured) -> Iterator[str]:
    """The names of the commits that are the first of their kind."""
    if FIRST_SETTLE in measured.stages or not log.exists():
        return
    for file in sorted(log.glob("*.json")):
        for line in file.read_text().splitlines():
            operation = json.loads(line).get("commitInfo", {}).get("operation")
            if operation in _COMMITS and _COMMITS[operation] not in measured.stages:
                yield _COMMITS[operation]


if __name__ == "__main__":
    main()
