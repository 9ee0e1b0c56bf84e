"""A change of the source's columns that leaves old rows wrong is found where records show it, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.decode.source_order import SourceRules
from lakebed.decode.typed.protobuf_reader import ProtobufFormat
from lakebed.decode.typed.records import TypedRecords, TypedSettings
from lakebed.decode.typed.schemas import FixedSchema
from lakebed.health.status import Observer
from lakebed.ingest.table_batch import TableIngest, run_alone
from lakebed.log.entries import SOURCE_COLUMNS
from lakebed.positions.positions import SEVERAL
from lakebed.positions.remarks import remarks_of
from lakebed.positions.resnapshots import Resnapshot, advance, ask
from lakebed.positions.source_columns import RecordColumns, Span
from lakebed.schema.fitting import EvolvePolicy
from lakebed.table import internals_of
from tests.decode.records import event, records, with_schema
from tests.decode.test_old_rows import WITH_SCHEMAS, read
from tests.internals import log_of
from tests.sources.memory_source import MemorySource, here

COLUMNS = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string())])
ID = {"type": "int64", "field": "id", "optional": False}
NOTE = {"type": "string", "field": "note", "optional": True}
COMMENT = {"type": "string", "field": "comment", "optional": True}
COUPON = {"type": "int32", "field": "coupon", "optional": True}
GROWS = EvolvePolicy(allowed=frozenset(["add", "relax"]), by_schema=True)
ADVISED = "resnapshot_advised"


class Copy:
    """A table of a topic of events with schemas, and what reads it."""

    def __init__(
        self,
        path: Path,
        columns: pa.Schema = COLUMNS,
        policy: EvolvePolicy = GROWS,
        after: Copy | None = None,
        sources: tuple[str, ...] = (),
        format: str = "debezium-json",
        **options: Any,
    ) -> None:
        """``after``: what read the topic before. ``options``: of the format."""
        self.source, self.at = (MemorySource(), 0) if after is None else (after.source, after.at)
        if not path.exists():
            lakebed.create(path, columns, keys=["id"], sequence_by="source.lsn")
        self.table = lakebed.open(path)
        internals = internals_of(self.table)
        reads = DecoderSchema.of_table(columns, ("id",), "source.lsn", policy)
        self.ingest = TableIngest(
            self.table.path,
            internals.log,
            self.source,
            decoder(format, replace(reads, source=SourceRules(tables=sources)), options),
            evolution=internals.evolution("its records need it"),
            quarantine_log=internals.quarantine_log,
        )

    def add(
        self,
        *fields: dict[str, Any],
        ms: int | None = None,
        partition: int = 0,
        topic: str = "t",
        op: str = "u",
        **row: Any,
    ) -> Copy:
        """An event is sent, by whose schema rows have these fields besides the key."""
        self.at += 1
        ms = self.at if ms is None else ms
        change = {"op": op, "before": None, "after": {"id": self.at, **row}, "source": {"ts_ms": ms, "lsn": ms}}
        self.source.add(topic, partition, with_schema(change, [ID, *fields]))
        return self

    def empty(self) -> Copy:
        """A truncate of the source is sent."""
        self.at += 1
        change = {"op": "t", "before": None, "after": None, "source": {"ts_ms": self.at, "lsn": self.at}}
        self.source.add("t", 0, with_schema(change, [ID, NOTE]))
        return self

    def read(self) -> Copy:
        run_alone(self.ingest.batch(self.source.planned()), here)
        return self

    def feed(self, *fields: dict[str, Any], **more: Any) -> Copy:
        return self.add(*fields, **more).read()

    @property
    def advised(self) -> list[str]:
        return sorted(remarks_of(log_of(self.table).refresh()).kinds.get(ADVISED, {}))

    @property
    def entry(self) -> str | None:
        return log_of(self.table).refresh().domains.get(SOURCE_COLUMNS)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path / "t").feed(NOTE, note="old")


def filled(field: dict[str, Any], default: Any = 5) -> dict[str, Any]:
    return field | {"default": default}


def never_null(field: dict[str, Any]) -> dict[str, Any]:
    return field | {"optional": False}


@pytest.mark.parametrize("in_one_batch", [True, False], ids=["in one batch", "in batches"])
@pytest.mark.parametrize(
    ("schemas", "advised"),
    [
        ([[NOTE], [NOTE, filled(COUPON)]], ["coupon"]),
        ([[NOTE], [NOTE, filled(COUPON, 0)]], ["coupon"]),
        ([[NOTE], [NOTE, filled(COMMENT, "")]], ["comment"]),
        ([[NOTE], [NOTE, never_null(COUPON)]], ["coupon"]),
        ([[NOTE], [NOTE, COUPON]], []),
        ([[NOTE], [NOTE, filled(COUPON, None)]], []),
        ([[NOTE], [COMMENT]], ["comment"]),
        ([[NOTE], [COUPON]], []),
        ([[NOTE], []], []),
        ([[NOTE], [], [COMMENT]], []),
        ([[NOTE], [], [NOTE]], ["note"]),
        ([[NOTE, filled(COUPON)], [NOTE], [NOTE, COUPON]], ["coupon"]),
        ([[NOTE, filled(COUPON)], [NOTE, filled(COUPON)]], []),
        ([[NOTE], [NOTE, COUPON], [NOTE, filled(COUPON)]], []),
        ([[NOTE, COUPON], [COMMENT, filled(COUPON)]], ["comment"]),
    ],
    ids=[
        "a default", "zero as default", "no text as default", "never null", "null as default", "null as default, written",
        "renamed", "one of another type", "dropped", "another one after a drop", "dropped and added again",
        "dropped and added again without a default", "nothing", "a default that came later",
        "renamed beside others",
    ],
)  # fmt: skip
def test_columns_in_which_old_rows_may_be_wrong_are_found(
    tmp_path: Path, schemas: Sequence[list[dict[str, Any]]], advised: list[str], in_one_batch: bool
) -> None:
    copy = Copy(tmp_path / "t")
    for fields in schemas:
        copy.add(*fields, **{one["field"]: 7 if one["type"] == "int32" else "x" for one in fields})
        if not in_one_batch:
            copy.read()
    assert copy.read().advised == advised
    assert copy.add(*schemas[-1]).read().advised == advised, "and once"


def test_an_empty_table_has_no_rows_that_may_be_wrong(tmp_path: Path) -> None:
    assert Copy(tmp_path / "t").feed(NOTE, filled(COUPON)).advised == []


def test_a_table_whose_records_have_all_columns_keeps_nothing(copy: Copy) -> None:
    assert copy.feed(NOTE).feed(NOTE).entry is None


def test_the_entry_is_written_only_when_a_column_goes_or_comes(copy: Copy) -> None:
    gone = copy.feed().entry
    assert gone is not None and copy.feed().entry == gone
    back = copy.feed(NOTE).entry
    assert back != gone and copy.feed(NOTE).entry == back


def test_records_that_come_late_or_again_change_nothing(copy: Copy) -> None:
    copy.feed(NOTE, COUPON, ms=50).feed(NOTE, ms=20).feed(NOTE, COUPON, ms=60)
    assert copy.advised == []
    copy.feed(NOTE, ms=30, partition=1).feed(NOTE, COUPON, ms=70, partition=1)
    assert copy.advised == []


def test_records_of_an_older_schema_that_come_late_leave_a_default_out(tmp_path: Path) -> None:
    columns = COLUMNS.append(pa.field("coupon", pa.int32()))
    copy = Copy(tmp_path / "t", columns).feed(NOTE, filled(COUPON), ms=50, coupon=5)
    assert copy.feed(NOTE, ms=20, partition=1).feed(NOTE, filled(COUPON), ms=60, partition=1).advised == ["coupon"]
    plain = Copy(tmp_path / "plain", columns).feed(NOTE, COUPON, ms=50, coupon=5)
    assert plain.feed(NOTE, ms=20, partition=1).feed(NOTE, COUPON, ms=60, partition=1).advised == []


def test_a_column_that_comes_goes_and_comes_within_a_batch_was_dropped(copy: Copy) -> None:
    copy.add(NOTE, COUPON, coupon=1).add(NOTE).add(NOTE, COUPON, coupon=None)
    assert copy.read().advised == ["coupon"]


def test_records_of_one_moment_in_different_partitions_drop_nothing(copy: Copy) -> None:
    """MySQL's clock counts seconds, and the offsets of two partitions have no order."""
    copy.add(NOTE, COUPON, ms=50, coupon=1).add(NOTE, ms=50, partition=1).add(NOTE, COUPON, ms=60, partition=1)
    assert copy.read().advised == []


