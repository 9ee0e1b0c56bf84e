"""Inline schemas that somebody damaged: each record is a row, asks for a change that the table can judge, or is quarantined."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.decode.slices import UNFORESEEN
from lakebed.errors import InvalidInput
from lakebed.schema.change import SchemaChange
from lakebed.schema.evolve import evolve
from lakebed.schema.fitting import EVOLUTIONS, EvolvePolicy
from tests.decode.records import event, records, with_schema
from tests.internals import log_of
from tests.worlds import worlds

COLUMNS = pa.schema([pa.field("id", pa.int64(), False), ("qty", pa.int32()), ("a", pa.struct([("x", pa.int32())]))])
DECIMAL = "org.apache.kafka.connect.data.Decimal"
FIELDS = [
    {"type": "int64", "field": "id", "optional": False},
    {"type": "int64", "field": "qty", "optional": True},
    {"type": "struct", "field": "a", "fields": [
        {"type": "int64", "field": "x"},
        {"type": "array", "field": "y", "items": {"type": "string"}},
    ]},
    {"type": "map", "field": "m", "keys": {"type": "string"}, "values": {"type": "int32"}},
    {"type": "bytes", "field": "d", "name": DECIMAL, "parameters": {"scale": "2", "connect.decimal.precision": "10"}},
]  # fmt: skip
WORDS = [
    None,
    True,
    0,
    -1,
    2**70,
    "",
    "x",
    "\ud800",
    "int32",
    "string",
    "struct",
    "array",
    "map",
    "bytes",
    [],
    {},
    [{}],
    "a.b",
    "`",
    "_lakebed_x",
    "io.debezium.time.Date",
    DECIMAL,
    1.5,
    "id",
    "qty",
    "QTY",
    "x" * 3000,
]
KEYS = ["type", "field", "fields", "items", "keys", "values", "name", "parameters", "optional"]


def damaged(world: random.Random, value: Any) -> Any:
    if world.random() < 0.06:
        return world.choice(WORDS)
    if isinstance(value, dict):
        out = {name: damaged(world, one) for name, one in value.items()}
        if world.random() < 0.05 and out:
            del out[world.choice(list(out))]
        if world.random() < 0.05:
            out[world.choice(KEYS)] = world.choice(WORDS)
        return out
    if isinstance(value, list):
        listed = [damaged(world, one) for one in value]
        return [*listed, world.choice(listed)] if world.random() < 0.1 and listed else listed
    return value


@pytest.mark.worlds
def test_a_damaged_schema_ends_nothing_and_asks_for_nothing_that_has_no_answer(tmp_path: Path) -> None:
    policy = EvolvePolicy(allowed=frozenset(EVOLUTIONS), by_schema=True)
    reader = decoder("debezium-json", DecoderSchema.of_table(COLUMNS, ("id",), None, policy))
    snapshot = log_of(lakebed.create(tmp_path / "t", COLUMNS, ["id"])).refresh()
    outcomes = set()
    for seed in worlds(100):
        change = with_schema(event("c", {"id": 1, "qty": 2, "a": {"x": 1}}), FIELDS)
        change["schema"] = damaged(random.Random(seed), change["schema"])
        decoded = reader.decode(records([json.dumps(change, separators=(",", ":")).encode()]))
        needed = decoded.schema_needed
        if needed is None:
            assert len(decoded.changes) + len(decoded.quarantined) == 1
            assert not any(reason.startswith(UNFORESEEN) for reason in decoded.quarantined["reason"].to_pylist()), seed
            outcomes.add("row" if len(decoded.changes) else "quarantined")
            continue
        assert SchemaChange.from_json(json.loads(json.dumps(needed.to_json()))) == needed
        try:
            evolve(snapshot.metadata, snapshot.protocol, needed)
            outcomes.add("altered")
        except InvalidInput:
            outcomes.add("refused")
    assert outcomes >= {"row", "quarantined", "altered"}
