"""Whatever keys and replica identities a table of PostgreSQL has, no change is one of another row than it was."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.source_order import SourceRules
from lakebed.errors import InvalidSchema
from lakebed.positions.truncates import Cutoff
from tests.decode.postgres_worlds import PostgresTable, Sent
from tests.decode.records import records
from tests.worlds import worlds

TOPIC = "shop.public.a_b"
KNOWN = Cutoff(sources=((TOPIC, "shop.public.a_b"),))
TYPES = {"int64": pa.int64(), "string": pa.string()}


class Copy:
    """A table of lakebed's, which applies the changes of events in their order, one batch of one event at a time.

    ``refused``: the rows whose events were not applied.
    """

    def __init__(self, source: PostgresTable, rng: Random) -> None:
        columns = pa.schema([pa.field(one.name, TYPES[one.kind]) for one in source.columns])
        derived = rng.random() < 0.5
        keys = source.key_columns if derived else rng.choice([("id",), ("code",), ("mail",), ("id", "code")])
        self.sequence = rng.choice([None, "version"])
        rules = SourceRules(keys_of_message=derived)
        self.decoder = DebeziumJson(DecoderSchema(columns, tuple(keys), self.sequence, source=rules))
        self.keys = keys
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.newest: dict[tuple[Any, ...], int] = {}
        self.refused: set[int] = set()
        self.is_parked = False

    def take(self, source: PostgresTable, sent: Sent) -> None:
        """Apply an event."""
        if self.is_parked:
            self.refused.add(sent.row)
            return
        key, value = source.encoded(sent)
        try:
            decoded = self.decoder.decode(records([value], [key], TOPIC), KNOWN)
        except InvalidSchema:
            self.is_parked = True
            self.refused.add(sent.row)
            return
        if len(decoded.quarantined):
            assert {"unsent_key", "unordered_delete"} & decoded.remarks.keys(), decoded.quarantined[
                "reason"
            ].to_pylist()
            self.refused.add(sent.row)
        for change in decoded.changes.to_pylist():
            change.pop("_lakebed_moves", None)
            place = self.key_of(change)
            if self.sequence is not None and change["version"] < self.newest.get(place, -1):
                continue
            self.newest[place] = change["version"] or 0
            is_delete = change.pop("_lakebed_op") == "d"
            if is_delete:
                self.rows.pop(place, None)
            else:
                self.rows[place] = change

    def unclear(self, source: PostgresTable) -> set[int]:
        """The rows whose events were refused, and those that had one of their keys at another time."""
        found, size = set(self.refused), -1
        while len(found) > size:
            size = len(found)
            keys = {self.key_of(row) for number in found for row in source.history[number]}
            found |= {n for n, rows in source.history.items() if not keys.isdisjoint(map(self.key_of, rows))}
        return found

    def key_of(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.keys)


@pytest.mark.slow
@pytest.mark.worlds
@pytest.mark.parametrize("has_schema", [True, False])
def test_a_copy_is_the_table_but_for_rows_of_which_somebody_is_told(has_schema: bool) -> None:
    applied = refused = parked = clear = 0
    for seed in worlds(10):
        rng = Random(seed)
        source = PostgresTable(rng, has_schema)
        copy, done = Copy(source, rng), 0
        for _ in range(40):
            if rng.random() < 0.03:
                source.new_primary_key()
            elif rng.random() < 0.03:
                source.new_identity()
            source.step()
            for sent in source.sent[done:]:
                copy.take(source, sent)
            done = len(source.sent)
        told = f"seed {seed}: keys {copy.keys}, the primary key is {source.primary_key}"
        ours, unclear = list(copy.rows.values()), copy.unclear(source)
        for number, row in source.rows.items():
            assert number in unclear or row in ours, f"{told}; row {number} is missing: {row}"
        allowed = [*source.rows.values(), *(row for number in unclear for row in source.history[number])]
        for row in ours:
            assert row in allowed, f"{told}; it has a row that is not the source's: {row}"
        applied += done
        refused += len(copy.refused)
        clear += len(source.history) - len(unclear)
        parked += copy.is_parked
    assert applied > 4 * refused > 0 and parked and clear > len(worlds(10)), "the worlds show nothing"
