"""One table with hostile names, types, values and settings, under random treatment, beside a dictionary of the same changes.

1. A seed draws columns (names of ``vocabulary``, values at the edges of their types), keys, sequence, sort key, partitions and
   settings. Whatever `create` refuses must be refused with an error that names it; then the seed draws again.
2. Steps: batches, late events, deletes, mutations, settles, merges, reclusters, new sort keys, truncates, cleanups by a process
   whose clock is wrong, handles and caches that are new. Every error is one of lakebed's, and none is expected here but those
   that ``EXPECTED`` names.
3. After each step some reader compares: the fresh view, a look-up, a count, another process's view without a key index, an older
   version, the doctor.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

import lakebed
from lakebed.errors import InvalidInput, LakebedError, VersionNotFound
from lakebed.far_times import python_rows
from lakebed.health.examination import examine
from lakebed.table import internals_of
from tests.hostile.vocabulary import hostile_names
from tests.internals import log_of
from tests.table.values import KEYS, PARTITIONS, TYPES

Row = dict[str, Any]
VERSIONS_MAX = 400
"""More versions than a world's steps and all the merges that they can ask for: who gets there merges for ever."""
DAY = 86_400
CLOCKS = [0, 0, 0, 660, -660, 3600, -3600, 30 * DAY, -30 * DAY, 365 * DAY]
URLS = [
    f"https://www.example.com/{page}"
    for page in ("about", "products", "products/", *(f"products/{n}" for n in range(30)))
]
_SEQUENCES = ("long", "integer", "short", "timestamp", "date", "decimal_18_6", "decimal_38_0")
_FAR = {
    "date": [6_666_479, -735_160, 2**31 - 2, -(2**31) + 2],
    "timestamp": [
        575_983_828_800_123_456,
        -63_517_780_799_876_544,
        9_223_372_022_399_999_999,
        -9_223_372_022_400_000_000,
    ],
}
_FAR["timestamp_ntz"] = _FAR["timestamp"]
"""Values beyond the years that Python has, as the numbers that are stored: here, they stand for themselves."""
_HIDDEN_SEQUENCE = [-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1]


@dataclass
class Column:
    """A column and the values that its rows have."""

    name: str
    kind: pa.DataType
    values: list[Any]
    nullable: bool = True
    is_key: bool = False

    @property
    def quoted(self) -> str:
        return _quoted(self.name)


@dataclass
class World:
    """A table and what it must be equal to. ``offset``: by how many seconds the clock of the handle is wrong."""

    random: random.Random
    folder: Path
    columns: list[Column]
    keys: list[str]
    sequence: str | None
    hidden_sequence: bool
    partitions: list[str]
    settings: dict[str, Any]
    table: lakebed.Table
    newest: dict[str, tuple[int, Row | None]] = field(default_factory=dict)  # by key: rank of the sequence, the row
    appended: list[Row] = field(default_factory=list)
    states: dict[int, list[str]] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    caches: int = 0
    log_is_cleaned: bool = False

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(one.name, one.kind, one.nullable) for one in self.columns])

    def rows(self) -> list[str]:
        """The live rows as texts, in an order of their own: as texts, so that NaN is NaN and -0.0 is not 0.0."""
        live = self.appended if not self.keys else [row for _, row in self.newest.values() if row is not None]
        return sorted(map(repr, live))

    def column(self, name: str) -> Column:
        return next(one for one in self.columns if one.name == name)


def run(seed: int, folder: Path, steps: int = 14) -> World:
    """One world from its start to its end. Raises AssertionError that names the seed and what was done."""
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LAKEBED_CACHE_DIR", str(folder / "cache-0"))
        world = make(rng, folder)
        try:
            for _ in range(steps):
                step(world, environment)
            finish(world)
        except Exception as error:
            told = "\n".join([str(world.settings), str(world.schema), *world.trace])
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{told}") from error
    return world


# -- a world -----------------------------------------------------------------------------------------------------------


