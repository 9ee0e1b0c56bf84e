"""Which transaction each of many records belongs to: as a look at each says it, and without such looks where that is possible."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from lakebed.decode import slices
from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import Decoder, DecoderSchema
from lakebed.decode.places import Transactions, regions_of
from lakebed.decode.source_order import Described
from lakebed.decode.typed.avro_reader import AvroFormat
from lakebed.decode.typed.records import TypedRecords, TypedSettings
from lakebed.decode.typed.schemas import FixedSchema
from lakebed.positions.truncates import NO_CUTOFF
from tests.decode.avro_events import avro_value, encoded, envelope, envelope_schema
from tests.decode.fuzz import without_native_code
from tests.decode.records import records, with_schema
from tests.decode.test_key_moves import COLUMNS, CONNECTORS
from tests.ingest.moving_rows import Sends, Source
from tests.worlds import seeds

FIELDS = [{"type": "int64", "field": "id"}, {"type": "string", "field": "v", "optional": True}]
SHAPE = DecoderSchema(COLUMNS, ("id",))
ODD = [
    {"source": {"txId": 7, "gtid": "a:1"}}, {"source": {"txId": None, "gtid": "a:1"}}, {"source": {"txId": "", "vgtid": "v"}},
    {"source": {"txId": 0}}, {"source": {"txId": True}}, {"source": {"txId": 1.5}}, {"source": {"txId": 1 << 70}},
    {"source": {"txId": "7"}}, {"source": {"txId": {"a": 1}}}, {"source": {"commitTs": 12}}, {"source": {"gtid": "é\ud800"}},
    {"source": {"file": "b.1", "pos": 0}}, {"source": {"file": "", "pos": 4}}, {"source": {"file": "b.1", "pos": 4}},
    {"source": {"pos": 4}}, {"source": "none", "transaction": {"id": "5:6"}}, {"transaction": {"id": "5:6"}},
    {"transaction": {"id": ""}}, {"transaction": {"id": 5}}, {"transaction": {"id": "f=b.1,pos=4"}}, {"transaction": 1}, {},
]  # fmt: skip


def compared(decoder: Decoder, table: pa.Table) -> int:
    """How many are found quickly. These are as one look at each says."""
    decoder.decode(table)
    events = slices._Events(table, decoder._reader(NO_CUTOFF))  # type: ignore[attr-defined]
    quick: dict[int, str | None] = {}
    for numbers, texts in events.transactions(np.arange(len(table))):
        quick.update(zip(numbers.tolist(), texts.to_pylist(), strict=True))
    transactions = Transactions(table, events, regions_of(table), {})
    described = map(transactions.described, range(len(table)))
    alone = [None if one is None else one.transaction for one in described]
    assert quick == {number: alone[number] for number in quick}
    ids = transactions.ids(np.arange(len(table))).tolist()
    pairs = set(zip(ids, alone, strict=True))
    assert len(pairs) == len(set(ids)) == len(set(alone))
    assert {text for id, text in pairs if id < 0} <= {None}
    return len(quick)


def events_of(connector: str) -> list[dict[str, Any]]:
    found = []
    for at in range(40):
        row = {"id": at, "v": "a"}
        change = {
            "before": None,
            "after": row,
            "op": "cur"[at % 3],
            "ts_ms": 1,
            "source": {"ts_ms": 1},
            "transaction": None,
        }
        found.append(change | CONNECTORS[connector](at // 4, at))
    return found


@pytest.mark.parametrize("connector", CONNECTORS)
def test_those_of_every_connector_are_found_quickly(connector: str) -> None:
    events = events_of(connector)
    both = [one if at % 2 else with_schema(one, FIELDS) for at, one in enumerate(events)]
    for values in (events, [with_schema(one, FIELDS) for one in events], both):
        assert compared(DebeziumJson(SHAPE), records(values)) == len(values)


@pytest.mark.parametrize("native", [True, False])
def test_odd_ones_are_looked_at_alone(native: bool) -> None:
    change = {"before": None, "after": {"id": 1, "v": "a"}, "ts_ms": 1}
    values: list[Any] = [json.dumps({**change, **odd, "op": op}) for odd in ODD for op in "curd"]
    swapped = {"payload": {**change, "op": "c", "source": {"txId": 9}}, "schema": None}
    values += [
        swapped,
        "{",
        None,
        "[]",
        '{"op": "c", "op": "u", "source": {"txId": 3}}',
        {"op": "x", "source": {"txId": 3}},
    ]
    for first in range(0, len(values), 7):  # the first one says of which types the members are
        with nullcontext() if native else without_native_code():
            compared(DebeziumJson(SHAPE), records(values[first:] + values[:first]))


class Said:
    """Records say these transactions."""

    def __init__(self, texts: Sequence[str | None]) -> None:
        self.texts = texts

    def described(self, number: int) -> Described | None:
        return Described(operation="c", transaction=self.texts[number])

    def transactions(self, numbers: np.ndarray[Any, Any]) -> list[tuple[np.ndarray[Any, Any], pa.StringArray]]:
        return [(numbers, pa.array([self.texts[number] for number in numbers.tolist()], pa.string()))]


@seeds(5)
def test_pairs_are_of_one_transaction_if_each_says_it(seed: int) -> None:
    dice = random.Random(seed)
    texts: list[str | None] = []
    places: list[int] = []
    for partition in (0, 1, 0):  # a partition may be cut
        for number in range(dice.randint(1, 9)):
            texts += [dice.choice([f"{number}", f"{number}", None]) for _ in range(dice.choice([1, 2, 9]))]
        places += [partition] * (len(texts) - len(places))
    table = records([{} for _ in texts]).set_column(3, "partition", pa.array(places, pa.int32()))
    transactions = Transactions(table, Said(texts), regions_of(table), {})
    pairs = [(one, other) for one in range(len(texts)) for other in range(one + 1, len(texts))]
    same = [(one, other) for one, other in pairs if texts[one] == texts[other]]
    for _ in range(50):
        some = [dice.choice(same or pairs), *dice.choices(pairs, k=dice.choice([1, 3, 100]))]
        found = transactions.are_one(*np.array(some, np.int64).T).tolist()
        for (first, second), is_one in zip(some, found, strict=True):
            assert is_one == (texts[first] is not None and texts[first] == texts[second])


def avro(source: Source) -> tuple[Decoder, pa.Table]:
    text, shape = envelope_schema(FIELDS), envelope(FIELDS)
    values = [encoded(text, avro_value(json.loads(one[1]), shape)) for one in source.events if one[1]]
    keys = FixedSchema(AvroFormat(), json.dumps("long"))
    settings = TypedSettings(
        decoder_schema=SHAPE, values=FixedSchema(AvroFormat(), json.dumps(text)), keys=keys, events=True
    )
    return TypedRecords(settings), records(values)


def short_lived(rows: int, *, at_once: int) -> Source:
    """Rows that are created and deleted, each in a transaction of its own, so many of them at once."""
    source = Source(Sends(headers=False, context=False, tombstones=False))
    for first in range(1, rows + 1, at_once):
        for key in range(first, first + at_once):
            source.begin()
            source.insert(key, "a")
        for key in range(first, first + at_once):
            source.begin()
            source.delete(source.row(key))
    return source


@pytest.mark.parametrize("at_once", [1, 10, 400])
@pytest.mark.parametrize("format", ["json", "avro"])
def test_rows_that_are_gone_soon_are_not_looked_at_one_by_one(format: str, at_once: int) -> None:
    source = short_lived(400, at_once=at_once)
    decoder, table = avro(source) if format == "avro" else (DebeziumJson(SHAPE), records(values_of(source)))
    with patch.object(slices, "record_of", wraps=slices.record_of) as looks:
        decoded = decoder.decode(table)
    assert decoded.changes.num_rows == len(table) == 800
    assert looks.call_count < 160


def values_of(source: Source) -> Sequence[bytes | None]:
    return [one[1] for one in source.events]


def test_avro_says_them_as_json_does() -> None:
    source = short_lived(20, at_once=5)
    decoder, table = avro(source)
    assert compared(decoder, table) == len(table) == 40
