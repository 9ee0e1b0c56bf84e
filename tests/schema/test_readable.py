"""C1: what was written in one shape can be read in another if each column is the same, wider, dropped or new; nothing else."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from lakebed.log.actions import Action, AddChangePart, AddPart, ChangePart, Commit, CommitInfo, Part
from lakebed.log.conflicts import BLIND
from lakebed.log.invariants import violations
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import MemoryLogStore
from lakebed.log.table_log import Committed, TableLog
from lakebed.operations.create import create_log
from lakebed.schema.change import SchemaChange
from lakebed.schema.column_mapping import MAX_ID, misfit
from lakebed.schema.evolve import evolve
from lakebed.schema.metadata import Metadata
from lakebed.settings import TableSettings

INFO = CommitInfo(operation="TEST", commit_id="")
SHORT, LONG, TEXT = pa.int32(), pa.int64(), pa.string()


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


@pytest.mark.parametrize(
    ("written", "wanted", "why"),
    [
        ({"a": SHORT}, {"a": SHORT}, None),
        ({"a": SHORT}, {"a": LONG}, None),
        ({"a": LONG}, {"a": SHORT}, "'a' is int64, which can't be read as int32"),
        ({"a": LONG}, {"a": TEXT}, "'a' is int64, which can't be read as string"),
        ({"a": SHORT, "b": TEXT}, {"a": SHORT}, None),
        ({"a": SHORT}, {"a": SHORT, "b": TEXT}, None),
        ({"s": struct(x=SHORT, y=TEXT)}, {"s": struct(x=LONG, z=TEXT)}, None),
        ({"s": struct(x=LONG)}, {"s": struct(x=SHORT)}, "'s.x' is int64"),
        ({"s": struct(x=SHORT)}, {"s": struct(y=SHORT)}, "'s' has none of the fields that it had"),
        ({"s": struct(x=SHORT)}, {"s": SHORT}, "'s' is struct"),
        ({"l": pa.list_(struct(x=SHORT))}, {"l": pa.list_(struct(x=LONG, y=TEXT))}, None),
        ({"l": pa.list_(LONG)}, {"l": pa.list_(SHORT)}, "'l.element' is int64"),
        ({"m": pa.map_(TEXT, SHORT)}, {"m": pa.map_(TEXT, LONG)}, None),
        ({"m": pa.map_(LONG, SHORT)}, {"m": pa.map_(SHORT, SHORT)}, "'m.key' is int64"),
        ({"m": pa.map_(TEXT, struct(x=LONG))}, {"m": pa.map_(TEXT, struct(x=TEXT))}, "'m.value.x' is int64"),
        ({"p": TEXT, "a": SHORT}, {"p": LONG, "a": SHORT}, "'p' is string"),
    ],
)
def test_what_fits(written: dict[str, pa.DataType], wanted: dict[str, pa.DataType], why: str | None) -> None:
    found = misfit(pa.schema(list(written.items())), pa.schema(list(wanted.items())))
    assert (None if why is None else str(found)[: len(why)]) == why if why else found is None


def test_a_value_of_the_partition_takes_the_place_of_what_a_file_holds() -> None:
    assert misfit(pa.schema([("p", TEXT)]), pa.schema([("p", LONG)]), constant=["p"]) is None


def test_what_may_be_null_can_not_be_read_as_what_may_not() -> None:
    maybe, never = pa.schema([pa.field("a", SHORT)]), pa.schema([pa.field("a", SHORT, nullable=False)])
    assert misfit(never, maybe) is None
    assert "may be null" in str(misfit(maybe, never))
    assert "missing" in str(misfit(pa.schema([pa.field("b", SHORT)]), never))


@pytest.fixture
def log() -> TableLog:
    """Columns id and note, ``note`` was called ``text`` before; a part in the base and one in the tail that have both."""
    log = TableLog(MemoryLogStore(), sleep=lambda seconds: None)
    create_log(log, pa.schema([("id", SHORT), ("text", TEXT)]), TableSettings(keys=("id",)), (), {}, "test")
    stats = (
        '{"numRecords":1,"minValues":{"id":1,"text":"a"},"maxValues":{"id":1,"text":"a"},"nullCount":{"id":0,"text":0}}'
    )
    commit(log, AddPart(Part(path="a.parquet", rows=1, bytes=9, min_block=-1, max_block=-1, stats=stats)))
    commit(log, AddChangePart(ChangePart(path="b.parquet", version=-1, ordinal=0, rows=1, bytes=9, stats=stats)))
    commit(log, *evolved(log.refresh(), SchemaChange(rename={"text": "note"})))
    return log


def commit(log: TableLog, *actions: Action) -> None:
    assert isinstance(log.commit(log.refresh(), list(actions), INFO, BLIND), Committed)


def evolved(snapshot: Snapshot, change: SchemaChange, name: str | None = None) -> list[Action]:
    given = {} if name is None else {"stored_name": lambda: name}
    after = evolve(snapshot.metadata, snapshot.protocol, change, **given)
    return [after.metadata, after.protocol]


def broken_by(snapshot: Snapshot, *actions: Action) -> list[str]:
    found = violations(snapshot, Commit(snapshot.version + 1, (INFO, *actions)))
    return [f"{violation.invariant} {violation.detail}" for violation in found]


@pytest.mark.parametrize(
    "change",
    [
        SchemaChange(add={"coupon": TEXT}),
        SchemaChange(widen={"id": LONG}),
        SchemaChange(rename={"note": "comment"}),
        SchemaChange(drop=("note",), add={"note": LONG}),
    ],
)
def test_changes_that_are_made_break_nothing(log: TableLog, change: SchemaChange) -> None:
    snapshot = log.refresh()
    assert broken_by(snapshot, *evolved(snapshot, change)) == []


def test_a_stored_name_that_is_given_again_is_refused(log: TableLog) -> None:
    commit(log, *evolved(log.refresh(), SchemaChange(drop=("note",))))
    snapshot = log.refresh()
    [said] = broken_by(snapshot, *evolved(snapshot, SchemaChange(add={"text": LONG}), name="text"))
    assert (
        said
        == "C1 the new column has the stored name 'text', and a.parquet has values of an earlier column of that name"
    )


def test_a_number_that_is_given_again_is_refused(log: TableLog) -> None:
    commit(log, *evolved(log.refresh(), SchemaChange(drop=("note",))))
    snapshot = log.refresh()
    forgetful = replace(snapshot.metadata, configuration={**snapshot.metadata.configuration, MAX_ID: "1"})
    [metadata, protocol] = evolved(
        replace(snapshot, metadata=forgetful), SchemaChange(add={"coupon": LONG}), name="col-x"
    )
    assert isinstance(metadata, Metadata)
    [said] = broken_by(snapshot, metadata, protocol)
    assert said == "C1 the new 'col-x' has the number 2, which an earlier column had"


def test_a_table_that_forgets_its_stored_names_is_refused(log: TableLog) -> None:
    snapshot = log.refresh()
    plain = {name: value for name, value in snapshot.metadata.configuration.items() if "columnMapping" not in name}
    assert broken_by(snapshot, replace(snapshot.metadata, configuration=plain)) == [
        "C1 the table forgets its stored names"
    ]


def test_a_rename_that_changes_the_stored_name_is_refused(log: TableLog) -> None:
    snapshot = log.refresh()
    assert '"physicalName":"text"' in snapshot.metadata.schema_string.replace("delta.columnMapping.", "")
    renamed = snapshot.metadata.schema_string.replace('physicalName":"text"', 'physicalName":"note"')
    assert broken_by(snapshot, replace(snapshot.metadata, schema_string=renamed)) == [
        "C1 'note' has the number 2, which is that of 'text'"
    ]
