"""Debezium's forms of PostgreSQL's infinities and far dates, of all its modes, snapshots and streams, are read by one rule."""

from __future__ import annotations

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import DecoderSchema
from lakebed.far_times import INFINITY_DAY, INFINITY_MICROS, MINUS_INFINITY_DAY, MINUS_INFINITY_MICROS
from tests.decode.records import records
from tests.end_to_end.schema_changes import INLINE_SCHEMAS
from tests.infra.debezium import DebeziumServer
from tests.infra.kafka import KafkaServer
from tests.infra.postgres import PostgresServer

pytestmark = pytest.mark.slow
MODES = [
    *("adaptive", "connect", "isostring"),
    *(
        pytest.param(mode, marks=pytest.mark.long)
        for mode in ("adaptive_time_microseconds", "microseconds", "nanoseconds")
    ),
]
DAY, STAMP, LOCAL = pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")
TIMES = {
    "day": (DAY, "date"),
    "local": (LOCAL, "timestamp"),
    "coarse": (LOCAL, "timestamp(3)"),
    "seen": (STAMP, "timestamptz"),
}
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        *((name, kind) for name, (kind, _) in TIMES.items()),
        *((f"{name}s", pa.list_(kind)) for name, (kind, _) in TIMES.items()),
    ]
)
COLUMNS = [f"{name} {kind}" for name, (_, kind) in TIMES.items()] + [
    f"{name}s {kind}[]" for name, (_, kind) in TIMES.items()
]
FAR = "20222-03-15"


def events(kafka: KafkaServer, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while len(found) < count:
        message = consumer.poll(30)
        assert message is not None and message.error() is None, message
        found.append(message.value())
    consumer.close()
    return found


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_an_infinity_is_one_in_every_mode(
    mode: str, kafka: KafkaServer, postgres: PostgresServer, debezium: DebeziumServer
) -> None:
    name = f"far_{mode}"
    postgres.create_database(name)
    texts = ["infinity", "-infinity"] + ([] if mode == "nanoseconds" else [FAR])
    rows = [", ".join([f"'{text}'"] * 4 + [f"'{{{text}}}'"] * 4) for text in texts]
    values = [", ".join(f"({first + at}, {row})" for at, row in enumerate(rows)) for first in (0, 10)]
    postgres.sql(
        f"create table far (id bigint primary key, {', '.join(COLUMNS)}); insert into far values {values[0]}", name
    )
    topic = kafka.create_topic(f"{name}.public.far")
    connector = debezium.capture(name, ["public.far"], name, {"time.precision.mode": mode, **INLINE_SCHEMAS})
    debezium.wait_until_sent(connector)
    postgres.sql(f"insert into far values {values[1]}", name)
    debezium.wait_until_sent(connector)
    debezium.release(connector)
    decoded = DebeziumJson(DecoderSchema(SCHEMA, ("id",))).decode(records(events(kafka, topic, 2 * len(texts))))
    assert decoded.quarantined["reason"].to_pylist() == []
    day = {0: INFINITY_DAY, 1: MINUS_INFINITY_DAY, 2: 6_666_479}
    for row in decoded.changes.select(SCHEMA.names).cast(_numbers()).to_pylist():
        of_day = day[row["id"] % 10]
        moment = {0: INFINITY_MICROS, 1: MINUS_INFINITY_MICROS}.get(row["id"] % 10, of_day * 86_400_000_000)
        expected = {"day": of_day, "local": moment, "coarse": moment, "seen": moment}
        assert row == {"id": row["id"], **expected, **{f"{name}s": [value] for name, value in expected.items()}}


def _numbers() -> pa.Schema:
    plain = {DAY: pa.int32(), STAMP: pa.int64(), LOCAL: pa.int64()}
    return pa.schema(
        [
            (f.name, plain.get(f.type) or (pa.list_(plain[f.type.value_type]) if pa.types.is_list(f.type) else f.type))
            for f in SCHEMA
        ]
    )
