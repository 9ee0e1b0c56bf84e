"""Parts on local disk with chosen dead rows, and the rows that a reader must then see."""

from __future__ import annotations

import datetime
import decimal
import os
import random
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from lakebed.log.deletion_vector import DeletionVector, unpack
from lakebed.schema.conversion import schema_to_json
from lakebed.view.arrow_scan import ScanFile

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("small", pa.int16()),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("ratio", pa.float64()),
        pa.field("flag", pa.bool_()),
        pa.field("name", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("place", pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string())])),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


def random_rows(count: int, seed: int, first_id: int = 0) -> list[dict[str, Any]]:
    """Rows of SCHEMA with nulls, unicode and values on both sides of zero."""
    rng = random.Random(seed)

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.1 else value

    epoch = datetime.datetime(2024, 1, 1)
    rows = []
    for at in range(count):
        moment = epoch + datetime.timedelta(microseconds=rng.randrange(10**13))
        rows.append(
            {
                "id": first_id + at,
                "small": maybe(rng.randrange(-300, 300)),
                "price": maybe(decimal.Decimal(rng.randrange(-(10**6), 10**6)) / 100),
                "ratio": maybe(rng.choice([0.0, -0.0, rng.uniform(-5, 5)])),
                "flag": maybe(rng.random() < 0.5),
                "name": maybe(rng.choice(["", "ä", "zebra", "éclair", "名前", "a"]) + str(rng.randrange(50))),
                "raw": maybe(rng.randbytes(3)),
                "day": maybe(moment.date()),
                "at": maybe(moment.replace(tzinfo=datetime.UTC)),
                "local": maybe(moment),
                "place": maybe({"x": maybe(rng.randrange(9)), "y": maybe("p")}),
                "tags": maybe([maybe("t") for _ in range(rng.randrange(3))]),
                "counts": maybe([("k", at)]),
            }
        )
    return rows


@dataclass
class Parts:
    """A folder of parts; `rows` holds the live ones. It stands for the storage: local paths are urls."""

    root: Path
    schema: pa.Schema = SCHEMA
    files: list[ScanFile] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def duckdb_url(self, path: str) -> str:
        return os.path.join(self.root, path)

    @property
    def schema_json(self) -> str:
        return schema_to_json(self.schema)

    def add(self, rows: Sequence[dict[str, Any]], dead: Sequence[int] = (), row_group_rows: int = 2048) -> ScanFile:
        path = f"_lakebed/{len(self.files)}.parquet"
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        source = pa.Table.from_pylist(list(rows), self.schema)
        duckdb.sql(f"copy (from source) to '{target}' (format parquet, row_group_size {row_group_rows})")
        gone = BitMap64(dead)
        self.rows += [row for at, row in enumerate(source.to_pylist()) if at not in gone]
        file = ScanFile(
            path=path,
            bytes=target.stat().st_size,
            rows=len(rows),
            partition_values={},
            dead=gone or None,
            deletion_vector=None,
            stats=_stats(source),
        )
        self.files.append(file)
        return file

    def without_stats(self) -> list[ScanFile]:
        return [replace(file, stats=None) for file in self.files]


def _stats(table: pa.Table) -> str:
    """Statistics as Delta's writers give them: no bound for what has none."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    for name in ("id", "small", "price", "ratio", "name", "day", "at", "local"):
        values = [value for value in table[name].to_pylist() if value is not None]
        if values:
            low[name], high[name] = _bound(min(values)), _bound(max(values))
    nulls = {name: table[name].null_count for name in table.column_names}
    return orjson.dumps({"numRecords": len(table), "minValues": low, "maxValues": high, "nullCount": nulls}).decode()


def _bound(value: Any) -> Any:
    if isinstance(value, datetime.datetime):  # cut to milliseconds, as Delta's writers do
        text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
        return text + "Z" if value.tzinfo else text
    if isinstance(value, decimal.Decimal):
        return orjson.Fragment(str(value))
    return value


def committed_files(root: Path) -> list[ScanFile]:
    """What the JSON commits of a Delta table add up to."""
    live: dict[str, dict[str, Any]] = {}
    for commit in sorted((root / "_delta_log").glob("*.json")):
        for line in commit.read_bytes().splitlines():
            action = orjson.loads(line)
            if "remove" in action:
                live.pop(action["remove"]["path"], None)
        for line in commit.read_bytes().splitlines():
            action = orjson.loads(line)
            if "add" in action:
                live[action["add"]["path"]] = action["add"]
    return [_scan_file(root, add) for add in live.values()]


def _scan_file(root: Path, add: dict[str, Any]) -> ScanFile:
    path = urllib.parse.unquote(add["path"])
    vector = DeletionVector.from_json(add["deletionVector"]) if add.get("deletionVector") else None
    dead = None
    if vector is not None:
        name = vector.file_path()
        dead = unpack(vector, (root / name).read_bytes() if name else None)
    rows = pq.read_metadata(root / path).num_rows
    return ScanFile(
        path=path,
        bytes=add["size"],
        rows=rows,
        partition_values=add["partitionValues"],
        dead=dead,
        deletion_vector=vector,
        stats=add.get("stats"),
    )


def same_rows(found: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]]) -> bool:
    """Whether two lists hold the same rows, in any order; -0.0 is 0.0 and a map is its sorted items."""
    return sorted(map(_text, found)) == sorted(map(_text, expected))


def _text(row: dict[str, Any]) -> str:
    return repr(sorted((name, _plain(value)) for name, value in row.items()))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, dict):
        return sorted((name, repr(_plain(item))) for name, item in value.items())
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return sorted((name, repr(_plain(item))) for name, item in value)
    if isinstance(value, datetime.datetime) and value.tzinfo:
        return value.astimezone(datetime.UTC).replace(tzinfo=None)
    return value


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    yield Parts(tmp_path)
