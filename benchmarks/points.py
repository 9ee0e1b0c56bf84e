"""What points cost, and how far they are behind: reading the transaction of each event in a task, keeping points in the driver,
and by how much the newest point trails the newest commit of a table while transactions come at a steady rate.

``python -m benchmarks.points``: in this process, without Kafka and without Spark. A figure of CPU is the least of three runs.
"""

from __future__ import annotations

import json
import random
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakebed.decode.decoder import RECORD_SCHEMA, DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.decode.transaction_ids import transaction_ids_of
from lakebed.points.state import PointState, Strangers, TableDone
from lakebed.points.window import TransactionRecord, Window
from lakebed.positions.point_log import PointLog
from lakebed.positions.positions import Progress
from lakebed.table import internals_of
from tests.database.bank import TRANSACTIONS as TRANSACTIONS_TOPIC
from tests.database.bank import Bank, Copy

EVENTS = 100_000
TABLES = 100
HOT = 20
TRANSACTIONS = 2_000  # between two points, as at 2,000 a second and a point a second
BEFORE = 50_000
SECONDS = 30.0
RATE = 100
BATCH_SECONDS = 1.0
LAG_SECONDS = 0.5


def cpu(work: Callable[[], Any]) -> float:
    """CPU seconds."""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF)
        work()
        after = resource.getrusage(resource.RUSAGE_SELF)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(seconds)


