"""How fast folders of files come into a table: many files of many lines, and many small ones; and what a look at a folder costs.

    python -m benchmarks.files [--rounds 3] [--cases json csv …] [--listing 100000]

Each round reads a new folder into a new table with keys, by a pipeline file, until nothing is left, and ends. The query runs once
before, so that Java and its Python workers are warm. ``CPU`` is of all processes, Java's too: on a machine that does other work,
compare it and not the wall clock. ``--listing``: the time that the planner needs for a folder of so many files of which all are
known, and for one of which none is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

import lakebed
from benchmarks.steady import family
from benchmarks.workload import median, table
from lakebed.ingest.batch_writer import Written, commit_written
from lakebed.log.entries import Operation
from lakebed.pipeline import sources
from lakebed.pipeline.settings import parse_any
from lakebed.pipeline.target import open_or_create
from lakebed.positions.files_read import FileRead, FilesRead
from lakebed.sources.files.folder import Looker
from lakebed.sources.files.planner import FilesPlanner
from lakebed.sources.files.settings import FilesSettings
from lakebed.table import internals_of

COLUMNS = "{id: long not null, region: string, amount: double, note: string, at: timestamp}"
CASES: dict[str, tuple[str, int, int]] = {
    "json": ("json", 200, 20_000),
    "json, small files": ("json", 5_000, 100),
    "json, one file": ("json", 1, 2_000_000),
    "csv": ("csv", 200, 20_000),
    "csv, small files": ("csv", 5_000, 100),
    "csv with deletes": ("csv-deletes", 200, 20_000),
    "parquet": ("parquet", 200, 20_000),
    "parquet with deletes": ("parquet-deletes", 200, 20_000),
}
"""By name: the format, how many files, how many rows each."""
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument(
        "--cases", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}; none: only the listing"
    )
    arguments.add_argument(
        "--scale", type=float, default=1.0, help="of the number of files, or of the rows of one file"
    )
    arguments.add_argument("--listing", type=int, default=0, metavar="FILES")
    asked = arguments.parse_args()
    sources.trigger = lambda seconds: {"availableNow": True}  # type: ignore[dict-item]
    with tempfile.TemporaryDirectory(prefix="lakebed-files-") as folder:
        os.environ.setdefault("LAKEBED_CACHE_DIR", f"{folder}/cache")
        if asked.listing:
            _measure_listing(Path(folder), asked.listing)
        if asked.cases:
            _measure_cases(Path(folder), asked.cases, asked.rounds, asked.scale)


def _measure_cases(folder: Path, cases: list[str], rounds: int, scale: float) -> None:
    spark = lakebed.spark("files", conf={"spark.log.level": "ERROR"})
    rows: list[list[object]] = []
    for name in cases:
        kind, files, lines = CASES[name]
        files, lines = (1, int(lines * scale)) if files == 1 else (max(1, int(files * scale)), lines)
        form, _, has_deletes = kind.partition("-")
        inbox = folder / "in"
        size = _write(inbox, form, files, lines, bool(has_deletes))
        _ingest(folder / "warm", _some(inbox, folder / "some"), form, bool(has_deletes), spark)
        ingest = partial(_ingest, folder / "t", inbox, form, bool(has_deletes), spark)
        looks = [_timed(ingest) for _ in range(rounds)]
        seconds, cpu = median([each[0] for each in looks]), median([each[1] for each in looks])
        total = files * lines
        rows.append([name, files, total, size >> 20, seconds, int(total / seconds), cpu, cpu / total * 1e6])
        shutil.rmtree(inbox)
    title = (
        f"folders of files, median of {rounds}; load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    table(title, ["case", "files", "rows", "MB", "s", "rows/s", "CPU s", "CPU µs a row"], rows)


def _write(inbox: Path, form: str, files: int, lines: int, has_deletes: bool) -> int:
    """Files of keys that repeat: each row is changed some four times. Returns their bytes."""
    inbox.mkdir()
    now, keys = time.time() - 86_400, max(1, files * lines // 4)
    for file in range(files):
        numbers = range(file * lines, (file + 1) * lines)
        columns: dict[str, Any] = {
            "id": pa.array([number * 7919 % keys for number in numbers], pa.int64()),
            "region": pa.array([f"region-{number % 17}" for number in numbers]),
            "amount": pa.array([number % 10_007 / 4 for number in numbers]),
            "note": pa.array([f"order number {number}" for number in numbers]),
            "at": pa.array([1_700_000_000_000_000 + number for number in numbers], pa.timestamp("us", "UTC")),
        }
        if has_deletes:
            columns["op"] = pa.array(["d" if number % 50 == 0 else "u" for number in numbers])
        rows, path = pa.table(columns), inbox / f"{file:06d}.{form}"
        if form == "parquet":
            pq.write_table(rows, path)
        elif form == "csv":
            texts = rows["at"].cast(pa.string())
            pa_csv.write_csv(rows.set_column(4, "at", texts), path, pa_csv.WriteOptions(quoting_style="needed"))
        else:
            dated = rows.set_column(4, "at", rows["at"].cast(pa.string()))
            path.write_text("".join(json.dumps(row) + "\n" for row in dated.to_pylist()))
        os.utime(path, (now + file, now + file))
    return sum(each.stat().st_size for each in inbox.iterdir())


def _some(inbox: Path, folder: Path) -> Path:
    """A folder with a few of the files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file in sorted(inbox.iterdir())[:4]:
        if file.stat().st_size < 64 << 20:
            shutil.copy(file, folder)
    return folder


