"""Each operation, overtaken by each kind of change of the schema: it commits all the same, at once if the change is compatible.

The change is committed by another process after the operation planned and wrote everything, and before its commit.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction.merge import Merger
from lakebed.compaction.merge_values import MergeOutcome, Progress
from lakebed.compaction.volatile import VolatileMerger
from lakebed.errors import InvalidChanges, InvalidInput, Retry
from lakebed.log.actions import CommitInfo
from lakebed.log.conflicts import BLIND
from lakebed.log.table_log import TableLog
from lakebed.merge.kernel import MergedPart, MergeSource, merge_parts
from lakebed.operations.alter import alter
from lakebed.parts.changes import UNAVAILABLE_COLUMN, WriteSpec
from lakebed.planning.settling import UploadRules
from lakebed.schema.change import SchemaChange
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage
from lakebed.version import ENGINE
from tests.internals import compaction_of, deletion_vectors_of, log_of, storage_of

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


pytestmark = pytest.mark.usefixtures("own_cache")


def made(path: Path, keys: Sequence[str] = ("id",)) -> lakebed.Table:
    """Rows 0 to 3 in two settled batches, of two partitions."""
    table = lakebed.create(path, SCHEMA, keys=keys, partition_by=["p"])
    for numbers in ((0, 1), (2, 3)):
        table.apply(rows(*numbers))
        table.settle()
    return table


@dataclass
class Overtaken:
    """How often the log was asked to commit something; ``left``: what comes before the first such commit."""

    asked: int = 0
    left: list[Callable[[lakebed.Table], object]] = field(default_factory=list)


@contextmanager
def overtaken(table: lakebed.Table, by: SchemaChange | Callable[[lakebed.Table], object]) -> Iterator[Overtaken]:
    """The first commit of the table's own log within this comes after the change, or after what another process does."""
    first = by if callable(by) else lambda other: alter(log_of(other), by)
    commit, seen, log = TableLog.commit, Overtaken(left=[first]), log_of(table)

    def late(self: TableLog, snapshot: Any, actions: Any, *rest: Any, **named: Any) -> Any:
        if self is log:
            if seen.left:
                seen.left.pop()(lakebed.open(table.path))
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


@pytest.mark.few(30)
@pytest.mark.slow
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


