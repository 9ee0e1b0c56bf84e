"""Files with dates in the calendar of Spark 2: adopted where no date is early, refused by column and file where one is."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import Unsupported
from lakebed.health.examination import examine
from lakebed.health.finding import Severity
from lakebed.operations import create
from lakebed.parts import legacy_calendar as old_calendar
from lakebed.parts.legacy_calendar import legacy_calendar
from tests.table.others import File, table_of_others

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK = "org.apache.spark."
DAY, STAMP = pa.date32(), pa.timestamp("us", "UTC")
NESTED = pa.struct([("days", pa.list_(DAY)), ("at", pa.map_(pa.string(), STAMP))])
SCHEMA = pa.schema([("id", pa.int64()), ("day", DAY), ("at", STAMP), ("n", NESTED)])
OLD_DAY, LATE_DAY = datetime.date(1582, 10, 4), datetime.date(1582, 10, 15)
OLD, BEFORE_1900, LATE = (
    datetime.datetime(*of, tzinfo=datetime.UTC)
    for of in ((1500, 1, 1), (1899, 12, 31, 23, 59, 59, 999_999), (1900, 1, 1))
)
SPARK_2, SPARK_3 = {"sql.parquet.row.metadata": "{}"}, {"version": "3.5.0", "timeZone": "Europe/Berlin"}
LEGACY, INT96 = {**SPARK_3, "legacyDateTime": ""}, {**SPARK_3, "legacyINT96": ""}
HIVE = {"writer.date.proleptic": "false"}


def marked(rows: pa.Table, marks: Mapping[str, str]) -> pa.Table:
    return rows.replace_schema_metadata(
        {(name if name in HIVE else SPARK + name): text for name, text in marks.items()}
    )


def table_of(path: Path, marks: Mapping[str, str], int96: bool = False, stats: Any = None, **values: Any) -> str:
    rows = pa.Table.from_pylist([{"id": 1, "day": LATE_DAY, "at": LATE, "n": None, **values}, {"id": 2}], SCHEMA)
    file = File(marked(rows, marks), stats or {}, options={"use_deprecated_int96_timestamps": int96})
    return table_of_others(path, SCHEMA, [file])


@pytest.mark.parametrize(
    ("marks", "int96", "values"),
    [
        (LEGACY, False, {"day": OLD_DAY}),
        (LEGACY, False, {"at": BEFORE_1900}),
        (LEGACY, True, {"day": OLD_DAY}),
        (INT96, True, {"at": BEFORE_1900}),
        ({"version": "2.4.8"}, True, {"at": BEFORE_1900}),
        ({"version": "3.0.3"}, True, {"at": OLD}),
        ({**LEGACY, "timeZone": "UTC"}, False, {"at": OLD}),
        (SPARK_2, True, {"at": BEFORE_1900}),
        (SPARK_2, False, {"day": datetime.date(1, 1, 1)}),
        (HIVE, False, {"day": OLD_DAY}),
        (LEGACY, False, {"n": {"days": [LATE_DAY, OLD_DAY], "at": []}}),
        (INT96, True, {"n": {"days": [], "at": [("k", BEFORE_1900)]}}),
    ],
)
def test_an_early_date_in_the_old_calendar_is_refused_by_column_and_file(
    marks: Mapping[str, str], int96: bool, values: Mapping[str, Any], tmp_path: Path
) -> None:
    path = table_of(tmp_path / "t", marks, int96, **values)
    [column] = values
    with pytest.raises(Unsupported, match=rf"column '{column}' of part-.*parquet has early dates.*RebaseModeInWrite"):
        lakebed.convert(path, keys=["id"])


@pytest.mark.parametrize(
    ("marks", "int96", "values"),
    [
        (LEGACY, False, {}),
        (SPARK_2, True, {}),
        (HIVE, False, {}),
        (LEGACY, False, {"day": None, "at": None}),
        (LEGACY, False, {"n": {"days": [LATE_DAY, None], "at": [("k", LATE), ("l", None)]}}),
        (LEGACY, True, {"at": OLD}),
        (INT96, True, {"day": OLD_DAY}),
        (INT96, False, {"day": OLD_DAY, "at": OLD}),
        ({"version": "3.0.3"}, False, {"day": OLD_DAY, "at": OLD}),
        ({**LEGACY, "timeZone": "UTC"}, False, {"at": BEFORE_1900}),
        (SPARK_3, True, {"day": OLD_DAY, "at": OLD}),
        ({}, True, {"day": OLD_DAY, "at": OLD}),
    ],
)
def test_any_other_file_is_adopted(
    marks: Mapping[str, str], int96: bool, values: Mapping[str, Any], tmp_path: Path
) -> None:
    table = lakebed.convert(table_of(tmp_path / "t", marks, int96, **values), keys=["id"])
    row = {"id": 1, "day": LATE_DAY, "at": LATE, "n": None, **values}
    assert table.to_arrow(where="id = 1").to_pylist() == [row]


def test_values_are_read_only_where_no_bound_says_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    has_old_value = old_calendar.has_old_value

    def counted(url: str, field: pa.Field, *more: Any) -> bool:
        read.append(field.name)
        return has_old_value(url, field, *more)

    monkeypatch.setattr(old_calendar, "has_old_value", counted)
    lakebed.convert(table_of(tmp_path / "1", LEGACY), keys=["id"])
    assert read == ["n"]
    stats = {"minValues": {"day": "2001-01-01", "at": "2001-01-01T00:00:00.000Z"}}
    lakebed.convert(table_of(tmp_path / "2", SPARK_2, True, stats), keys=["id"])
    assert read == ["n"] * 2
    lakebed.convert(table_of(tmp_path / "3", SPARK_2, True), keys=["id"])
    assert read == ["n", "n", "at", "n"]


def test_an_early_date_in_a_column_that_the_table_lacks_or_that_is_a_partition_matters_not(tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "day": pa.array([OLD_DAY], DAY), "other": pa.array([OLD_DAY], DAY)})
    schema = pa.schema([("id", pa.int64()), ("day", DAY)])
    file = File(marked(rows, LEGACY), partition={"day": "1582-10-14"})
    table = lakebed.convert(table_of_others(tmp_path / "t", schema, [file], ["day"]), keys=["id", "day"])
    assert table.to_arrow().to_pylist() == [{"id": 1, "day": datetime.date(1582, 10, 14)}]


def test_the_doctor_names_the_column_in_a_table_that_was_adopted_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = table_of(tmp_path / "t", LEGACY, day=OLD_DAY)
    with monkeypatch.context() as before:
        before.setattr(create, "legacy_marks", lambda urls, connection: {})
        lakebed.convert(path, keys=["id"])
    [finding] = examine(path, deep=True).findings
    assert (finding.check, finding.severity) == ("calendar", Severity.CRITICAL)
    assert "column 'day'" in finding.what and "with Spark" in finding.remedy


@pytest.mark.long
def test_what_is_said_to_help_helps(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    modes = ("spark.sql.parquet.datetimeRebaseModeInWrite", "spark.sql.parquet.int96RebaseModeInWrite")
    frame = spark.sql("select 1L as id, date'1582-10-04' as day, timestamp'0044-03-15 12:00:00' as at")
    for mode in modes:
        spark.conf.set(mode, "LEGACY")
    frame.write.format("delta").save(path)
    with pytest.raises(Unsupported, match="only Spark reads: write the table again"):
        lakebed.convert(path, keys=["id"])
    for mode in modes:
        spark.conf.set(mode, "CORRECTED")
    read = spark.read.format("delta").load(path)
    read.write.format("delta").mode("overwrite").save(path)
    for mode in modes:
        spark.conf.unset(mode)
    table = lakebed.convert(path, keys=["id"])
    assert table.to_arrow(["day", "at"]).to_pydict() == {
        name: frame.toArrow()[name].to_pylist() for name in ("day", "at")
    }


def test_other_numbers_of_versions_are_compared_as_numbers() -> None:
    for version, is_old in (
        ("2.4.8", True),
        ("3.0.0", False),
        ("3.5.0-SNAPSHOT", False),
        ("10.0.0", False),
        ("none", False),
    ):
        assert (legacy_calendar({f"{SPARK}version": version}, has_int96=False) is not None) == is_old, version
