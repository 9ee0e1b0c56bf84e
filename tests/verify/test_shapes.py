"""What of a table is compared, by which rules; and the tallies of a table, against an own count."""

from __future__ import annotations

import hashlib
import itertools
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.verify.canonical import LeftOut, Rule, Shape
from lakebed.verify.comparing import Key, Span, Tally
from lakebed.verify.databases import shape_of, source_name, source_of
from lakebed.verify.lake import LakeTable, bits_of_bytes, pairs_of_json
from lakebed.verify.postgres import SourceColumn
from lakebed.verify.types_of_postgres import SourceType, rule_of
from tests.internals import log_of


def source(name: str, kind: str, **more: object) -> SourceColumn:
    return SourceColumn(name=name, type=SourceType(name=kind, **more), shown=kind)  # type: ignore[arg-type]


COLUMNS = pa.schema(
    [pa.field("shop", pa.string(), nullable=False), pa.field("line", pa.int32(), nullable=False), ("what", pa.string())]
)
SOURCE = [source("shop", "text"), source("line", "int4"), source("what", "text")]


@pytest.fixture
def table(tmp_path: Path, own_cache: None) -> lakebed.Table:
    return lakebed.create(tmp_path / "t", COLUMNS, keys=["shop", "line"])


def made(table: lakebed.Table, columns: list[SourceColumn]) -> Shape:
    found = shape_of(columns, log_of(table).refresh())
    assert isinstance(found, Shape)
    return found


def checksum(shop: str, line: int, what: str | None) -> int:
    text = f"{len(shop.encode())}:{shop},{line}," + ("-" if what is None else f"{len(what.encode())}:{what}")
    return int(hashlib.md5(text.encode()).hexdigest()[:15], 16)


def test_the_tallies_of_spans_are_those_of_their_rows(table: lakebed.Table) -> None:
    rows = [{"shop": f"shop {n % 3} ü'", "line": n - 50, "what": None if n % 5 == 0 else f"{n}"} for n in range(100)]
    table.apply(pa.Table.from_pylist(rows[:60], COLUMNS))
    table.settle()
    table.apply(pa.Table.from_pylist(rows[60:], COLUMNS))
    ends: list[Key | None] = [None, ("shop 0 ü'", "-20"), ("shop 1 ü'", "1000"), ("shop 2 ü'", "9"), None]
    spans = [Span(after=after, upto=upto) for after, upto in itertools.pairwise(ends)]

    def within(span: Span, shop: str, line: int) -> bool:
        after, upto = (None if key is None else (key[0], int(key[1])) for key in (span.after, span.upto))
        return (after is None or (shop, line) > after) and (upto is None or (shop, line) <= upto)

    with closing(LakeTable(*inside(table), lambda _: log_of(table).refresh())) as lake:
        lake.reach(0)
        found = lake.tallies(spans)
    for span in spans:
        some = [row for row in rows if within(span, str(row["shop"]), int(str(row["line"])))]
        expected = Tally(rows=len(some), sum=sum(checksum(**row) for row in some))  # type: ignore[arg-type]
        assert found.get(span, Tally()) == expected
        assert some


def inside(table: lakebed.Table) -> tuple[lakebed.table.Internals, Shape]:
    return lakebed.table.internals_of(table), made(table, SOURCE)


def test_a_span_of_some_buckets_has_only_their_rows(table: lakebed.Table) -> None:
    table.apply(pa.Table.from_pylist([{"shop": "a", "line": n, "what": "x"} for n in range(20)], COLUMNS))
    span = Span(after=("a", "4"), upto=("a", "9"))
    with closing(LakeTable(*inside(table), lambda _: log_of(table).refresh())) as lake:
        lake.reach(0)
        assert lake.tallies([span])[span].rows == 5
        assert lake.differing([span]) == 5, "nothing was kept, so all of them are the table's alone"
        assert sorted(lake.next_keys(3) + lake.next_keys(9)) == [("a", str(n)) for n in range(5, 10)]


def test_columns_that_are_not_compared_are_named(table: lakebed.Table) -> None:
    columns = [source("SHOP", "text"), source("line", "int4"), source("what", "bytea"), source("new", "int4")]
    shape = made(table, columns)
    assert [each.source_name for each in shape.keys] == ["SHOP", "line"]
    assert dict(shape.left_out) == {
        "what": "no rule compares bytea with string",
        "new": "the table does not have it",
    }
    assert made(table, SOURCE[:2]).left_out == {"what": "the source does not have it"}


