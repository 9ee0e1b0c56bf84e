"""Which columns of a JDBC source the database sends as numbers, and how they become times again."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from lakebed.pipeline.sources import exact_times

POSTGRES, MARIADB = "jdbc:postgresql://h/d", "jdbc:mariadb://h/d"
DATE, STAMP, LOCAL = DateType(), TimestampType(), TimestampNTZType()


def schema(kind: DataType, client: str, **more: int) -> StructType:
    fields = [StructField('i"d`', StringType(), metadata={"jdbcClientType": "text"})]
    return StructType([*fields, StructField("a t", kind, metadata={"jdbcClientType": client, **more})])


@pytest.mark.parametrize(
    ("url", "kind", "client", "number", "time"),
    [
        (POSTGRES, DATE, "date", """lakebed_rows."a t" - date '1970-01-01'""", "date_from_unix_date(_lakebed_time_0)"),
        (
            POSTGRES,
            STAMP,
            "timestamptz",
            """date_trunc('second', lakebed_rows."a t")""",
            "timestamp_micros(_lakebed_time_0)",
        ),
        (POSTGRES, LOCAL, "timestamp", """when lakebed_rows."a t" = 'infinity'""", "as timestamp_ntz)"),
        (MARIADB, DATE, "DATE", "datediff(lakebed_rows.`a t`, '1970-01-01')", "date_from_unix_date(_lakebed_time_0)"),
        (MARIADB, LOCAL, "TIMESTAMP", "unix_timestamp(lakebed_rows.`a t`)", "as timestamp_ntz)"),
        (
            "jdbc:mysql://h/d",
            LOCAL,
            "DATETIME",
            "timestampdiff(microsecond, '1970-01-01', lakebed_rows.`a t`)",
            "as timestamp_ntz)",
        ),
    ],
)
def test_a_time_is_read_as_a_number(url: str, kind: DataType, client: str, number: str, time: str) -> None:
    exact = exact_times(url, schema(kind, client), "t", None)
    assert exact is not None
    assert exact.source.startswith("(select lakebed_rows.*, ") and number in exact.source
    assert exact.source.endswith("as _lakebed_time_0 from (select * from t) lakebed_rows) lakebed_numbered")
    assert exact.columns[0] == '`i"d```' and time in exact.columns[1] and exact.columns[1].endswith(" as `a t`")


def test_a_query_is_read_within_another_and_arrays_element_by_element() -> None:
    exact = exact_times(POSTGRES, schema(ArrayType(STAMP), "_timestamptz", arrayDimension=1), None, "select 1 as x")
    assert exact is not None
    assert (
        "from (select 1 as x) lakebed_rows)" in exact.source
        and 'unnest(lakebed_rows."a t") with ordinality' in exact.source
    )
    assert exact.columns[1] == "transform(_lakebed_time_0, number -> timestamp_micros(number)) as `a t`"


@pytest.mark.parametrize(
    ("url", "given"),
    [
        ("jdbc:oracle:thin:@h", schema(STAMP, "DATE")),
        (POSTGRES, schema(STAMP, "time")),
        (POSTGRES, schema(StringType(), "date")),
        (POSTGRES, schema(ArrayType(DATE), "_date", arrayDimension=2)),
        (POSTGRES, StructType([StructField("a", DATE)])),
    ],
)
def test_any_other_column_is_read_as_spark_reads_it(url: str, given: StructType) -> None:
    assert exact_times(url, given, "t", None) is None
