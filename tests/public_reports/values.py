"""Reports of values that became others: placeholders, decimals, numbers, dates, lists, and records that can't be read."""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from tests.decode.records import event
from tests.pipeline.pipelines_in_memory import Sent
from tests.public_reports.report import Report, database, of, table, typed

PLACEHOLDER = "__debezium_unavailable_value"
TIME = "io.debezium.time."
CONNECT = "org.apache.kafka.connect.data."


def put(v: Any, id: int = 1, lsn: int = 1, op: str = "c") -> Sent:
    """A change without schemas."""
    return {"id": id}, event(op, {"id": id, "v": v}, None, lsn)


def typed_put(field: dict[str, Any], v: Any, id: int = 1, lsn: int = 1, op: str = "c") -> Sent:
    """A change with schemas."""
    return typed(event(op, {"id": id, "v": v}, None, lsn), field)


def all_of(field: dict[str, Any], *values: Any) -> list[Sent]:
    """Rows 1, 2, ... with these values."""
    return [typed_put(field, value, number, number) for number, value in enumerate(values, 1)]


def rows(*values: Any) -> list[tuple[int, Any]]:
    return list(enumerate(values, 1))


def decimal(scale: int, precision: int) -> dict[str, Any]:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return of("bytes", "v", name=f"{CONNECT}Decimal", parameters=parameters)


def time(name: str, type: str = "int64") -> dict[str, Any]:
    return of(type, "v", name=TIME + name)


def midnight(*day: int) -> datetime:
    return datetime(*day, tzinfo=UTC)  # type: ignore[arg-type, misc]


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


TEXTS = of("array", "v", items={"type": "string", "optional": True})
NUMBERS = of("array", "v", items={"type": "int32", "optional": True})
GEOMETRY = of(
    "struct",
    "v",
    name="io.debezium.data.geometry.Geometry",
    fields=[{"type": "bytes", "field": "wkb"}, {"type": "int32", "field": "srid", "optional": True}],
)
POINT = bytes.fromhex("0101000000000000000000f03f0000000000000040")