def test_topics_may_differ_in_their_columns(copy: Copy) -> None:
    for _ in range(2):
        copy.feed(topic="shard", ms=90).feed(NOTE, note="x", ms=91)
    assert copy.advised == []
    assert copy.feed(NOTE, note="x", topic="shard", ms=92).advised == ["note"]


def test_a_topic_of_several_source_tables_shows_nothing(tmp_path: Path) -> None:
    learned, named, one = (tmp_path / name for name in ("learned", "named", "one"))
    copies = [Copy(learned), Copy(named, sources=("public.a", "public.b")), Copy(one, sources=("public.a",))]
    copies[0].table.set_properties({"lakebed.source_topic": "t", "lakebed.source_table": SEVERAL})
    for copy in copies:
        for _ in range(3):
            copy.feed(NOTE).feed(NOTE, filled(COUPON))
    assert [copy.advised for copy in copies] == [[], [], ["coupon"]]
    assert copies[0].entry == copies[1].entry


def test_a_column_that_was_added_by_hand_is_watched_too(copy: Copy) -> None:
    copy.table.alter(add={"coupon": "int"})
    assert copy.feed(NOTE, filled(COUPON)).advised == ["coupon"]


def test_a_column_that_the_table_alone_has_is_not_the_old_name_of_a_new_one(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "t", COLUMNS.append(pa.field("mine", pa.string()))).feed(NOTE, topic="other")
    assert copy.feed(NOTE, COMMENT, comment="x").advised == []


