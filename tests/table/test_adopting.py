"""What other programs write in their own way: adopted and changed like any table, or refused with the reason."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap64

import lakebed
from lakebed.errors import Corrupt, InvalidSchema, LakebedError, Unsupported
from lakebed.log.deletion_vector import pack
from lakebed.parts.change_rows import read_version, versions_with_changes
from lakebed.parts.changes import DELETE, OP_COLUMN, UNAVAILABLE_COLUMN, UPSERT
from tests.table.others import PLAIN, File, add, commit, table_of_others
from tests.table.test_statistics_of_others import settle_without_index

UTC = datetime.UTC
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("seq", pa.int64()),
        ("v", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("n", pa.struct([("a", pa.int64()), ("b", pa.string())])),
    ]
)
Row = dict[str, Any]
NANOS = [1_700_000_000_123_456_789, 1_700_000_000_123_456_500, -1, -1_999]


pytestmark = pytest.mark.usefixtures("own_cache")


def moment(micros: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=UTC) + datetime.timedelta(microseconds=micros)


def whole(ids: range) -> pa.Table:
    rows = [
        {"id": id, "seq": 5, "v": f"old {id}", "at": moment(id), "n": {"a": id, "b": "b"} if id % 2 else None}
        for id in ids
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def renamed(rows: pa.Table, **names: str) -> pa.Table:
    return rows.rename_columns([names.get(name, name) for name in rows.column_names])


def in_int96() -> File:
    rows = whole(range(4)).set_column(3, "at", pa.array(NANOS, pa.timestamp("ns", "UTC")))
    return File(rows, options={"use_deprecated_int96_timestamps": True})


def as_read(rows: pa.Table) -> pa.Table:
    """The rows as every reader should have them: columns that the file lacks are null, nanoseconds are cut."""
    lower = {name.lower(): name for name in rows.column_names}
    columns = []
    for field in SCHEMA:
        if field.name not in lower:
            columns.append(pa.nulls(len(rows), field.type))
        elif field.name == "at" and rows["at"].type.unit == "ns":
            columns.append(pa.array([nanos // 1000 for nanos in NANOS], field.type))
        else:
            columns.append(rows[lower[field.name]].cast(field.type))
    return pa.table(columns, schema=SCHEMA)


FILES: dict[str, Callable[[], File]] = {
    "all columns": lambda: File(whole(range(4))),
    "no sequence": lambda: File(whole(range(4)).drop_columns(["seq"])),
    "keys only": lambda: File(whole(range(4)).select(["id"])),
    "no struct, no statistics": lambda: File(whole(range(4)).drop_columns(["n"]), None),
    "another case": lambda: File(renamed(whole(range(4)), id="ID", seq="Seq", v="V", n="N")),
    "another order": lambda: File(whole(range(4)).select(["n", "v", "at", "id", "seq"])),
    "narrower numbers": lambda: File(
        whole(range(4))
        .set_column(0, "id", pa.array(range(4), pa.int32()))
        .set_column(1, "seq", pa.array([5] * 4, pa.int16()))
    ),
    "columns that the table lacks": lambda: File(
        whole(range(4)).append_column("extra", pa.array([1] * 4)).append_column("file_row_number", pa.array([7] * 4))
    ),
    "times of twelve bytes": in_int96,
}


class Expected:
    """What a table with keys holds, as plain Python keeps it."""

    def __init__(self, rows: pa.Table) -> None:
        self.live: dict[int, Row] = {row["id"]: row for row in rows.to_pylist()}
        self.newest: dict[int, int] = {
            id: row["seq"] if row["seq"] is not None else -1 for id, row in self.live.items()
        }

    def apply(self, row: Row, sequenced: bool) -> None:
        if sequenced and row["seq"] < self.newest.get(row["id"], -1):
            return
        before = self.live.get(row["id"])
        if row[OP_COLUMN] == DELETE:
            self.live.pop(row["id"], None)
        else:
            kept = {name: before[name] if before else None for name in row[UNAVAILABLE_COLUMN] or ()}
            self.live[row["id"]] = {name: row[name] for name in SCHEMA.names} | kept
        self.newest[row["id"]] = row["seq"]

    def rows(self) -> list[Row]:
        return [self.live[id] for id in sorted(self.live)]


def rows_of(table: lakebed.Table) -> list[Row]:
    return sorted(table.to_arrow().to_pylist(), key=lambda row: int(row["id"]))


WITHOUT_SEQUENCE = ("keys only", "another case")


@pytest.mark.few(5)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sequenced"), [*((name, True) for name in FILES), *((name, False) for name in WITHOUT_SEQUENCE)]
)
def test_a_file_of_others_is_read_settled_completed_merged_and_mutated(
    name: str, sequenced: bool, tmp_path: Path
) -> None:
    odd, plain, rng = FILES[name](), File(whole(range(10, 14))), random.Random(0)
    path = table_of_others(tmp_path / "t", SCHEMA, [odd, plain])
    expected = Expected(pa.concat_tables([as_read(odd.rows), plain.rows]))
    assert rows_of(lakebed.open(path)) == expected.rows(), "before it is adopted"
    table = lakebed.convert(path, keys=["id"], sequence_by="seq" if sequenced else None)
    for turn in range(3):
        new = {"v": f"new {turn}", "at": moment(turn), "n": {"a": turn, "b": None}}
        changes: list[Row] = [
            {"id": id, "seq": rng.randrange(10), **new, OP_COLUMN: rng.choice([UPSERT, UPSERT, UPSERT, DELETE])}
            for id in rng.sample([*range(5), *range(10, 15)], 4)
        ]
        for row in changes:
            unsent = rng.choice([None, ["v", "n"], ["at"]]) if row[OP_COLUMN] == UPSERT else None
            row |= {UNAVAILABLE_COLUMN: unsent} | dict.fromkeys(unsent or ())
            expected.apply(row, sequenced)
        hidden = [pa.field(OP_COLUMN, pa.string()), pa.field(UNAVAILABLE_COLUMN, pa.list_(pa.string()))]
        table.apply(pa.Table.from_pylist(changes, pa.schema([*SCHEMA, *hidden])))
        assert rows_of(table) == expected.rows(), f"in the tail, turn {turn}"
        assert rows_of(lakebed.open(path)) == expected.rows(), f"in the tail without an index, turn {turn}"
        settle_without_index(lakebed.open(path)) if turn == 1 else table.settle()
        assert rows_of(lakebed.open(path)) == expected.rows(), f"settled, turn {turn}"
    for id in expected.live:
        assert table.lookup([id]).to_pylist() == [expected.live[id]]
    assert table.doctor(deep=True).findings == ()
    table.set_sort_key(["v", "at"])
    table.maintenance.recluster(final=True)
    assert rows_of(table) == expected.rows(), "merged"
    update = table.update({"v": "'changed'"}, "id >= 10")
    expected.live |= {id: {**row, "v": "changed"} for id, row in expected.live.items() if id >= 10}
    assert (update.rows, rows_of(table)) == (sum(id >= 10 for id in expected.live), expected.rows())
    assert table.doctor(deep=True).findings == ()


@pytest.mark.few(8)
@pytest.mark.parametrize("keys", [(), ("id",)], ids=["without keys", "with keys"])
@pytest.mark.parametrize("file", FILES.values(), ids=FILES.keys())
def test_a_file_of_others_is_mutated_and_its_changes_are_reported(
    file: Callable[[], File], keys: tuple[str, ...], tmp_path: Path
) -> None:
    """What is deleted from and updated in the file itself; a copy made of the changes is the table."""
    odd = file()
    path = table_of_others(tmp_path / "t", SCHEMA, [odd, File(whole(range(10, 14)))])
    copy = {row["id"]: row for row in lakebed.open(path).to_arrow().to_pylist()}
    table = lakebed.convert(path, keys=keys)
    first = table.version + 1
    assert table.delete("id = 2").rows == 1
    assert table.update({"at": "timestamptz '2024-01-01 00:00:00+00'"}, "id in (1, 11)").rows == 2
    for version in versions_with_changes(path, first, table.version):
        for row in (row for batch in read_version(path, version) for row in batch.to_pylist()):
            if row["_change_type"] == "delete":
                copy.pop(row["id"], None)
            else:
                copy[row["id"]] = {name: row[name] for name in SCHEMA.names}
    assert rows_of(table) == [copy[id] for id in sorted(copy)]
    assert copy[1]["at"] == datetime.datetime(2024, 1, 1, tzinfo=UTC)


def test_times_of_twelve_bytes_are_cut_where_spark_cuts_them(tmp_path: Path) -> None:
    path = table_of_others(
        tmp_path / "t", pa.schema([SCHEMA.field("id"), SCHEMA.field("at")]), [in_int96(), in_int96()]
    )
    expected = sorted([nanos // 1000 for nanos in NANOS] * 2)
    assert sorted(lakebed.open(path).to_arrow()["at"].cast(pa.int64()).to_pylist()) == expected
    table = lakebed.convert(path, sort_key=["at"])
    found = table.to_arrow(where="\"at\" >= '2023-11-14 22:13:20.123456+00'")
    assert found["at"].cast(pa.int64()).to_pylist() == expected[-4:]
    table.maintenance.recluster(final=True)
    assert table.to_arrow()["at"].cast(pa.int64()).to_pylist() == expected


# -- refused -------------------------------------------------------------------------------------------------------------


def test_nanoseconds_are_refused_by_column_and_file(tmp_path: Path) -> None:
    rows = whole(range(4)).set_column(3, "at", pa.array(NANOS, pa.timestamp("ns", "UTC")))
    path = table_of_others(tmp_path / "t", SCHEMA, [File(whole(range(10, 14))), File(rows)])
    with pytest.raises(Unsupported, match=r"'at' of part-.*\.parquet is in nanoseconds.*microseconds"):
        lakebed.convert(path)


def test_a_column_with_a_name_of_ours_is_refused(tmp_path: Path) -> None:
    rows = whole(range(4)).append_column("_Lakebed_op", pa.array(["d"] * 4))
    path = table_of_others(tmp_path / "t", SCHEMA, [File(rows)])
    with pytest.raises(Unsupported, match=r"'_Lakebed_op' of part-.*\.parquet"):
        lakebed.convert(path, keys=["id"])


BINARY = pa.schema([("id", pa.int64()), ("p", pa.binary())])


@pytest.mark.parametrize("text", ["ab", "é", "\\u0061\\u0062", "\x01ÿ", "€"])
def test_a_binary_partition_is_read_as_spark_reads_it_and_not_adopted(text: str, tmp_path: Path) -> None:
    path = table_of_others(tmp_path / "t", BINARY, [File(pa.table({"id": [1]}), partition={"p": text})], ["p"])
    assert lakebed.open(path).to_arrow().to_pylist() == [{"id": 1, "p": text.encode()}]
    with pytest.raises(Unsupported, match="partitioned by 'p', which is binary"):
        lakebed.convert(path, keys=["id"])


def lose_a_file(path: Path, name: str) -> None:
    (path / name).unlink()


def cut_a_file(path: Path, name: str) -> None:
    (path / name).write_bytes((path / name).read_bytes()[:100])


def damage_a_footer(path: Path, name: str) -> None:
    data = bytearray((path / name).read_bytes())
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    data[start + 5 : start + 25] = b"\xff" * 20
    (path / name).write_bytes(data)


def put_another_in_its_place(path: Path, name: str) -> None:
    (path / name).write_bytes((path / add(path, File(whole(range(3))))["add"]["path"]).read_bytes())


@pytest.mark.parametrize("stats", [None, {}], ids=["no statistics", "statistics"])
@pytest.mark.parametrize("keys", [(), ("id",)], ids=["without keys", "with keys"])
@pytest.mark.parametrize("damage", [lose_a_file, cut_a_file, damage_a_footer, put_another_in_its_place])
def test_a_missing_or_damaged_file_is_named(
    damage: Callable[[Path, str], None], keys: tuple[str, ...], stats: Mapping[str, Any] | None, tmp_path: Path
) -> None:
    files = [File(whole(range(start, start + 4)), stats) for start in range(0, 40, 4)]
    path = table_of_others(tmp_path / "t", SCHEMA, files)
    name = sorted(file.name for file in Path(path).glob("*.parquet"))[3]
    damage(Path(path), name)
    with pytest.raises(Corrupt, match=name):
        lakebed.convert(path, keys=keys)
    assert lakebed.open(path).version == 0


def test_a_missing_deletion_vector_is_named(tmp_path: Path) -> None:
    name, _, [vector] = pack([BitMap64([1])])
    action = add(tmp_path / "t", File(whole(range(4))))
    action["add"]["deletionVector"] = vector.to_json()
    features = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    path = table_of_others(tmp_path / "t", SCHEMA, [], protocol=protocol)
    commit(tmp_path / "t", 1, [action])
    with pytest.raises(Corrupt, match=name):
        lakebed.convert(path)


def test_a_shallow_clone_is_refused(tmp_path: Path) -> None:
    path = table_of_others(tmp_path / "t", SCHEMA, [File(whole(range(4)))])
    action = add(tmp_path / "t", File(whole(range(4, 8))))
    action["add"]["path"] = "s3://elsewhere/" + action["add"]["path"]
    commit(tmp_path / "t", 1, [action])
    with pytest.raises(Unsupported, match="shallow clone"):
        lakebed.convert(path)


def test_a_wrong_number_of_rows_is_put_right(tmp_path: Path) -> None:
    path = table_of_others(tmp_path / "t", SCHEMA, [File(whole(range(4)), {"numRecords": 7, "maxValues": {"id": 1}})])
    table = lakebed.convert(path, keys=["id"])
    assert table.doctor(deep=True).findings == ()
    assert table.delete("id = 3").rows == 1
    table.settle()
    assert table.to_arrow()["id"].to_pylist() == [0, 1, 2]


# -- opened ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [{}, {"schemaString": None}, {"schemaString": '{"type":"struct","fields":[]}'}])
def test_a_table_that_began_without_a_schema_is_opened(first: Mapping[str, Any], tmp_path: Path) -> None:
    """As pipelines of Databricks make them."""
    path = tmp_path / "t"
    table_of_others(path, SCHEMA, [File(whole(range(4)))])
    log = path / "_delta_log"
    protocol, metadata, *rest = map(json.loads, (log / f"{0:020d}.json").read_text().splitlines())
    without = {name: value for name, value in metadata["metaData"].items() if name != "schemaString"}
    commit(path, 0, [protocol, {"metaData": without | dict(first)}])
    with pytest.raises(InvalidSchema, match="at least one column"):
        lakebed.open(path).to_arrow()
    commit(path, 1, [metadata, *rest])
    assert lakebed.open(path).to_arrow().num_rows == 4
    table = lakebed.convert(path, keys=["id"])
    assert table.doctor(deep=True).findings == ()
    with pytest.raises(LakebedError):
        table.to_arrow(version=0)


def test_a_table_whose_protocol_vacuums_must_check_is_opened_and_adopted(tmp_path: Path) -> None:
    features = ["vacuumProtocolCheck"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    path = table_of_others(tmp_path / "t", SCHEMA, [File(whole(range(4)))], protocol=protocol)
    assert lakebed.open(path).to_arrow().num_rows == 4
    assert lakebed.convert(path, keys=["id"]).to_arrow().num_rows == 4


@pytest.mark.parametrize(
    "properties",
    [
        {"delta.checkpointInterval": "10"},
        {"delta.autoOptimize.optimizeWrite": "true", "delta.logRetentionDuration": "interval 30 days"},
        {"delta.columnMapping.maxColumnId": "3", "any": "thing"},
        {"delta.deletedFileRetentionDuration": "interval 1 weeks"},
    ],
)
def test_properties_are_set_beside_those_of_others(properties: dict[str, str], tmp_path: Path) -> None:
    path = table_of_others(tmp_path / "t", SCHEMA, [File(whole(range(4)))], configuration=properties, protocol=PLAIN)
    table = lakebed.convert(path, keys=["id"])
    table.set_properties({"lakebed.read_budget": "4"})
    assert {**properties, "lakebed.read_budget": "4"}.items() <= table.properties.items()
