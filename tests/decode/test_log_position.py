"""Changes of PostgreSQL are in the order of its commits, so rows that are sent again never hide a change that commits later."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.source_order import begin_of, log_position, log_positions
from lakebed.parts.changes import OP_COLUMN, SEQUENCE_COLUMN
from lakebed.positions.truncates import Cutoff
from tests.decode.fuzz import assert_same, only_one_by_one
from tests.decode.records import event, records
from tests.decode.test_fast_equals_slow import check
from tests.worlds import seeds, worlds

COLUMNS = pa.schema([pa.field("id", pa.int64(), False), ("note", pa.int64())])
SCHEMA = DecoderSchema(COLUMNS, ("id",), "source.lsn")
KEYS = range(5)


def placed(op: str, key: int, note: int | None, lsn: int | None, sequence: Any) -> dict[str, Any]:
    """An event with its place in the log."""
    row = {"id": key, "note": note}
    made = event(op, None if op == "d" else row, row if op == "d" else None)
    made["source"] |= {"lsn": lsn, "sequence": sequence, "snapshot": "incremental" if lsn is None else "false"}
    return made


@dataclass
class Source:
    """PostgreSQL and Debezium: transactions that lock the rows they write, a log, and events in the order of commits."""

    chance: random.Random
    lsn: int = 100
    rows: dict[int, int] = field(default_factory=dict)
    locks: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[tuple[int, int | None, int]]] = field(default_factory=dict)
    sent: list[dict[str, Any]] = field(default_factory=list)
    bounds: list[int] = field(default_factory=list)
    """Where in what was sent a transaction begins: a connector that comes back begins at one of these."""
    last_commit: int | None = None
    window: dict[int, int] | None = None
    """The chunk that was read, without the rows that were changed since."""

    def step(self) -> None:
        [what] = self.chance.choices([self.write, self.commit, self.read_chunk, self.send_chunk], [6, 3, 1, 1])
        what()

    def write(self) -> None:
        number = self.chance.randrange(4)
        key = self.chance.choice(KEYS)
        if self.locks.setdefault(key, number) != number:
            return  # it would wait
        self.lsn += 10
        note = None if self.chance.random() < 0.2 else self.lsn
        self.open.setdefault(number, []).append((key, note, self.lsn))

    def commit(self) -> None:
        if not self.open:
            return
        number = self.chance.choice(list(self.open))
        self.bounds.append(len(self.sent))
        for key, note, lsn in self.open.pop(number):
            self.sent.append(placed("d" if note is None else "u", key, note, lsn, self.sequence(lsn)))
            if self.window is not None:
                self.window.pop(key, None)
            if note is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = note
        self.locks = {key: holder for key, holder in self.locks.items() if holder != number}
        self.lsn += 10
        self.last_commit = self.lsn

    def read_chunk(self) -> None:
        self.window = dict(self.rows)

    def send_chunk(self) -> None:
        """The connector writes a signal, and sends the chunk when it finds it in the log."""
        self.lsn += 10
        if self.window is not None:
            self.sent += [placed("r", key, note, None, self.sequence(self.lsn)) for key, note in self.window.items()]
        self.window = None
        self.lsn += 10
        self.last_commit = self.lsn

    def sequence(self, lsn: int) -> str:
        return json.dumps([None if self.last_commit is None else str(self.last_commit), str(lsn)])

    def delivered(self) -> Iterator[dict[str, Any]]:
        """What was sent; now and then the connector comes back and sends some of it again."""
        for at, one in enumerate(self.sent):
            yield one
            before = [bound for bound in self.bounds if bound <= at]
            if before and self.chance.random() < 0.1:
                yield from self.sent[self.chance.choice(before) : at + 1]


def outcome(events: list[dict[str, Any]], order: str) -> dict[int, int]:
    """The rows of a table in which of two changes that one with the greater order counts, of equals the later one."""
    decoded = DebeziumJson(SCHEMA).decode(records(events))
    assert not decoded.quarantined.num_rows
    found: dict[int, tuple[int, int | None]] = {}
    for change, one in zip(decoded.changes.to_pylist(), events, strict=True):
        place = change[SEQUENCE_COLUMN] if order == "ours" else one["source"]["lsn"]
        if place is None:
            place = int(json.loads(one["source"]["sequence"])[1])
        if place >= found.get(change["id"], (0, None))[0]:
            found[change["id"]] = place, None if change[OP_COLUMN] == "d" else change["note"]
    return {key: note for key, (_, note) in found.items() if note is not None}


def ran(seed: int) -> Source:
    source = Source(random.Random(seed))
    for _ in range(120):
        source.step()
    while source.open:
        source.commit()
    return source


@pytest.mark.slow
@pytest.mark.worlds
def test_rows_that_are_sent_again_hide_no_change_whatever_transactions_are_open() -> None:
    by_lsn_alone = 0
    for seed in worlds(30):
        source = ran(seed)
        events = list(source.delivered())
        assert outcome(events, "ours") == source.rows, f"seed {seed}"
        by_lsn_alone += outcome(events, "lsn") != source.rows
    assert by_lsn_alone > 6, "the sources must be such that their positions alone are wrong"


def test_the_first_transaction_after_the_initial_snapshot_counts_though_it_wrote_before_it() -> None:
    """It was open when the rows were read, so they lack its changes; and the connector knows no commit before it.

    The positions of the first two events and of the last are those that Debezium 3.7 sent.
    """
    first = placed("r", 1, 10, 26_362_336, '[null,"26362336"]')
    first["source"]["snapshot"] = "first"
    begin = begin_of(first["source"])
    sent = [
        first,
        placed("u", 1, 20, 26_362_152, '[null,"26362152"]'),
        placed("u", 1, 30, 26_362_200, '["26362500","26362200"]'),
        placed("u", 1, 40, 26_362_592, '["26362592","26362592"]'),
    ]
    decoded = DebeziumJson(SCHEMA).decode(records(sent), Cutoff(begin=begin))
    assert decoded.changes[SEQUENCE_COLUMN].to_pylist() == [26_362_336, 26_362_336, 26_362_500, 26_362_592]
    with only_one_by_one():
        assert_same(DebeziumJson(SCHEMA).decode(records(sent), Cutoff(begin=begin)), decoded)


@pytest.mark.parametrize(
    ("source", "begin"),
    [
        *(
            ({"snapshot": mark, "lsn": 5, "sequence": '[null,"5"]'}, 5)
            for mark in ("true", "first", "last", "first_in_data_collection", "last_in_data_collection")
        ),
        ({"snapshot": "last", "lsn": 5, "sequence": '["4","5"]'}, None),
        ({"snapshot": "incremental", "lsn": 5, "sequence": '[null,"5"]'}, None),
        ({"snapshot": "false", "lsn": 5, "sequence": '[null,"5"]'}, None),
        ({"snapshot": "first", "lsn": None, "sequence": '[null,"5"]'}, None),
        ({"snapshot": "first", "lsn": 5}, None),
        ({}, None),
    ],
)
def test_a_row_of_the_initial_snapshot_says_where_a_table_began(source: dict[str, Any], begin: int | None) -> None:
    assert begin_of(source) == begin


@pytest.mark.parametrize("settled", [False, True])
def test_a_change_that_commits_after_a_row_was_sent_again_counts(tmp_path: Path, settled: bool) -> None:
    table = lakebed.create(tmp_path / "orders", COLUMNS, keys=["id"], sequence_by="source.lsn")
    again = placed("r", 1, 10, None, '["26745080","26745080"]')
    sent = [  # the positions are those that Debezium 3.7 sent of a row that an open transaction had changed
        placed("u", 1, 10, 26_744_000, '["26743000","26744000"]'),
        again,
        placed("u", 1, 20, 26_744_400, '["26746488","26744400"]'),
        again,
    ]
    for one in sent:
        changes = DebeziumJson(SCHEMA).decode(records([one])).changes
        names = ["source.lsn" if name == SEQUENCE_COLUMN else name for name in changes.column_names]
        table.apply(changes.rename_columns(names).select(["id", "note", "source.lsn", OP_COLUMN]))
        if settled:
            table.settle()
    assert table.to_arrow(["id", "note"]).to_pylist() == [{"id": 1, "note": 20}]


@pytest.mark.parametrize(
    ("sequence", "lsn", "place"),
    [
        ('["100","90"]', 90, 100),
        ('["80","90"]', 90, 90),
        ('["0100", "90"]', 90, 100),
        ('[null,"90"]', 90, 90),
        (None, 90, 90),
        ("", 90, 90),
        ('["x","90"]', 90, 90),
        ('["-7","-9"]', -9, -9),
        ('["' + "9" * 19 + '","90"]', 90, 90),
        ('x["100"]', 90, 90),
    ],
)
def test_a_change_is_at_the_last_commit_before_it_if_that_is_later(sequence: Any, lsn: int, place: int) -> None:
    assert log_position(lsn, sequence) == place
    sequences, lsns = pa.array([sequence, sequence], pa.string()), pa.array([lsn, None], pa.int64())
    assert log_positions(lsns, sequences).to_pylist() == [place, None]


@seeds(8, quick=2)
def test_events_are_read_the_same_by_columns_and_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    odd = ['["100","90"]', "", None, 7, '["100', "[]", '["100","7"]\n', "\u0664", '["1e3","7"]']
    events = ran(seed).sent
    for one in chance.sample(events, len(events) // 3):
        one["source"]["sequence"] = chance.choice(odd)
        if chance.random() < 0.3:
            del one["source"]["sequence"]
    check(DebeziumJson(SCHEMA), records(events))
