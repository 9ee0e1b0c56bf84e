"""Updates that change keys, of which a transaction of the source may give one key several rows for a while."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed.decode.decoder import Decoded, DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.decode.typed.avro_reader import AvroFormat
from lakebed.decode.typed.records import TypedRecords, TypedSettings
from lakebed.decode.typed.schemas import FixedSchema
from lakebed.ingest.batch_writer import Written, in_this_process
from lakebed.ingest.replay import LATE_MOVE
from lakebed.ingest.table_batch import WriteWork
from lakebed.ingest.transform_query import Transform
from lakebed.ingest.transform_run import SourceRows
from lakebed.parts.changes import MOVES_COLUMN
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.positions.positions import positions_of
from lakebed.positions.remarks import remarks_of
from lakebed.positions.truncates import NO_CUTOFF, Cutoff, cutoff_of
from lakebed.remarks import Remark
from lakebed.resolve.counted_tail import crowded_keys_of
from lakebed.schema.conversion import ChangeNames
from lakebed.schema.fitting import FIXED, EvolvePolicy
from lakebed.table import internals_of
from tests.decode.avro_events import avro_type, avro_value, encoded, envelope, envelope_schema
from tests.decode.fuzz import assert_same, only_one_by_one
from tests.decode.records import records, with_headers
from tests.ingest.moving_rows import Sends, Source, sent_again, transaction
from tests.sources.memory_source import Keyed, KeyedTopics, here, ingest_of, quarantined
from tests.view.test_a_copy_of_changes import Copy, rows_of
from tests.worlds import seeds

COLUMNS = pa.schema([pa.field("id", pa.int64(), False), pa.field("v", pa.string())])
TOPIC = "shop.public.t"
Run = Callable[[WriteWork], Written]


class Lake:
    """A table that follows a source. ``piece``: how many records are decoded at once."""

    def __init__(
        self,
        folder: Path,
        *,
        columns: pa.Schema = COLUMNS,
        sequence_by: str | None = "source.lsn",
        partitions: int = 1,
        piece: int = 1_000,
        properties: Mapping[str, Any] | None = None,
        policy: EvolvePolicy = FIXED,
    ) -> None:
        self.table = lakebed.create(
            folder / "t", columns, keys=["id"], sequence_by=sequence_by, properties=properties or {}
        )
        self.topics = KeyedTopics(piece=piece)
        self.partitions = partitions
        for partition in range(partitions):
            self.topics.add(TOPIC, partition)
        self.topics.ids[TOPIC] = "id"
        self.ingest = ingest_of(
            self.table,
            self.topics,
            decoder("debezium-json", DecoderSchema.of_table(columns, ("id",), sequence_by, policy)),
        )

    def feed(self, *events: Keyed, run: Run = here) -> None:
        """Bring events into the table as one batch. Those of a key are in one partition."""
        for event in events:
            self.topics.add(TOPIC, zlib.crc32(event[0] or b"") % self.partitions, event)
        self.ingest(run)

    def rows(self) -> dict[int, str | None]:
        rows = self.table.to_arrow().to_pylist()
        assert len({row["id"] for row in rows}) == len(rows)
        return {row["id"]: row["v"] for row in rows}

    def remarks(self) -> set[str]:
        return set(remarks_of(internals_of(self.table).log.refresh()).counts)


def decoded_by(format: str, events: Sequence[Keyed]) -> Decoded:
    """The events in another format."""
    fields: list[dict[str, Any]] = [
        {"type": "int64", "field": "id"},
        {"type": "string", "field": "v", "optional": True},
    ]
    shape = DecoderSchema(COLUMNS, ("id",), "source.lsn")
    of_key, values = (
        {"type": "struct", "fields": fields[:1]},
        [json.loads(one[1]) if one[1] else None for one in events],
    )
    keys: list[Any] = [one[0] for one in events]
    reader: Any = decoder("debezium-json", shape)
    if format == "inline schemas":
        values = [value and {"schema": envelope(fields), "payload": value} for value in values]
    elif format == "avro":
        texts = envelope_schema(fields), avro_type(of_key, "Key")
        schemas = [FixedSchema(AvroFormat(), json.dumps(one)) for one in texts]
        reader = TypedRecords(TypedSettings(decoder_schema=shape, values=schemas[0], keys=schemas[1], events=True))
        keys = [encoded(texts[1], json.loads(key)) for key in keys]
        values = [value and encoded(texts[0], avro_value(value, envelope(fields))) for value in values]
    headers: list[Mapping[str, bytes | None]] = [one[2] if len(one) > 2 else {} for one in events]
    table = records(values, keys, topic=TOPIC)
    return reader.decode(with_headers(table, headers) if any(headers) else table)


def shift(source: Source) -> None:
    """``update t set id = id + 1``, from the lowest key on."""
    for row in sorted(source.rows, key=lambda row: row.key):
        source.move(row, row.key + 1)


def shift_back(source: Source) -> None:
    for row in sorted(source.rows, key=lambda row: -row.key):
        source.move(row, row.key - 1)


def rotate(source: Source) -> None:
    """Each row gets the key of the next one: with two rows, they change places."""
    rows = sorted(source.rows, key=lambda row: row.key)
    for row, key in zip(rows, [row.key for row in [*rows[1:], rows[0]]], strict=True):
        source.move(row, key)


def move_twice(source: Source) -> None:
    first = source.row(1)
    source.move(first, 7)
    source.move(first, 8)


def move_there_and_back(source: Source) -> None:
    first = source.row(1)
    source.move(first, 7)
    source.move(first, 1)


def move_and_update(source: Source) -> None:
    shift(source)
    source.update(source.row(2), "new")


def move_and_delete(source: Source) -> None:
    shift(source)
    source.delete(source.row(2))


def move_to_a_deleted_key(source: Source) -> None:
    source.delete(source.row(2))
    source.move(source.row(1), 2)


def move_and_insert(source: Source) -> None:
    source.move(source.row(1), 7)
    source.insert(1, "new")
    source.insert(9, "gone")
    source.delete(source.row(9))


def delete_what_was_there(source: Source) -> None:
    source.move(source.row(1), 2)
    source.delete(source.row(2))


def move_with_other_values(source: Source) -> None:
    first, second = source.row(1), source.row(2)
    source.move(first, 2, "other")
    source.move(second, 1, "another")


PATTERNS = (
    shift, shift_back, rotate, move_twice, move_there_and_back, move_and_update, move_and_delete, move_to_a_deleted_key,
    move_and_insert, delete_what_was_there, move_with_other_values,
)  # fmt: skip
HOW = {
    "headers and whole old rows": Sends(),
    "headers and old keys": Sends(full=False),
    "no header but those of moves": Sends(full=False, context=False),
    "whole old rows": Sends(headers=False, context=False),
    "neither": Sends(headers=False, context=False, full=False),
}


def moved(how: Sends, pattern: Callable[[Source], None], rows: int = 2) -> tuple[Source, int]:
    """A source with some rows, and a transaction in which they move; and how many events were before that."""
    source = Source(how)
    source.snapshot({key: "ABC"[key - 1] for key in range(1, rows + 1)})
    begin = len(source.events)
    source.begin()
    pattern(source)
    return source, begin


@pytest.mark.few(20)
@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_rows_are_where_their_source_has_them_after_each_batch(
    tmp_path: Path, how: str, pattern: Callable[[Source], None]
) -> None:
    source, begin = moved(HOW[how], pattern, rows=2 + (pattern is rotate and how != "neither"))
    lake = Lake(tmp_path)
    lake.feed(*source.events[:begin])
    lake.feed(*source.events[begin:])
    assert lake.rows() == source.table()
    lake.table.settle()
    assert lake.rows() == source.table()
    if pattern in (shift, rotate):
        assert (str(Remark.KEY_MOVE_UNCLEAR) in lake.remarks()) == (how == "neither")


@pytest.mark.few(12)
@pytest.mark.slow
@pytest.mark.parametrize("how", list(HOW)[:3])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_so_they_are_when_each_event_comes_in_a_batch_of_its_own(
    tmp_path: Path, how: str, pattern: Callable[[Source], None]
) -> None:
    source, begin = moved(HOW[how], pattern, rows=3 if pattern is rotate else 2)
    lake = Lake(tmp_path, sequence_by=random.Random(how).choice(["source.lsn", None]))
    lake.feed(*source.events[:begin])
    lake.table.settle()
    for event in source.events[begin:]:
        lake.feed(event)
        lake.table.settle()
    assert lake.rows() == source.table()


@pytest.mark.parametrize("how", [*list(HOW)[:2], "whole old rows"])
def test_a_transaction_is_cut_into_tasks_and_partitions(tmp_path: Path, how: str) -> None:
    source, begin = moved(HOW[how], shift, rows=3)
    for partitions in (1, 3):
        lake = Lake(tmp_path / str(partitions), partitions=partitions)
        lake.feed(*source.events[:begin])
        several = how != "whole old rows" or partitions == 1
        lake.feed(*source.events[begin:], run=cut(random.Random(partitions)) if several and partitions > 1 else here)
        if several:
            assert lake.rows() == source.table()


def cut(dice: random.Random) -> Run:
    """Runs each range as two tasks."""

    def run(work: WriteWork) -> Written:
        halves = []
        for one in work.ranges:
            middle = dice.randint(one.start, one.end)
            halves += [[replace(one, end=middle)], [replace(one, start=middle)]]
        return Written.of(in_this_process(work.task, half) for half in halves if half[0].size)

    return run


def split(events: Sequence[Keyed], dice: random.Random) -> Iterator[Sequence[Keyed]]:
    at = 0
    while at < len(events):
        some = dice.choice([1, 1, 2, 3, 5, 8])
        yield events[at : at + some]
        at += some


RANDOM = {
    "whole old rows": (Sends(), 1),
    "old keys": (Sends(full=False, deferred=False), 1),
    "whole old rows in partitions": (Sends(), 3),
    "old keys in partitions": (Sends(full=False, deferred=False), 3),
}


@pytest.mark.few(6)
@seeds(3)
@pytest.mark.parametrize("how", RANDOM)
def test_random_transactions_in_random_batches_give_the_rows_of_their_source(
    tmp_path: Path, how: str, seed: int
) -> None:
    dice = random.Random(f"{how} {seed}")
    sends, partitions = RANDOM[how]
    source = Source(sends)
    source.snapshot({key: dice.choice("abc") for key in dice.sample([1, 2, 3, 4], dice.randint(0, 3))})
    begin = len(source.events)
    for _ in range(dice.randint(1, 4)):
        transaction(source, dice)
    order = dice.choice(["source.lsn", None])
    events = source.events
    if order and dice.random() < 0.3:
        events = [*events[:begin], *sent_again(events[begin:], dice)]
    lake = Lake(tmp_path, sequence_by=order, partitions=partitions, piece=dice.choice([1, 2, 1_000]))
    if dice.random() < 0.3:
        lake.topics.ids.clear()
    copy = Copy(lake.table, tmp_path / "copy")
    for some in split(events, dice):
        lake.feed(*some, run=cut(dice))
        if dice.random() < 0.4:
            lake.table.settle()
        if dice.random() < 0.4:
            copy.follow()
    assert lake.rows() == source.table()
    lake.table.settle()
    assert lake.rows() == source.table()
    copy.follow()
    assert {row["id"]: row["v"] for row in copy.rows()} == source.table()
    assert not lake.table.doctor(deep=True).findings


@pytest.mark.parametrize(("settled", "order"), [(True, "source.lsn"), (False, "source.lsn"), (False, None)])
def test_readers_of_changes_see_the_delete_of_a_row_that_came_and_left_again(
    tmp_path: Path, settled: bool, order: str | None
) -> None:
    source = Source(Sends(full=False, tombstones=False))
    source.begin()
    source.insert(1, "A")
    source.move(source.row(1), 2)
    lake = Lake(tmp_path, sequence_by=order)
    copy = Copy(lake.table, tmp_path / "copy")
    lake.feed(source.events[0])
    if settled:
        lake.table.settle()
    lake.feed(*source.events)  # the connector was killed, and sends the transaction again
    lake.table.settle()
    copy.follow()
    assert (lake.rows(), rows_of(copy.copy)) == ({2: "A"}, rows_of(lake.table))
    assert not lake.table.doctor(deep=True).findings


@pytest.mark.few(3)
@seeds(3)
@pytest.mark.parametrize("full", [True, False])
def test_without_headers_whole_transactions_give_the_rows_of_their_source(
    tmp_path: Path, full: bool, seed: int
) -> None:
    dice = random.Random(f"{full} {seed}")
    source = Source(Sends(headers=False, context=False, full=full, deferred=full))
    source.snapshot({key: f"{key}" for key in dice.sample([1, 2, 3, 4], dice.randint(0, 3))})
    lake = Lake(tmp_path, sequence_by=dice.choice(["source.lsn", None]))
    fed = 0
    for _ in range(dice.randint(1, 4)):
        transaction(source, dice)
        lake.feed(*source.events[fed:])
        fed = len(source.events)
        if dice.random() < 0.4:
            lake.table.settle()
        assert lake.rows() == source.table()


@seeds(2)
@pytest.mark.parametrize("partitions", [1, 3])
def test_many_short_transactions_come_in_one_batch(tmp_path: Path, partitions: int, seed: int) -> None:
    """Its ends are looked for in steps, which must not pass over others by tombstones and rows of a snapshot alone."""
    dice = random.Random(seed)
    source = Source(Sends(full=False, deferred=False))
    source.snapshot({key: "ab"[key % 2] for key in (1, 2, 3)})
    for _ in range(40):
        transaction(source, dice)
        if dice.random() < 0.3 and source.rows:
            row = dice.choice(source.rows)
            source.events.append(_snapshot_of(row.key, row.value))
    lake = Lake(tmp_path, partitions=partitions, piece=1_000)
    lake.feed(*source.events)
    assert lake.rows() == source.table()


WIDE = pa.schema([*COLUMNS, pa.field("name", pa.string()), pa.field("named", pa.int64())])
COMPOSED: dict[str, dict[str, Any]] = {
    "groups": {"lakebed.groups": {"profile": {"columns": ["name"], "sequence_by": "named"}}},
    "aggregates": {"lakebed.aggregate.named": "max"},
    "first rows": {"lakebed.keep": "first"},
}


class Composed(Lake):
    """A table whose rows come of several changes each; events fill ``v``."""

    def __init__(self, folder: Path, kind: str = "groups", **more: Any) -> None:
        if kind == "first rows":
            super().__init__(folder, properties=COMPOSED[kind], **more)
        else:
            super().__init__(folder, columns=WIDE, properties=COMPOSED[kind], policy=EvolvePolicy(fills=("v",)), **more)

    def apart(self) -> set[int]:
        """The keys of records in the quarantine."""
        path = self.table.path + QUARANTINE_SUFFIX
        if not Path(path, "_delta_log").exists():
            return set()
        rows = lakebed.open(path).to_arrow().to_pylist()
        assert all("does not say which row it is" in row["reason"] for row in rows)
        return {json.loads(row["key"])["id"] for row in rows}

    def equals(self, source: Source) -> bool:
        """Whether it has the rows of its source, but for keys of which a record is in the quarantine."""
        apart = self.apart()
        ours, theirs = ({key: v for key, v in one.items() if key not in apart} for one in (self.rows(), source.table()))
        return ours == theirs


@pytest.mark.few(12)
@pytest.mark.parametrize("how", [*list(HOW)[:2], "whole old rows"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_table_that_composes_rows_follows_moves_and_sets_apart_what_no_event_says(
    tmp_path: Path, how: str, pattern: Callable[[Source], None]
) -> None:
    source = Source(HOW[how])
    source.snapshot({1: "A", 2: "B"})
    source.begin()
    source.insert(3, "C")
    begin = len(source.events)
    source.begin()
    pattern(source)
    lake = Composed(tmp_path)
    lake.table.apply([{"id": id, "name": f"n{id}", "named": 1} for id in range(10)], columns=["name"])
    lake.feed(*source.events[:begin])
    lake.feed(*source.events[begin:])
    for _ in range(2):
        assert lake.equals(source)
        assert all(row["name"] == f"n{row['id']}" for row in lake.table.to_arrow().to_pylist()), "it stays with its key"
        lake.table.settle()
    unclear = set(PATTERNS) - {move_to_a_deleted_key, move_and_insert}
    assert bool(lake.apart()) == (how == "headers and old keys" and pattern in unclear)


@pytest.mark.parametrize("lake", [Lake, Composed])
def test_a_row_that_came_and_left_does_not_come_again_with_the_first_of_what_is_sent_again(
    tmp_path: Path, lake: type[Lake]
) -> None:
    source = Source(Sends(tombstones=False))
    source.snapshot({1: "A", 2: "B"})
    source.begin()
    source.insert(3, "C")
    begin = len(source.events)
    source.begin()
    source.move(source.row(1), 2)
    source.move(source.row(2, 1), 8)
    followed = lake(tmp_path)
    followed.feed(*source.events[:begin])
    again = source.events[begin : begin + 2]  # the connector was killed, and the batch ends with the first move
    followed.feed(*source.events[begin:], *again)
    for _ in range(2):
        assert followed.rows() == source.table() == {2: "B", 3: "C", 8: "A"}
        followed.table.settle()


@pytest.mark.few(6)
@seeds(4, 5, 31, quick=2)
@pytest.mark.parametrize("kind", COMPOSED)
def test_so_do_random_transactions_in_a_table_that_composes_rows(tmp_path: Path, kind: str, seed: int) -> None:
    dice = random.Random(f"{kind} {seed}")
    source = Source(Sends(full=dice.random() < 0.5))
    source.snapshot({key: dice.choice("abc") for key in dice.sample([1, 2, 3, 4], dice.randint(0, 3))})
    lake, fed = Composed(tmp_path, kind), 0
    for _ in range(dice.randint(1, 6)):
        transaction(source, dice)
        lake.feed(*source.events[fed:])
        fed = len(source.events)
        if dice.random() < 0.4:
            lake.table.settle()
    if kind == "first rows":  # of rows that stay at their key the first value counts
        assert lake.rows().keys() - lake.apart() == source.table().keys() - lake.apart()
        return
    for _ in range(2):
        assert lake.equals(source)
        lake.table.settle()


@pytest.mark.parametrize("pattern", [pattern for pattern in PATTERNS if pattern is not delete_what_was_there])
def test_so_it_does_when_each_event_comes_in_a_batch_of_its_own(
    tmp_path: Path, pattern: Callable[[Source], None]
) -> None:
    source, begin = moved(Sends(full=False), pattern)
    lake = Composed(tmp_path)
    lake.feed(*source.events[:begin])
    for event in source.events[begin:]:
        lake.feed(event)
        lake.table.settle()
    assert lake.equals(source)
    source.begin()
    source.move(next(iter(source.rows)), 20)
    before = lake.apart()
    lake.feed(*source.events[-3:])
    assert lake.equals(source) and lake.apart() == before, "another transaction is known to be another one"


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("format", ["inline schemas", "avro"])
def test_moves_are_the_same_in_every_format(format: str, full: bool) -> None:
    for headers in (True, False):
        source, _ = moved(Sends(full=full, headers=headers, context=headers), shift)
        expected = decoded_by("plain", source.events)
        with only_one_by_one():
            assert_same(decoded_by("plain", source.events), expected)
        with_schemas = decoded_by(format, source.events)
        assert_same(replace(with_schemas, met=expected.met), expected)
        assert "_lakebed_moves" in expected.changes.column_names


CONNECTORS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "mysql": lambda number, at: {"source": {"gtid": f"u:{number}", "file": "b.1", "pos": at, "row": 0}},
    "mariadb": lambda number, at: {"source": {"gtid": f"0-1-{number}", "file": "b.1", "pos": at, "row": 0}},
    "mysql without GTIDs": lambda number, at: {"transaction": {"id": f"f=b.1,pos={number}", "total_order": at}},
    "oracle": lambda number, at: {"source": {"txId": f"0a00{number}", "scn": str(at), "commit_scn": str(number)}},
    "sqlserver": lambda number, at: {"source": {"commit_lsn": f"0000:{number}", "change_lsn": f"0000:{at}"}},
    "postgresql with blocks": lambda number, at: {"transaction": {"id": f"{number}:{at}", "total_order": at}},
}


@pytest.mark.parametrize("connector", CONNECTORS)
def test_transactions_of_every_connector_are_known(tmp_path: Path, connector: str) -> None:
    source, begin = moved(Sends(full=False), shift, rows=3)
    source.begin()
    source.delete(source.row(3))
    lake = Lake(tmp_path, sequence_by=None)
    for at, (key, value, *headers) in enumerate(source.events):
        event = json.loads(value or b"null")
        if event:
            said = CONNECTORS[connector](event["source"]["txId"], event["source"]["lsn"])
            event |= {"source": {"connector": connector.split()[0], "ts_ms": 1}, **said}
        lake.feed((key, json.dumps(event).encode() if event else None, *headers))
        if at >= begin:
            lake.table.settle()
    assert lake.rows() == source.table() == {2: "A", 4: "C"}


def test_changes_say_their_transaction_only_where_an_earlier_batch_may_have_begun_it(tmp_path: Path) -> None:
    source, lake = Source(Sends()), Lake(tmp_path)
    said = []
    for _ in range(2):
        source.begin()
        for key in (1, 2):
            source.insert(source.transaction * 10 + key, "a")
    for number, event in enumerate(source.events):
        lake.feed(event)
        snapshot = internals_of(lake.table).log.refresh()
        names = pq.read_schema(tmp_path / "t" / list(snapshot.tail.values())[-1].path).names
        said.append(MOVES_COLUMN in names)
        assert positions_of(snapshot)[TOPIC].last[0][0] == number + 1
    assert said == [True, True, False, True]
    for topic_id, partitions in (("id", [0]), ("of a topic that was created again", []), (None, [])):
        assert [number for _, number in cutoff_of(snapshot, {TOPIC: topic_id}).last] == partitions


@pytest.mark.parametrize("unreadable", [False, True])
def test_the_transaction_of_a_last_record_is_known_behind_a_tombstone_and_not_behind_what_can_not_be_read(
    tmp_path: Path, unreadable: bool
) -> None:
    source, lake = Source(Sends()), Lake(tmp_path)
    source.begin()
    source.insert(1, "a")
    source.delete(source.row(1))
    lake.feed(*source.events, *([(b'{"id": 1}', b"{")] if unreadable else []))
    last = positions_of(internals_of(lake.table).log.refresh())[TOPIC].last
    assert {number: end for number, (end, _) in last.items()} == ({} if unreadable else {0: 3})


def test_a_row_of_a_snapshot_comes_between(tmp_path: Path) -> None:
    source, begin = moved(Sends(full=False), shift)
    source.events.insert(begin + 3, _snapshot_of(2, "B"))
    source.events.insert(begin + 7, _snapshot_of(3, "B"))
    for batches in ([source.events], [[one] for one in source.events]):
        lake = Lake(tmp_path / str(len(batches)))
        for some in batches:
            lake.feed(*some)
        assert set(lake.rows()) == {2, 3}


def _snapshot_of(key: int, value: str | None) -> Keyed:
    source = Source(Sends())
    source.snapshot({key: value})
    return source.events[0]


def test_keys_of_several_columns_move(tmp_path: Path) -> None:
    columns = COLUMNS.insert(0, pa.field("shop", pa.string(), False))
    table = lakebed.create(tmp_path / "t", columns, keys=["shop", "id"])
    topics = KeyedTopics()
    topics.add(TOPIC, 0)
    ingest = ingest_of(table, topics, decoder("debezium-json", DecoderSchema(columns, ("shop", "id"))))
    source, _ = moved(Sends(full=False), shift)
    for shop in ("x", "y"):
        for key, value, *headers in source.events:
            of_shop = [json.dumps(_in_shop(json.loads(one), shop)).encode() if one else None for one in (key, value)]
            topics.add(TOPIC, 0, (*of_shop, *headers))
    ingest()
    assert sorted(tuple(row.values()) for row in table.to_arrow().to_pylist()) == [
        (shop, key, value) for shop in ("x", "y") for key, value in source.table().items()
    ]


def _in_shop(one: dict[str, Any], shop: str) -> dict[str, Any]:
    if "op" not in one:
        return {"shop": shop, **one}
    return one | {side: one[side] and {"shop": shop, **one[side]} for side in ("before", "after")}


@pytest.mark.parametrize("how", HOW)
def test_plain_inserts_and_deletes_in_a_transaction_are_no_moves(tmp_path: Path, how: str) -> None:
    source = Source(HOW[how])
    source.snapshot({1: "A", 2: "B"})
    lake = Lake(tmp_path)
    lake.feed(*source.events)
    lake.table.settle()
    fed = len(source.events)
    source.begin()
    source.update(source.row(2), "C")
    source.insert(5, "gone")
    source.delete(source.row(5))
    source.delete(source.row(1))
    source.insert(1, "again")
    lake.feed(*source.events[fed:])
    assert lake.rows() == {1: "again", 2: "C"}
    assert lake.remarks() == set()
    assert quarantined(lake.table) == []
    assert [part.moves for part in internals_of(lake.table).log.refresh().tail_in_order()] == [0]


def test_the_log_says_that_a_row_will_leave_while_its_key_has_two(tmp_path: Path) -> None:
    source, begin = moved(Sends(full=False), shift)
    lake = Lake(tmp_path)
    lake.feed(*source.events[: begin + 3])
    lake.table.settle()
    said = crowded_keys_of(internals_of(lake.table).log.refresh()).keys
    assert [one.more for one in said.values()] == [1]
    assert lake.rows() == {2: "A"}
    lake.feed(*source.events[begin + 3 :])
    lake.table.settle()
    said = crowded_keys_of(internals_of(lake.table).log.refresh()).keys
    assert {one.more for one in said.values()} == {0}


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.float32()), pa.struct([("x", pa.float64())])], ids=str)
def test_an_old_row_with_a_value_that_is_no_number_is_the_row_that_came(tmp_path: Path, kind: pa.DataType) -> None:
    def value(number: Any) -> Any:
        return [number] if pa.types.is_list(kind) else {"x": number} if pa.types.is_struct(kind) else number

    source = Source()
    source.snapshot({1: value("NaN"), 2: value(1.5)})
    source.begin()
    shift(source)
    source.update(source.row(2), value(2.5))
    lake = Lake(tmp_path, columns=pa.schema([COLUMNS.field("id"), pa.field("v", kind)]), sequence_by=None)
    for key, change, *headers in source.events:  # MySQL's old rows are whole
        of_mysql = change and change.replace(b'"postgresql"', b'"mysql"')
        lake.topics.add(TOPIC, 0, (key, of_mysql, *headers))  # type: ignore[arg-type]
    lake.ingest()
    assert (lake.rows(), quarantined(lake.table)) == ({2: value(2.5), 3: value(1.5)}, [])


@pytest.mark.parametrize("order", ["source.lsn", None, "id"])
@pytest.mark.parametrize("headers", [True, False])
def test_a_row_that_gets_another_key_without_all_its_values_is_quarantined(
    tmp_path: Path, headers: bool, order: str | None
) -> None:
    source, _ = moved(Sends(full=False, headers=headers, context=headers), shift)
    key, value, sent = source.events[-1]  # type: ignore[misc]
    unsent = (value or b"").replace(b'"B"', b'"__debezium_unavailable_value"')
    lake = Lake(tmp_path, sequence_by=order)
    lake.feed(*source.events[:-1], (key, unsent, sent))
    assert 3 not in lake.rows()
    reasons = lakebed.open(lake.table.path + "_quarantine").to_arrow()["reason"].to_pylist()
    assert ["another key" in reason and "'v'" in reason for reason in reasons] == [True]


@pytest.mark.parametrize(
    ("pattern", "full", "lost"), [(shift, False, 1), (shift, True, 0), (move_and_insert, False, 0)]
)
def test_rows_that_sql_may_lose_because_it_can_not_count_are_said(
    pattern: Callable[[Source], None], full: bool, lost: int
) -> None:
    source, _ = moved(Sends(full=full), pattern)
    shape = DecoderSchema(COLUMNS, ("id",), "source.lsn")
    through = Transform(sql="select *, _change_type, _change_sequence from changes", columns=COLUMNS)
    keys, values, headers = zip(*source.events, strict=True)
    some = with_headers(records(values, keys, topic=TOPIC), headers)
    decoded = SourceRows(decoder("debezium-json", shape), shape, through).decode(some)
    assert decoded.remarks == ({Remark.KEY_MOVE_TRANSFORMED: {TOPIC: lost}} if lost else {})


@pytest.mark.parametrize("settled", [True, False])
def test_a_row_that_comes_from_the_quarantine_is_the_newest_without_an_order(tmp_path: Path, settled: bool) -> None:
    source, _ = moved(Sends(full=False), shift)
    bad = [(key, value and value.replace(b'"v": "A"', b'"v": "\xff"'), *more) for key, value, *more in source.events]
    lake = Lake(tmp_path, sequence_by=None)
    lake.feed(*source.events[:2], *bad[2:])  # type: ignore[arg-type]
    assert lake.rows() == {3: "B"}
    if settled:
        lake.table.settle()
    assert internals_of(lake.table).replay_quarantine(_Mending()).records == 1
    assert lake.rows() == {2: "A", 3: "B"}
    lake.table.settle()
    assert lake.rows() == {2: "A", 3: "B"}


class _Mending:
    """Reads records whose text is no UTF-8."""

    def __init__(self, order: str | None = None, instead: bytes = b"A") -> None:
        self.decoder_schema = DecoderSchema(COLUMNS, ("id",), order)
        self.instead = instead

    def bound_to(self, decoder_schema: DecoderSchema) -> _Mending:
        return self

    def schema_needed(self, records: pa.Table) -> None:
        return None

    def decode(self, records: pa.Table, cutoff: Cutoff = NO_CUTOFF) -> Decoded:
        values = [value and value.replace(b"\xff", self.instead) for value in records["value"].to_pylist()]
        records = records.set_column(1, "value", pa.array(values, pa.binary()))
        return decoder("debezium-json", self.decoder_schema).decode(records, cutoff)


@pytest.mark.parametrize("settled", [True, False])
def test_a_moved_row_that_comes_from_the_quarantine_after_newer_changes_of_its_key_stays_there(
    tmp_path: Path, settled: bool
) -> None:
    source = Source()
    source.snapshot({1: "a", 2: "b"})
    begin = len(source.events)
    source.begin()
    source.move(source.row(1), 2)
    source.move(source.row(2), 9)
    lake = Lake(tmp_path)
    lake.feed(*source.events[:begin])
    lake.feed(*[spoilt(event) if b'"op": "c"' in (event[1] or b"") else event for event in source.events[begin:]])
    if settled:
        lake.table.settle()
    replayed = internals_of(lake.table).replay_quarantine(_Mending("source.lsn", instead=b""))
    assert (replayed.records, dict(replayed.left)) == (1, {LATE_MOVE: 1})
    assert lake.rows() == {9: "b"}


@pytest.mark.few(3)
@seeds(3, 20, quick=0)
@pytest.mark.parametrize("headers", [True, False])
def test_what_comes_from_the_quarantine_gives_the_same_rows_whenever_the_tail_is_settled(
    tmp_path: Path, headers: bool, seed: int
) -> None:
    dice = random.Random(f"{headers} {seed}")
    full = dice.random() < 0.5
    source, order = Source(Sends(full=full, deferred=full, headers=headers)), dice.choice(["source.lsn", None])
    source.snapshot({key: dice.choice("abc") for key in dice.sample([1, 2, 3, 4], dice.randint(1, 4))})
    for _ in range(dice.randint(1, 4)):
        transaction(source, dice)
    settled, plain = (Lake(tmp_path / name, sequence_by=order) for name in ("settled", "plain"))
    events = [spoilt(event) if dice.random() < 0.2 else event for event in source.events]
    copy = Copy(settled.table, tmp_path / "copy", order and ChangeNames().sequence)
    for some in split(events, dice):
        for lake in (settled, plain):
            lake.feed(*some)
        if dice.random() < 0.5:
            settled.table.settle()
        if dice.random() < 0.3:
            replay(settled, order)
            replay(plain, order)
        assert settled.rows() == plain.rows()
    replay(settled, order)
    replay(plain, order)
    settled.table.settle()
    copy.follow()
    assert settled.rows() == plain.rows()
    assert rows_of(copy.copy) == rows_of(settled.table)
    assert quarantined(settled.table) == quarantined(plain.table)
    plain.table.settle()
    assert settled.rows() == plain.rows()
    if order and headers:
        is_said = str(Remark.LOST) in settled.remarks() or quarantined(settled.table)
        assert settled.rows() == source.table() or is_said
    assert not settled.table.doctor(deep=True).findings


def spoilt(event: Keyed) -> Keyed:
    """The event with a text that is no UTF-8, which ``_Mending`` reads."""
    key, value, headers = event  # type: ignore[misc]
    return key, value and value.replace(b'"v": "', b'"v": "\xff'), headers


def replay(lake: Lake, order: str | None) -> None:
    if Path(lake.table.path + "_quarantine").exists():
        internals_of(lake.table).replay_quarantine(_Mending(order, instead=b""))


@pytest.mark.parametrize(("old", "new", "lost"), [(1, 1, {"n": 1}), (2, 1, {"n": 1}), (1, 2, {})])
def test_a_row_that_is_older_by_a_column_than_the_row_before_it_is_lost_and_said(
    old: int, new: int, lost: dict[str, int]
) -> None:
    columns = COLUMNS.append(pa.field("n", pa.int64()))
    source, _ = moved(Sends(), shift)
    values = [json.loads(one[1]) if one[1] else None for one in source.events]
    for value in filter(None, values):
        for side, version in (("before", old), ("after", new)):
            value[side] = value[side] and {**value[side], "n": version}
    keys, headers = [one[0] for one in source.events], [one[2] for one in source.events]  # type: ignore[misc]
    decoded = decoder("debezium-json", DecoderSchema(columns, ("id",), "n")).decode(
        with_headers(records(values, keys), headers)
    )
    assert decoded.remarks == ({Remark.KEY_MOVED: lost} if lost else {})


class Unwrapped(Lake):
    """Gets events as ``ExtractNewRecordState`` may rewrite them: deletes are rows, and there is a tombstone behind them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, sequence_by=None)
        options = {"operation_field": "__deleted", "delete_values": ["true"], "upsert_values": ["false"]}
        self.ingest = ingest_of(self.table, self.topics, decoder("json", DecoderSchema(COLUMNS, ("id",)), options))

    def feed(self, *events: Keyed, run: Run = here) -> None:
        rows: list[Keyed] = []
        for key, value, headers in events:  # type: ignore[misc]
            event = json.loads(value or b"null")
            row = event and {**(event["after"] or event["before"]), "__deleted": str(event["op"] == "d").lower()}
            rows.append((key, json.dumps(row).encode() if row else None, headers))
        super().feed(*rows, run=run)


