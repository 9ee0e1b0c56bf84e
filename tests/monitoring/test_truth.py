"""Metrics say what is true: they are held against the files of a table and the JSON of its log, read without lakebed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed import events
from lakebed.health.sampler import Exporter
from lakebed.monitoring.metrics import Metrics
from lakebed.table import internals_of
from tests.internals import compaction_of, log_of
from tests.waiting import wait_until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
BATCHES, ROWS, KEYS = 40, 4000, 30_000


pytestmark = pytest.mark.usefixtures("own_cache")


def batch(number: int) -> pa.Table:
    ids = [(number * 7919 + row * 31) % KEYS for row in range(ROWS)]
    return pa.table({"id": ids, "v": [f"{number}.{row}" for row in range(ROWS)]}, SCHEMA)


def changes(number: int) -> pa.Table:
    """A batch of which every third row is a delete; merges keep these, dead, for late events."""
    rows = batch(number)
    ops = pa.array(["d" if row % 3 == 0 else "u" for row in range(ROWS)])
    return rows.append_column("op", ops).append_column("seq", pa.array(range(number * ROWS, (number + 1) * ROWS)))


@dataclass
class Truth:
    """What the files of a table say, by the protocol of Delta alone."""

    base: dict[str, dict[str, object]] = field(default_factory=dict)
    tail: dict[str, dict[str, int]] = field(default_factory=dict)
    claims: set[str] = field(default_factory=set)
    operations: Counter[str] = field(default_factory=Counter)
    ingested_rows: int = 0
    ingested_bytes: int = 0
    vector_bytes: int = 0
    newest_version: int = -1
    parquet_bytes: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Path) -> Truth:
        truth = cls()
        for file in root.rglob("*.parquet"):
            if "_delta_log" not in file.parts:
                truth.parquet_bytes[str(file.relative_to(root))] = file.stat().st_size
        for file in sorted((root / "_delta_log").glob("[0-9]*[0-9].json")):
            truth.read([json.loads(line) for line in file.read_text().splitlines()])
            truth.newest_version = int(file.stem)
        return truth

    def read(self, actions: list[dict[str, dict[str, object]]]) -> None:
        [info] = [action["commitInfo"] for action in actions if "commitInfo" in action]
        self.operations[str(info["operation"])] += 1
        for removed in [action["remove"] for action in actions if "remove" in action]:
            del self.base[str(removed["path"])]
        for action in actions:
            if "add" in action:
                added = action["add"]
                self.base[str(added["path"])] = added
                vector = added.get("deletionVector")
                if isinstance(vector, dict) and vector["storageType"] != "i":
                    self.vector_bytes += vector["sizeInBytes"]
            domain = action.get("domainMetadata", {})
            name = str(domain.get("domain", ""))
            if name.startswith("lakebed.claim."):
                claim = name.removeprefix("lakebed.claim.")
                self.claims = self.claims - {claim} if domain["removed"] else self.claims | {claim}
            if name.startswith("lakebed.part."):
                if domain["removed"]:
                    del self.tail[name]
                else:
                    part = json.loads(str(domain["configuration"]))
                    self.tail[name] = part
                    self.ingested_rows += part["rows"]
                    self.ingested_bytes += part["bytes"]

    @property
    def parts_by_level(self) -> Counter[str]:
        return Counter(str(part["tags"]["lakebed.level"]) for part in self.base.values())  # type: ignore[index]

    @property
    def written_bytes(self) -> int:
        """Of every part that was ever written, still there since nothing was cleaned up, and of vectors."""
        return sum(self.parquet_bytes.values()) + self.vector_bytes


class Read:
    """The metrics of one table."""

    def __init__(self, metrics: Metrics, table: str) -> None:
        self._metrics, self._table = metrics, table

    def __call__(self, name: str, **labels: str) -> float | None:
        return self._metrics.registry.get_sample_value(name, {"table": self._table, **labels})

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """The samples that are not 0, by a label."""
        return {
            sample.labels[label]: sample.value
            for family in self._metrics.registry.collect()
            for sample in family.samples
            if sample.name == name and sample.value and labels.items() <= sample.labels.items()
        }


@contextmanager
def exported(path: str) -> Iterator[Read]:
    """The metrics as an exporter that has just been started sees them."""
    metrics = Metrics()
    exporter = Exporter([path], metrics, 0.2, Path(path, "none"))
    exporter.start()
    read = Read(metrics, path)
    wait_until(lambda: read("lakebed_table_up") == 1 and read("lakebed_log_window_seconds") == 3600)
    yield read
    exporter.close()


def maintained(tmp_path: Path, volatile: str = "off") -> tuple[lakebed.Table, Metrics]:
    """A table after batches under a maintaining thread, and what was counted meanwhile; if volatile, some parts are."""
    metrics = Metrics()
    table = lakebed.create(
        tmp_path / "orders",
        SCHEMA,
        keys=["id"],
        sequence_by="seq",
        properties={"lakebed.read_budget": "3", "lakebed.volatile": volatile},
    )
    end = events.listen(metrics)
    stop = threading.Event()
    maintaining = threading.Thread(target=internals_of(table).follow, args=(stop,))
    maintaining.start()

    def apply(numbers: range) -> None:
        for number in numbers:
            table.apply(changes(number), apply_as_deletes="op = 'd'")
        wait_until(
            lambda: not (log_of(table).refresh().tail or compaction_of(table).due() or compaction_of(table).running()),
            moving=lambda: table.version,
        )

    apply(range(BATCHES))
    for more in range(
        BATCHES, BATCHES + 40, 8
    ):  # it depends on the machine's pace whether all were merged and uploaded
        if volatile == "off" or Truth.of(Path(table.path)).claims:
            break
        apply(range(more, more + 8))
    stop.set()
    maintaining.join()
    end()
    sampler = internals_of(table).sampler()

    def has_read_all() -> bool:
        state = sampler.sample()
        metrics.observe(table.path, state)
        return state.recent is not None and sum(state.recent.commits.values()) == table.version + 1

    wait_until(has_read_all, "not all commits are read")  # a look takes a bounded time
    return table, metrics


def holds(read: Read, truth: Truth) -> None:
    """The gauges of a table are what its files say."""
    assert read("lakebed_version") == truth.newest_version
    assert read.by("lakebed_parts", "level", state="normal") == truth.parts_by_level
    assert read("lakebed_tail_parts") == len(truth.tail)
    assert read("lakebed_tail_rows") == sum(part["rows"] for part in truth.tail.values())
    live = [*truth.base, *(str(part["path"]) for part in truth.tail.values())]
    assert read("lakebed_table_bytes") == sum(truth.parquet_bytes[path] for path in live)
    assert read("lakebed_log_ingested_rows") == truth.ingested_rows
    assert read("lakebed_log_ingested_bytes") == truth.ingested_bytes
    spelled = {name.lower().replace(" ", "_"): count for name, count in truth.operations.items()}
    assert read.by("lakebed_log_recent_commits", "operation") == spelled


@pytest.mark.slow
def test_counts_and_bytes_are_those_of_the_store_and_the_log(tmp_path: Path) -> None:
    table, metrics = maintained(tmp_path)
    read, truth = Read(metrics, table.path), Truth.of(Path(table.path))
    assert truth.operations["MERGE"] > 0 and truth.vector_bytes > 0, "there is something to count"
    holds(read, truth)
    assert read("lakebed_table_rows") == len(table.to_arrow())
    assert read("lakebed_batches_total") == BATCHES
    assert read("lakebed_ingested_rows_total") == truth.ingested_rows
    assert read("lakebed_ingested_bytes_total") == truth.ingested_bytes
    assert sum(read.by("lakebed_written_bytes_total", "writer").values()) == truth.written_bytes
    assert read.by("lakebed_log_written_bytes", "writer") == read.by("lakebed_written_bytes_total", "writer")
    assert read("lakebed_write_amplification") == truth.written_bytes / truth.ingested_bytes
    assert (
        read("lakebed_merges_total", kind="merge", outcome="completed", engine="process") == truth.operations["MERGE"]
    )
    assert read("lakebed_claim_changes_total", result="taken") == truth.operations["CLAIM"]
    committed = read.by("lakebed_log_commits_total", "operation", result="committed")
    recent = read.by("lakebed_log_recent_commits", "operation")
    assert committed | {"create_table": 1.0} == recent
    assert committed["settle"] == truth.operations["SETTLE"]
    assert committed["apply"] == BATCHES


@pytest.mark.slow
def test_a_new_process_tells_the_same_of_the_table(tmp_path: Path) -> None:
    table, metrics = maintained(tmp_path)
    before = Read(metrics, table.path)
    with exported(table.path) as read:
        holds(read, Truth.of(Path(table.path)))
        for name in ("lakebed_write_amplification", "lakebed_write_amplification_ratio", "lakebed_depth_average"):
            assert read(name) == before(name)
        assert read("lakebed_batches_total") is None, "what a process did is not guessed by another"


@pytest.mark.slow
def test_parts_on_a_local_disk_are_distinguished_from_claims_whose_output_is_elsewhere(tmp_path: Path) -> None:
    table, metrics = maintained(tmp_path, volatile="on")
    here, truth = Read(metrics, table.path), Truth.of(Path(table.path))
    holds(here, truth)
    files = [file for claim in truth.claims for file in (tmp_path / "cache").rglob(f"{claim}/**/*.parquet")]
    assert files, "there is something to count"
    assert sum(here.by("lakebed_parts", "level", state="materialized").values()) == len(files)
    assert sum(here.by("lakebed_part_bytes", "level", state="materialized").values()) == sum(map(size, files))
    assert not here.by("lakebed_parts", "level", state="volatile")
    assert here("lakebed_merge_local_bytes_total") >= sum(map(size, files)), "what was merged on is gone"
    assert sum(here.by("lakebed_log_written_bytes", "writer").values()) == truth.written_bytes
    with exported(table.path) as elsewhere:
        assert sum(elsewhere.by("lakebed_parts", "level", state="volatile").values()) == len(truth.claims)
        assert not elsewhere.by("lakebed_parts", "level", state="materialized")
        assert elsewhere("lakebed_claims", state="live") == len(truth.claims)


def size(file: Path) -> int:
    return file.stat().st_size


@pytest.mark.slow
def test_what_is_reported_after_a_crash_is_true(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "orders", SCHEMA, keys=["id"], properties={"lakebed.read_budget": "3"})
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, table.path], env=os.environ | {"PYTHONPATH": str(Path.cwd())}
    )
    wait_until(lambda: table.version >= 60 or worker.poll() is not None, moving=lambda: table.version)
    assert worker.poll() is None
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    with exported(table.path) as read:
        holds(read, Truth.of(Path(table.path)))


WORKER = """
import sys, threading, lakebed
from lakebed.table import internals_of
from tests.monitoring.test_truth import batch
table = lakebed.open(sys.argv[1])
threading.Thread(target=internals_of(table).follow, args=(threading.Event(),), daemon=True).start()
for number in range(10_000):
    table.apply(batch(number))
"""
