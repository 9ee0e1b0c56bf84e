"""A table whose schema changes between and during its operations, and a dictionary that goes through the same changes.

The dictionary knows nothing of stored names or types: a rename renames a field of every row, a drop removes it, an added column
is null, a wider type keeps the value as the wider type spells it. So whatever a table remembers of an earlier schema shows.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lakebed.schema.change import SchemaChange
from lakebed.schema.widening import widening
from tests.oracle import Row, in_order

D = decimal.Decimal
KINDS: dict[str, pa.DataType] = {
    "byte": pa.int8(), "short": pa.int16(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "d5": pa.decimal128(5, 1), "d12": pa.decimal128(12, 2), "d30": pa.decimal128(30, 3),
    "date": pa.date32(), "ntz": pa.timestamp("us"), "text": pa.string(), "bool": pa.bool_(),
}  # fmt: skip
WIDER = {narrow: [wide for wide in KINDS.values() if widening(narrow, wide)] for narrow in KINDS.values()}


def value_of(rng: random.Random, kind: pa.DataType) -> Any:
    """A value of the type, also at its ends."""
    if pa.types.is_integer(kind):
        end = 2 ** (kind.bit_width - 1)
        return rng.choice([0, 1, -1, end - 1, -end, rng.randrange(-100, 100)])
    if pa.types.is_floating(kind):
        return rng.choice([0.0, 0.5, -1.25, 2.0**100, float(rng.randrange(100))])
    if pa.types.is_decimal(kind):
        unscaled = rng.choice([0, 1, 10**kind.precision - 1, rng.randrange(10**4)])
        return D(unscaled).scaleb(-kind.scale, context=decimal.Context(prec=60))
    if pa.types.is_date(kind):
        return datetime.date(2020, 1, 1) + datetime.timedelta(days=rng.randrange(1000))
    if pa.types.is_timestamp(kind):
        return datetime.datetime(2020, 1, 1) + datetime.timedelta(microseconds=rng.randrange(10**12))
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_struct(kind):
        return {child.name: maybe(rng, child.type) for child in kind}
    if pa.types.is_list(kind):
        return [maybe(rng, kind.value_type) for _ in range(rng.randrange(3))]
    if pa.types.is_map(kind):
        return [(key, maybe(rng, kind.item_type)) for key in ("k", "l")[: rng.randrange(3)]]
    return rng.choice(["", "a", "ü–ß", "long " * 12])


def maybe(rng: random.Random, kind: pa.DataType) -> Any:
    return None if rng.random() < 0.25 else value_of(rng, kind)


def widened(value: Any, kind: pa.DataType) -> Any:
    """The value as the wider type, at any depth; fields that it lacks are null."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {child.name: widened(value.get(child.name), child.type) for child in kind}
    if pa.types.is_list(kind):
        return [widened(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        return [(key, widened(each, kind.item_type)) for key, each in value]
    if pa.types.is_floating(kind):
        return float(value)
    if pa.types.is_decimal(kind):
        return D(value).quantize(D(1).scaleb(-kind.scale), context=decimal.Context(prec=60))
    if pa.types.is_timestamp(kind) and not isinstance(value, datetime.datetime):
        return datetime.datetime(value.year, value.month, value.day)
    return value


@dataclass
class Model:
    """The rows that the table should have. ``rows``: by key, or in order of arrival without one."""

    schema: pa.Schema
    key: str | None
    partition: str | None = None
    rows: dict[Any, Row] = field(default_factory=dict)
    arrived: int = 0

    def put(self, row: Row) -> None:
        self.arrived += 1
        at = row[self.key] if self.key else self.arrived
        self.rows[at] = {name: widened(row.get(name), self.schema.field(name).type) for name in self.schema.names}

    def remove(self, key: Any) -> None:
        self.rows.pop(key, None)

    def listed(self) -> list[Row]:
        return in_order(copy.deepcopy(list(self.rows.values())))

    def follow(self, change: SchemaChange, after: pa.Schema) -> None:
        """Go through a change of the schema; ``after``: the new one."""
        for path, name in change.rename.items():
            self._edit(path.split("."), lambda holder, old, name=name: holder.__setitem__(name, holder.pop(old)))
        for path in change.drop:
            self._edit(path.split("."), lambda holder, old: holder.pop(old))
        self.key = change.rename.get(self.key, self.key) if self.key else None
        self.partition = change.rename.get(self.partition, self.partition) if self.partition else None
        self.schema = after
        old, self.rows = self.rows, {}
        for at, row in old.items():
            new = {name: widened(row.get(name), after.field(name).type) for name in after.names}
            self.rows[new[self.key] if self.key else at] = new

    def _edit(self, steps: list[str], edit: Callable[[dict[str, Any], str], Any]) -> None:
        for row in self.rows.values():
            for holder in _holders(row, steps[:-1]):
                edit(holder, steps[-1])


def _holders(value: Any, steps: list[str]) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not steps:
        return [value]
    if isinstance(value, dict):
        return _holders(value[steps[0]], steps[1:])
    pieces = value if steps[0] == "element" else [each for _, each in value]
    return [holder for piece in pieces for holder in _holders(piece, steps[1:])]


def random_change(rng: random.Random, model: Model) -> SchemaChange | None:
    """A change that most tables allow; None if this draw finds none."""
    kind = rng.choice(
        ["add", "add", "widen", "widen", "rename", "drop", "drop and add", "drop and add", "add nested", "nested"]
    )
    schema = model.schema
    free = [name for name in schema.names if name not in (model.key, model.partition)]
    if kind == "add":
        return SchemaChange(add={_new_name(rng, schema.names): _new_kind(rng)})
    if kind == "widen":
        able = [name for name in schema.names if WIDER.get(schema.field(name).type) and name != model.partition]
        if not able:
            return None
        name = rng.choice(able)
        if name == model.key:
            wider = [wide for wide in WIDER[schema.field(name).type] if not pa.types.is_floating(wide)]
            return SchemaChange(widen={name: rng.choice(wider)}) if wider else None
        return SchemaChange(widen={name: rng.choice(WIDER[schema.field(name).type])})
    if kind == "rename":
        name = rng.choice(schema.names)
        return SchemaChange(rename={name: _new_name(rng, schema.names)})
    if kind in ("drop", "drop and add"):
        if len(free) < 2:
            return None
        name = rng.choice(free)
        again = rng.choice([schema.field(name).type, _new_kind(rng)])
        add = {name: again} if kind == "drop and add" else {}
        return SchemaChange(drop=(name,), add=add)
    return _nested_change(rng, schema, kind)


def _nested_change(rng: random.Random, schema: pa.Schema, kind: str) -> SchemaChange | None:
    structs = [(path, inner) for each in schema for path, inner in _structs(each.type, each.name)]
    if not structs:
        return None
    path, inner = rng.choice(structs)
    names = [child.name for child in inner]
    if kind == "add nested":
        return SchemaChange(add={f"{path}.{_new_name(rng, names)}": KINDS[rng.choice(["int", "text", "d5"])]})
    name = rng.choice(names)
    match rng.choice(["rename", "drop", "widen"]):
        case "rename":
            return SchemaChange(rename={f"{path}.{name}": _new_name(rng, names)})
        case "drop":
            return SchemaChange(drop=(f"{path}.{rng.choice(names[1:])}",)) if len(names) > 1 else None
        case _:
            wider = WIDER.get(inner.field(name).type)
            return SchemaChange(widen={f"{path}.{name}": rng.choice(wider)}) if wider else None


def _structs(kind: pa.DataType, path: str) -> list[tuple[str, pa.StructType]]:
    if pa.types.is_struct(kind):
        return [(path, kind), *(found for child in kind for found in _structs(child.type, f"{path}.{child.name}"))]
    if pa.types.is_list(kind):
        return _structs(kind.value_type, f"{path}.element")
    if pa.types.is_map(kind):
        return _structs(kind.item_type, f"{path}.value")
    return []


def _new_name(rng: random.Random, taken: list[str]) -> str:
    while (name := rng.choice("abcdefghij") + rng.choice(["", "1", "X"])).lower() in {each.lower() for each in taken}:
        pass
    return name


def _new_kind(rng: random.Random) -> pa.DataType:
    inner = pa.struct([("x", pa.int32()), ("y", pa.string())])
    plain = list(KINDS.values())
    if rng.random() < 0.85:  # while no column is nested, merges read files another way
        return rng.choice(plain)
    return rng.choice([inner, pa.list_(inner), pa.map_(pa.string(), inner), pa.list_(pa.int32())])


def as_rows(rows: list[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    loose = pa.schema([each.with_nullable(True) for each in schema])
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], loose)
