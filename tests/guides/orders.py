"""The table of ``lakebed run examples/orders.yml``, without its run: the same events, applied batch by batch."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

import lakebed
from lakebed.pipeline.settings import load
from lakebed.sources.generator import OrderStream
from tests.guides.pages import ROOT

EVENTS, BATCHES = 6_000, 12
CLOCK_MICROS = 1_767_225_600_000_000


def orders_table(path: Path) -> lakebed.Table:
    """A table with history: batches that were settled, two merges."""
    section = load(ROOT / "examples/orders.yml").table
    assert section.columns is not None
    table = lakebed.create(path, section.columns, section.keys, section.sort_key, sequence_by=section.sequence_by)
    stream = OrderStream(events_per_second=5000, deletes=0.05)
    for number in range(BATCHES):
        first, last = number * EVENTS // BATCHES, (number + 1) * EVENTS // BATCHES
        table.apply(_changes(stream.events(first, last, CLOCK_MICROS), table.schema), apply_as_deletes="op = 'd'")
        table.settle()
    table.maintenance.compact()
    return table


def _changes(records: pa.Table, schema: pa.Schema) -> pa.Table:
    events = [json.loads(value) for value in records["value"].to_pylist()]
    rows = [{**(event["after"] or event["before"]), "op": event["op"]} for event in events]
    texts = pa.Table.from_pylist(rows)
    columns = {}
    for column in schema:
        values = texts[column.name]
        if pa.types.is_timestamp(column.type):
            values = values.cast(pa.int64()) if pa.types.is_integer(values.type) else values
        columns[column.name] = values.cast(column.type)
    columns["op"] = texts["op"]
    columns["source.lsn"] = pa.array([event["source"]["lsn"] for event in events], pa.int64())
    return pa.table(columns)
