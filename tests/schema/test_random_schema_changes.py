"""Random changes of random schemas, followed by a model that knows columns by identity: names, types, drops, and what fits.

The model's column is an object; it never changes its identity, and it says which values a file that was written while it was
there has. So what a reader gets by stored names is compared with what the model says it must get.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from lakebed.errors import InvalidSchema
from lakebed.schema.change import SchemaChange, difference
from lakebed.schema.column_mapping import MAX_ID, columns_of, stored_paths
from lakebed.schema.conversion import schema_to_json
from lakebed.schema.evolve import Evolved, evolve, is_compatible
from lakebed.schema.widening import common_type, widening
from tests.schema.test_evolve import snapshot, table
from tests.worlds import seeds

STEPS = 25
LEAVES = (
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.date32(), pa.string(), pa.bool_(),
    pa.decimal128(10, 2), pa.decimal128(20, 4), pa.decimal128(38, 10), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.binary(),
)  # fmt: skip
NAMES = ("a", "b", "c", "d.e", "größe", "x y", "`q`")


@dataclass(eq=False)
class Column:
    """A column or field of the model. ``kind``: a leaf type, or "struct", "list", "map" with what is in it."""

    name: str
    kind: Any
    nullable: bool = True
    inner: list[Column] = field(default_factory=list)

    def type(self) -> pa.DataType:
        match self.kind:
            case "struct":
                return pa.struct([each.field() for each in self.inner])
            case "list":
                return pa.list_(replace(self.inner[0], name="element").field())
            case "map":
                return pa.map_(pa.string(), replace(self.inner[0], name="value").field())
            case kind:
                return kind

    def field(self) -> pa.Field:
        return pa.field(self.name, self.type(), self.nullable)


def some_column(of: random.Random, name: str, depth: int = 0, nullable: bool = True) -> Column:
    kind = of.choice([*LEAVES, *(["struct", "list", "map"] * (3 if depth < 3 else 0))])
    if kind == "struct":
        names = of.sample(NAMES[:5], of.randint(1, 3))
        return Column(name, kind, nullable, [some_column(of, each, depth + 1) for each in names])
    if kind in ("list", "map"):
        return Column(name, kind, nullable, [some_column(of, "", depth + 1, of.random() < 0.7)])
    return Column(name, kind, nullable)


def places(columns: list[Column], at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Column, list[Column]]]:
    """Every column and field with its path and its siblings; what a list or a map holds has itself as its only sibling."""
    for each in columns:
        here = (*at, each.name)
        yield here, each, columns
        if each.kind == "struct":
            yield from places(each.inner, here)
        elif each.kind in ("list", "map"):
            step = "element" if each.kind == "list" else "value"
            yield from held(each.inner[0], (*here, step))


def held(one: Column, here: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Column, list[Column]]]:
    yield here, one, [one]
    if one.kind == "struct":
        yield from places(one.inner, here)
    elif one.kind in ("list", "map"):
        yield from held(one.inner[0], (*here, "element" if one.kind == "list" else "value"))


def quoted(path: tuple[str, ...]) -> str:
    return ".".join("`" + step.replace("`", "``") + "`" if set(step) & {".", "`"} else step for step in path)


@dataclass
class World:
    """A table, the model of its columns, and how each column that was ever there was stored."""

    random: random.Random
    state: Evolved
    columns: list[Column]
    stored: dict[int, tuple[tuple[str, ...], Column]] = field(default_factory=dict)

    def step(self) -> tuple[SchemaChange, bool]:
        """One random change, made in the table and in the model; and whether it drops something. Raises InvalidSchema."""
        path, one, siblings = self.random.choice(list(places(self.columns)))
        is_field, text = one.name != "" and path[-1] == one.name, quoted(path)
        beside, above = (siblings, path[:-1]) if is_field else (self.columns, ())
        free = [name for name in NAMES if name.lower() not in {each.name.lower() for each in beside}]
        draw = self.random.random()
        if draw < 0.3 and free:
            new = some_column(self.random, self.random.choice(free), len(path))
            return self.made(SchemaChange(add={quoted((*above, new.name)): new.type()}), beside.append, new), False
        if draw < 0.5 and is_field:
            name = self.random.choice(free or ["a"])
            return self.made(SchemaChange(rename={text: name}), setattr, one, "name", name), False
        if draw < 0.65 and is_field:
            return self.made(SchemaChange(drop=(text,)), siblings.remove, one), True
        if draw < 0.85:
            wide = self.random.choice(LEAVES)
            return self.made(SchemaChange(widen={text: wide}), self.widen, one, wide), False
        return self.made(SchemaChange(relax=(text,)), setattr, one, "nullable", True), False

    @staticmethod
    def widen(one: Column, wide: pa.DataType) -> None:
        if widening(one.kind, wide):
            one.kind = wide

    def made(self, change: SchemaChange, act: Any, *arguments: Any) -> SchemaChange:
        self.state = evolve(self.state.metadata, self.state.protocol, change)
        act(*arguments)
        return change


def world(seed: int) -> World:
    of = random.Random(seed)
    columns = [some_column(of, name, nullable=of.random() < 0.7) for name in ("id", *NAMES[:3])]
    columns[0] = Column("id", pa.int64(), False)
    return World(of, table(pa.schema([each.field() for each in columns]), ()), columns)


@seeds(15, quick=15)
def test_random_changes_do_what_they_say_and_bring_nothing_back(seed: int) -> None:
    now = world(seed)
    ever: dict[tuple[str, ...], Column] = {}
    for _ in range(STEPS):
        before = now.state
        try:
            change, drops = now.step()
        except InvalidSchema:
            assert now.state is before
            continue
        after = snapshot(now.state)
        # The schema is what the model says, and reads as it was written.
        assert after.logical_schema.equals(pa.schema([each.field() for each in now.columns])), change
        # Each field keeps its stored path, and no stored path is ever another field's.
        paths = stored_paths(now.state.metadata, now.state.protocol)
        for path, one, _ in places(now.columns):
            if (stored := paths.get(path)) is not None and one.name:
                assert ever.setdefault(stored, one) is one, f"{change}: {stored} was another column"
        # Numbers are unique and counted up to the property.
        ids = list(after.columns.field_ids.values())
        assert len(set(ids)) == len(ids) and max(ids, default=0) <= int(after.metadata.configuration.get(MAX_ID, 0))
        # The same change again changes nothing, where its paths still lead somewhere.
        if change.add or change.relax or change.widen:
            assert evolve(now.state.metadata, now.state.protocol, change).metadata is now.state.metadata
        # A change passes as compatible unless it drops something, and only in its own direction.
        assert is_compatible(before.metadata, now.state.metadata) is not drops, change
        assert SchemaChange.from_json(json.loads(json.dumps(change.to_json()))) == change


def rows_of(one: Column, number: int) -> Any:
    """A value of a column that only it has."""
    match one.kind:
        case "struct":
            return {each.name: rows_of(each, number) for each in one.inner}
        case "list":
            return [rows_of(one.inner[0], number)]
        case "map":
            return [("k", rows_of(one.inner[0], number))]
        case kind:
            return number % 100 if pa.types.is_integer(kind) else None


def expected(one: Column, then: dict[Column, Column], number: int) -> Any:
    """What a reader gets of a row that was written while ``then`` were the columns: null for what was not there."""
    before = then.get(one)
    if before is None:
        return None
    match one.kind:
        case "struct":
            return {each.name: expected(each, then, number) for each in one.inner}
        case "list":
            return [expected(one.inner[0], then, number)]
        case "map":
            return [("k", expected(one.inner[0], then, number))]
        case _:
            return number % 100 if pa.types.is_integer(before.kind) else None


def read(value: Any, stored: pa.DataType) -> Any:
    """A value of a file as a reader gets it by the stored type of today: fields by name, null for what the file lacks."""
    if value is None:
        return None
    if pa.types.is_struct(stored):
        return {each.name: read(value.get(each.name), each.type) for each in stored}
    if pa.types.is_list(stored):
        return [read(each, stored.value_type) for each in value]
    if pa.types.is_map(stored):
        return [(key, read(each, stored.item_type)) for key, each in value]
    return value


@seeds(15, quick=15)
def test_every_row_that_was_ever_written_reads_as_the_model_says(seed: int) -> None:
    now, files = world(seed), []
    number = itertools.count(1)
    for _ in range(STEPS):
        with_names = {each.name: rows_of(each, at) for at in [next(number)] for each in now.columns}
        columns = snapshot(now.state).columns
        written = columns.to_stored(pa.Table.from_pylist([with_names], schema=columns.logical))
        [row] = written.to_pylist()
        files.append((row, {one: replace(one) for _, one, _ in places(now.columns)}, next(number) - 1))
        with suppress(InvalidSchema):
            now.step()
    columns = snapshot(now.state).columns
    for row, then, at in files:
        value = {each.name: read(row.get(each.name), each.type) for each in columns.stored}
        kinds = pa.schema([nullable(each) for each in columns.stored])
        got = columns.to_logical(pa.Table.from_pylist([value], schema=kinds)).to_pylist()[0]
        assert got == {one.name: expected(one, then, at) for one in now.columns}


def nullable(one: pa.Field) -> pa.Field:
    kind = one.type
    if pa.types.is_struct(kind):
        kind = pa.struct([nullable(each) for each in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(nullable(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_field, nullable(kind.item_field))
    return pa.field(one.name, pa.string() if pa.types.is_temporal(kind) else kind)


@seeds(15, quick=15)
def test_after_the_difference_rows_of_the_other_schema_fit(seed: int) -> None:
    of = random.Random(seed)
    columns = [some_column(of, name, nullable=of.random() < 0.6) for name in NAMES[:4]]
    wanted = [
        some_column(of, name) if of.random() < 0.5 else replace(one) for name, one in zip(NAMES, columns, strict=False)
    ]
    wanted = [each for each in wanted if of.random() < 0.8]
    before = table(pa.schema([pa.field("id", pa.int64(), False), *(each.field() for each in columns)]), ())
    goal = pa.schema([pa.field("id", pa.int64(), False), *(each.field() for each in wanted)])
    change = difference(columns_of(before.metadata, before.protocol).logical, goal)
    after = evolve(before.metadata, before.protocol, change)
    table_now = columns_of(after.metadata, after.protocol).logical
    assert not difference(table_now, goal)
    assert is_compatible(before.metadata, after.metadata)
    for name in goal.names:
        ours, theirs = table_now.field(name), goal.field(name)
        assert ours.nullable or not theirs.nullable
        if (common := common_type(ours.type, theirs.type)) is not None:
            assert common.equals(ours.type)
    assert all(one.nullable or one.name in goal.names for one in table_now)


def test_a_widening_keeps_every_value_and_the_order() -> None:
    for narrow, wide in itertools.product(LEAVES, LEAVES):
        if not widening(narrow, wide):
            continue
        assert not widening(wide, narrow)
        assert all(
            widening(narrow, wider) for wider in LEAVES if widening(wide, wider) and not pa.types.is_decimal(wider)
        )
        values = {
            pa.int8(): [-128, 0, 127], pa.int16(): [-(2**15), 5, 2**15 - 1], pa.int32(): [-(2**31), 2**31 - 1],
            pa.int64(): [-(2**63), 2**63 - 1],
        }.get(narrow)  # fmt: skip
        if values is not None:
            cast = pa.array(values, narrow).cast(wide)
            assert [int(each) for each in cast.to_pylist()] == values


def test_a_schema_of_another_tool_reads_after_every_change_as_json_has_it() -> None:
    of, state = random.Random(7), table(partition_by=())
    document = json.loads(state.metadata.schema_string)
    for each in document["fields"]:
        each["metadata"] = {"tool": {"n": each["name"]}, "x": 1.0}
    state = Evolved(metadata=replace(state.metadata, schema_string=json.dumps(document)), protocol=state.protocol)
    for number in range(20):
        names = snapshot(state).logical_schema.names
        change = of.choice(
            [
                SchemaChange(add={f"n{number}": of.choice(LEAVES)}),
                SchemaChange(rename={of.choice(names[1:]): f"r{number}"}),
                SchemaChange(comment={of.choice(names): str(number)}),
            ]
        )
        state = evolve(state.metadata, state.protocol, change)
    tools = [each["metadata"].get("tool") for each in json.loads(state.metadata.schema_string)["fields"]]
    first = [{"n": each["name"]} for each in document["fields"]]
    assert tools[: len(first)] == first and schema_to_json(snapshot(state).logical_schema)
