"""A copy that is made from the change rows of a table equals the table."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import lakebed
from lakebed.compaction.compaction import LocalKernel
from lakebed.compaction.merge import Merger
from lakebed.parts.change_rows import read_version, versions_with_changes
from lakebed.parts.changes import OP_COLUMN, UNAVAILABLE_COLUMN
from lakebed.schema.conversion import ChangeNames
from tests.internals import deletion_vectors_of, log_of, storage_of
from tests.operations.interrupted import before_its_commits
from tests.operations.overwriting import overwrite_by_tasks
from tests.oracle import Row, in_order
from tests.worlds import seeds

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("small", pa.int64()), ("large", pa.string())])


pytestmark = pytest.mark.usefixtures("own_cache")


def change(id: int, small: int, large: str | None = None, op: str = "u", **more: Any) -> Row:
    """Without ``large`` the source did not send it."""
    unsent = ["large"] if large is None and op == "u" else None
    row = {"id": id, "region": "eu", "small": small, "large": large, OP_COLUMN: op, UNAVAILABLE_COLUMN: unsent}
    return {**row, "seq": 0, **more}


def as_arrow(changes: list[Row], table: lakebed.Table) -> pa.Table:
    schema = table.schema.append(pa.field(OP_COLUMN, pa.string()))
    schema = schema.append(pa.field(UNAVAILABLE_COLUMN, pa.list_(pa.string())))
    if "seq" not in schema.names:
        schema = schema.append(pa.field("seq", pa.int64()))
    return pa.Table.from_pylist([{name: one[name] for name in schema.names} for one in changes], schema)


class Copy:
    """What everybody would write: apply the rows in their order, empty the copy at a truncate."""

    def __init__(self, table: lakebed.Table, folder: Path, sequence_by: str | None = None) -> None:
        self.table = table
        self.copy = lakebed.create(folder, table.schema, keys=["id"], sequence_by=sequence_by)
        self.next = 0

    def follow(self) -> None:
        for version in versions_with_changes(self.table.path, self.next, self.table.version):
            for batch in read_version(self.table.path, version):
                rows = pa.Table.from_batches([batch])
                if rows["_change_type"][0].as_py() == "truncate":
                    self.copy.truncate()
                    continue
                self.copy.apply(rows, apply_as_deletes="_change_type = 'delete'")
        self.next = self.table.version + 1

    def rows(self) -> list[Row]:
        return in_order(self.copy.to_arrow().to_pylist())


def rows_of(table: lakebed.Table) -> list[Row]:
    return in_order(table.to_arrow().to_pylist())


def change_rows(table: lakebed.Table, version: int) -> list[tuple[Any, ...]]:
    found = versions_with_changes(table.path, version, version)
    rows = [row for each in found for batch in read_version(table.path, each) for row in batch.to_pylist()]
    return [(row["_change_type"], row["id"], row["small"], row["large"]) for row in rows]


def test_a_change_that_lacks_values_stands_whole_in_the_version_that_settles_it(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    table.apply(as_arrow([change(1, 1, "LARGE"), change(2, 1, "OTHER")], table))
    table.settle()
    came = table.apply(as_arrow([change(1, 2), change(3, 3, "whole")], table))
    assert change_rows(table, came) == [("upsert", 3, 3, "whole")]
    settled = table.settle().version
    assert change_rows(table, settled) == [("upsert", 1, 2, "LARGE")]


@pytest.mark.parametrize("newer", [change(1, 9, "whole"), change(1, 9, None, "d")])
def test_a_completed_row_is_left_out_where_a_newer_change_was_returned_before(newer: Row, tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    table.apply(as_arrow([change(1, 1, "LARGE"), change(2, 1, "LARGE")], table))
    table.settle()
    copy = Copy(table, tmp_path / "copy")
    table.apply(as_arrow([change(1, 2), change(2, 2)], table))
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: other.apply(as_arrow([newer], table))):
        settled = table.settle().version
    assert log_of(table).refresh().tail, "the newer change came too late for the settle"
    assert change_rows(table, settled) == [("upsert", 2, 2, "LARGE")]
    copy.follow()
    assert copy.rows() == rows_of(table)


def test_a_sequence_that_is_no_column_is_reported_beside_the_rows(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], sequence_by="seq")
    version = table.apply(as_arrow([change(1, 1, "a", seq=7), change(2, 1, None, "d", seq=8)], table))
    (found,) = versions_with_changes(table.path, version, version)
    (batch,) = read_version(table.path, found)
    assert batch.schema.names == [
        *SCHEMA.names,
        "_change_type",
        ChangeNames().sequence,
        "_commit_version",
        "_commit_timestamp",
    ]
    assert batch[ChangeNames().sequence].to_pylist() == [7, 8]


def test_rows_that_another_writer_left_are_older_than_all_that_have_a_sequence(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table([[1, 2], ["eu"] * 2, [1, 2], ["a", "b"]], schema=SCHEMA))
    table = lakebed.convert(tmp_path / "t", keys=["id"], sequence_by="seq")
    copy = Copy(table, tmp_path / "copy", ChangeNames().sequence)
    table.apply(as_arrow([change(1, 5, "new", seq=-7)], table))
    copy.follow()
    assert copy.rows() == rows_of(table)
    table.delete("true")
    copy.follow()
    assert copy.rows() == rows_of(table) == []


class World:
    """A table under random treatment, and a copy that follows it."""

    def __init__(self, seed: int, folder: Path, sequence: str | None) -> None:
        self.random = random.Random(seed)
        schema = SCHEMA.append(pa.field("seq", pa.int64())) if sequence == "column" else SCHEMA
        self.sequence = sequence
        self.table = lakebed.create(
            folder / "table", schema, keys=["id"], partition_by=["region"], sequence_by="seq" if sequence else None
        )
        self.other = lakebed.open(self.table.path)
        self.copy = Copy(
            self.table, folder / "copy", {"column": "seq", "hidden": ChangeNames().sequence}.get(sequence or "")
        )
        self.detached: list[str] = []
        self.serial = 0

    def some_changes(self) -> list[Row]:
        rng, out = self.random, []
        for _ in range(rng.choice([1, 3, 8])):
            self.serial += 1
            id, op = rng.randrange(10), "d" if rng.random() < 0.2 else "u"
            large = f"{self.serial}" if rng.random() < 0.5 else None
            seq = self.serial - rng.choice([0, 0, 0, 5, 20])
            region = rng.choice(["eu", "us"])
            out.append(change(id, self.serial, large, op, seq=seq, region=region))
        return out

    def apply(self, table: lakebed.Table) -> None:
        table.apply(as_arrow(self.some_changes(), table))

    def step(self) -> None:
        rng, table = self.random, self.table
        actions = [
            "apply",
            "apply",
            "apply",
            "settle",
            "settle late",
            "merge",
            "mutate",
            "truncate",
            "restore",
            "follow",
            "follow",
        ]
        action = rng.choice([*actions, "detach", "attach", "replace", "overwrite"] if not self.sequence else actions)
        if action == "apply":
            self.apply(table)
        elif action == "settle":
            table.settle()
        elif action == "settle late":
            self.apply(table)
            with before_its_commits(table, lambda: self.apply(self.other)):
                table.settle()
        elif action == "merge":
            merge(table)
        elif action == "mutate":
            if rng.random() < 0.5:
                table.delete(f"small % 5 = {rng.randrange(5)}")
            else:
                table.update({"small": "small + 1"}, f"small % 5 = {rng.randrange(5)}")
        elif action == "truncate" and rng.random() < 0.3:
            table.truncate()
        elif action == "restore" and rng.random() < 0.5:
            table.restore(rng.randrange(max(0, table.version - 8), table.version + 1))
            self.detached = [name for name in table.inspect.detached()["name"].to_pylist()]
        elif action == "detach" and not self.detached:
            table.settle()
            if any(part.partition_values == {"region": "eu"} for part in log_of(table).refresh().parts.values()):
                self.detached.append(table.detach_partition({"region": "eu"}))
        elif action == "attach" and self.detached:
            table.delete("true")  # so that no key of it is live
            table.attach_partition(self.detached.pop())
        elif action == "replace":
            live = set(table.to_arrow(where="region <> 'us'")["id"].to_pylist())
            new = {id: change(id, self.serial, "new", region="us") for id in range(10) if id not in live}
            table.replace_partition({"region": "us"}, as_arrow(list(new.values()), table).select(table.schema.names))
        elif action == "overwrite":
            self.overwrite()
        elif action == "follow":
            self.copy.follow()
            self.check()

    def overwrite(self) -> None:
        """By tasks, beside changes of whole rows."""
        where = self.random.choice([None, "region = 'us'", "small % 2 = 0"])
        live = set() if where is None else set(self.table.to_arrow(where=f"not ({where})")["id"].to_pylist())
        new = [change(id, 2 * self.serial, "new", region="us") for id in range(10) if id not in live]
        rows = as_arrow(new, self.table).select(self.table.schema.names)

        began = False

        def one_more() -> None:
            if not began:
                return
            whole = [{**one, UNAVAILABLE_COLUMN: None} for one in self.some_changes()]
            self.other.apply(as_arrow(whole, self.other))
            if self.random.random() < 0.3:
                self.other.settle()
            if self.random.random() < 0.2:
                merge(self.other)

        def meanwhile() -> None:
            nonlocal began
            began = True
            for _ in range(self.random.choice([0, 1, 2])):
                one_more()

        with before_its_commits(self.table, *[one_more] * self.random.choice([0, 3]), all_of_them=False):
            overwrite_by_tasks(self.table, rows, where, meanwhile)

    def check(self) -> None:
        """What lacks values is a row of no version until it is settled."""
        if not any(part.incomplete for part in log_of(self.table).refresh().tail.values()):
            assert self.copy.rows() == rows_of(self.table)


@pytest.mark.few(5)
@pytest.mark.parametrize("sequence", [None, "column", "hidden"])
@seeds(2, quick=0)
def test_a_copy_equals_its_table_whatever_happens_to_it(seed: int, sequence: str | None, tmp_path: Path) -> None:
    world = World(seed, tmp_path, sequence)
    for _ in range(25):
        world.step()
    world.table.settle()
    world.copy.follow()
    world.check()


def merge(table: lakebed.Table) -> None:
    table.settle()
    paths: dict[str, list[str]] = {}
    for part in log_of(table).refresh().parts.values():
        paths.setdefault(str(part.partition_values), []).append(part.path)
    for some in paths.values():
        if len(some) > 1:
            merger = Merger(log_of(table), storage_of(table), deletion_vectors_of(table), "replica")
            merger.run(sorted(some), 1, LocalKernel(storage_of(table), log_of(table).refresh))
