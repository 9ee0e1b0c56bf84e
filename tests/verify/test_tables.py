"""Two tables that are compared: every type, each planted difference, and nothing else."""

from __future__ import annotations

import datetime
import json
import math
import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import lakebed
from lakebed.cli import main
from lakebed.errors import InvalidInput
from lakebed.log.actions import AddPart, CommitInfo
from lakebed.log.conflicts import BLIND
from lakebed.log.table_log import Committed
from lakebed.verify.tables import verify_tables
from lakebed.version import ENGINE
from tests.internals import log_of

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("a", pa.string()),
        pa.field("b", pa.string()),
        pa.field("amount", pa.decimal128(12, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("day", pa.date32()),
        pa.field("real", pa.float32()),
        pa.field("double", pa.float64()),
        pa.field("small", pa.int16()),
        pa.field("is", pa.bool_()),
        pa.field("bytes", pa.binary()),
        pa.field("list", pa.list_(pa.struct([pa.field("x", pa.float64()), pa.field("y", pa.string())]))),
        pa.field("map", pa.map_(pa.string(), pa.int32())),
        pa.field("struct", pa.struct([pa.field("p q", pa.string()), pa.field("at", pa.timestamp("us", "UTC"))])),
    ]
)
BEGIN = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


def row(number: int) -> dict[str, Any]:
    """Each row has the values of another edge."""
    if number % 10 == 9:
        return {"id": number}
    return {
        "id": number,
        "a": ("", "-", "5:ab", "ü" * number, "it's")[number % 5],
        "b": f"b {number}",
        "amount": Decimal(number - 50) / 4,
        "at": BEGIN + datetime.timedelta(microseconds=number),
        "day": datetime.date(1, 1, 1) if number % 2 else datetime.date(9999, 12, 31),
        "real": (0.1, -1.5, math.inf)[number % 3],
        "double": (math.nan, -0.0, 5e-324, -math.inf)[number % 4],
        "small": -(2**15) + number,
        "is": number % 2 == 0,
        "bytes": bytes([0, 255, number]),
        "list": [None, {"x": math.nan, "y": None}, {"x": 1.0, "y": "y"}][: number % 4],
        "map": [("k", number), ("a", None)],
        "struct": {"p q": "x", "at": None},
    }


@pytest.fixture
def table(tmp_path: Path, own_cache: None) -> lakebed.Table:
    """A hundred rows, some in the base, some of them changed by the tail."""
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    table.apply(pa.Table.from_pylist([{**row(number), "a": "old"} for number in range(60)], SCHEMA))
    table.settle()
    table.apply(pa.Table.from_pylist([row(number) for number in range(100)], SCHEMA))
    pq.write_table(pa.Table.from_pylist([row(number) for number in range(100)], SCHEMA), tmp_path / "copy.parquet")
    return table


def test_a_table_is_equal_to_its_copies(table: lakebed.Table, tmp_path: Path) -> None:
    copy = lakebed.create(tmp_path / "other", SCHEMA, keys=["id"])
    copy.apply(table.to_arrow())
    folder = tmp_path / "folder/part=1"
    folder.mkdir(parents=True)
    pq.write_table(table.to_arrow(), folder / "x.parquet")
    write_deltalake(tmp_path / "delta", pq.read_table(tmp_path / "copy.parquet").drop_columns(["map"]))
    for other in ("copy.parquet", "other", "folder", "delta"):
        found = verify_tables(table.path, str(tmp_path / other))
        assert (found.outcome, found.rows, found.keys) == ("equal", 100, 0), found
    assert dict(found.left_out) == {"map": "the source does not have it"}


@pytest.mark.few(6)
@pytest.mark.parametrize("name", [field.name for field in SCHEMA if field.name != "id"])
def test_another_value_of_any_type_shows(table: lakebed.Table, tmp_path: Path, name: str) -> None:
    others = {
        **row(13),
        "double": 0.0,
        "struct": {"p q": "x", "at": BEGIN},
        "list": [{"x": -0.0, "y": None}],
        "map": [("k", 13)],
        "a": "5:a",
    }
    changed = {**row(12), name: others[name]}
    assert changed[name] != row(12)[name]
    table.apply(pa.Table.from_pylist([changed], SCHEMA))
    found = verify_tables(table.path, str(tmp_path / "copy.parquet"))
    assert [(dict(one.key), one.kind, one.column) for one in found.shown] == [({"id": "12"}, "differs", name)]


def test_a_null_is_no_other_value(table: lakebed.Table, tmp_path: Path) -> None:
    for number, name in ((10, "a"), (12, "list"), (14, "amount")):
        table.apply(pa.Table.from_pylist([{**row(number), name: None}], SCHEMA))
    found = verify_tables(table.path, str(tmp_path / "copy.parquet"))
    assert {one.key["id"]: one.column for one in found.shown} == {"10": "a", "12": "list", "14": "amount"}


def doubled(table: lakebed.Table) -> None:
    """The part of the base once more: its live rows are there twice."""
    table.settle()
    log = log_of(table)
    part = max(log.refresh().parts.values(), key=lambda part: part.rows)
    copied = f"_lakebed/{uuid.uuid4()}.parquet"
    shutil.copyfile(Path(table.path, part.path), Path(table.path, copied))
    info = CommitInfo(operation="TEST", commit_id="", engine=ENGINE)
    actions = [AddPart(replace(part, path=copied))]
    assert isinstance(log.commit(log.refresh(), actions, info, BLIND), Committed)


