"""C1, B1, B2, S2 while the schema moves: adds, drops, renames and widenings, at any depth, between operations and during them.

A table is treated at random, and a dictionary is treated alike. Every operation may be overtaken: another process changes the
schema after the operation was planned and its files were written, and before it commits. The operation commits all the same.
"""

from __future__ import annotations

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
from lakebed.errors import InvalidSchema
from lakebed.log.table_log import TableLog
from lakebed.merge.kernel import MergedPart, MergeSource, merge_parts
from lakebed.operations.alter import alter
from lakebed.parts.changes import WriteSpec
from lakebed.quoting import quote
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage
from tests.internals import deletion_vectors_of, log_of, storage_of
from tests.oracle import Row, in_order
from tests.table.moving_schema import KINDS, Model, as_rows, maybe, random_change, value_of, widened
from tests.worlds import seeds


@dataclass
class World:
    rng: random.Random
    folder: Path
    table: lakebed.Table
    model: Model
    keys: list[Any]
    states: dict[int, tuple[pa.Schema, list[Row]]] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)

    def remember(self) -> None:
        self.states[self.table.version] = (self.model.schema, self.model.listed())


def make_world(seed: int, folder: Path) -> World:
    rng = random.Random(seed)
    key_kind = KINDS[rng.choice(["short", "int", "long", "date", "d5", "text"])]
    inner = pa.struct(
        [("x", pa.int32()), ("y", pa.string()), ("z", pa.struct([("u", pa.int16()), ("v", pa.float32())]))]
    )
    fields = [
        pa.field("id", key_kind, nullable=False), pa.field("p", rng.choice([pa.string(), pa.int32()])),
        pa.field("n", KINDS[rng.choice(["byte", "int", "float", "d5", "date"])]),
        pa.field("s", rng.choice([inner, pa.list_(inner), pa.map_(pa.string(), inner), pa.int64(), pa.string()])),
    ]  # fmt: skip
    key = rng.choice(["id", "id", "id", None])
    partition = rng.choice([None, None, "p"])
    table = lakebed.create(
        folder / "table",
        pa.schema(fields),
        keys=[key] if key else [],
        partition_by=[partition] if partition else [],
        sort_key=rng.choice([[], ["n"], ["p", "n desc"]]) if not partition else [],
        properties={"lakebed.checkpoint_interval": str(rng.choice([2, 5, 100]))},
    )
    world = World(rng, folder, table, Model(table.schema, key, partition), [])
    world.keys = list({repr(one): one for one in (value_of(rng, key_kind) for _ in range(12))}.values())
    world.remember()
    return world


# -- operations -------------------------------------------------------------------------------------------------------


def apply(world: World) -> None:
    """Upserts and deletes, in the names and types of the schema at this moment."""
    rng, model = world.rng, world.model
    rows, ops = [], []
    for _ in range(rng.choice([1, 3, 12])):
        row = {each.name: maybe(rng, each.type) for each in model.schema}
        if model.key:
            row[model.key] = as_now(rng.choice(world.keys), model.schema.field(model.key).type)
        else:
            row[next(iter(row))] = value_of(rng, model.schema.field(0).type)
        if model.partition and row[model.partition] == "":
            row[model.partition] = None  # Delta has no empty partition
        rows.append(row)
        ops.append(rng.random() < 0.3 if model.key else False)
    given = as_rows(rows, model.schema)
    for row, deleted in zip(rows, ops, strict=True):
        if deleted:
            model.remove(row[model.key])
        else:
            model.put(row)
    if model.key:
        given = given.append_column("gone_now", pa.array(ops))
        world.table.apply(given, apply_as_deletes="gone_now")
    else:
        world.table.apply(given)


def as_now(key: Any, kind: pa.DataType) -> Any:
    return widened(key, kind)


def settle(world: World) -> None:
    world.table.settle()


def merge(world: World) -> None:
    log = log_of(world.table)
    merger = Merger(log, storage_of(world.table), deletion_vectors_of(world.table), "somebody")
    snapshot = log.refresh()
    parts = sorted(snapshot.parts)
    if not parts:
        return
    first = snapshot.parts[world.rng.choice(parts)]
    alike = [path for path in parts if snapshot.parts[path].partition_values == first.partition_values]
    chosen = world.rng.sample(alike, world.rng.randint(1, min(4, len(alike))))
    result = merger.run(chosen, 1 + max(snapshot.parts[path].level for path in chosen), Kernel(world))
    assert result.outcome is MergeOutcome.COMPLETED