def test_a_generated_column_is_not_compared(table: lakebed.Table) -> None:
    shape = made(
        table, [*SOURCE[:2], replace(SOURCE[2], is_generated=True), replace(source("b", "int4"), is_generated=True)]
    )
    assert dict(shape.left_out) == {"what": "it is generated, and Debezium leaves such columns out of changes"}


def test_an_aggregate_is_not_compared(tmp_path: Path) -> None:
    columns = pa.schema([*list(COLUMNS)[:2], ("at", pa.int64()), ("total", pa.int64())])
    sums = {"lakebed.aggregate.total": "sum"}
    table = lakebed.create(tmp_path / "t", columns, keys=["shop", "line"], sequence_by="at", properties=sums)
    shape = made(table, [*SOURCE[:2], source("at", "int8"), source("total", "int8")])
    assert dict(shape.left_out) == {"total": "it is an aggregate (sum) of all events of a row"}


def test_a_table_that_has_other_rows_by_its_settings_is_left_out(tmp_path: Path) -> None:
    times = pa.schema([*COLUMNS, ("at", pa.timestamp("us", "UTC"))])
    for name, properties, says in (
        ("expires", {"lakebed.ttl": "at: 90 days"}, "its rows expire (lakebed.ttl is at: 90 days)"),
        ("first", {"lakebed.keep": "first"}, "it keeps the first row of a key"),
    ):
        table = lakebed.create(tmp_path / name, times, keys=["shop", "line"], properties=properties)
        found = shape_of(SOURCE, log_of(table).refresh())
        assert isinstance(found, LeftOut) and says in found.reason


def test_keys_of_another_order_are_compared_as_a_whole(table: lakebed.Table) -> None:
    assert made(table, SOURCE).is_ordered
    assert not made(table, [source("shop", "text", is_ordered_by_bytes=False), *SOURCE[1:]]).is_ordered


def test_a_key_without_a_rule_leaves_the_table_out(table: lakebed.Table, tmp_path: Path) -> None:
    found = shape_of([source("shop", "json"), *SOURCE[1:]], log_of(table).refresh())
    assert isinstance(found, LeftOut) and "its key shop can't be compared" in found.reason
    heap = lakebed.create(tmp_path / "heap", COLUMNS)
    found = shape_of(SOURCE, log_of(heap).refresh())
    assert isinstance(found, LeftOut) and "it has no keys" in found.reason


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("shop.public.orders", ("public", "orders")),
        ("public.orders", ("public", "orders")),
        ('shop."a.b"."c d.e"', ("a.b", "c d.e")),
        ("shop.public.order items", ("public", "order items")),
        ('"a.b".c', ("a.b", "c")),
        ("orders", ("public", "orders")),
    ],
)
def test_names_of_tables_are_read_as_events_have_them(said: str, name: tuple[str, str]) -> None:
    assert source_name(said) == name


def test_the_source_is_the_table_that_the_table_was_made_of(table: lakebed.Table, tmp_path: Path) -> None:
    said = {"lakebed.source_topic": "shop.public.order_items", "lakebed.source_table": "shop.public.order items"}
    made_of = lakebed.create(tmp_path / "made", COLUMNS, keys=["shop"], properties=said)
    for one, name in ((made_of, "order items"), (table, "order_items")):
        snapshot = log_of(one).refresh()
        assert source_of(snapshot, "shop.public.order_items", "public.order_items") == ("public", name)


def test_a_decimal_is_never_rounded() -> None:
    def of(scale: int, lake: pa.DataType) -> Rule:
        found = rule_of(SourceType(name="numeric", modifier=(12 << 16 | scale) + 4), lake)
        assert isinstance(found, Rule)
        return found

    assert "numeric(1000, 4)" in of(2, pa.decimal128(20, 4)).source
    assert of(4, pa.decimal128(20, 2)).source == "{}::text"


def test_texts_of_odd_types() -> None:
    assert bits_of_bytes(bytes([0b00000101, 0b1])) == "100000101"
    assert bits_of_bytes(b"\0") == ""
    assert pairs_of_json('{"b": null, "a": "1"}') == "1:a1:11:b-"
    assert pairs_of_json("[1]") == "no object: [1]"