@pytest.mark.parametrize("in_one_batch", [True, False])
def test_no_row_is_wrong_that_came_before_the_source_was_emptied(copy: Copy, in_one_batch: bool) -> None:
    copy.feed(NOTE, COMMENT, comment="x").feed(NOTE).empty()
    if not in_one_batch:
        copy.read()
    assert copy.feed(NOTE, filled(COUPON), filled(COMMENT)).advised == []


def test_a_column_that_the_source_never_had_is_no_column_that_it_dropped(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "t", COLUMNS.append(pa.field("coupon", pa.int32()))).feed(NOTE)
    assert copy.feed(NOTE, COUPON, coupon=1).advised == []


def test_a_column_that_the_table_dropped_and_the_stream_brings_back_lacks_old_values(copy: Copy) -> None:
    copy.table.alter(drop=["note"])
    assert copy.feed(NOTE, note="new").advised == ["note"]


def test_values_that_were_left_out_before_their_column_was_added_are_missing(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "t", policy=EvolvePolicy()).feed(NOTE, COUPON, coupon=1)
    assert [one.check for one in Observer(copy.table.path).look().findings] == ["unknown_field"]
    done = copy.table.alter(add={"coupon": "int"})
    assert (copy.advised, done.notes) == (
        ["coupon"],
        ("rows that came before lack values that the source has: lakebed status says what to do",),
    )


def test_values_of_a_field_that_could_not_be_a_column_are_missing_when_it_gets_a_name(tmp_path: Path) -> None:
    odd = {"type": "string", "field": "_lakebed_op (new)", "optional": True}
    copy = Copy(tmp_path / "t").feed(NOTE, odd, **{odd["field"]: "x"})
    assert [one.check for one in Observer(copy.table.path).look().findings] == ["left_out_field"]
    again = Copy(tmp_path / "t", after=copy, policy=replace(GROWS, renamed={odd["field"]: "operation"}))
    assert again.feed(NOTE, odd).feed(NOTE, odd).advised == ["operation"]
    assert [one.check for one in Observer(copy.table.path).look().findings] == [ADVISED]


def test_records_in_the_quarantine_lose_nothing_by_a_column_that_is_added_later(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "t", policy=EvolvePolicy(by_schema=True)).feed(NOTE).feed(NOTE, COUPON, coupon=1)
    assert [one.check for one in Observer(copy.table.path).look().findings] == ["quarantine", "refused_field"]
    copy.table.alter(add={"coupon": "int"})
    assert copy.advised == []


def test_a_replay_shows_it_as_well(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "t", policy=EvolvePolicy(by_schema=True)).feed(NOTE).feed(NOTE, filled(COUPON), coupon=5)
    copy.table.alter(add={"coupon": "int"})
    reading = decoder("debezium-json", DecoderSchema(COLUMNS, ("id",), "source.lsn"), {})
    assert internals_of(copy.table).replay_quarantine(reading).records == 1 and copy.advised == ["coupon"]