def _ingest(at: Path, inbox: Path, form: str, has_deletes: bool, spark: Any) -> None:
    """Read a folder into a new table."""
    shutil.rmtree(at, ignore_errors=True)
    rules = ", extra_columns: {op: string}, except_columns: [op], apply_as_deletes: \"op = 'd'\"" if has_deletes else ""
    pipeline = parse_any(
        f"table: {{path: {at}, keys: [id], schema: {COLUMNS}}}\nsource: {{kind: files, folder: {inbox}}}\n"
        f"format: {{kind: {form}{rules}}}\n",
        "p.yml",
        {},
    )
    query = sources.start_ingest(pipeline, open_or_create(pipeline), spark)  # type: ignore[arg-type]
    query.awaitTermination()
    if error := query.exception():
        raise SystemExit(str(error)[:2000])


def _timed(work: Callable[[], None]) -> tuple[float, float]:
    """Wall seconds and CPU seconds of this process and all below it."""
    began, cpu = time.perf_counter(), _cpu()
    work()
    return time.perf_counter() - began, _cpu() - cpu


def _cpu() -> float:
    total = 0
    for pid in family(os.getpid()):
        try:
            after = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(map(int, after[11:15]))  # of children that have ended too
    return total / _TICKS


def _measure_listing(folder: Path, files: int) -> None:
    """What the planner needs for a folder: when no file is known, and when all are."""
    inbox = folder / "many"
    inbox.mkdir()
    for number in range(files):
        (inbox / f"part-{number:08d}.json").write_bytes(b"{}\n")
    opened = lakebed.create(folder / "listed", pa.schema([("id", pa.int64())]))
    settings = FilesSettings(folder=str(inbox), format="json", table=opened.path)
    clock = [0.0]
    rows: list[list[object]] = []

    def measure(name: str, planner: FilesPlanner, later: float) -> dict[str, Any]:
        clock[0] += later
        began, cpu = time.perf_counter(), time.process_time()
        document = planner.next({})
        rows.append([name, time.perf_counter() - began, time.process_time() - cpu, len(json.dumps(document)) >> 10])
        return document

    measure("no file is known", FilesPlanner(settings, lambda: clock[0]), 0)
    log = internals_of(opened).log
    looker = Looker(settings)
    found = [
        FileRead(looker.url(one.path), one.state.modified_ns, one.state.size, one.state.arrived_ns)
        for one in looker.files()
    ]
    for first in range(0, len(found), 10_000):
        marks = FilesRead.of(log.refresh()).plus(found[first : first + 10_000])
        commit_written(log, log.refresh(), Written(), None, Operation.STREAMING_UPDATE, marks=marks)
    knowing = FilesPlanner(settings, lambda: clock[0])
    measure("all are known, first look", knowing, 0)
    measure("all are known, their names alone", knowing, 1)
    (inbox / "new.json").write_bytes(b"{}\n")
    measure("one is new", knowing, 1)
    measure("all are known, with their states", knowing, 1000)
    table(f"looks at a folder of {files:,} files", ["look", "s", "CPU s", "KB of the document"], rows)


if __name__ == "__main__":
    main()