def make(rng: random.Random, folder: Path) -> World:
    """Draw until a table can be made of it."""
    for number in range(50):
        columns = _columns(rng)
        keys = [one.name for one in columns if one.is_key]
        sequence, hidden = _sequence(rng, columns) if keys and rng.random() < 0.5 else (None, False)
        partitions = [
            one.name for one in columns if one.name != sequence and _may_partition(one) and rng.random() < 0.15
        ]
        simple = [one for one in columns if not pa.types.is_nested(one.kind)]
        settings = {
            "keys": keys, "sequence_by": sequence, "partition_by": partitions, "sort_key": _sort_key(rng, simple),
            "properties": _properties(rng),
        }  # fmt: skip
        path = folder / f"table-{number}"
        schema = pa.schema([pa.field(one.name, one.kind, one.nullable) for one in columns])
        try:
            adopted = _adopted(rng, path, columns, settings) if rng.random() < 0.2 else None
            table, rows = adopted or (lakebed.create(path, schema, **settings), [])
        except InvalidInput as error:
            named = [one.name for one in columns] + [str(sequence), "sort_key"]
            assert any(name in str(error) or repr(name)[1:-1] in str(error) for name in named), (
                f"{error} names no column of {named}"
            )
            continue
        for one in columns:
            if one.name in partitions and pa.types.is_string(one.kind):  # Delta reads an empty partition value as null
                one.values = [value for value in one.values if value != ""] or ["x"]
        world = World(rng, path, columns, keys, sequence, hidden, partitions, settings, table)
        for row in rows:
            rank = _ranks(world).index(row[sequence]) if sequence else 0
            world.newest[repr([row[name] for name in keys])] = rank, row
        world.appended = [] if keys else rows
        world.states[table.version] = world.rows()
        return world
    raise AssertionError("fifty tables in a row were refused")


def _adopted(
    rng: random.Random, path: Path, columns: list[Column], settings: dict[str, Any]
) -> tuple[lakebed.Table, list[Row]] | None:
    """A table that delta-rs wrote, adopted, and its rows; None if delta-rs can't write such a table."""
    if settings["sequence_by"] not in {None, *(one.name for one in columns)}:
        return None
    rows: dict[str, Row] = {}
    for _ in range(rng.choice([1, 4, 12])):
        row = {
            one.name: rng.choice(
                [v for v in one.values if v != "" and not (v is None and one.name == settings["sequence_by"])] or ["x"]
            )
            for one in columns
        }
        rows[repr([row[name] for name in settings["keys"]] or len(rows))] = row
    schema = pa.schema([pa.field(one.name, one.kind, one.nullable) for one in columns])
    pieces = [list(rows.values())[at::2] for at in range(2)]
    try:
        for piece in pieces:
            data = pa.Table.from_pylist(piece, schema)
            write_deltalake(path, data, mode="append", partition_by=settings["partition_by"] or None)
        found = pa.table(QueryBuilder().register("t", DeltaTable(path)).execute("select * from t"))
    except Exception:  # what its writer and reader can't do is theirs
        shutil.rmtree(path, ignore_errors=True)
        return None
    if not found.schema.equals(schema) or sorted(map(repr, plain(found))) != sorted(map(repr, rows.values())):
        shutil.rmtree(path, ignore_errors=True)
        return None
    asked = {name: settings[name] for name in ("keys", "sequence_by", "sort_key")}
    table = lakebed.convert(path, **asked)
    table.set_properties(settings["properties"])
    return table, list(rows.values())


def _columns(rng: random.Random) -> list[Column]:
    names = hostile_names(rng, rng.randint(2, 7))
    keys = min(rng.choice([0, 1, 1, 1, 2]), len(names) - 1)
    columns = []
    for at, name in enumerate(names):
        kind = rng.choice(list(KEYS if at < keys else TYPES))
        values = _as_arrow_gives_them([value for value in TYPES[kind][1] if value is not None], TYPES[kind][0])
        if kind == "string" and rng.random() < 0.5:
            values = rng.sample(URLS, 12)
        if kind in _FAR and rng.random() < 0.5:
            values += _FAR[kind][: rng.choice([2, 4])]
        if at < keys:
            values = rng.sample(values, min(len(values), rng.choice([1, 3, 12])))
        nullable = at >= keys and rng.random() < 0.8
        columns.append(Column(name, TYPES[kind][0], values + [None] * nullable, nullable, at < keys))
    rng.shuffle(columns)
    return columns


def _sequence(rng: random.Random, columns: list[Column]) -> tuple[str, bool]:
    """The name of what orders changes, and whether it is no column of the table; if it is, the column joins the others."""
    taken = {one.name.casefold() for one in columns}
    name = next(name for name in hostile_names(rng, 20) if name.casefold() not in taken)
    if rng.random() < 0.4:
        return name, True
    kind = rng.choice(_SEQUENCES)
    values = _as_arrow_gives_them([value for value in TYPES[kind][1] if value is not None], TYPES[kind][0])
    columns.insert(rng.randrange(len(columns) + 1), Column(name, TYPES[kind][0], sorted(values), rng.random() < 0.5))
    return name, False