@dataclass
class Kernel:
    world: World

    def merge(
        self, sources: Sequence[MergeSource], spec: WriteSpec, output: PartStorage, progress: Progress
    ) -> list[MergedPart]:
        rows_max = self.world.rng.choice([3, 1000])
        return merge_parts(sources, spec, output, connect(), rows_max=rows_max)


def mutate(world: World) -> None:
    """A delete or an update of the rows that have one value, by the names of this moment."""
    rng, model = world.rng, world.model
    able = [each for each in model.schema if pa.types.is_string(each.type) or pa.types.is_integer(each.type)]
    if not able:
        return
    column = rng.choice(able)
    value = rng.choice([row[column.name] for row in model.rows.values()] or [None])
    where = f"{quote(column.name)} is not distinct from {as_sql(value)}"
    hit = [at for at, row in model.rows.items() if row[column.name] == value]
    settable = [each for each in able if each.name not in (model.key, model.partition)]
    if rng.random() < 0.4 or not settable:
        for at in hit:
            del model.rows[at]
        world.table.delete(where)
        return
    target = rng.choice(settable)
    new = maybe(rng, target.type) if target.nullable else value_of(rng, target.type)
    for at in hit:
        model.rows[at][target.name] = new
    world.table.update({target.name: as_sql(new)}, where)


def as_sql(value: Any) -> str:
    return "null" if value is None else f"'{value}'"


def checkpoint(world: World) -> None:
    log_of(world.table).write_checkpoint(log_of(world.table).refresh())


def reopen(world: World) -> None:
    world.table = lakebed.open(world.folder / "table")


def detach_and_attach(world: World) -> None:
    """A partition leaves, perhaps the schema changes, and it comes back."""
    model = world.model
    if not model.partition or not model.rows:
        return
    world.table.settle()
    row = world.rng.choice(list(model.rows.values()))
    name = world.table.detach_partition({model.partition: row[model.partition]})
    assert world.table.inspect.detached()["partition"].to_pylist()[0][0][0] == model.partition
    if world.rng.random() < 0.7:
        change_schema(world)
    world.table.attach_partition(name)


def change_schema(world: World) -> None:
    """Somebody else changes the schema: another process, with a log of its own."""
    change = random_change(world.rng, world.model)
    if change is None:
        return
    world.changes.append(str(change.to_json()))
    try:
        log = log_of(lakebed.open(world.folder / "table"))
        alter(log, change)
    except InvalidSchema:
        return  # such as the drop of a sort column
    world.model.follow(change, log.refresh().logical_schema)


OPERATIONS: dict[str, Callable[[World], None]] = {
    "apply": apply, "settle": settle, "merge": merge, "mutate": mutate, "checkpoint": checkpoint, "reopen": reopen,
    "detach": detach_and_attach, "alter": change_schema,
}  # fmt: skip


@contextmanager
def overtaken(world: World) -> Iterator[None]:
    """Within it, the schema changes once: when the operation commits, after all that it planned and wrote."""
    commit, left = TableLog.commit, [1]

    def late(log: TableLog, *arguments: Any, **named: Any) -> Any:
        if left and log is log_of(world.table):
            left.clear()
            change_schema(world)
        return commit(log, *arguments, **named)

    with mock.patch.object(TableLog, "commit", late):
        yield


# -- what must hold ---------------------------------------------------------------------------------------------------


def read(world: World, version: int | None = None) -> list[Row]:
    return in_order(world.table.to_arrow(version=version).to_pylist())


def check(world: World) -> None:
    assert world.table.to_arrow().schema.names == world.model.schema.names
    assert read(world) == world.model.listed()


def step(world: World) -> None:
    names = ["apply"] * 5 + ["settle"] * 3 + ["merge"] * 3 + ["mutate"] * 2 + ["alter"] * 3
    name = world.rng.choice([*names, "checkpoint", "reopen", "detach"])
    world.changes.append(name)
    if name in ("apply", "settle", "merge", "mutate") and world.rng.random() < 0.4:
        with overtaken(world):
            OPERATIONS[name](world)
    else:
        OPERATIONS[name](world)
    check(world)
    world.remember()


@pytest.mark.few(2)
@seeds(4, quick=0)
def test_the_table_equals_a_dictionary_whatever_changes_when(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    world = make_world(seed, tmp_path)
    try:
        for _ in range(world.rng.choice([6, 15, 30])):
            step(world)
    except BaseException as error:
        error.add_note(f"seed {seed}: " + "; ".join(world.changes))
        raise
    reopen(world)
    for version, (schema, rows) in world.states.items():
        assert read(world, version) == rows, f"version {version}"
        assert world.table.to_arrow(version=version).schema.names == schema.names
    assert [str(finding) for finding in world.table.doctor(deep=True).findings] == []