def records(inline: bool) -> pa.Table:
    """Events of a table with ten columns, three in each transaction."""
    fields = [{"type": "int64", "field": "id"}, *({"type": "string", "field": f"c{n}"} for n in range(9))]
    row = {"type": "struct", "fields": fields, "optional": True}
    envelope = [{**row, "field": "before"}, {**row, "field": "after"}, {"type": "string", "field": "op"}]
    schema = json.dumps({"type": "struct", "fields": envelope, "name": "shop.public.orders.Envelope"})
    values = []
    for number in range(EVENTS):
        block = {
            "id": f"{number // 3}:{8 * number}",
            "total_order": 1 + number % 3,
            "data_collection_order": 1 + number % 3,
        }
        after = {"id": number % 5_000} | {f"c{n}": f"some text {number}" for n in range(9)}
        source = {"connector": "postgresql", "ts_ms": number, "lsn": 8 * number, "schema": "public", "table": "orders"}
        event = {"before": None, "after": after, "source": source, "transaction": block, "op": "u", "ts_ms": number}
        text = json.dumps(event)
        values.append((f'{{"schema":{schema},"payload":{text}}}' if inline else text).encode())
    columns = [
        pa.nulls(EVENTS, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(["shop.public.orders"] * EVENTS),
        pa.array([0] * EVENTS, pa.int32()),
        pa.array(range(EVENTS), pa.int64()),
        pa.array(range(EVENTS), pa.timestamp("ms", "UTC")),
    ]
    return pa.Table.from_arrays(columns, schema=RECORD_SCHEMA)


def task() -> None:
    """Decoding, and cutting besides."""
    table = DecoderSchema(pa.schema([("id", pa.int64()), *((f"c{n}", pa.string()) for n in range(9))]), ("id",))
    window = Window(prefix="shop")
    ended = [
        TransactionRecord(id=str(n), offset=n, time_ms=n, written_ms=n, events={"public.orders": 3})
        for n in range(EVENTS)
    ]
    window.observe(ended)
    cut = window.cut(window.ends[-1].place, whole=True)
    for inline in (False, True):
        given = records(inline)
        reader = decoder("debezium-json", table)
        decoding = cpu(lambda given=given, reader=reader: reader.decode(given))
        ids = transaction_ids_of(reader)

        def cutting(given: pa.Table = given, ids: Any = ids) -> None:
            one = cut.for_topic("shop.public.orders", None).begin(0)
            for batch in given.to_batches(16_384):
                some = pa.Table.from_batches([batch])
                one.take(some, ids.read(some))

        kind = "with" if inline else "without"
        print(
            f"{EVENTS:,} events {kind} an inline schema: decoding {decoding:.2f} s, cutting {cpu(cutting):.2f} s",
            flush=True,
        )


def driver() -> None:
    """One batch that reaches a point: 100 tables, of which 20 have events of 2,000 transactions."""
    state = PointState(window=Window(prefix="shop"), strangers=Strangers(wait_seconds=60.0), partitions=lambda _: {})
    for number in range(TABLES):
        state.add(f"shop.public.t{number}", 0, None, has_read=False, wall_ms=0)
    place = 0

    progress: dict[str, Progress | None] = dict.fromkeys(f"shop.public.t{number}" for number in range(TABLES))

    def batch(transactions: int) -> None:
        nonlocal place
        ended = []
        for _ in range(transactions):
            place += 1
            counts = {f"public.t{(place + n) % HOT}": 1 for n in range(3)}
            ended.append(TransactionRecord(id=str(place), offset=place, time_ms=place, written_ms=place, events=counts))
        state.window.observe(ended)
        cut = state.cut(0.0, 0)
        for number in range(HOT):
            topic = f"shop.public.t{number}"
            counted = {id: [1, 1] for id in cut.for_topic(topic, progress[topic]).counting}
            progress[topic] = cut.advanced(
                topic,
                progress[topic],
                {0: {"counts": counted, "stopped": None, "strays": []}},
                is_new=progress[topic] is None,
            )
            state.done(topic, TableDone(version=place, progress=progress[topic]))
        reached = state.reached(0.0)
        assert reached is not None
        state.took(reached.end.place, ())

    for _ in range(BEFORE // TRANSACTIONS):
        batch(TRANSACTIONS)
    seconds = cpu(lambda: batch(TRANSACTIONS))
    idle = cpu(lambda: batch(1))
    print(f"{TRANSACTIONS:,} transactions over {HOT} of {TABLES} tables: {1000 * seconds:.0f} ms a point in the driver")
    print(f"1 transaction, after {place:,}: {1000 * idle:.1f} ms a point")


def trailing() -> None:
    """Bank transfers, each in three tables, in batches as a pipeline begins them; topics lag behind each other."""
    with tempfile.TemporaryDirectory() as folder:
        draw = random.Random(1)
        bank = Bank(draw)
        copy = Copy(Path(folder, "bank"), bank)
        logs = {topic.removeprefix("bank."): internals_of(table).log for topic, table in copy.tables.items()}
        points = PointLog.of(copy.path)
        copy.batch()  # a table is in points once it has read all that its topic had
        sent: list[tuple[float, dict[tuple[str, int], int]]] = []
        behind: list[float] = []
        started, due = time.monotonic(), 0.0
        while (now := time.monotonic() - started) < SECONDS:
            while bank.transfers < now * RATE:
                bank.transfer()
            sent.append((now, bank.source.ends()))
            if now < due:
                time.sleep(0.01)
                continue
            due = now + BATCH_SECONDS
            ends = {
                place: max((one[place] for at, one in sent if at <= now - draw.uniform(0.0, LAG_SECONDS)), default=0)
                for place in sent[-1][1]
                if place[0] != TRANSACTIONS_TOPIC
            }
            sent = [one for one in sent if one[0] > now - 2 * LAG_SECONDS]
            copy.batch(ends)
            newest = points.newest()
            if newest is not None:
                at = {name: logs[name].at_version(table.version).timestamp_ms for name, table in newest.tables.items()}
                behind.append(max(log.refresh().timestamp_ms for log in logs.values()) - max(at.values()))
        behind = sorted(each / 1000 for each in behind[3:])
        print(
            f"{RATE} transactions a second over 3 tables, topics up to {LAG_SECONDS} s behind: after a batch the newest point "
            f"trails the newest commit by {behind[len(behind) // 2]:.2f} s (median), {behind[-1]:.2f} s (longest of "
            f"{len(behind)})"
        )


if __name__ == "__main__":
    task()
    driver()
    trailing()