def _may_partition(column: Column) -> bool:
    is_far = pa.types.is_temporal(column.kind) and any(isinstance(value, int) for value in column.values)
    return not is_far and any(column.kind.equals(kind) for kind, _ in PARTITIONS.values())


def _as_arrow_gives_them(values: list[Any], kind: pa.DataType) -> list[Any]:
    return list(pa.array(values, kind).to_pylist())


def _sort_key(rng: random.Random, simple: list[Column]) -> list[str]:
    if not simple or rng.random() < 0.3:
        return []
    chosen = rng.sample(simple, rng.randint(1, min(2, len(simple))))
    return [f"{one.quoted}{rng.choice(['', ' desc', ' nulls last'])}" for one in chosen]


def _properties(rng: random.Random) -> dict[str, str]:
    drawn = {
        "lakebed.read_budget": rng.choice(["1", "2", "3", "8"]),
        "lakebed.target_part_rows": rng.choice(["3", "8", "1000"]),
        "lakebed.merge": rng.choice(["auto", "auto", "tiered", "leveled", "recluster", "bin-pack"]),
        "lakebed.recluster_depth": rng.choice(["1", "1.5", "2", "10%"]),
        "lakebed.checkpoint_interval": rng.choice(["2", "10"]),
        "lakebed.conflict_scope": rng.choice(["table", "partition", "file"]),
        "lakebed.volatile": rng.choice(["on", "off"]),
        "lakebed.log_retention": rng.choice(["1 second", "10 minutes", "7 days"]),
        "lakebed.off_peak": rng.choice(["00:00-23:59", ""]),
    }
    return {name: value for name, value in drawn.items() if value}


# -- steps -------------------------------------------------------------------------------------------------------------


def step(world: World, environment: pytest.MonkeyPatch) -> None:
    """Do one thing to the table, then look at it."""
    action = world.random.choice(_ACTIONS)
    world.trace.append(action.__name__)
    action(world, environment)
    world.done[action.__name__] += 1
    version = world.table.version
    assert version < VERSIONS_MAX, f"version {version}: this does not end"
    world.states[version] = world.rows()
    look(world)