def test_a_name_that_is_given_to_a_column_later_was_lost_before(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "t", policy=EvolvePolicy()).feed(NOTE, note="old").feed(COMMENT, comment="new")
    assert copy.advised == []
    again = Copy(tmp_path / "t", after=copy, policy=EvolvePolicy(renamed={"comment": "note"}))
    assert again.feed(COMMENT, comment="newer").advised == ["note"]


def test_the_finding_says_what_to_do_and_time_does_not_end_it(copy: Copy) -> None:
    copy.feed(NOTE, filled(COUPON))
    later = Observer(copy.table.path, clock=lambda: log_of(copy.table).now_ms() / 1000 + 30 * 86_400).look()
    [found] = [one for one in later.findings if one.check == ADVISED]
    assert (found.severity.value, "coupon" in found.what, "lakebed source resnapshot" in found.remedy) == (
        "critical",
        True,
        True,
    )
    assert copy.table.maintenance.resume() and copy.advised == []
    assert copy.feed(NOTE, filled(COUPON)).advised == []


@pytest.mark.parametrize("late", ["", "a row of the resnapshot", "a change"])
def test_the_finding_ends_with_the_resnapshot_that_shows_it_unless_rows_may_have_come_before(
    copy: Copy, late: str
) -> None:
    log = log_of(copy.table)
    ask(log, Resnapshot(id="r", topic="t", asked_ms=log.now_ms(), begin={0: 0}))
    if late:
        copy.feed(NOTE, op="r") if late.startswith("a row") else copy.add(NOTE)
    assert copy.feed(NOTE, filled(COUPON), op="r").feed(NOTE, filled(COUPON), op="r").advised == ["coupon"]
    advance(log, "r", lambda one: replace(one, state="ended", ended_ms=1))
    assert copy.advised == (["coupon"] if late else [])
    ask(log, Resnapshot(id="again", topic="t", asked_ms=log.now_ms() + 5, begin={0: 0}))
    advance(log, "again", lambda one: replace(one, state="ended", ended_ms=1))
    assert copy.advised == []


FIELDS = [
    ID,
    NOTE,
    filled(COUPON),
    never_null(COMMENT),
    {"type": "int64", "field": "n", "optional": True, "default": 0},
]
SHAPE = pa.schema(
    [*COLUMNS, ("coupon", pa.int32()), ("comment", pa.string()), ("n", pa.int64()), ("gone", pa.string())]
)


@pytest.mark.parametrize("format", WITH_SCHEMAS)
def test_each_format_says_which_columns_its_schema_lacks_and_which_have_a_value_in_every_row(format: str) -> None:
    row = {"id": 1, "note": None, "coupon": 5, "comment": "x", "n": 0}
    events = [({"id": 1}, event("u", row, lsn=1)), ({"id": 1}, event("d", None, row, lsn=9))]
    met = read(format, events, DecoderSchema(SHAPE, ("id",)), FIELDS).met
    said = RecordColumns(("gone",), ("coupon", "comment", "n"))
    assert met == {("shop.orders", said): Span((1_700_000_000_001_000, 0), (1_700_000_000_009_000, 1))}


def test_protobuf_says_which_columns_there_are_and_not_which_may_be_null() -> None:
    fields = "int64 id = 1; string comment = 2; optional string coupon = 3; int64 n = 4;"
    text = f'syntax = "proto3"; message Event {{ Row before = 1; Row after = 2; string op = 3; }} message Row {{ {fields} }}'
    schema = DecoderSchema(SHAPE, ("id",))
    values = FixedSchema(ProtobufFormat(), text)
    reading = TypedRecords(TypedSettings(decoder_schema=schema, values=values, keys=None, events=True))
    event = b"\x12\x02\x08\x01\x1a\x01u"  # after: {id: 1}, op: u
    [(topic, said)] = reading.decode(records([event])).met
    assert (topic, said) == ("shop.orders", RecordColumns(lacking=("note", "gone")))


def test_events_without_a_schema_say_nothing_of_columns() -> None:
    assert read("schemaless", [(None, event("u", {"id": 1}))], DecoderSchema(SHAPE, ("id",)), FIELDS).met == {}