REPORTS = [
    # -- values that were not sent -------------------------------------------------------------------------------------
    Report(
        where="risingwavelabs/risingwave#21577",
        saw="the placeholder of a toasted text replaces it",
        pipeline=table("id: long not null, v: string"),
        records=[put("long"), put(PLACEHOLDER, 1, 2, "u")],
        rows=[(1, "long")],
    ),
    Report(
        where="risingwavelabs/risingwave#22852",
        saw="the placeholder of toasted bytes replaces them",
        pipeline=database(),
        records=[
            typed_put(of("bytes", "v"), text_of(b"long")),
            typed_put(of("bytes", "v"), text_of(PLACEHOLDER.encode()), 1, 2, "u"),
        ],
        rows=[(1, b"long")],
    ),
    Report(
        where="debezium/debezium#7815",
        saw="lists of numbers become the bytes of the placeholder",
        pipeline=database(),
        records=[typed_put(NUMBERS, [7, 8]), typed_put(NUMBERS, list(PLACEHOLDER.encode()), 1, 2, "u")],
        rows=[(1, [7, 8])],
    ),
    Report(
        where="artie-labs/transfer#100",
        saw="rows with and without a toasted value spoil each other",
        pipeline=table("id: long not null, v: string"),
        records=[
            put("a", 1, 1),
            put("b", 2, 2),
            put(PLACEHOLDER, 1, 3, "u"),
            put("bb", 2, 4, "u"),
            put("aa", 1, 5, "u"),
            put(PLACEHOLDER, 2, 6, "u"),
            put(None, 3, 7),
            put(PLACEHOLDER, 3, 8, "u"),
        ],
        rows=rows("aa", "bb", None),
    ),
    Report(
        where="airbytehq/airbyte#28968",
        saw="null becomes the default of its column",
        pipeline=database(),
        records=all_of(of("string", "v", default="MANUAL CLAIM"), None, "x"),
        rows=rows(None, "x"),
    ),
    # -- decimals ------------------------------------------------------------------------------------------------------
    Report(
        where="ClickHouse/clickhouse-kafka-connect#346",
        saw="base64 of decimals is decoded wrong",
        pipeline=table("id: long not null, v: 'decimal(12,2)'", format="{kind: debezium-json, decimal_text: precise}"),
        records=[put("Dzw=", 1, 1), put("ASw=", 2, 2), put("AA==", 3, 3)],
        rows=rows(Decimal("39.00"), Decimal("3.00"), Decimal("0.00")),
    ),
    Report(
        where="spiceai/spiceai#11184",
        saw="negative decimals become large positive ones",
        pipeline=database(),
        records=all_of(decimal(2, 12), "/w==", "/nA=", "gA=="),
        rows=rows(Decimal("-0.01"), Decimal("-4.00"), Decimal("-1.28")),
    ),
    Report(
        where="risingwavelabs/risingwave#10628",
        saw="precise decimals are not read at all",
        pipeline=database(),
        records=all_of(decimal(4, 4), "BAg="),
        rows=rows(Decimal("0.1032")),
    ),
    Report(
        where="artie-labs/transfer#413",
        saw="texts that are no numbers become decimals",
        pipeline=table("id: long not null, v: 'decimal(12,2)'"),
        records=all_of(of("string", "v"), "abcd", "12.50", "1234"),
        rows=[(2, Decimal("12.50")), (3, Decimal("1234.00"))],
        quarantine={0: "abcd"},
    ),
    Report(
        where="apache/flink-cdc#663",
        saw="decimals of too many digits become null",
        pipeline=table("id: long not null, v: 'decimal(5,2)'", format="{kind: debezium-json, decimal_text: string}"),
        records=[put("123.45", 1, 1), put("123.456", 2, 2), put("1234567.00", 3, 3)],
        rows=rows(Decimal("123.45")),
        quarantine={1: "v", 2: "v"},
    ),
    Report(
        where="airbytehq/airbyte#49920",
        saw="decimals and long integers lose their last digits",
        pipeline=table("id: long not null, v: 'decimal(38,18)'"),
        records=[
            (
                {"id": 2**53 + 1},
                b'{"op":"c","source":{"lsn":1},"after":{"id":9007199254740993,"v":0.123456789012345678}}',
            )
        ],
        rows=[(2**53 + 1, Decimal("0.123456789012345678"))],
    ),
    Report(
        where="dimitri/pgcopydb#968",
        saw="doubles lose digits after the sixth",
        pipeline=table("id: long not null, v: double"),
        records=[put(-216237.00000035969)],
        rows=rows(-216237.00000035969),
    ),
    # -- integers and booleans -----------------------------------------------------------------------------------------
    Report(
        where="risingwavelabs/risingwave#23213",
        saw="the upper half of bigint unsigned becomes null",
        pipeline=database(),
        records=all_of(decimal(0, 20), text_of(b"\0" + b"\xff" * 8), text_of(b"\0\x80" + b"\0" * 7)),
        rows=rows(Decimal(2**64 - 1), Decimal(2**63)),
    ),
    Report(
        where="apache/paimon#1420",
        saw="tinyint(1) is taken for a boolean, so 21 is lost",
        pipeline=database(),
        records=all_of(of("int16", "v"), 21, -1, 0),
        rows=rows(21, -1, 0),
    ),
    Report(
        where="airbytehq/airbyte#42476",
        saw="a snapshot sends integers, then changes send booleans: null",
        pipeline=database(),
        records=[typed_put(of("int16", "v"), 1), typed_put(of("boolean", "v"), True, 2, 2)],
        rows=[(1, 1)],
        quarantine={1: "v"},
    ),
    Report(
        where="debezium/debezium#7546",
        saw="bits of bit(9) come in another order",
        pipeline=database(),
        records=all_of(
            of("bytes", "v", name="io.debezium.data.Bits", parameters={"length": "9"}), text_of(b"\x55\x01")
        ),
        rows=rows(b"\x55\x01"),
    ),
    # -- dates and times -----------------------------------------------------------------------------------------------
    Report(
        where="confluentinc/kafka-connect-bigquery#345",
        saw="microseconds .048491 become .484910",
        pipeline=database(),
        records=all_of(time("MicroTimestamp"), 1690366967048491),
        rows=rows(datetime(2023, 7, 26, 10, 22, 47, 48491, UTC)),
    ),
    Report(
        where="Altinity/clickhouse-sink-connector#277",
        saw="milliseconds are taken for seconds",
        pipeline=database(),
        records=all_of(time("Timestamp"), 1565999999000),
        rows=rows(datetime(2019, 8, 16, 23, 59, 59, tzinfo=UTC)),
    ),
    Report(
        where="Altinity/clickhouse-sink-connector#272",
        saw="a time in 1924 ends the job",
        pipeline=database(),
        records=all_of(time("Timestamp"), -1420095600000),
        rows=rows(datetime(1924, 12, 31, 17, tzinfo=UTC)),
    ),
    Report(
        where="apache/paimon#4239",
        saw="dates before 1970 are wrong",
        pipeline=database(),
        records=all_of(time("Date", "int32"), -1, -719162, 0, 19723),
        rows=rows(date(1969, 12, 31), date(1, 1, 1), date(1970, 1, 1), date(2024, 1, 1)),
    ),
    Report(
        where="risingwavelabs/risingwave#16895",
        saw="0001-01-01 becomes 0001-12-29 BC",
        pipeline=database(),
        records=all_of(time("MicroTimestamp"), -62_135_596_800_000_000),
        rows=rows(midnight(1, 1, 1)),
    ),
    Report(
        where="risingwavelabs/risingwave#14766",
        saw="timestamptz of the year 1 is wrong",
        pipeline=database(),
        records=all_of(time("ZonedTimestamp", "string"), "0001-01-01T00:00:00.000000Z", "1970-01-01T00:00:00.000000Z"),
        rows=rows(midnight(1, 1, 1), midnight(1970, 1, 1)),
    ),
    Report(
        where="estuary/connectors#781",
        saw="infinity becomes the number 1",
        pipeline=database(),
        records=all_of(time("ZonedTimestamp", "string"), "infinity", "-infinity"),
        rows=rows(midnight(9999, 12, 31), midnight(1, 1, 3)),
    ),
    Report(
        where="debezium/debezium#7382",
        saw="infinity in nanoseconds overflows",
        pipeline=database(),
        records=all_of(time("NanoTimestamp"), 2**63 - 1, -(2**63)),
        rows=rows(midnight(9999, 12, 31), midnight(1, 1, 3)),
    ),
    Report(
        where="airbytehq/airbyte#14590",
        saw="dates before Christ become those after",
        pipeline=database(),
        records=all_of(time("Date", "int32"), -1446320, 7710),
        rows=rows("-1990-02-10", date(1991, 2, 10)),
    ),
    Report(
        where="oryanmoshe/debezium-timestamp-converter#9",
        saw="2021-12-31 becomes 2022-12-31",
        pipeline=table("id: long not null, v: date"),
        records=all_of(time("Timestamp"), 1640908800000),
        rows=rows(date(2021, 12, 31)),
    ),
    Report(
        where="datazip-inc/olake#570",
        saw="one date 0000-00-00 ends the sync of its table",
        pipeline=table("id: long not null, v: timestamp"),
        records=[put("0000-00-00 00:00:00", 1, 1), put("2025-00-15", 2, 2), put("2025-01-15T10:00:00Z", 3, 3)],
        rows=[(3, datetime(2025, 1, 15, 10, tzinfo=UTC))],
        quarantine={0: "0000-00-00", 1: "2025-00-15"},
    ),
    Report(
        where="airbytehq/airbyte#81630",
        saw="null for a zero date in a required column ends the job",
        pipeline=database(),
        records=all_of({**time("ZonedTimestamp", "string"), "optional": False}, "2025-01-15T00:00:00Z", None),
        rows=rows(midnight(2025, 1, 15), None),
    ),
    Report(
        where="apache/seatunnel#5887",
        saw="dates and times of debezium_json can't be read",
        pipeline=table("id: long not null, v: timestamp"),
        records=[
            put(1_700_000_000_123, 1, 1),
            put(1_700_000_000_123_456, 2, 2),
            put("2023-11-14T22:13:20.5+01:00", 3, 3),
        ],
        rows=rows(
            datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
            datetime(2023, 11, 14, 22, 13, 20, 123_456, UTC),
            datetime(2023, 11, 14, 21, 13, 20, 500_000, UTC),
        ),
    ),
    Report(
        where="Altinity/clickhouse-sink-connector#1421",
        saw="negative and long values of TIME wrap around",
        pipeline=database(),
        records=all_of(time("MicroTime"), 68_400_000_000, -3_020_399_000_000),
        rows=rows("19:00:00.000000", "-838:59:59.000000"),
    ),
    # -- lists, structs ------------------------------------------------------------------------------------------------
    Report(
        where="airbytehq/airbyte#41654",
        saw="a list that is null, or has nulls, ends the job",
        pipeline=database(),
        records=all_of(TEXTS, ["a", None], None, []),
        rows=rows(["a", None], None, []),
    ),
    Report(
        where="memiiso/debezium-server-iceberg#39",
        saw="geometries end the job",
        pipeline=database(),
        records=all_of(GEOMETRY, {"wkb": text_of(POINT), "srid": 4326}, None),
        rows=rows({"wkb": POINT, "srid": 4326}, None),
    ),
    # -- records that can't be read ------------------------------------------------------------------------------------
    Report(
        where="ArroyoSystems/arroyo#891",
        saw="after one record that is no JSON nothing is read",
        pipeline=table("id: long not null, v: string"),
        records=[
            put("a", 1, 1),
            (None, b'{"op":"c","source":{"lsn":2},"after":{"id":004,"v":"x"}}'),
            (None, b"\xff\xfe"),
            (None, b'{"op":"c","after":'),
            put("b", 2, 3),
        ],
        rows=rows("a", "b"),
        quarantine={1: "", 2: "", 3: ""},
    ),
    Report(
        where="camunda-community-hub/kafka-connect-zeebe#51",
        saw="an empty message ends the job",
        pipeline=table("id: long not null, v: string"),
        records=[put("a"), (b"", b""), put("b", 2, 2)],
        rows=rows("a", "b"),
        quarantine={1: "empty|JSON"},
    ),
]
