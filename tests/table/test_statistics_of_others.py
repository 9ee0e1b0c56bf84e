"""Statistics that other writers keep in their own way never hide a row: by key, by predicate, with a key index or without."""

from __future__ import annotations

import datetime
import decimal
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

import lakebed
from lakebed.resolve.locate import ScanLocator
from lakebed.schema.conversion import schema_to_json
from lakebed.table import internals_of
from lakebed.view.arrow_scan import ScanFile
from lakebed.view.spark_scan import entry_for_spark
from tests.table.others import File, table_of_others

NAN = math.nan
D = decimal.Decimal
UTC = datetime.UTC
MOMENT = datetime.datetime(2024, 1, 1, 0, 0, 0, 123_456, tzinfo=UTC)


pytestmark = pytest.mark.usefixtures("own_cache")


@dataclass(frozen=True)
class Told:
    """Two keys of a file, and the bounds that a writer tells of them; ``sought`` and ``finds``: a predicate and its keys."""

    kind: pa.DataType
    keys: tuple[Any, Any]
    bounds: tuple[Any, Any] | None
    sought: str
    finds: tuple[Any, ...]


WAYS = {
    "NaN is left out": Told(pa.float64(), (1.0, NAN), (1.0, 1.0), "id > 5", (NAN,)),
    "NaN of four bytes is left out": Told(pa.float32(), (1.0, NAN), (1.0, 1.0), "id >= 2", (NAN,)),
    "NaN, and only the footer tells bounds": Told(pa.float64(), (1.0, NAN), None, "id = 'nan'::double", (NAN,)),
    "-0.0 is written 0.0": Told(pa.float64(), (-0.0, -5.0), (-5.0, -0.0), "id >= 0", (-0.0,)),
    "four bytes in few digits": Told(pa.float32(), (0.1, 0.3), (0.1, 0.3), "id between 0.05 and 0.2", (0.1,)),
    "a decimal as a float": Told(
        pa.decimal128(38, 10),
        (D("12345678901234567890.1234567899"), D("12345678901234567890.1234567898")),
        (12345678901234567000, 12345678901234567000),
        "id > 12345678901234567890",
        (D("12345678901234567890.1234567899"), D("12345678901234567890.1234567898")),
    ),
    "a moment cut to its millisecond": Told(
        pa.timestamp("us", "UTC"),
        (MOMENT, MOMENT.replace(microsecond=123_999)),
        ("2024-01-01T00:00:00.123Z", "2024-01-01T00:00:00.123Z"),
        "id > '2024-01-01 00:00:00.123990+00'",
        (MOMENT.replace(microsecond=123_999),),
    ),
    "a moment of another zone": Told(
        pa.timestamp("us", "UTC"),
        (MOMENT, MOMENT.replace(hour=5)),
        ("2023-12-31T16:00:00.123-08:00", "2023-12-31T21:00:00.123-08:00"),
        "id > '2024-01-01 04:00:00+00'",
        (MOMENT.replace(hour=5),),
    ),
    "a text cut, the greatest raised": Told(
        pa.string(), ("x" * 40, "x" * 50), ("x" * 32, "x" * 32 + "�"), f"id > '{'x' * 45}'", ("x" * 50,)
    ),
    "nothing at all": Told(pa.int64(), (5, 7), None, "id > 6", (7,)),
}


def table(told: Told, path: Path) -> lakebed.Table:
    """Two files, so that one could be left out."""
    schema = pa.schema([("id", told.kind), ("v", pa.string())])
    stats = None
    if told.bounds:
        stats = {"minValues": {"id": told.bounds[0]}, "maxValues": {"id": told.bounds[1]}, "nullCount": {"id": 0}}
    far = File(rows(told.kind, [FAR[told.kind.id]], "far"), None)
    return lakebed.convert(
        table_of_others(path, schema, [File(rows(told.kind, list(told.keys), "old"), stats), far]), keys=["id"]
    )


FAR: dict[int, Any] = {
    pa.float64().id: -1e300,
    pa.float32().id: -1e30,
    pa.decimal128(38, 10).id: D(-1),
    pa.timestamp("us").id: datetime.datetime(1999, 1, 1, tzinfo=UTC),
    pa.string().id: "a",
    pa.int64().id: 1,
}


def rows(kind: pa.DataType, keys: list[Any], value: str) -> pa.Table:
    return pa.table({"id": pa.array(keys, kind), "v": [value] * len(keys)})


def by_key(found: pa.Table) -> list[tuple[str, str]]:
    """As text, in which NaN equals itself and -0.0 is 0.0."""
    return sorted(
        (str(row["id"] + 0 if isinstance(row["id"], float) else row["id"]), row["v"]) for row in found.to_pylist()
    )


@pytest.mark.parametrize("told", WAYS.values(), ids=WAYS.keys())
def test_a_key_is_found_and_replaced_once(told: Told, tmp_path: Path) -> None:
    target = table(told, tmp_path / "t")
    for number, key in enumerate(told.keys):
        assert target.lookup(rows(told.kind, [key], "")["id"].to_pylist()).num_rows == 1
        target.apply(rows(told.kind, [key], f"new {number}"))
    wanted = by_key(
        pa.concat_tables(
            [
                rows(told.kind, [FAR[told.kind.id]], "far"),
                *(rows(told.kind, [key], f"new {number}") for number, key in enumerate(told.keys)),
            ]
        )
    )
    without_index = lakebed.open(target.path)
    assert by_key(without_index.to_arrow()) == wanted
    settle_without_index(without_index)
    assert by_key(lakebed.open(target.path).to_arrow()) == wanted
    assert target.doctor(deep=True).findings == ()


def settle_without_index(target: lakebed.Table) -> None:
    """As a process does whose local disk is full."""
    inside = internals_of(target)
    assert inside.settler.settle(lambda shape: ScanLocator(shape, inside.storage)).commits == 1


def test_spark_s_index_is_reported_only_bounds_that_hold() -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("x", pa.float64()), ("d", pa.decimal128(38, 10)), ("m", pa.decimal128(9, 2))]
    )
    bounds = {"id": 2**53 + 1, "x": 1.5, "d": 1.5, "m": 1.25}
    stats = orjson.dumps({"numRecords": 1, "minValues": bounds, "maxValues": bounds, "nullCount": {"x": 0}}).decode()

    def told(path: str, stats: str | None) -> str | None:
        return entry_for_spark(ScanFile(path=path, bytes=1, rows=1, stats=stats), schema_to_json(schema))

    trusted = {"id": 2**53 + 1, "m": 1.25}
    expected = {"numRecords": 1, "minValues": trusted, "maxValues": trusted, "nullCount": {"x": 0}}
    assert orjson.loads(told("part-0.parquet", stats) or "") == expected
    assert told("_lakebed/0.parquet", stats) == stats
    assert told("part-0.parquet", '{"minValues":{"x":NaN}}') is told("part-0.parquet", None) is None


@pytest.mark.parametrize("told", WAYS.values(), ids=WAYS.keys())
def test_a_predicate_finds_its_rows(told: Told, tmp_path: Path) -> None:
    target = table(told, tmp_path / "t")
    wanted = by_key(rows(told.kind, list(told.finds), "old"))
    assert by_key(target.to_arrow(where=told.sought)) == wanted
    assert by_key(target.query(f"select * from t where {told.sought}", "t")) == wanted
    assert target.delete(told.sought).rows == len(wanted)
    assert target.to_arrow(where=told.sought).num_rows == 0
