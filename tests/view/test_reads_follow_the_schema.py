"""Tables of many schemas, one after the other: every reader sees each version with the schema that it had.

The oracle is a list of dicts by stored names, as they were written. What a reader must return for a version is what remains of
them when they are projected on that version's columns, converted to its types and called by its names (``as_read``).
"""

from __future__ import annotations

import datetime
import decimal
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidInput, InvalidSchema
from lakebed.log.snapshot import Snapshot
from lakebed.parts.change_columns import ChangeColumns, columns_at
from lakebed.parts.change_rows import read_version, versions_with_changes
from lakebed.schema.column_mapping import ColumnMapping
from lakebed.schema.widening import widening
from lakebed.table import Table, internals_of
from tests.worlds import seeds

STEPS = 18
TYPES = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.date32(), pa.timestamp("us"),
    pa.timestamp("us", "UTC"), pa.decimal128(5, 2), pa.decimal128(12, 3), pa.decimal128(20, 2), pa.decimal128(38, 10),
    pa.string(), pa.binary(), pa.bool_(),
]  # fmt: skip
Row = dict[str, Any]


def random_type(rng: random.Random, depth: int = 2) -> pa.DataType:
    shape = rng.random() if depth else 1.0
    if shape < 0.2:
        names = rng.sample("abc", rng.randint(1, 3))
        return pa.struct([pa.field(name, random_type(rng, depth - 1), rng.random() < 0.8) for name in names])
    if shape < 0.3:
        return pa.list_(pa.field("element", random_type(rng, depth - 1), rng.random() < 0.8))
    if shape < 0.38:
        return pa.map_(pa.string(), random_type(rng, depth - 1))
    return rng.choice(TYPES)


def random_value(rng: random.Random, field: pa.Field) -> Any:
    kind = field.type
    if field.nullable and rng.random() < 0.12:
        return None
    if pa.types.is_struct(kind):
        return {each.name: random_value(rng, each) for each in kind}
    if pa.types.is_list(kind):
        return [random_value(rng, kind.value_field) for _ in range(rng.randrange(3))]
    if pa.types.is_map(kind):
        return [(key, random_value(rng, kind.item_field)) for key in rng.sample("klm", rng.randrange(3))]
    if pa.types.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        return rng.choice([rng.randrange(-9, 9), rng.randrange(-limit, limit), limit - 1, -limit])
    if pa.types.is_floating(kind):
        number = rng.choice([rng.randrange(-9, 9) / 4, 0.1, rng.uniform(-1e3, 1e3), math.nan, -0.0, 1e30, math.inf])
        return float(np.float32(number)) if pa.types.is_float32(kind) else number
    if pa.types.is_decimal(kind):
        digits = rng.choice([kind.precision, 2, kind.scale + 1])
        return decimal.Decimal(rng.randrange(-(10**digits) + 1, 10**digits)).scaleb(
            -kind.scale, decimal.Context(prec=40)
        )
    if pa.types.is_date(kind):
        return datetime.date(2024, 1, 1) + datetime.timedelta(
            days=rng.choice([rng.randrange(9), rng.randrange(-99999, 99999)])
        )
    if pa.types.is_timestamp(kind):
        moment = datetime.datetime(2024, 1, 1) + datetime.timedelta(
            days=rng.randrange(9), microseconds=rng.choice([0, 1, 999, rng.randrange(86_400_000_000)])
        )
        return moment.replace(tzinfo=datetime.UTC) if kind.tz else moment
    if pa.types.is_string(kind):
        return rng.choice(["", "a", "ä", "z" * 40, "\U0010ffff" * 3, "it's", str(rng.randrange(99))])
    if pa.types.is_binary(kind):
        return rng.randbytes(rng.randrange(4))
    return rng.random() < 0.5


# -- the oracle --------------------------------------------------------------------------------------------------------


def as_read(row: Row, columns: ColumnMapping) -> Row:
    """A row, written at whatever version, as a reader must return it by these columns."""
    return {
        new.name: _as_read(row.get(old.name), old.with_nullable(True), new)
        for old, new in zip(columns.stored, columns.logical, strict=True)
    }


def _as_read(value: Any, old: pa.Field, new: pa.Field) -> Any:
    stored, wanted = old.type, new.type
    if value is None:
        if not old.nullable:
            raise Misfit(value)
        return None
    if pa.types.is_struct(stored):
        return {
            after.name: _as_read(value.get(before.name), before, after)
            for before, after in zip(stored, wanted, strict=True)
        }
    if pa.types.is_list(stored):
        return [_as_read(each, stored.value_field, wanted.value_field) for each in value]
    if pa.types.is_map(stored):
        return [(key, _as_read(each, stored.item_field, wanted.item_field)) for key, each in value]
    return _converted(value, stored)


class Misfit(Exception):
    """The value is none of the type."""


