"""A column may have any name: the words that the code uses itself, and the columns that engines add by themselves.

Every word is a key, an ordinary column, a partition or the sequence of some table. A key column differs in one row alone, so that
a query which took another column for it would find no row, or two. ``make soak-worlds`` gives every word each of these places.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidSchema
from lakebed.parts.change_rows import read_version, versions_with_changes
from lakebed.table import internals_of
from tests.oracle import Oracle, in_order
from tests.table.values import MAPPED_NAMES
from tests.worlds import TIMES

VIRTUAL = [  # columns that DuckDB, Spark and Delta's readers add to what a file has, and words that SQL gives a meaning
    "file_row_number", "file_index", "filename", "rowid", "row_id", "rownum", "oid", "ctid", "_metadata", "_metadata_",
    "metadata", "input_file_name", "file_path", "file_name", "file_size", "file_modification_time", "file_block_start",
    "row_index", "row_commit_version", "_row_id", "_file", "_pos", "_deleted", "_spec_id", "_partition", "_rescued_data",
    "_corrupt_record", "__index_level_0__", "__START__", "partition", "order", "group", "select", "from", "where", "table",
    "columns", "exclude", "replace", "struct", "map", "list", "all", "distinct", "null", "true", "default", "current_date",
    "current_timestamp", "count", "sum", "max", "s", "p", "f", "k", "n", "o", "b", "t", "c", "r0", "r1", "lo0", "hi0", "k0",
    "lakebed_value", "_lakebed", "_lakebedx", "lakebed", "op",
]  # fmt: skip
MIXED_CASE = ["File_Index", "FILE_ROW_NUMBER", "FileName", "RowId", "PART", "Row", "C0", "Probe", "_METADATA"]
ODD = [
    *MAPPED_NAMES,
    "_change_type",
    "_Change_Sequence",
    "_commit_version",
    "__commit_version",
    "_Commit_Timestamp",
    "a" * 300,
]
REFUSED = ["_lakebed_op", "_LAKEBED_Seq", "_tmp_metadata_row_index", "_Metadata"]
FOLDERS = (
    "parts", "merge", "resolve", "sql", "storage", "keyindex", "telemetry", "view", "planning", "compaction", "operations",
    "health", "ingest", "sources", "decode", "positions", "coordination", "schema", "log", "sortkey",
)  # fmt: skip
KEYS_A_TABLE = 30
HARM = ("part", "row", "deleted", "incomplete", "probe", "file", "rank", "times", "c", "key0", "c0", "c1")
"""Words of the code that were seen to do harm as names of columns."""


def words_of_the_code() -> list[str]:
    """What stands in the code as a name in quotes, or in a piece of SQL."""
    found: set[str] = set()
    root = Path(lakebed.__file__).parent
    for file in (file for folder in FOLDERS for file in (root / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or "\n" in node.value:
                continue
            if re.fullmatch(r"[A-Za-z_]\w*", node.value):
                found.add(node.value)
            elif re.search(r"\b(select|from|join|where|over|as|by)\b", node.value):
                found |= set(re.findall(r"[A-Za-z_]\w*", node.value))
    return sorted(found)


def names() -> list[str]:
    """Each once, in whatever case it comes first."""
    every = (
        [*(f"c{at}" for at in range(30)), *(f"key{at}" for at in range(4)), *words_of_the_code()] if TIMES > 1 else HARM
    )
    hostile = [*ODD, *MIXED_CASE, *VIRTUAL, *every]
    refused = {name.lower() for name in REFUSED}
    unique = {name.lower(): name for name in reversed(hostile)}
    return [name for lower, name in unique.items() if not lower.startswith("_lakebed_") and lower not in refused]


def groups() -> list[list[str]]:
    """The names, ``KEYS_A_TABLE`` of them in a group; in CI those that engines have, and that were seen to do harm."""
    ordered = names()
    random.Random(7).shuffle(ordered)
    return [ordered[at : at + KEYS_A_TABLE] for at in range(0, len(ordered), KEYS_A_TABLE)]


@pytest.mark.slow
def test_the_words_are_found() -> None:
    assert {"row", "part", "probe", "position", "file_index", "total", "lakebed_wanted"} <= {*words_of_the_code()}


pytestmark = pytest.mark.usefixtures("own_cache")


class World:
    """A table, changes that come to it, and the dictionary that it must be equal to."""

    def __init__(self, path: Path, group: Sequence[str], turn: int) -> None:
        """``turn``: which names are the sequence, the value, the partition and the keys."""
        turned = [*group[turn:], *group[:turn]]
        self.sequence, self.value, self.place, *keys = turned
        self.keys = keys
        columns = [pa.field(name, pa.int64()) for name in (*keys, self.sequence)]
        self.schema = pa.schema([*columns, pa.field(self.value, pa.string()), pa.field(self.place, pa.string())])
        self.path = str(path)
        self.table = lakebed.create(
            path,
            self.schema,
            keys=keys,
            sequence_by=self.sequence,
            partition_by=[self.place],
            properties={"lakebed.read_budget": "1"},
        )
        self.oracle = Oracle(tuple(keys), tuple(self.schema.names), self.sequence)
        self.schema = self.schema.insert(0, pa.field("~op", pa.string()))

    def rows(
        self, sequence: int, value: str, op: str = "u", which: Sequence[int] | None = None
    ) -> list[dict[str, Any]]:
        """Row i has 701 in key column i and 700 in the others: what stands in a column is no number of a row or a file."""
        out = []
        for at in range(len(self.keys) + 1) if which is None else which:
            row: dict[str, Any] = {name: 700 + (place == at) for place, name in enumerate(self.keys)}
            # A key stays in its partition.
            row |= {self.sequence: sequence, self.value: f"{value}{at}", self.place: "xy"[at % 2], "~op": op}
            out.append(row)
        return out

    def apply(self, rows: list[dict[str, Any]], without: Sequence[str] = ()) -> None:
        self.table.apply(
            pa.Table.from_pylist(rows, self.schema), apply_as_deletes="\"~op\" = 'd'", except_column_list=without
        )
        self.oracle.apply([row | dict.fromkeys(without) for row in rows], is_delete="~op")

    def check(self, when: str) -> None:
        expected = self.oracle.rows()
        for reader, table in (("with its index", self.table), ("without an index", lakebed.open(self.path))):
            assert in_order(table.to_arrow().to_pylist()) == expected, f"{when}, read {reader}"
        wanted = expected[:3]
        sought = pa.Table.from_pylist([{name: row[name] for name in self.keys} for row in wanted])
        assert in_order(lakebed.open(self.path).lookup(sought).to_pylist()) == wanted, f"{when}, looked up"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def ticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


TABLES = [
    (number, turn)
    for number, group in enumerate(groups())
    for turn in (range(len(group)) if TIMES > 1 else (number % 3,))
]


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize(("number", "turn"), TABLES)
def test_a_table_with_keys_is_right_whatever_its_columns_are_called(number: int, turn: int, tmp_path: Path) -> None:
    group = groups()[number]
    world = World(tmp_path / "t", group, turn)
    table = world.table
    world.apply(world.rows(10, "a"))
    world.check("in the tail")
    table.settle()
    world.apply(world.rows(20, "b", which=range(0, 9)))
    world.apply(world.rows(20, "gone", "d", which=range(9, 12)))
    world.apply(world.rows(5, "late", which=range(12, 15)))
    world.check("two parts and a long tail")
    without_index = internals_of(lakebed.open(world.path))
    without_index.settler.settle(without_index.locators.for_reading)  # as where the local disk is full
    world.check("settled by reading key columns")
    world.apply(world.rows(30, "c", which=range(3, 12)))
    table.settle()
    world.check("settled by the index")
    changed = table.update({world.value: f"{quoted(world.value)} || '!'"}, f"{quoted(world.keys[4])} = 701")
    assert changed.rows == 1
    for row in world.oracle.newest.values():
        if row[1] is not None and row[1][world.keys[4]] == 701:
            row[1][world.value] += "!"
    assert table.delete(f"{quoted(world.value)} = 'c7'").rows == 1
    world.oracle.apply(world.rows(30, "", "d", which=[7]), is_delete="~op")
    world.check("mutated")
    assert table.settle().version == table.version
    table.set_sort_key([ticked(world.value), f"bucket(4, {ticked(world.keys[0])})"])
    table.maintenance.recluster(final=True)
    world.check("in another order")
    assert not table.doctor(deep=True).findings
    for version in versions_with_changes(world.path, 0, table.version):
        for batch in read_version(world.path, version):
            assert set(batch.to_pydict()[world.keys[0]]) <= {700, 701}


@pytest.mark.slow
def test_a_table_without_keys_is_right_whatever_its_columns_are_called(tmp_path: Path) -> None:
    value, place, *others = [name for group in groups() for name in group]
    schema = pa.schema([(value, pa.string()), (place, pa.string()), *((name, pa.int64()) for name in others)])
    table = lakebed.create(tmp_path / "t", schema, sort_key=[ticked(others[0])], partition_by=[place])
    rows = [{value: f"v{n}", place: "x", **{name: 700 + n for name in others}} for n in range(3)]
    for row in rows:
        table.apply(pa.Table.from_pylist([row], schema))
    assert table.delete(f"{quoted(value)} = 'v0'").rows == 1
    assert table.update({others[-1]: "0"}, f"{quoted(others[1])} = 701").rows == 1
    rows = in_order([rows[1] | {others[-1]: 0}, rows[2]])
    assert in_order(table.to_arrow().to_pylist()) == rows
    table.maintenance.recluster(final=True)
    assert in_order(table.to_arrow().to_pylist()) == rows
    assert not table.doctor(deep=True).findings


def test_values_that_a_source_did_not_send_are_kept_whatever_the_columns_are_called(tmp_path: Path) -> None:
    group = ["part", "row", "deleted", "incomplete", "probe", "file_index", "file_row_number", "file", "r0", "position"]
    unsent = "_lakebed_unavailable"
    for turn, sequenced in ((0, True), (5, False)):
        value, other, *keys = [*group[turn:], *group[:turn]]
        schema = pa.schema([*((name, pa.int64()) for name in keys), (value, pa.string()), (other, pa.int64())])
        table = lakebed.create(tmp_path / str(turn), schema, keys=keys, sequence_by=other if sequenced else None)
        rows = [
            {name: 700 + (place == at) for place, name in enumerate(keys)} | {value: f"v{at}", other: 1}
            for at in range(9)
        ]
        table.apply(pa.Table.from_pylist(rows, schema))
        table.settle()
        lacking = schema.append(pa.field(unsent, pa.list_(pa.string())))
        for sequence in (2, 3):
            changes = [row | {value: None, other: sequence, unsent: [value]} for row in rows]
            table.apply(pa.Table.from_pylist(changes, lacking))
        expected = in_order([row | {other: 3} for row in rows])
        assert in_order(lakebed.open(table.path).to_arrow().to_pylist()) == expected
        table.settle()
        assert in_order(table.to_arrow().to_pylist()) == expected


def test_a_table_is_adopted_whatever_its_keys_are_called(tmp_path: Path) -> None:
    for table in adopted(tmp_path):
        rows = table.to_arrow().to_pylist()
        table.apply(pa.Table.from_pylist([rows[0] | {"value": "new"}], table.schema))
        expected = in_order([rows[0] | {"value": "new"}, *rows[1:]])
        assert in_order(lakebed.open(table.path).to_arrow().to_pylist()) == expected
        table.settle()
        assert in_order(table.to_arrow().to_pylist()) == expected


def adopted(folder: Path) -> Iterator[lakebed.Table]:
    """Tables of another writer, which leaves partition columns out of its files; one has them as a key."""
    deltalake = pytest.importorskip("deltalake")
    for keys in (["times", "file_index", "row"], ["probe", "file_row_number", "s"]):
        for partition in (keys[1], "value"):
            path = str(folder / f"{keys[0]}-{partition}")
            rows = pa.table({name: [700, 701, 702] for name in keys} | {"value": ["a", "b", "c"]})
            deltalake.write_deltalake(path, rows, partition_by=[partition])
            yield lakebed.convert(path, keys=keys)


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_can_not_work_is_refused_when_the_table_is_made(name: str, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), (name, pa.int64())])
    with pytest.raises(InvalidSchema, match=f"{name}.*reserved"):
        lakebed.create(tmp_path / "t", schema, keys=["id"])
    assert not (tmp_path / "t" / "_delta_log").exists()


@pytest.mark.parametrize("digits", ["²", "٣"])
def test_files_whose_names_are_numbers_elsewhere_are_no_versions(tmp_path: Path, digits: str) -> None:
    """``int`` takes digits of other scripts, and refuses some that ``isdigit`` takes."""
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64())]), properties={"lakebed.iceberg": "on"})
    table.apply([{"id": 1}])
    published = table.maintenance.publish_iceberg()
    for name in (f"_delta_log/{digits}.json", f"_lakebed/iceberg/metadata/v{digits}.metadata.json"):
        (tmp_path / "t" / name).write_text("{}")
    (tmp_path / "t/_lakebed/iceberg/metadata/version-hint.text").unlink()
    again = lakebed.open(tmp_path / "t")
    assert again.version == table.version
    assert again.maintenance.publish_iceberg().metadata == published.metadata
    assert again.to_arrow().to_pylist() == [{"id": 1}]
