"""A folder of files with hostile names, times and sizes, under random treatment, beside a dictionary of the same changes.

1. A seed draws the format of the files, whether tasks share them, and how large a piece of a file is.
2. Steps: files appear, many at once, also empty ones, hidden ones, ones of the future and of long ago; files are written again or
   removed, before or after they were read; batches are read, crash, and are read again; checkpoints are lost or old.
3. A batch must have the oldest files that wait, in the order of their times and paths. Applied in this order, they make the
   dictionary. What was written again or comes late must be told of.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed.errors import DataLoss
from lakebed.sources.files import reader
from tests.ingest.crashes import POINTS, Crash, dying
from tests.sources.files.folders import NOW, Process, here, in_groups, remarks

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("v", pa.string())])
STEMS = [
    "a", "a b", "a%20b", "größe ä", "日本", "a:b", "*", "{a,b}", "[x]", "a\\b", "'\"`", "a\nb", "#?&=+;,", "\u00a0\u2028", "👍",
    "e\u0301", "é", "\u00ad\x7f\x85", os.fsdecode(b"\xff\xfe"), "x" * 200, "-", "~", "$HOME", "%00", "a..b",
]  # fmt: skip
FOLDERS = ["", "", "", "day=2026-01-31/", "day=x y/hour=1/", "größe=%/"]
YEAR = 365 * 86_400
AGES = [0, 0, 0, 8 * 86_400, 20 * YEAR, -70 * YEAR, NOW + YEAR]
Row = tuple[int, str | None]


@dataclass
class World:
    """``waiting``: the rows of files that were not read, by their paths; ``read``: the paths of those that were."""

    random: random.Random
    inbox: Path
    table: str
    form: str
    done: Counter[str] = field(default_factory=Counter)
    waiting: dict[str, list[Row]] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    rewritten: set[str] = field(default_factory=set)
    expected: dict[int, str] = field(default_factory=dict)
    values: Any = field(default_factory=itertools.count)
    newest: float = float("-inf")
    late: bool = False
    checkpoints: list[dict[str, Any]] = field(default_factory=lambda: [{}])

    def process(self) -> Process:
        rng = self.random
        run = rng.choice([here, in_groups(1), in_groups(rng.randint(2, 60))])
        limit = rng.choice([None, None, 1, 3])
        return Process(
            self.table, self.inbox, self.form, checkpoint=self.checkpoints[-1], run=run, files_per_batch_max=limit
        )

    # Files -------------------------------------------------------------------------------------------------------------

    def put(self, path: str, rows: list[Row], time: float) -> None:
        """A file appears as a whole."""
        hidden = self.inbox / ".new"
        if self.form == "parquet":
            ids, values = [key for key, _ in rows], [value for _, value in rows]
            table = pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(values, pa.string())})
            pq.write_table(table, hidden, row_group_size=self.random.choice([1, 7, 1000]))
        else:
            data = "".join(json.dumps(self.document(*row)) + "\n" for row in rows).encode()
            hidden.write_bytes(gzip.compress(data) if path.endswith(".gz") else data)
        os.utime(hidden, ns=(int(time * 1e9), int(time * 1e9)))
        (self.inbox / path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(hidden, self.inbox / path)

    def document(self, key: int, value: str | None) -> dict[str, Any]:
        if self.form == "json":
            return {"id": key, "v": value}
        row = {"id": key, "v": value}
        return {"op": "d", "before": row} if value is None else {"op": "c", "after": row}

    def rows(self) -> list[Row]:
        """Some changes. A delete, where the format has them, has no value."""
        count, deletes = self.random.choice([1, 1, 2, 40, 400]), self.form == "debezium-json"
        return [
            (self.random.randrange(12), None if deletes and self.random.random() < 0.3 else f"{next(self.values)}")
            for _ in range(count)
        ]

    def time(self) -> float:
        return NOW + self.random.randint(-4, 4) - self.random.choice(AGES)

    def appear(self) -> None:
        for _ in range(self.random.choice([1, 1, 3, 25])):
            kind = {"parquet": ".parquet"}.get(self.form) or self.random.choice([".json", ".json", ".json.gz"])
            stem = f"{self.random.choice(STEMS)}{self.random.randrange(10_000)}"
            path = f"{self.random.choice(FOLDERS)}{stem}{kind}"
            if path in self.read or path in self.waiting or any(f"{path}/" in other for other in self.waiting):
                continue
            self.waiting[path] = self.rows()
            self.put(path, self.waiting[path], self.time())

    def appear_hidden_or_empty(self) -> None:
        name = self.random.choice([".hidden.json", "_hidden.json", "a.json._COPYING_", "empty.json", "_below/a.json"])
        path = self.inbox / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("" if name == "empty.json" else '{"id": 999}\n')

    def write_again(self) -> None:
        if self.waiting or self.read:
            path = self.random.choice(sorted({*self.waiting, *self.read}))
            rows = [*self.rows(), (self.random.randrange(12), "x" * self.random.randint(1, 900))]
            if path in self.waiting:
                self.waiting[path] = rows
            else:
                self.rewritten.add(path)
            self.put(path, rows, self.time())

    def remove(self) -> None:
        if self.waiting or self.read:
            path = self.random.choice(sorted({*self.waiting, *self.read}))
            (self.inbox / path).unlink(missing_ok=True)
            self.waiting.pop(path, None)
            self.rewritten.discard(path)

    # Batches -----------------------------------------------------------------------------------------------------------

    def batch(self) -> None:
        process = self.process()
        document = process.plan()
        if document is None:
            assert not self.waiting or self.checkpoints[-1].get("files"), sorted(self.waiting)
            return
        paths = [path for path, *_ in document["files"]]
        self.check(process, paths)
        if paths and self.random.random() < 0.15:
            self.lose_a_file(process, document)
        if self.random.random() < 0.3:
            point = self.random.choice(POINTS)
            try:
                with dying(*point):
                    process.bring(document)
            except Crash:
                self.done["crash"] += 1
                process = self.process()
        process.bring(document)
        self.checkpoints.append(document)
        self.apply(document)

    def check(self, process: Process, paths: list[str]) -> None:
        order = [((self.inbox / path).stat().st_mtime_ns, path) for path in paths]
        assert order == sorted(order), order
        left = [((self.inbox / path).stat().st_mtime_ns, path) for path in self.waiting if path not in paths]
        assert set(paths) <= {*self.waiting, *self.read}, set(paths).difference(self.waiting)
        assert not left or not order or max(order) < min(left), f"older files wait: {min(left)}, {order}"
        assert process.settings.files_per_batch_max is not None or not left, left

    def lose_a_file(self, process: Process, document: dict[str, Any]) -> None:
        """A file goes between the plan and the read, and comes back."""
        path = self.random.choice([path for path, *_ in document["files"]])
        os.rename(self.inbox / path, self.inbox / ".gone")
        if path in self.waiting:
            before = lakebed.open(self.table).version
            with pytest.raises(DataLoss, match="is gone, and was not read yet"):
                process.bring(document)
            assert lakebed.open(self.table).version == before
            self.done["lost file"] += 1
        os.rename(self.inbox / ".gone", self.inbox / path)
        process.checkpoint = self.checkpoints[-2] if len(self.checkpoints) > 1 else {}

    def apply(self, document: dict[str, Any]) -> None:
        newest = self.newest
        for path, modified, _, _ in document["files"]:
            if path not in self.waiting:
                continue
            for key, value in self.waiting.pop(path):
                if value is None:
                    self.expected.pop(key, None)
                else:
                    self.expected[key] = value
            self.read.add(path)
            time = min(modified, (self.inbox / path).stat().st_ctime_ns)
            self.late |= time < newest
            self.newest = max(self.newest, time)
            self.done["file"] += 1

    def lose_the_checkpoint(self) -> None:
        self.checkpoints.append(self.random.choice([{}, self.random.choice(self.checkpoints)]))

    def compare(self) -> None:
        found = self.process().rows()
        assert found == self.expected, {key: (found.get(key), self.expected.get(key)) for key in range(12)}

    def finish(self) -> None:
        while self.waiting:
            self.batch()
        process = self.process()
        process.follow()
        self.compare()
        told = remarks(process.table)
        assert set(told) <= {"file_late", "file_rewritten", "unknown_field"}, told
        assert ("file_late" in told) == self.late
        assert not self.rewritten or "file_rewritten" in told


def run(seed: int, folder: Path, steps: int = 14) -> World:
    """One world. Raises AssertionError that names the seed."""
    rng = random.Random(seed)
    (folder / "in").mkdir()
    table = lakebed.create(folder / "t", SCHEMA, keys=["id"]).path
    world = World(rng, folder / "in", table, rng.choice(["json", "debezium-json", "parquet"]))
    kinds = [
        world.appear,
        world.appear,
        world.batch,
        world.batch,
        world.batch,
        world.write_again,
        world.remove,
        world.appear_hidden_or_empty,
        world.lose_the_checkpoint,
    ]
    step = "the first step"
    try:
        with patch.object(reader, "SPLIT_BYTES", rng.choice([64, 500, 1 << 20])):
            for number in range(steps):
                chosen = rng.choice(kinds)
                step = f"step {number}, {chosen.__name__}"
                chosen()
                world.done[chosen.__name__] += 1
                world.compare()
            step = "the end"
            world.finish()
    except Exception as error:
        raise AssertionError(f"seed {seed}, {step}, {world.form}: {type(error).__name__}: {error}") from error
    return world
