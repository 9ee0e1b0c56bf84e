"""Each operation, overtaken by each kind of change of the schema: it commits all the same, at once if the change is compatible.

The change is committed by another process after the operation planned and wrote everything, and before its commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction.merge import MergeOutcome, Merger, Progress
from lakebed.manifest.schema_change import SchemaChange
from lakebed.manifest.table_log import TableLog
from lakebed.operations.alter import alter
from lakebed.parts.changes import WriteSpec
from lakebed.parts.merge import MergedPart, MergeSource, merge_parts
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage
from tests.internals import deletion_vectors_of, log_of, storage_of

INNER = pa.struct([("x", pa.int32()), ("y", pa.string())])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False), pa.field("v", pa.int32()), pa.field("t", pa.string(), nullable=False),
        pa.field("s", INNER), pa.field("p", pa.string()),
    ]
)  # fmt: skip
CHANGES = {
    "add": SchemaChange(add={"c": pa.string()}),
    "add a field": SchemaChange(add={"s.z": pa.int64()}),
    "relax": SchemaChange(relax=("t",)),
    "widen": SchemaChange(widen={"v": pa.int64(), "s.x": pa.int64()}),
    "widen the key": SchemaChange(widen={"id": pa.int64()}),
    "rename": SchemaChange(rename={"v": "value", "s.x": "ex"}),
    "rename the key": SchemaChange(rename={"id": "number", "p": "part"}),
    "swap two names": SchemaChange(rename={"v": "was v"}, add={"v": pa.string()}),
    "drop": SchemaChange(drop=("s",)),
    "drop and add": SchemaChange(drop=("v",), add={"v": pa.string()}),
}
COMPATIBLE = [name for name in CHANGES if "drop" not in name]


def row(number: int, value: int | None = None) -> dict[str, Any]:
    s = {"x": number, "y": "y"}
    return {"id": number, "v": number if value is None else value, "t": "t", "s": s, "p": "ab"[number % 2]}


def rows(*numbers: int, value: int | None = None) -> pa.Table:
    return pa.Table.from_pylist([row(number, value) for number in numbers], SCHEMA)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))


def made(path: Path, keys: Sequence[str] = ("id",)) -> lakebed.Table:
    """Rows 0 to 3 in two settled batches, of two partitions."""
    table = lakebed.create(path, SCHEMA, keys=keys, partition_by=["p"])
    for numbers in ((0, 1), (2, 3)):
        table.apply(rows(*numbers))
        table.settle()
    return table


@dataclass
class Overtaken:
    """How often the log was asked to commit something other than the change."""

    asked: int = 0
    left: list[SchemaChange] = field(default_factory=list)


@contextmanager
def overtaken(table: lakebed.Table, change: SchemaChange) -> Iterator[Overtaken]:
    """The first commit of the table's own log within this comes after the change."""
    commit, seen, log = TableLog.commit, Overtaken(left=[change]), log_of(table)

    def late(self: TableLog, snapshot: Any, actions: Any, *rest: Any, **named: Any) -> Any:
        if self is log:
            if seen.left:
                alter(log_of(lakebed.open(table.path)), seen.left.pop())
            seen.asked += 1
        return commit(self, snapshot, actions, *rest, **named)

    with mock.patch.object(TableLog, "commit", late):
        yield seen
    assert not seen.left, "the operation committed nothing"


def values(table: lakebed.Table) -> dict[int, Any]:
    """What each row has as ``v`` under its stored name, or -1 where that was dropped."""
    found, columns = table.to_arrow(), log_of(table).refresh().columns
    stored = columns.to_stored(found)
    have = stored["v"].to_pylist() if "v" in stored.column_names else [-1] * len(stored)
    return dict(sorted(zip(stored["id"].to_pylist(), have, strict=True)))


def is_sound(table: lakebed.Table) -> bool:
    table.settle()
    table.maintenance.compact()
    findings = [str(finding) for finding in lakebed.open(table.path).doctor(deep=True).findings]
    assert findings == []
    return True


def apply(table: lakebed.Table) -> None:
    table.apply(rows(3, 4, value=7))


def settle(table: lakebed.Table) -> None:
    table.settle()


def merge(table: lakebed.Table) -> None:
    merger = Merger(log_of(table), storage_of(table), deletion_vectors_of(table), "somebody")
    chosen = [path for path, part in log_of(table).refresh().parts.items() if part.partition_values["p"] == "a"]
    kernel = Kernel()
    assert merger.run(chosen, 1, kernel).outcome is MergeOutcome.COMPLETED
    assert kernel.runs == 1, "its work is never done twice"


@dataclass
class Kernel:
    runs: int = 0

    def merge(
        self, sources: Sequence[MergeSource], spec: WriteSpec, output: PartStorage, progress: Progress
    ) -> list[MergedPart]:
        self.runs += 1
        return merge_parts(sources, spec, output, connect())


def update(table: lakebed.Table) -> None:
    assert table.update({"v": "v + 100"}, "v >= 2").rows == 2


def delete(table: lakebed.Table) -> None:
    assert table.delete("v >= 2").rows == 2


def replace(table: lakebed.Table) -> None:
    table.replace_partition({"p": "a"}, rows(0, value=9))


def detach(table: lakebed.Table) -> None:
    table.detach_partition({"p": "a"})


OPERATIONS: dict[str, tuple[Callable[[lakebed.Table], None], dict[int, int]]] = {
    "apply": (apply, {0: 0, 1: 1, 2: 2, 3: 7, 4: 7}),
    "settle": (settle, {0: 0, 1: 50, 2: 2, 3: 3}),
    "merge": (merge, {0: 0, 1: 1, 2: 2, 3: 3}),
    "update": (update, {0: 0, 1: 1, 2: 102, 3: 103}),
    "delete": (delete, {0: 0, 1: 1}),
    "replace": (replace, {0: 9, 1: 1, 3: 3}),
    "detach": (detach, {1: 1, 3: 3}),
}


UNKEYED = [
    (operation, change, ())
    for operation in ("merge", "update", "delete")
    for change in ("add", "widen", "rename", "swap two names", "drop")
]


@pytest.mark.parametrize(
    ("operation", "change", "keys"),
    [*((operation, change, ("id",)) for operation in OPERATIONS for change in CHANGES), *UNKEYED],
)
def test_an_operation_that_a_change_overtakes_commits(
    operation: str, change: str, keys: tuple[str, ...], tmp_path: Path
) -> None:
    run, wanted = OPERATIONS[operation]
    table = made(tmp_path / "t", keys)
    if operation == "settle":
        table.apply(rows(1, value=50))
    with overtaken(table, CHANGES[change]) as seen:
        run(table)
    reads_the_table = operation in ("replace", "detach")  # they commit as the next version or not at all
    claims = operation == "merge"
    if change in COMPATIBLE and not reads_the_table:
        assert seen.asked == 1 + claims, "no second attempt"
    found = values(table)
    assert found == (wanted if "v" in log_of(table).refresh().schema.names else dict.fromkeys(wanted, -1))
    assert is_sound(table)