def updated(set: dict[str, str], where: str) -> Callable[[lakebed.Table], None]:
    return lambda table: void(table.update(set, where))


def void(result: object) -> None:
    """What the caller does not need."""


PLANTED: dict[str, tuple[Callable[[lakebed.Table], None], tuple[str, str, str]]] = {
    "a lost update": (
        lambda table: void(table.apply(pa.Table.from_pylist([{**row(7), "b": "before"}], SCHEMA))),
        ("differs", "b", ""),
    ),
    "a lost insert": (lambda table: void(table.delete("id = 7")), ("missing", "", "")),
    "a lost delete": (
        lambda table: void(table.apply(pa.Table.from_pylist([{**row(7), "id": 777}], SCHEMA))),
        ("surplus", "", ""),
    ),
    "a wrong last digit": (updated({"amount": "amount + 0.01"}, "id = 7"), ("differs", "amount", "")),
    "a time zone": (updated({"at": '"at" - interval 5 hour'}, "id = 7"), ("differs", "at", "-5 h: a time zone")),
    "a text that is cut": (updated({"b": "b[:2]"}, "id = 7"), ("differs", "b", "the text is cut")),
    "exchanged columns": (updated({"a": "b", "b": "a"}, "id = 7"), ("differs", "a", "a and b are exchanged")),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found_and_nothing_else(table: lakebed.Table, tmp_path: Path, name: str) -> None:
    plant, said = PLANTED[name]
    plant(table)
    found = verify_tables(table.path, str(tmp_path / "copy.parquet"))
    assert [(one.kind, one.column, one.looks_like) for one in found.shown] == [said]
    assert (found.outcome, found.differences) == ("differs", 1)
    assert found.shown[0].key["id"] == ("777" if name == "a lost delete" else "7")


def test_a_row_that_moved_and_stayed_is_two_differences(table: lakebed.Table, tmp_path: Path) -> None:
    moved = pa.Table.from_pylist([row(number) for number in range(99)] + [{**row(99), "id": 999}], SCHEMA)
    pq.write_table(moved, tmp_path / "moved.parquet")
    found = verify_tables(table.path, str(tmp_path / "moved.parquet"))
    assert {one.key["id"]: one.kind for one in found.shown} == {"99": "surplus", "999": "missing"}


def test_rows_that_are_there_twice_show(table: lakebed.Table, tmp_path: Path) -> None:
    doubled(table)
    found = verify_tables(table.path, str(tmp_path / "copy.parquet"))
    assert {one.kind for one in found.shown} == {"doubled"}
    assert found.differences == len({one.key["id"] for one in found.shown})
    assert main(["verify", table.path, "--self", "--deep"]) == 1


def test_the_types_may_be_wider_and_the_names_in_another_case(tmp_path: Path, own_cache: None) -> None:
    narrow = pa.schema([pa.field("ID", pa.int32()), pa.field("x", pa.float32()), pa.field("n", pa.decimal128(5, 1))])
    wide = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.float64()), pa.field("n", pa.decimal128(20, 3))])
    rows = [{"id": 1, "ID": 1, "x": 0.5, "n": Decimal("1.5")}]
    table = lakebed.create(tmp_path / "t", wide, keys=["id"])
    table.apply(pa.Table.from_pylist(rows, wide))
    pq.write_table(pa.Table.from_pylist(rows, narrow), tmp_path / "copy.parquet")
    assert verify_tables(table.path, str(tmp_path / "copy.parquet")).outcome == "equal"


def test_what_can_not_be_compared_is_named(table: lakebed.Table, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="neither a table nor a Parquet file"):
        verify_tables(table.path, str(tmp_path / "nowhere"))
    pq.write_table(pa.table({"other": [1], "small": ["a text"]}), tmp_path / "other.parquet")
    with pytest.raises(InvalidInput, match="its key id can't be compared: the source does not have it"):
        verify_tables(table.path, str(tmp_path / "other.parquet"))
    heap = lakebed.create(tmp_path / "heap", SCHEMA)
    with pytest.raises(InvalidInput, match="has no keys; name columns"):
        verify_tables(heap.path, table.path)
    heap.apply(table.to_arrow())
    assert verify_tables(heap.path, table.path, ["id"]).outcome == "equal"


def test_the_command_prints_a_report(table: lakebed.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = str(tmp_path / "copy.parquet")
    assert main(["verify", table.path, "--against", copy]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{table.path}: equal to {copy}"
    table.update({"double": "0.25", "day": "date '2024-02-29'"}, "id = 4")
    assert main(["verify", table.path, "--against", copy]) == 1
    said = capsys.readouterr().out
    assert "id=4: differs, first in day" in said
    assert "double=0.25" in said and "day=2024-02-29" in said
    assert main(["verify", table.path, "--against", copy, "--key", "id", "--format", "json"]) == 1
    [found] = map(json.loads, capsys.readouterr().out.splitlines())
    assert (found["outcome"], found["differences"], found["shown"][0]["key"]) == ("differs", 1, {"id": "4"})
    assert main(["verify", table.path, "--self"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    for wrong in (["--self", "--against", copy], ["--key", "id"], ["public.orders", "--self"], ["--deep"], []):
        assert main(["verify", table.path, *wrong]) == 2
