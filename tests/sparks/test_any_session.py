"""A user's session, whatever its settings: it writes the rows that any other writes, and reads the rows that are there.

Some settings, all at once, run with all tests. ``make test-sessions`` tries each alone, and with Java 17, 21 and 25.

    python -m tests.sparks.test_any_session FOLDER JSON

does so in a session that is started with these settings.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import lakebed
from tests.infra.downloads import JAVAS, java
from tests.waiting import ended, ran, started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
ALL = "LAKEBED_SESSIONS" in os.environ

SCHEMA = pa.schema(
    [
        pa.field("Id", pa.int64(), nullable=False),
        ("Größe `x` a.b", pa.string()),
        ("end", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("wall", pa.timestamp("us")),
        ("day", pa.date32()),
        ("price", pa.decimal128(20, 4)),
        ("raw", pa.binary()),
        ("ratio", pa.float64()),
        ("place", pa.struct([("City", pa.string()), ("seen", pa.timestamp("us", "UTC"))])),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int32())),
        ("part", pa.string()),
    ]
)
TEXTS = ["it's", 'say "no"', "back\\slash", "${spark.app.name}", "ß\u00a0€ \U0001f600", "", "  padded  ", None]


def row(number: int) -> dict[str, Any]:
    text = TEXTS[number % len(TEXTS)]
    at = datetime(2024, 3, 31, 1, number % 60, 59, 123456, UTC)
    return {
        "Id": number, "Größe `x` a.b": text, "end": text, "at": at,
        "wall": datetime(2024, 3, 31, 2, 30, 0, number), "day": date(1500 + number, 2, 28), "price": Decimal("12.3400") * number,
        "raw": bytes([number % 256, 0, 255]), "ratio": float("nan") if number == 5 else number / 3,
        "place": {"City": text, "seen": at}, "tags": [text, None], "counts": [(str(number), number)],
        "part": f"a='{number % 3}' %\\",
    }  # fmt: skip


ROWS = [row(number) for number in range(24)]
RUNTIME: dict[str, Mapping[str, str]] = {
    f"{name.removeprefix('spark.sql.')}={value}": {name: value}
    for name, values in {
        "spark.sql.ansi.enabled": ("true", "false"),
        "spark.sql.caseSensitive": ("true",),
        "spark.sql.session.timeZone": ("America/New_York", "Asia/Kolkata", "+05:45"),
        "spark.sql.timestampType": ("TIMESTAMP_NTZ",),
        "spark.sql.adaptive.enabled": ("false",),
        "spark.sql.codegen.wholeStage": ("false",),
        "spark.sql.shuffle.partitions": ("1",),
        "spark.sql.parquet.binaryAsString": ("true",),
        "spark.sql.parquet.int96AsTimestamp": ("false",),
        "spark.sql.parquet.filterPushdown": ("false",),
        "spark.sql.parquet.recordLevelFilter.enabled": ("true",),
        "spark.sql.parquet.aggregatePushdown": ("true",),
        "spark.sql.parquet.mergeSchema": ("true",),
        "spark.sql.parquet.enableVectorizedReader": ("false",),
        "spark.sql.parquet.enableNestedColumnVectorizedReader": ("false",),
        "spark.sql.parquet.columnarReaderBatchSize": ("3",),
        "spark.sql.parquet.inferTimestampNTZ.enabled": ("false",),
        "spark.sql.parquet.fieldId.read.enabled": ("true",),
        "spark.sql.parquet.datetimeRebaseModeInRead": ("LEGACY", "EXCEPTION"),
        "spark.sql.parquet.int96RebaseModeInRead": ("LEGACY",),
        "spark.sql.parquet.outputTimestampType": ("INT96",),
        "spark.sql.parquet.writeLegacyFormat": ("true",),
        "spark.sql.execution.arrow.maxRecordsPerBatch": ("1",),
        "spark.sql.execution.arrow.useLargeVarTypes": ("true",),
        "spark.sql.execution.arrow.pyspark.enabled": ("false",),
        "spark.sql.files.maxPartitionBytes": ("4096",),
        "spark.sql.files.ignoreMissingFiles": ("true",),
        "spark.sql.files.ignoreCorruptFiles": ("true",),
        "spark.sql.parser.escapedStringLiterals": ("true",),
        "spark.sql.variable.substitute": ("false",),
        "spark.sql.storeAssignmentPolicy": ("STRICT", "LEGACY"),
        "spark.sql.legacy.timeParserPolicy": ("LEGACY",),
        "spark.sql.readSideCharPadding": ("false",),
        "spark.sql.sources.useV1SourceList": ("",),
        "spark.sql.sources.partitionColumnTypeInference.enabled": ("false",),
    }.items()
    for value in values
} | {
    "ansi names and quotes": {
        "spark.sql.ansi.enabled": "true",
        "spark.sql.ansi.enforceReservedKeywords": "true",
        "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    },
}
TOGETHER = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.enforceReservedKeywords": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.parquet.binaryAsString": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.parser.escapedStringLiterals": "true",
}
CHOSEN = RUNTIME if ALL else {"much at once": TOGETHER}


@contextmanager
def set_in(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            spark.conf.unset(name) if was is None else spark.conf.set(name, was)


def comparable(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows in the order of their ids, in one time zone, and with NaN equal to itself."""
    return [
        {name: repr(value) for name, value in each.items()}
        for each in sorted(rows.select(SCHEMA.names).cast(SCHEMA).to_pylist(), key=lambda each: each["Id"])
    ]


