"""Changes of Oracle and SQL Server are in the order of their commits, whatever is sent again."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pytest

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.source_order import ORDERS, change_number, commit_position, metadata_type
from lakebed.decode.typed.values import metadata_of
from lakebed.parts.changes import OP_COLUMN, SEQUENCE_COLUMN
from tests.decode.records import event, records
from tests.decode.test_fast_equals_slow import check
from tests.worlds import seeds

COLUMNS = pa.schema([pa.field("id", pa.int64(), False), ("note", pa.int64())])
Kind = Literal["oracle", "sqlserver"]
BY = {"oracle": "source.scn", "sqlserver": "source.commit_lsn"}
KEYS = range(5)


def lsn(place: int) -> str:
    """A place in SQL Server's log as Debezium writes it, in small files, so that all three numbers matter."""
    return f"{place // 200:08x}:{place // 10 % 20:08x}:{place % 10:04x}"


@dataclass
class Source:
    """A database and Debezium: transactions that lock the rows they write, and events in the order of commits.

    1. A transaction may be open when the initial snapshot is taken: the rows lack its changes, and its events come later.
    2. Rows are read and sent again; the connector leaves those out that were changed meanwhile.
    """

    chance: random.Random
    kind: Kind
    place: int = 1000
    rows: dict[int, int] = field(default_factory=dict)
    locks: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[tuple[int, int | None, int]]] = field(default_factory=dict)
    sent: list[dict[str, Any]] = field(default_factory=list)
    bounds: list[int] = field(default_factory=list)
    has_snapshot: bool = False
    committed: int = 0
    """The commit of the last transaction that was sent."""
    window: dict[int, int] | None = None

    def step(self) -> None:
        [what] = self.chance.choices([self.write, self.commit, self.read_chunk, self.send_chunk], [6, 3, 1, 1])
        what()

    def write(self) -> None:
        number, key = self.chance.randrange(4), self.chance.choice(KEYS)
        if self.locks.setdefault(key, number) != number:
            return  # it would wait
        self.place += self.chance.randrange(1, 30)
        note = None if self.chance.random() < 0.2 else self.place
        self.open.setdefault(number, []).append((key, note, self.place))

    def commit(self) -> None:
        if not self.open:
            return
        self.bounds.append(len(self.sent))
        number = self.chance.choice(list(self.open))
        changes = self.open.pop(number)
        self.place += self.chance.randrange(1, 30)
        for key, note, at in changes:
            if self.has_snapshot:
                self.committed = self.place
                self.sent.append(self.event("d" if note is None else "u", key, note, at, self.place))
            if self.window is not None:
                self.window.pop(key, None)
            if note is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = note
        self.locks = {key: holder for key, holder in self.locks.items() if holder != number}

    def snapshot(self) -> None:
        """The first rows, as of now. They have no commit of their own in Oracle, and the newest one in SQL Server."""
        self.has_snapshot = True
        self.place += 1
        self.committed = self.place
        for key, note in self.rows.items():
            self.sent.append(self.event("r", key, note, self.place, None))

    def read_chunk(self) -> None:
        self.window = dict(self.rows) if self.has_snapshot else None

    def send_chunk(self) -> None:
        """The connector writes a signal, and sends the chunk when it finds its commit in the log."""
        if self.window is None:
            return
        self.place += 2
        self.committed = self.place
        self.sent += [self.event("r", key, note, self.place - 1, self.place) for key, note in self.window.items()]
        self.window = None

    def event(self, op: str, key: int, note: int | None, at: int, commit: int | None) -> dict[str, Any]:
        row = {"id": key, "note": note}
        made = event(op, None if op == "d" else row, row if op == "d" else None)
        if self.kind == "oracle":
            made["source"] = {"connector": "oracle", "ts_ms": 1, "scn": str(at)}
            made["source"] |= {} if commit is None else {"commit_scn": str(commit)}
        else:
            change = None if commit is None else lsn(at)
            committed = lsn(at if commit is None else commit)
            made["source"] = {"connector": "sqlserver", "ts_ms": 1, "change_lsn": change, "commit_lsn": committed}
            made["source"]["event_serial_no"] = None if commit is None else 1
        return made

    def delivered(self) -> Iterator[dict[str, Any]]:
        """What was sent; now and then the connector comes back and sends whole transactions again."""
        ends = [*self.bounds, len(self.sent)]
        for at, one in enumerate(self.sent):
            yield one
            if at + 1 in ends and self.chance.random() < 0.3:
                before = [bound for bound in self.bounds if bound <= at]
                yield from self.sent[self.chance.choice(before or [0]) : at + 1]


def ran(seed: int, kind: Kind) -> Source:
    source = Source(random.Random(seed), kind)
    for number in range(150):
        if number == 30:
            source.snapshot()
        source.step()
    while source.open:
        source.commit()
    return source


def outcome(events: list[dict[str, Any]], by: str) -> dict[int, int]:
    """The rows of a table in which of two changes that one with the greater place counts, of equals the later one."""
    decoded = DebeziumJson(DecoderSchema(COLUMNS, ("id",), by)).decode(records(events))
    assert not decoded.quarantined.num_rows
    found: dict[int, tuple[int, int | None]] = {}
    for change in decoded.changes.to_pylist():
        if change[SEQUENCE_COLUMN] >= found.get(change["id"], (0, None))[0]:
            found[change["id"]] = change[SEQUENCE_COLUMN], None if change[OP_COLUMN] == "d" else change["note"]
    return {key: note for key, (_, note) in found.items() if note is not None}


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["oracle", "sqlserver"])
def test_no_row_of_a_snapshot_hides_a_change_that_commits_later(kind: Kind) -> None:
    for seed in range(200):
        source = ran(seed, kind)
        assert outcome(list(source.delivered()), BY[kind]) == source.rows, f"seed {seed}"