@pytest.mark.parametrize("change", ["add", "widen", "rename the key", "swap two names", "drop and add"])
def test_a_part_on_a_replicas_disk_is_uploaded_after_a_change(change: str, tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    log = log_of(table)
    replica = VolatileMerger(log, storage_of(table), deletion_vectors_of(table), compaction_of(table).volatile_base)
    parts = log.refresh().parts
    replica.run([path for path, part in parts.items() if part.partition_values["p"] == "a"], 1, Kernel())
    table.apply(rows(2, value=20))
    table.settle()
    alter(log, CHANGES[change])
    [result] = replica.upload_due(UploadRules(age_seconds=0, local_bytes_max=1))
    replica.close()
    assert result.outcome is MergeOutcome.COMPLETED
    assert values(table) == {0: 0, 1: 1, 2: 20, 3: 3} or set(values(table).values()) == {-1}
    assert is_sound(table)


@pytest.mark.parametrize("change", ["add a field", "widen the key", "rename the key", "drop and add"])
def test_a_partition_that_left_before_a_change_comes_back_after_it(change: str, tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    name = table.detach_partition({"p": "a"})
    alter(log_of(table), CHANGES[change])
    [detached] = table.inspect.detached().to_pylist()
    assert detached["partition"] == [("part" if change == "rename the key" else "p", "a")]
    table.attach_partition(name)
    assert values(table) in ({0: 0, 1: 1, 2: 2, 3: 3}, dict.fromkeys(range(4), -1))
    assert is_sound(table)


def test_values_that_a_source_did_not_send_are_kept_under_every_name(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("text", pa.string(), nullable=False),
            pa.field("n", pa.int32()),
        ]
    )
    table = lakebed.create(tmp_path / "t", schema, keys=["id"])

    def unsent(names: list[str], **row: Any) -> pa.Table:
        now = pa.schema([each.with_nullable(True) for each in table.schema])
        kinds = now.append(pa.field(UNAVAILABLE_COLUMN, pa.list_(pa.string())))
        return pa.Table.from_pylist([{**row, UNAVAILABLE_COLUMN: names}], kinds)

    table.apply([{"id": 1, "text": "long", "n": 1}])
    table.settle()
    table.apply(unsent(["text"], id=1, n=2))
    table.alter(rename={"text": "note", "n": "number"}, add={"text": "long"})
    table.apply(unsent(["note"], id=1, number=3, text=5))
    assert table.to_arrow().to_pylist() == [{"id": 1, "note": "long", "number": 3, "text": 5}]
    table.settle()
    table.apply(unsent(["number", "text"], id=1, note="short"))
    table.settle()
    assert table.to_arrow().to_pylist() == [{"id": 1, "note": "short", "number": 3, "text": 5}]
    table.apply(unsent(["note"], id=2, number=7, text=8))
    table.settle()
    [record] = lakebed.open(f"{table.path}_quarantine").to_arrow().to_pylist()
    assert json.loads(record["value"]) == {"id": 2, "number": 7, "text": 8}
    assert "column 'note' is NOT NULL" in record["reason"]
    table.apply(unsent(["text"], id=1, note="kept", number=4))
    table.alter(drop=["text"])
    table.settle()
    assert table.to_arrow().to_pylist() == [{"id": 1, "note": "kept", "number": 4}]
    assert is_sound(table)


def test_errors_and_partitions_have_the_names_of_the_user(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    table.alter(rename={"v": "value", "p": "part", "id": "number"}, add={"v": "string"})
    with pytest.raises(InvalidChanges, match="lack the column 'value'"):
        table.apply(rows(1))
    row_now = {"number": 5, "value": 1, "t": "t", "s": None, "part": "c", "v": "x"}
    with pytest.raises(InvalidChanges, match="column 'value'"):
        table.apply([{**row_now, "value": "text"}])
    with pytest.raises(InvalidInput, match=r"is given by \['part'\], not \['p'\]"):
        table.detach_partition({"p": "a"})
    with pytest.raises(InvalidInput, match="there is no partition part=z; there are: part=a; part=b"):
        table.detach_partition({"part": "z"})
    with pytest.raises(InvalidInput, match="'number', a key"):
        table.update({"number": "1"}, "true")
    with pytest.raises(InvalidInput, match="hold rows of part=c"):
        table.replace_partition({"part": "a"}, [row_now])
    with pytest.raises(InvalidInput, match=r"has the key \{'number': 1\}, which is live"):
        table.replace_partition({"part": "a"}, [{**row_now, "number": 1, "part": "a"}])
    table.apply([row_now])
    assert table.update({"value": "value + 1", "v": "'y'"}, "v = 'x' and part = 'c'").rows == 1
    assert table.to_arrow(where="number = 5").to_pylist() == [{**row_now, "value": 2, "v": "y"}]


def test_the_doctor_finds_a_part_that_the_schema_can_not_read(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    log = log_of(table)
    snapshot = log.refresh()
    narrower = snapshot.metadata.schema_string.replace('"name":"v","type":"integer"', '"name":"v","type":"short"')
    assert narrower != snapshot.metadata.schema_string
    with mock.patch("lakebed.log.table_log.require_sound"):
        log.commit(
            snapshot,
            [dataclasses.replace(snapshot.metadata, schema_string=narrower)],
            CommitInfo(operation="X", commit_id="", engine=ENGINE),
            BLIND,
        )
    found = [finding for finding in lakebed.open(table.path).doctor(deep=True).findings if finding.check == "C1"]
    assert len(found) >= len(snapshot.parts)
    assert any("'v' is int32, which can't be read as int16" in finding.what for finding in found)


@pytest.mark.parametrize("wider", ["long", "double", "decimal(12,2)"])
def test_bounds_and_bloom_filters_of_narrower_files_leave_no_row_out(wider: str, tmp_path: Path) -> None:
    """Merged parts have Bloom filters on keys that do not lead the sort key, made of the narrower values."""
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], sort_key=["v"])
    ids = list(range(0, 4000, 2))
    random.Random(1).shuffle(ids)
    table.apply(pa.Table.from_pylist([{**row(number), "v": at} for at, number in enumerate(ids)], SCHEMA))
    table.settle()
    merger = Merger(log_of(table), storage_of(table), deletion_vectors_of(table), "somebody")
    assert merger.run(list(log_of(table).refresh().parts), 1, Kernel()).outcome is MergeOutcome.COMPLETED
    table.apply(rows(1, value=5000))  # a second part, so that bounds leave out parts
    table.settle()
    table.alter(widen={"id": wider, "v": wider})
    for number in (*ids[:10], 1):
        assert table.to_arrow(where=f"id = {number}").num_rows == 1
        assert table.query(f"select * from t where id in ({number}, 3)", name="t").num_rows == 1
        assert table.lookup([number]).num_rows == 1
    assert table.to_arrow(where="id = 3 or v = -1").num_rows == 0
    assert table.to_arrow(where="v >= 1990 and v < 6000").num_rows == 11


def test_a_mutation_that_is_computed_again_means_the_columns_of_when_it_began(tmp_path: Path) -> None:
    table = made(tmp_path / "t", keys=())

    def swapped_and_merged(other: lakebed.Table) -> None:
        alter(log_of(other), SchemaChange(rename={"v": "was v", "id": "v"}, add={"id": pa.string()}))
        merge(other)
        other.apply([{"v": 9, "was v": 9, "id": "new", "t": "t", "s": None, "p": "a"}])

    with overtaken(table, swapped_and_merged) as seen:
        assert table.update({"v": "v + 100"}, "v >= 2").rows == 3
    assert seen.asked == 2
    found = {row["v"]: (row["was v"], row["id"]) for row in table.to_arrow().to_pylist()}
    assert found == {0: (0, None), 1: (1, None), 2: (102, None), 3: (103, None), 9: (109, "new")}


def test_a_mutation_that_has_to_begin_anew_under_other_names_says_so(tmp_path: Path) -> None:
    table = made(tmp_path / "t")

    def renamed_and_detached(other: lakebed.Table) -> None:
        alter(log_of(other), CHANGES["swap two names"])
        other.detach_partition({"p": "a"})

    with overtaken(table, renamed_and_detached), pytest.raises(Retry, match="renamed or dropped"):
        table.delete("v >= 2")
    assert values(table) == {1: 1, 3: 3}


def test_a_mutation_changes_rows_again_that_came_with_wider_keys(tmp_path: Path) -> None:
    table = made(tmp_path / "t")

    def widened_and_changed(other: lakebed.Table) -> None:
        alter(log_of(other), CHANGES["widen the key"])
        other.apply([{**row(3), "v": 30}, {**row(4), "id": 2**40}])

    with overtaken(table, widened_and_changed):
        result = table.update({"v": "v + 100"}, "v >= 2")
    assert result.rows == 2
    assert values(table) == {0: 0, 1: 1, 2: 102, 3: 130, 2**40: 4}
    assert is_sound(table)


def test_reclustering_takes_a_condition_by_the_names_of_now(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    table.alter(rename={"v": "t2", "id": "v"})
    assert table.maintenance.recluster(where="t2 >= 2 and v >= 2").finished
    with pytest.raises(InvalidInput, match="id"):
        table.maintenance.recluster(where="id = 1")