def apply(world: World, environment: pytest.MonkeyPatch) -> None:
    """A batch: upserts, deletes, late events; values at the edges of their types."""
    rng, ranks = world.random, _ranks(world)
    op = next(name for name in hostile_names(rng, 30) if name.casefold() not in _taken(world))
    batch: list[Row] = []
    for _ in range(rng.choice([1, 2, 5, 12])):
        row = {one.name: rng.choice(one.values) for one in world.columns}
        rank = 0
        if ranks:
            rank = min(len(ranks) - 1, rng.choice([rng.randrange(len(ranks)), len(world.states) // 3]))
            row[str(world.sequence)] = ranks[rank]
        is_delete = bool(world.keys) and rng.random() < 0.25
        batch.append({**row, op: "d" if is_delete else "u"})
        live = {one.name: row[one.name] for one in world.columns}
        if not world.keys:
            world.appended.append(live)
            continue
        key = repr([row[name] for name in world.keys])
        if key not in world.newest or rank >= world.newest[key][0]:
            world.newest[key] = rank, None if is_delete else live
    schema = world.schema
    if world.hidden_sequence:
        schema = schema.append(pa.field(str(world.sequence), pa.int64()))
    is_deletes = f"{_quoted(op)} = 'd'" if world.keys else None
    schema = schema.append(pa.field(op, pa.string()))
    world.trace.append(f"  {batch}")
    world.table.apply(pa.Table.from_pylist(batch, schema), apply_as_deletes=is_deletes)


def refused(world: World, environment: pytest.MonkeyPatch) -> None:
    """A batch with one bad value is refused as a whole, and what is wrong is named."""
    bad = [one for one in world.columns if not one.nullable]
    if not bad:
        return
    one = world.random.choice(bad)
    row = {**{each.name: each.values[0] for each in world.columns}, one.name: None}
    schema = pa.schema([field.with_nullable(True) for field in world.schema])
    if world.hidden_sequence:
        row, schema = {**row, str(world.sequence): 0}, schema.append(pa.field(str(world.sequence), pa.int64()))
    before = world.table.version
    with pytest.raises(InvalidInput) as error:
        world.table.apply(pa.Table.from_pylist([row], schema))
    assert one.name in str(error.value) or repr(one.name) in str(error.value)
    assert world.table.version == before


def settle(world: World, environment: pytest.MonkeyPatch) -> None:
    world.table.settle()


def compact(world: World, environment: pytest.MonkeyPatch) -> None:
    """Merge until there is nothing to merge, which must come."""
    merge_runner = internals_of(world.table).duties().merge_runner
    try:
        for _ in range(_MERGES_MAX):
            job = merge_runner.next_plan()
            if job is None:
                return
            plan = job[1]
            merge_runner.run(*job)
    finally:
        merge_runner.close()
    raise AssertionError(f"after {_MERGES_MAX} merges there is always one more: {plan}")


def recluster(world: World, environment: pytest.MonkeyPatch) -> None:
    if not (world.keys or world.settings["sort_key"]):
        return
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        assert asked < 50 * _MERGES_MAX, "a recluster does not end"
        return False

    world.table.maintenance.recluster(final=world.random.random() < 0.5, stop=stop)


def new_sort_key(world: World, environment: pytest.MonkeyPatch) -> None:
    simple = [one for one in world.columns if not pa.types.is_nested(one.kind)]
    world.settings["sort_key"] = _sort_key(world.random, simple)
    world.table.set_sort_key(world.settings["sort_key"])


def new_properties(world: World, environment: pytest.MonkeyPatch) -> None:
    world.table.set_properties(_properties(world.random))


def mutate(world: World, environment: pytest.MonkeyPatch) -> None:
    """Delete rows, or set a column of them, where a column is null, or has a number or a text."""
    rng = world.random
    one = rng.choice(world.columns)
    value = rng.choice(one.values)
    if isinstance(value, int) and pa.types.is_date(one.kind):
        where = f"{one.quoted} = date '1970-01-01' + {value}"
    elif isinstance(value, int) and pa.types.is_timestamp(one.kind):
        where = f"{one.quoted} = make_timestamp{'tz' if one.kind.tz else ''}({value})"
    elif isinstance(value, int) and not isinstance(value, bool):
        where = f"{one.quoted} = {value}" if abs(value) < 2**60 else f"{one.quoted} = cast('{value}' as hugeint)"
    elif isinstance(value, str) and "\x00" not in value:
        where = f"{one.quoted} = '{value.replace(chr(39), chr(39) * 2)}'"
    else:
        value, where = None, f"{one.quoted} is null"
    fixed = {*world.keys, *world.partitions, world.sequence}
    settable = [each for each in world.columns if each.nullable and each.name not in fixed]
    target = rng.choice(settable) if settable and rng.random() < 0.6 else None
    world.trace.append(f"  where {where}, set {target.name if target else '(delete)'}")
    if target is None:
        world.table.delete(where)
    else:
        world.table.update({target.name: "null"}, where)

    def new(row: Row | None) -> Row | None:
        if row is None or row[one.name] != value:
            return row
        return {**row, target.name: None} if target else None

    world.appended = [changed for row in world.appended if (changed := new(row)) is not None]
    world.newest = {key: (rank, new(row)) for key, (rank, row) in world.newest.items()}


def truncate(world: World, environment: pytest.MonkeyPatch) -> None:
    if world.random.random() < 0.3:
        world.table.truncate()
        world.newest.clear()
        world.appended.clear()


def reopen(world: World, environment: pytest.MonkeyPatch) -> None:
    """Another process on another machine: no key index, no local parts."""
    if world.random.random() < 0.5:
        world.caches += 1
        environment.setenv("LAKEBED_CACHE_DIR", str(world.folder.parent / f"cache-{world.caches}"))
    world.table = lakebed.open(world.folder)


def clean(world: World, environment: pytest.MonkeyPatch) -> None:
    """A process whose clock is wrong cleans up: what is within retention by the store's own time stays."""
    other = lakebed.open(world.folder)
    offset = world.random.choice(CLOCKS)
    clock = log_of(other).clock
    log_of(other).clock = lambda: clock() + offset
    kind = world.random.choice(["vacuum", "expire", "orphans", "log"])
    world.trace.append(f"  {kind} with a clock {offset} s ahead")
    if kind == "vacuum":
        other.maintenance.vacuum(dry_run=False)
    elif kind == "expire":
        other.maintenance.expire_snapshots(dry_run=False)
    elif kind == "orphans":
        other.maintenance.remove_orphan_files(dry_run=False)
    else:
        world.log_is_cleaned = True  # lakebed.log_retention may be a second
        other.maintenance.clean_log()


_ACTIONS: list[Callable[[World, pytest.MonkeyPatch], None]] = [
    *[apply] * 7,
    *[settle] * 4,
    *[compact] * 3,
    *[mutate] * 3,
    recluster,
    new_sort_key,
    new_properties,
    truncate,
    reopen,
    reopen,
    clean,
    clean,
    refused,
]
_MERGES_MAX = 60


# -- looks -------------------------------------------------------------------------------------------------------------


def look(world: World) -> None:
    """Compare one view of the table with the dictionary."""
    rng, table = world.random, world.table
    kind = rng.choice(["view", "view", "elsewhere", "lookup", "query", "version", "foreign"])
    world.trace.append(f"  look: {kind}")
    if kind == "view":
        same(world, table.to_arrow(), world.rows())
    elif kind == "elsewhere":
        same(world, lakebed.open(world.folder).to_arrow(), world.rows())
    elif kind == "lookup" and world.keys:
        sought = {one.name: [rng.choice(one.values) for _ in range(3)] for one in world.columns if one.is_key}
        found = table.lookup(pa.table(sought, pa.schema([world.schema.field(name) for name in sought])))
        keys = {repr([sought[name][at] for name in world.keys]) for at in range(3)}
        same(
            world, found, sorted(repr(row) for key, (_, row) in world.newest.items() if key in keys and row is not None)
        )
    elif kind == "query":
        one = rng.choice(world.columns)
        found = table.query(f"select count(*) as n, count({one.quoted}) as m from t", "t").to_pylist()
        live = world.appended if not world.keys else [row for _, row in world.newest.values() if row is not None]
        assert found == [{"n": len(live), "m": sum(row[one.name] is not None for row in live)}]
    elif kind == "version":
        version, rows = rng.choice(list(world.states.items()))
        try:
            found = table.to_arrow(version=version)
        except VersionNotFound:
            assert world.log_is_cleaned, f"version {version} is within every retention"
            return
        same(world, found, rows)
    elif kind == "foreign" and not log_of(table).refresh().tail:
        reader = QueryBuilder().register("t", DeltaTable(str(world.folder)))
        [row] = pa.table(reader.execute("select count(*) as n from t")).to_pylist()
        assert row["n"] == len(world.rows())


def finish(world: World) -> None:
    """Settle, merge, and let everybody look."""
    for action in (settle, compact):
        world.trace.append(action.__name__)
        action(world, pytest.MonkeyPatch())
        same(world, world.table.to_arrow(), world.rows())
    same(world, lakebed.open(world.folder).to_arrow(), world.rows())
    assert not world.table.doctor(deep=True).findings, world.table.doctor(deep=True).findings
    if world.random.random() < 0.3:
        damage(world)


def damage(world: World) -> None:
    """One bit of one file is another: the doctor tells, or every row is what it was; and every error is one of ours."""
    rng = world.random
    files = sorted(
        path for path in world.folder.rglob("*") if path.suffix in (".parquet", ".bin", ".json") and path.stat().st_size
    )
    file = rng.choice(files)
    data = bytearray(file.read_bytes())
    at = rng.randrange(len(data))
    if rng.random() < 0.8:
        data[at] ^= 1 << rng.randrange(8)
    else:
        del data[at:]
    file.write_bytes(data)
    world.trace.append(f"damage: {file.relative_to(world.folder)} at {at} of {file.stat().st_size}")
    world.done["damage"] += 1
    findings = examine(str(world.folder), True).findings
    try:
        same(world, lakebed.open(world.folder).to_arrow(), world.rows())
    except LakebedError:
        assert findings, "a read fails, and the doctor finds nothing"
    except AssertionError as error:
        assert findings, f"rows are wrong, and the doctor finds nothing: {error}"


def same(world: World, found: pa.Table, rows: list[str]) -> None:
    got = sorted(map(repr, plain(found)))
    assert found.schema.names == world.schema.names, found.schema.names
    lost, more = [row for row in rows if row not in got], [row for row in got if row not in rows]
    assert got == rows, f"lost {lost[:3]}, more {more[:3]}, {len(got)} rows for {len(rows)}"


def plain(rows: pa.Table) -> list[Row]:
    return python_rows(rows, far=lambda number, kind: number)


def _ranks(world: World) -> list[Any]:
    if world.sequence is None:
        return []
    return (
        _HIDDEN_SEQUENCE if world.hidden_sequence else [v for v in world.column(world.sequence).values if v is not None]
    )


def _taken(world: World) -> set[str]:
    return {one.name.casefold() for one in world.columns} | {str(world.sequence).casefold()}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