def _converted(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_floating(kind):
        number = float(np.float32(value)) if pa.types.is_float32(kind) else float(value)
        if number != value and number == number:
            raise Misfit(value)
        return number
    if pa.types.is_integer(kind):
        if (
            value != value
            or math.isinf(value)
            or value != int(value)
            or not -(1 << kind.bit_width - 1) <= value < 1 << kind.bit_width - 1
        ):
            raise Misfit(value)
        return int(value)
    if pa.types.is_decimal(kind):
        number = decimal.Decimal(value)
        scaled = number.scaleb(kind.scale, decimal.Context(prec=80))
        if scaled != scaled.to_integral_value() or abs(scaled) >= 10**kind.precision:
            raise Misfit(value)
        return number
    if pa.types.is_timestamp(kind) and not isinstance(value, datetime.datetime):
        return datetime.datetime.combine(value, datetime.time())
    if pa.types.is_date(kind) and isinstance(value, datetime.datetime):
        if value.time() != datetime.time():
            raise Misfit(value)
        return value.date()
    return value


def plain(value: Any) -> Any:
    """A value as a text that is equal for equal values, whatever type they came in."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, decimal.Decimal):
        return f"{value.normalize(decimal.Context(prec=40)) + 0:f}"
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat() if value.tzinfo else value.isoformat()
    return value


def same(found: pa.Table | list[Row], expected: list[Row]) -> None:
    rows = found.to_pylist() if isinstance(found, pa.Table) else found
    assert sorted(map(repr, map(plain, rows))) == sorted(map(repr, map(plain, expected)))


# -- a table and what is done to it ------------------------------------------------------------------------------------


@dataclass
class World:
    rng: random.Random
    table: Table
    rows: dict[Any, Row] = field(default_factory=dict)  # by key, with stored names
    versions: dict[int, tuple[Snapshot, list[Row]]] = field(default_factory=dict)
    changes: dict[int, list[tuple[str, Row]]] = field(default_factory=dict)

    @property
    def snapshot(self) -> Snapshot:
        return internals_of(self.table).log.refresh()

    def record(self) -> None:
        self.versions[self.snapshot.version] = self.snapshot, list(self.rows.values())

    def apply(self) -> None:
        columns = self.snapshot.columns
        key = self.snapshot.logical_settings.keys[0]
        keys = self.rng.sample(range(60), self.rng.randrange(1, 12))
        rows = [
            {each.name: random_value(self.rng, each) for each in columns.logical} | {key: number} for number in keys
        ]
        if "region" in columns.stored.names:
            region = columns.logical_name("region")
            rows = [row | {region: self.rng.choice(["eu", "us", None])} for row in rows]
        batch = pa.Table.from_pylist(rows, columns.logical)
        stored = columns.to_stored(batch).to_pylist()
        kinds = [self.rng.choice("uuud") for _ in rows]
        version = self.table.apply(
            batch.append_column("change kind", pa.array(kinds)), apply_as_deletes="\"change kind\" = 'd'"
        )
        self.changes[version] = []
        for number, kind, row in zip(keys, kinds, stored, strict=True):
            self.rows.pop(number, None)
            if kind == "u":
                self.rows[number] = row
            self.changes[version].append(("upsert" if kind == "u" else "delete", row))

    def alter(self) -> None:
        """One random change of the schema; one that is refused changes nothing."""
        schema, rng = self.table.schema, self.rng
        paths = list(_paths(schema, ()))
        kind = rng.choice(["add", "add in", "widen", "widen", "relax", "rename", "drop", "again"])
        name, path = f"n{rng.randrange(10**6)}", ".".join(rng.choice(paths)[0])
        change: dict[str, Any] = {}
        if kind == "add":
            change = {"add": {name: random_type(rng)}}
        elif kind == "add in":
            structs = [".".join(steps) for steps, found in paths if pa.types.is_struct(found)]
            change = {"add": {f"{rng.choice(structs)}.{name}": random_type(rng, 1)}} if structs else {}
        elif kind == "widen":
            steps = [(".".join(at), wide) for at, found in paths for wide in TYPES if widening(found, wide)]
            change = {"widen": dict([rng.choice(steps)])} if steps else {}
        elif kind == "relax":
            change = {"relax": [path]}
        elif kind == "rename" and not path.endswith(("element", "key", "value")):
            change = {"rename": {path: rng.choice([name, "Ü b", "x.y"])}}
        elif kind == "drop" and not path.endswith(("element", "key", "value")):
            change = {"drop": [path]}
        elif kind == "again" and "." not in path:
            self._alter({"drop": [path]})
            change = {"add": {path: rng.choice(TYPES)}}
        if change:
            self._alter(change)

    def _alter(self, change: dict[str, Any]) -> None:
        try:
            self.table.alter(**change)
        except InvalidInput:
            return
        self.record()


def _paths(fields: Any, at: tuple[str, ...]) -> Any:
    for each in fields:
        if "." not in each.name:
            yield from _paths_of(each.type, (*at, each.name))


def _paths_of(kind: pa.DataType, at: tuple[str, ...]) -> Any:
    yield at, kind
    if pa.types.is_struct(kind):
        yield from _paths(kind, at)
    elif pa.types.is_list(kind):
        yield from _paths_of(kind.value_type, (*at, "element"))
    elif pa.types.is_map(kind):
        yield from _paths_of(kind.item_type, (*at, "value"))


def new_world(folder: Path, seed: int) -> World:
    rng = random.Random(seed)
    fields = [pa.field("id", rng.choice([pa.int8(), pa.int32(), pa.int64()]))]
    fields += [pa.field(f"c{at}", random_type(rng), rng.random() < 0.8) for at in range(rng.randint(3, 7))]
    partition = ["region"] if rng.random() < 0.4 else []
    fields += [pa.field(name, pa.string()) for name in partition]
    table = lakebed.create(folder / "orders", pa.schema(fields), keys=["id"], partition_by=partition)
    world = World(rng, table)
    world.record()
    return world


# -- what is read ------------------------------------------------------------------------------------------------------


def check_reads(world: World) -> None:
    table, rng, columns = world.table, world.rng, world.snapshot.columns
    expected = [as_read(row, columns) for row in world.rows.values()]
    found = table.to_arrow()
    assert found.schema == table.schema
    same(found, expected)
    oracle = pa.Table.from_pylist(expected, table.schema)
    some = rng.sample(table.schema.names, min(3, len(table.schema)))
    same(table.to_arrow(columns=some), oracle.select(some).to_pylist())
    for where in (_condition(rng, oracle), _condition(rng, oracle)):
        matching = duckdb.sql(f"select * from oracle where {where}").to_arrow_table()
        same(table.to_arrow(where=where), matching.to_pylist())
        same(table.query(f"select * from t where {where}", name="t"), matching.to_pylist())
    key = world.snapshot.logical_settings.keys[0]
    sought = rng.sample(range(70), 5)
    same(table.lookup(sought), [row for row in expected if row[key] in sought])
    name = rng.choice([each.name for each in table.schema if not pa.types.is_nested(each.type)])
    values = oracle.select([name]).slice(0, 3)
    joined = duckdb.sql(f'select * from oracle semi join values using ("{name}")').to_arrow_table()
    same(table.lookup(values, columns=[name]), joined.select([name]).to_pylist())


def _condition(rng: random.Random, oracle: pa.Table) -> str:
    """A comparison with a value of a column, so that bounds decide, and maybe a second one."""
    names = [
        each.name for each in oracle.schema if not (pa.types.is_nested(each.type) or pa.types.is_boolean(each.type))
    ]
    name = rng.choice(names)
    kind = oracle.schema.field(name).type
    value = random_value(rng, oracle.schema.field(name))
    if len(oracle) and rng.random() < 0.7:
        value = rng.choice(oracle[name].to_pylist())
    if value is None:
        return f'"{name}" is null'
    comparison = rng.choice(["=", "<", "<=", ">", ">=", "<>"])
    text = _literal(value, kind)
    return (
        f'"{name}" {comparison} {text}'
        if rng.random() < 0.8
        else f'"{name}" in ({text}, {_literal(random_value(rng, pa.field(name, kind)), kind)})'
    )


def _literal(value: Any, kind: pa.DataType) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::blob"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"'{value}'::double"
    if isinstance(value, (int, decimal.Decimal)):
        return f"{value:f}" if isinstance(value, decimal.Decimal) else str(value)
    text = str(value).replace("'", "''")
    if isinstance(value, datetime.datetime):
        return f"'{text}'::timestamptz" if value.tzinfo else f"timestamp '{text}'"
    return f"date '{text}'" if isinstance(value, datetime.date) else f"'{text}'"


def check_older_versions(world: World) -> None:
    for version in world.rng.sample(sorted(world.versions), min(3, len(world.versions))):
        snapshot, rows = world.versions[version]
        found = world.table.to_arrow(version=version)
        assert found.schema == snapshot.logical_schema
        same(found, [as_read(row, snapshot.columns) for row in rows])


def check_changes(world: World, columns: ChangeColumns) -> None:
    """The change rows of all versions by some version's columns: what fits is there, what does not is refused."""
    for version in versions_with_changes(world.table.path, 0, world.table.version, columns):
        try:
            expected = [
                as_read(row, columns.mapping) | {"_change_type": kind} for kind, row in world.changes[version.version]
            ]
        except Misfit:
            with pytest.raises(InvalidSchema, match="start the query again"):
                list(read_version(world.table.path, version))
            continue
        found = [row for batch in read_version(world.table.path, version) for row in batch.to_pylist()]
        wanted = [*columns.mapping.logical.names, "_change_type"]
        same([{name: row[name] for name in wanted} for row in found], expected)


@pytest.mark.few(1)
@seeds(2, quick=0)
def test_every_reader_sees_each_version_with_the_schema_that_it_had(tmp_path: Path, seed: int) -> None:
    world = new_world(tmp_path, seed)
    for step in range(STEPS):
        act = world.rng.random()
        if act < 0.45:
            world.apply()
        elif act < 0.9:
            world.alter()
        else:
            world.table.settle()
        world.record()
        if step % 3 == 2:
            check_reads(world)
    check_reads(world)
    check_older_versions(world)
    for version in world.rng.sample(sorted(world.versions), min(3, len(world.versions))):
        check_changes(world, columns_at(world.versions[version][0]))