def test_rows_that_a_transform_unwrapped_move_by_their_headers(tmp_path: Path) -> None:
    source, _ = moved(Sends(full=False), shift)
    lake = Unwrapped(tmp_path)
    lake.feed(*source.events)
    assert lake.rows() == source.table()


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("pattern", [shift, move_and_insert, lambda source: source.move(source.row(1), 7)])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_row_without_a_transaction_comes_once_though_it_is_sent_again(
    tmp_path: Path, pattern: Callable[[Source], None], at_once: bool, settled: bool
) -> None:
    source, begin = moved(Sends(full=False), pattern)
    again = source.events[begin:]
    fed = len(source.events)
    source.begin()
    for row in list(source.rows):
        source.move(row, row.key + 10)
    batches = [source.events[:begin], again, again, source.events[fed:]]
    lake = Unwrapped(tmp_path)
    for some in [[event for batch in batches for event in batch]] if at_once else batches:
        lake.feed(*some)
        if settled:
            lake.table.settle()
    assert lake.rows() == source.table()


def test_another_row_that_comes_to_a_key_without_a_transaction_is_not_sent_again(tmp_path: Path) -> None:
    source, begin = moved(Sends(full=False), lambda source: source.move(source.row(1), 7))
    lake = Unwrapped(tmp_path)
    lake.feed(*source.events)
    lake.table.settle()
    source.move(source.row(2), 7)
    source.move(source.row(7), 8)
    lake.feed(*source.events[begin + 3 :])
    assert lake.rows() == source.table()