WANTED = comparable(pa.Table.from_pylist(ROWS, SCHEMA))


def check_writes_and_reads(spark: SparkSession, folder: Path) -> None:
    """Rows come by a DataFrame and by a stream, some are deleted, all are read in several ways, and some are replaced."""
    written = pa.Table.from_pylist(ROWS, SCHEMA)
    source = lakebed.create(folder / "source", SCHEMA, keys=["Id"])  # what the session makes a DataFrame of
    source.apply(written)
    changes = source.read(spark)
    table = lakebed.create(folder / "t", SCHEMA, keys=["Id", "part"], sort_key=["at"], partition_by=["part"])
    table.apply(changes.where("Id < 12"))
    table.settle()
    arriving = str(folder / "arriving")
    wide = (
        changes.where("Id >= 12")
        .selectExpr("*", "'u' as op")
        .unionAll(changes.where("Id < 2").selectExpr("*", "'d' as op"))
    )
    wide.write.parquet(arriving)
    stream = spark.readStream.schema(wide.schema).parquet(arriving)
    ended(started(partial(table.ingest, stream, apply_as_deletes="op = 'd'", trigger={"availableNow": True})))
    assert comparable(table.to_arrow()) == WANTED[2:]

    frame = table.read(spark)
    assert comparable(frame.toArrow()) == WANTED[2:]
    table.create_view(spark, "orders")
    assert comparable(spark.table("orders").toArrow()) == WANTED[2:]
    some, micros = ROWS[7], (ROWS[7]["at"] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    for where in (
        (frame["part"] == some["part"]) & (frame["Id"] == 7),
        (frame["day"] == some["day"]) & (frame["price"] == some["price"]),
        f"at = timestamp_micros({micros})",
    ):
        assert comparable(frame.where(where).toArrow()) == [WANTED[7]], str(where)
    assert frame.groupBy("part").count().count() == 3
    assert comparable(table.read(spark, version=1).toArrow()) == WANTED[:12]
    kinds = {each["_change_type"] for each in table.changes(0, spark=spark).select("_change_type").collect()}
    assert kinds == {"upsert", "delete"}

    table.overwrite(changes.where("Id < 4"), '"Id" < 6')
    assert comparable(table.to_arrow()) == WANTED[:4] + WANTED[6:]
    table.replace_partition({"part": some["part"]}, changes.where("Id = 7"))
    others = [number for number in (*range(4), *range(6, len(ROWS))) if ROWS[number]["part"] != some["part"]]
    assert comparable(table.to_arrow()) == [WANTED[number] for number in sorted([*others, 7])]


@pytest.mark.few(1)
@pytest.mark.parametrize("conf", CHOSEN.values(), ids=CHOSEN)
def test_settings_of_a_session_change_no_row(spark: SparkSession, tmp_path: Path, conf: Mapping[str, str]) -> None:
    known = {name: value for name, value in conf.items() if spark.conf.isModifiable(name)}
    with set_in(spark, known):
        check_writes_and_reads(spark, tmp_path)


_OTHER_CATALOG = {
    "spark.sql.catalog.other": "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
    "spark.sql.catalog.other.url": "jdbc:derby:memory:other;create=true",
    "spark.sql.catalog.other.driver": "org.apache.derby.jdbc.EmbeddedDriver",
    "spark.sql.defaultCatalog": "other",
}
_KRYO = {"spark.serializer": "org.apache.spark.serializer.KryoSerializer", "spark.kryo.unsafe": "true"}
STARTED: dict[str, Mapping[str, str]] = {
    "nothing set": {},
    "kryo": _KRYO,
    "another catalog by default": _OTHER_CATALOG,
    "hive's types of Parquet": {
        "spark.sql.legacy.parquet.nanosAsLong": "true",
        "spark.sql.legacy.charVarcharAsString": "true",
    },
    "a driver that compiles nothing": {
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
    },
}


def in_a_new_session(folder: Path, conf: Mapping[str, str], **environment: str) -> None:
    command = [sys.executable, "-m", "tests.sparks.test_any_session", str(folder), json.dumps(dict(conf))]
    done = ran(command, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.long
@pytest.mark.parametrize(
    "conf", STARTED.values() if ALL else [_KRYO | _OTHER_CATALOG], ids=STARTED if ALL else ["a user's own"]
)
def test_a_session_that_was_started_without_lakebed_writes_and_reads_the_same_rows(
    tmp_path: Path, conf: Mapping[str, str]
) -> None:
    in_a_new_session(tmp_path, conf)


if ALL:

    @pytest.mark.parametrize("version", JAVAS)
    def test_another_java_writes_and_reads_the_same_rows(tmp_path: Path, version: str) -> None:
        in_a_new_session(tmp_path, {}, JAVA_HOME=str(java(version)))


def main(folder: str, conf: str) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in json.loads(conf).items():
        builder = builder.config(name, value)
    check_writes_and_reads(lakebed.spark(session=builder.getOrCreate()), Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