@pytest.mark.slow
def test_the_number_of_a_change_alone_would_not_do() -> None:
    """Without it the test above would show nothing."""
    wrong = 0
    for seed in range(100):
        source = ran(seed, "oracle")
        events = list(source.delivered())
        for one in events:
            one["source"].pop("commit_scn", None)
        wrong += outcome(events, "source.scn") != source.rows
    assert wrong > 30


def test_commits_of_sql_server_are_ordered_as_their_lsns() -> None:
    chance = random.Random(1)
    bits = [(25, 27, 11), (32, 32, 16), (5, 5, 3)]
    lsns = []
    for _ in range(3000):
        widths = chance.choice(bits)
        lsns.append(tuple(chance.randrange(1 << width) for width in widths))
    lsns = sorted(set(lsns) | {(0, 0, 0), (2**32 - 1, 2**32 - 1, 2**16 - 1)})
    places = [commit_position("{:08x}:{:08x}:{:04x}".format(*one)) for one in lsns]
    assert all(place is not None for place in places)
    assert places == sorted(places, key=lambda place: place or 0)
    exact = [place for place, (a, b, c) in zip(places, lsns, strict=True) if a < 2**25 and b < 2**27 - 1 and c < 2047]
    assert len(exact) > 500 and len(set(exact)) == len(exact), (
        "different commits within these bounds have different places"
    )
    assert (places[0], places[-1]) == (0, 2**63 - 1)


@pytest.mark.parametrize(
    ("commit_lsn", "place"),
    [
        ("00000027:00000758:0005", (0x27 << 38) + (0x758 << 11) + 5),
        ("00000027:00000AC0:0007", (0x27 << 38) + (0xAC0 << 11) + 7),
        ("627404540760620", 627404540760620),  # Informix's
        (17, 17),
        ("00000027:00000758", None),
        ("00000027:00000758:0005 ", None),
        ("NULL", None),
        ("", None),
        (None, None),
        ("9" * 19, None),
    ],
)
def test_what_is_no_lsn_has_no_place(commit_lsn: Any, place: int | None) -> None:
    assert commit_position(commit_lsn) == place
    made = event("u", {"id": 1, "note": 1})
    made["source"] |= {"commit_lsn": commit_lsn}
    decoded = DebeziumJson(DecoderSchema(COLUMNS, ("id",), "source.commit_lsn")).decode(records([made]))
    assert decoded.changes[SEQUENCE_COLUMN].to_pylist() == ([] if place is None else [place])
    if place is None:
        [reason] = decoded.quarantined["reason"].to_pylist()
        assert reason == "sequence_by 'source.commit_lsn' is null, missing or not an integer"


@pytest.mark.parametrize(
    ("scn", "commit_scn", "place"),
    [
        ("1513734", "1513754", 1513754), ("1513734", None, 1513734), (None, "5", 5), (None, None, None),
        ("9" * 18, "5", 10**18 - 1), (str(2**63 - 1), "5", 2**63 - 1), (str(2**63), "5", 5), ("x", "5", 5), ("x", "", None),
        (7, 8, 8), ("7\n", "8", 8),
    ],
)  # fmt: skip
def test_a_change_of_oracle_is_where_its_transaction_committed(scn: Any, commit_scn: Any, place: int | None) -> None:
    assert change_number(scn, commit_scn) == place
    texts = (
        pa.array([scn if isinstance(scn, str) else None]),
        pa.array([commit_scn if isinstance(commit_scn, str) else None]),
    )
    found = ORDERS["source", "scn"].places(*(one.cast(pa.string()) for one in texts))[0].as_py()
    assert found in (None, place)


@pytest.mark.parametrize("path", [("source", "scn"), ("source", "commit_scn"), ("source", "commit_lsn")])
def test_records_with_a_schema_have_the_same_places(path: tuple[str, str]) -> None:
    members = {"scn": "12", "commit_scn": "15", "commit_lsn": "00000027:00000758:0005"}
    rows = pa.RecordBatch.from_pylist([{"source": members}, {"source": dict.fromkeys(members, None)}])
    order = ORDERS[path]
    beside = ("source", order.beside) if order.beside else path
    read = {one: metadata_of(rows, one) for one in (path, beside)}
    assert all(column.type == metadata_type(*one) for one, column in read.items())
    expected = order.place(members[path[1]], members[beside[1]])
    assert order.places(read[path], read[beside]).to_pylist() == [expected, None]


@pytest.mark.parametrize("kind", ["oracle", "sqlserver"])
@seeds(2)
def test_events_are_read_the_same_by_columns_and_one_by_one(seed: int, kind: Kind) -> None:
    chance = random.Random(seed)
    odd = [
        "12",
        "",
        None,
        7,
        "1e3",
        "\u0664",
        "00000027:00000758:0005",
        "0000002G:00000758:0005",
        "9" * 19,
        "7\n",
        True,
        2**70,
    ]
    events = ran(seed, kind).sent
    for one in chance.sample(events, len(events) // 3):
        one["source"][chance.choice(["scn", "commit_scn"] if kind == "oracle" else ["commit_lsn"])] = chance.choice(odd)
    check(DebeziumJson(DecoderSchema(COLUMNS, ("id",), BY[kind])), records([json.dumps(one) for one in events]))
