"""Which functions and modules a record, a batch, a settle, a merge, a fresh read, a schema change and a point pass through.

    python -m benchmarks.modules [--beside FOLDER]

The record goes from Kafka through ``lakebed run`` to the commit that brings it, and all that the command does until then counts.
The others are calls on a small table, without Spark; the point is kept by a database in memory. What a process does only once,
such as opening DuckDB, was done before.

A function is entered if it runs between the begin and the end of a way, on any thread. A lambda is a function; a comprehension
and what ``dataclass`` generates are not. "Deepest" counts the functions, or the modules, that call one another at one time. "To
the log" are the modules from the verb to the put of the commit's file. ``--beside`` walks the same ways in the sources of another
version, which has its own ``tests`` and its own native code.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lakebed
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, table
from lakebed import cli, events

HERE = Path(__file__).resolve()
WARM_UP = 12
OPTIMIZED = 1
"""The flag of code that is a function's, and neither a module's nor the body of a class."""
PIPELINE = """
table:
  path: {folder}/events
  keys: [id]
  schema: {{id: long, name: string}}
source:
  kind: kafka
  config: {{bootstrap.servers: '{bootstrap}'}}
  topics: [events]
format: json
metrics: {{port: null}}
page: {{port: null}}
"""
Figures = Mapping[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, metavar="FOLDER", help="the sources of another version")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.into:
        args.into.write_text(json.dumps(walked()))
        return
    this = walked_in(HERE.parents[1])
    if args.beside:
        compare(walked_in(args.beside.resolve()), this)
    else:
        show(this)


def walked_in(folder: Path) -> dict[str, Figures]:
    """The ways through the sources in a folder, walked by a process that imports these."""
    with tempfile.TemporaryDirectory() as scratch:
        into = Path(scratch, "ways.json")
        environment = {**os.environ, "PYTHONPATH": str(folder), "LAKEBED_CACHE_DIR": f"{scratch}/cache"}
        command = [sys.executable, "-P", str(HERE), "--into", str(into)]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        found: dict[str, Figures] = json.loads(into.read_text())
        return found


def compare(other: Mapping[str, Figures], this: Mapping[str, Figures]) -> None:
    names = ["functions", "calls", "modules", "deepest functions", "deepest modules"]
    rows: list[list[object]] = [
        [way, name, other[way][name], this[way][name], this[way][name] / other[way][name]]
        for way in this
        for name in names
    ]
    table("The ways, beside another version", ["way", "", "other", "this", "ratio"], rows)


def show(ways: Mapping[str, Figures]) -> None:
    rows: list[list[object]] = []
    for name, way in ways.items():
        rooms: dict[str, list[str]] = {}
        for module in way["entered"]:
            room, _, rest = module.partition(".")
            rooms.setdefault(room, []).append(rest or room)
        rows += [[name, room, len(found), ", ".join(found)] for room, found in rooms.items()]
    table("The ways, room by room", ["way", "room", "modules", ""], rows)
    names = ["rooms", "modules", "functions", "calls", "deepest modules", "deepest functions"]
    table(
        "The same, in sum",
        ["way", *names, "to the log"],
        [[name, *(way[each] for each in names), " → ".join(way["to the log"])] for name, way in ways.items()],
    )


def walked() -> dict[str, Figures]:
    """Walk all ways."""
    ways = {"record": Way(), **{name: Way() for name in ("batch", "settle", "merge", "fresh read", "schema", "point")}}
    with tempfile.TemporaryDirectory() as folder:
        walk_a_table(ways, folder)
        walk_a_point(ways["point"], Path(folder))
        walk_a_record(ways["record"], folder)
    return {name: way.figures() for name, way in ways.items()}


def walk_a_table(ways: Mapping[str, Way], folder: str) -> None:
    work = Workload(50_000, 2_000)
    lake = lakebed.create(f"{folder}/orders", SCHEMA, KEYS, SORT_KEY)
    lake.apply(work.base())
    for _ in range(WARM_UP):
        lake.settle()
        lake.apply(work.batch(), apply_as_deletes=DELETES)
    lake.settle()
    lake.maintenance.compact()
    for _ in range(WARM_UP):
        lake.apply(work.batch(), apply_as_deletes=DELETES)
        lake.to_arrow()
        lake.settle()
    batch = work.batch()
    with ways["batch"].walked():
        lake.apply(batch, apply_as_deletes=DELETES)
    with ways["fresh read"].walked():
        lake.to_arrow()
    with ways["settle"].walked():
        lake.settle()
    with ways["merge"].walked():
        lake.maintenance.compact()
    with ways["schema"].walked():
        lake.alter(add={"discount": "double"})


def walk_a_point(way: Way, folder: Path) -> None:
    """A batch of a database that keeps a point: it is cut, two tables commit, and the point names their versions."""
    from tests.ingest.database.test_points_of_a_database import Bank, pipeline

    bank = Bank(random.Random(0))
    with pipeline(folder, bank) as database:
        for _ in range(3):
            bank.transfer()
            bank.send()
            database.batches(2)
        bank.transfer()
        bank.send()
        with way.walked():
            database.batches(1)


def walk_a_record(way: Way, folder: str) -> None:
    """From the command to the first commit."""
    from confluent_kafka import Producer

    from tests.infra.kafka import KafkaServer

    def hear(event: events.Event) -> None:
        if isinstance(event, events.BatchCommitted):
            way.is_walked = False

    with KafkaServer() as kafka:
        kafka.create_topic("events")
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        producer.produce("events", value=json.dumps({"id": 1, "name": "one"}))
        producer.flush(30)
        file = Path(folder, "events.yml")
        file.write_text(PIPELINE.format(folder=folder, bootstrap=kafka.bootstrap))
        events.listen(hear)
        with way.walked():
            code = cli.main(["run", str(file), "--only", "ingest", "--duration", "1"])
            assert code == 0 and not way.is_walked, "no record came to a commit"


class Way:
    """The functions of lakebed that run while it is walked, and who called whom."""

    def __init__(self) -> None:
        self.is_walked = False
        self._calls: Counter[tuple[str, int]] = Counter()  # by file and line of a function
        self._modules: dict[str, None] = {}  # in the order in which each is first entered
        self._deepest_functions = self._deepest_modules = 0
        self._to_the_log: list[str] = []

    @contextmanager
    def walked(self) -> Iterator[None]:
        """Walk it in a block, or until ``is_walked`` is unset."""
        self.is_walked = True
        threading.setprofile(self._enter)
        sys.setprofile(self._enter)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
            self.is_walked = False

    def figures(self) -> Figures:
        return {
            "functions": len(self._calls),
            "calls": self._calls.total(),
            "modules": len(self._modules),
            "rooms": len({module.partition(".")[0] for module in self._modules}),
            "deepest functions": self._deepest_functions,
            "deepest modules": self._deepest_modules,
            "entered": list(self._modules),
            "to the log": self._to_the_log,
        }

    def _enter(self, frame: FrameType, event: str, _: object) -> None:
        if not self.is_walked or event != "call" or not (module := module_of(frame)):
            return
        self._calls[frame.f_code.co_filename, frame.f_code.co_firstlineno] += 1
        self._modules.setdefault(module)
        callers = modules_that_call(frame)
        self._deepest_functions = max(self._deepest_functions, len(callers))
        chain = [one for number, one in enumerate(callers) if number == 0 or callers[number - 1] != one]
        self._deepest_modules = max(self._deepest_modules, len(chain))
        if frame.f_code.co_name == "put_if_absent":
            self._to_the_log = chain


def module_of(frame: FrameType) -> str:
    """The module of lakebed whose function a frame runs; '' if it runs another's, or none."""
    code, name = frame.f_code, str(frame.f_globals.get("__name__", ""))
    is_generated = code.co_filename.startswith("<") or (code.co_name.startswith("<") and code.co_name != "<lambda>")
    is_function = bool(code.co_flags & OPTIMIZED) and not is_generated
    return name.removeprefix("lakebed.") if is_function and name.startswith("lakebed.") else ""


def modules_that_call(frame: FrameType | None) -> list[str]:
    """The module of each function from the verb down to a frame."""
    modules: list[str] = []
    while frame is not None:
        if module := module_of(frame):
            modules.append(module)
        frame = frame.f_back
    return modules[::-1]


if __name__ == "__main__":
    main()
