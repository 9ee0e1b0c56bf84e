"""How fast Debezium events are decoded on one core, and how the chosen way compares with others.

    python -m benchmarks.decode [--events 100000]                       LAKEBED_NATIVE=off: the decoder without native code

Each way reads the same batch of generated events (about 590 bytes each), in one process with one thread; the figure is
events a second of CPU time, the best of a few rounds, all ways in turn within a round. Only the first rows are a decoder:
the others read the JSON text alone, which bounds what a decoder built on them could do.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import duckdb
import orjson
import pyarrow as pa

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.json.objects import JsonParser, parse_objects
from lakebed.decode.native.library import library
from lakebed.sources.generator import COLUMNS, KEYS, OrderStream

CLOCK_MICROS = 1_700_000_000_000_000
SLICE_ROWS = 16_384
ROUNDS = 3
ROW = (
    '{"order_id":"BIGINT","customer_id":"BIGINT","region":"VARCHAR","status":"VARCHAR","amount":"DECIMAL(12,2)",'
    '"note":"VARCHAR","created_at":"BIGINT","updated_at":"BIGINT"}'
)
DUCKDB_TYPE = f'{{"before":{{"order_id":"BIGINT"}},"after":{ROW},"op":"VARCHAR","ts_ms":"BIGINT"}}'


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--events", type=int, default=100_000)
    count = arguments.parse_args().events
    plain = OrderStream().events(0, count, CLOCK_MICROS)
    every_5000th_broken = _broken(plain, 5000)
    decoder = DebeziumJson(DecoderSchema(COLUMNS, KEYS))
    ordered = DebeziumJson(DecoderSchema(COLUMNS, KEYS, "source.lsn"))
    ways: dict[str, Callable[[], object]] = {
        "decoder": lambda: decoder.decode(plain),
        "decoder, ordered by source.lsn": lambda: ordered.decode(plain),
        "decoder, 1 of 5,000 records broken": lambda: decoder.decode(every_5000th_broken),
        **({"native JSON parser": lambda: _native(plain)} if library() else {}),
        "Arrow's JSON parser": lambda: _arrow(plain),
        "DuckDB from_json": lambda: _duckdb(plain),
        "orjson, to dictionaries": lambda: [orjson.loads(value) for value in plain.column("value").to_pylist()],
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, way in ways.items():
            started = time.process_time()
            way()
            best[name] = min(best[name], time.process_time() - started)
    print(f"{count:,} events of {plain.column('value').nbytes // count} bytes")
    for name, seconds in best.items():
        ratio = seconds / best["decoder"]
        print(f"{name:40} {count / seconds:>10,.0f} events/s of CPU  {ratio:>5.2f} x the decoder's time")


def _broken(events: pa.Table, every: int) -> pa.Table:
    values = events.column("value").to_pylist()
    for number in range(every // 2, len(values), every):
        values[number] = values[number][:-3]
    return events.set_column(1, events.schema.field("value"), pa.array(values, pa.binary()))


def _schema() -> pa.Schema:
    text = {name: pa.string() for name in ("region", "status", "note")}
    row = pa.struct([pa.field(name, text.get(name, pa.int64())) for name in COLUMNS.names if name != "amount"])
    key = pa.struct([pa.field("order_id", pa.int64())])
    return pa.schema([pa.field("before", key), pa.field("after", row), pa.field("op", pa.string())])


def _native(events: pa.Table) -> None:
    parser = JsonParser.of(_schema(), {})
    assert parser is not None
    for batch in events.to_batches(max_chunksize=SLICE_ROWS):
        assert not parser.parse(batch.column("value")).unsure


def _arrow(events: pa.Table) -> None:
    for batch in events.to_batches(max_chunksize=SLICE_ROWS):
        parse_objects(batch.column("value"), _schema())


def _duckdb(events: pa.Table) -> None:
    connection = duckdb.connect()
    connection.execute("set threads = 1")
    for batch in events.to_batches(max_chunksize=SLICE_ROWS):
        values = pa.table({"value": batch.column("value").cast(pa.string())})
        connection.register("input", values)
        connection.sql(f"select from_json(value, '{DUCKDB_TYPE}') from input").to_arrow_table()


if __name__ == "__main__":
    main()
