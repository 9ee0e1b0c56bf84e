"""A change of the schema: one commit that conflicts with no writer, agrees with others like it, and is remembered."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

import pyarrow as pa
import pytest

from lakebed import events
from lakebed.coordination.schema_history import KEPT_MAX, past_changes
from lakebed.errors import InvalidSchema, StoreUnavailable
from lakebed.health.log_checks import state_findings
from lakebed.log.actions import (
    Action,
    AddChangePart,
    AddPart,
    ChangePart,
    CommitInfo,
    Domain,
    Part,
    RemoveChangePart,
    RemovePart,
    Transaction,
)
from lakebed.log.claims import Claim
from lakebed.log.commit_kind import CommitKind, kind_of
from lakebed.log.conflicts import BLIND, ConflictKind, ReadWriteSet
from lakebed.log.entries import SCHEMA, STREAM
from lakebed.log.holds import trim_log_before
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import MemoryLogStore
from lakebed.log.table_log import Committed, Conflicted, Outcome, TableLog
from lakebed.operations.alter import AlterResult, alter, set_properties, set_sort_key
from lakebed.operations.create import NewTable, create, create_log
from lakebed.schema.change import SchemaChange, difference
from lakebed.settings import ConflictScope, TableSettings
from lakebed.view.metadata_tables import schemas
from tests.log.test_table_log import SilentStore

INFO = CommitInfo(operation="TEST", commit_id="")
ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("day", pa.date32()),
        pa.field("qty", pa.int32(), nullable=False),
        pa.field("note", pa.string()),
        pa.field("address", pa.struct([("zip", pa.int32()), ("town", pa.string())])),
    ]
)
COMPATIBLE = {
    "add": SchemaChange(add={"coupon": pa.string(), "address.land": pa.string()}),
    "widen": SchemaChange(widen={"qty": pa.int64(), "address.zip": pa.float64()}),
    "relax": SchemaChange(relax=("qty",)),
    "rename": SchemaChange(rename={"note": "comment", "id": "key", "day": "on", "qty": "n"}),
    "comment": SchemaChange(comment={"note": "what the customer said"}),
}
DROP = SchemaChange(drop=("note",))


def new_log(settings: TableSettings | None = None, store: MemoryLogStore | None = None) -> TableLog:
    log = TableLog(store or MemoryLogStore(), sleep=lambda seconds: None)
    settings = settings or TableSettings(keys=("id", "day"), sort_key=("qty",), sequence_by="qty")
    assert isinstance(create_log(log, ORDERS, settings, ("day",), {}, "test"), Committed)
    return log


def part(name: str) -> Part:
    return Part(path=f"_lakebed/{name}.parquet", rows=10, bytes=100, min_block=-1, max_block=-1)


def settled(log: TableLog) -> Part:
    """A part in the base, and a change part in the tail."""
    added = [AddPart(part("base"), False), AddChangePart(changes("tail"))]
    assert isinstance(log.commit(log.refresh(), added, INFO, BLIND), Committed)
    return log.refresh().parts["_lakebed/base.parquet"]


def changes(name: str) -> ChangePart:
    return ChangePart(path=f"_lakebed/{name}.parquet", version=-1, ordinal=0, rows=10, bytes=100)


def a_batch(read: Snapshot, base: Part) -> tuple[Sequence[Action], ReadWriteSet]:
    return [AddChangePart(changes("new"))], BLIND


def a_settle(read: Snapshot, base: Part) -> tuple[Sequence[Action], ReadWriteSet]:
    [tail] = read.tail_in_order()
    leaves = ReadWriteSet(
        parts={base.path: base.partition_key}, change_parts=frozenset([tail.domain]), looked_up_keys=True
    )
    return [RemoveChangePart(tail.domain), AddPart(tail.settled(None), True)], leaves


def a_merge(read: Snapshot, base: Part) -> tuple[Sequence[Action], ReadWriteSet]:
    merged = replace(part("merged"), level=1, min_block=base.min_block, max_block=base.max_block)
    moved = [base.removed(1, False), AddPart(merged, False)]
    return moved, ReadWriteSet(parts={base.path: base.partition_key})


def a_claim(read: Snapshot, base: Part) -> tuple[Sequence[Action], ReadWriteSet]:
    claim = Claim(id="c", replica="r", sources=(base.path,), level=1, lease_ms=9)
    return [claim.to_action()], ReadWriteSet(claimed=frozenset([base.path]))


def a_mutation(read: Snapshot, base: Part) -> tuple[Sequence[Action], ReadWriteSet]:
    mutated = replace(changes("mutated"), mutation=True)
    return [AddChangePart(mutated)], ReadWriteSet(looked_up_keys=True, read_changes=True)


Writer = Callable[[Snapshot, Part], tuple[Sequence[Action], ReadWriteSet]]
WRITERS: list[Writer] = [a_batch, a_settle, a_merge, a_claim, a_mutation]


def raced(writer: Writer, change: SchemaChange, scope: ConflictScope = "partition") -> Outcome:
    """What a writer is told that planned before the change and commits after it."""
    settings = TableSettings(keys=("id", "day"), sort_key=("qty",), sequence_by="qty", conflict_scope=scope)
    log = new_log(settings)
    base = settled(log)
    read = log.refresh()
    actions, access = writer(read, base)
    assert alter(log, change).changed
    return log.commit(read, actions, INFO, access)


@pytest.mark.parametrize("scope", ["file", "partition", "table"])
@pytest.mark.parametrize("kind", COMPATIBLE)
@pytest.mark.parametrize("writer", WRITERS, ids=lambda each: each.__name__)
def test_what_was_planned_before_a_compatible_change_commits_after_it(
    writer: Writer, kind: str, scope: ConflictScope
) -> None:
    outcome = raced(writer, COMPATIBLE[kind], scope)
    assert isinstance(outcome, Committed), outcome
    assert outcome.snapshot.settings.keys == ("id", "day")


@pytest.mark.parametrize("writer", WRITERS, ids=lambda each: each.__name__)
def test_what_was_planned_before_a_drop_conflicts(writer: Writer) -> None:
    outcome = raced(writer, DROP)
    assert isinstance(outcome, Conflicted) and outcome.conflict.kind is ConflictKind.METADATA


def test_a_batch_that_comes_again_is_still_found_behind_a_change() -> None:
    log = new_log()
    read = log.refresh()
    batch = Transaction(STREAM + "q", 1)
    assert isinstance(log.commit(read, [AddChangePart(changes("a"))], INFO, BLIND, batch), Committed)
    alter(log, COMPATIBLE["add"])
    outcome = log.commit(read, [AddChangePart(changes("b"))], INFO, BLIND, batch)
    assert isinstance(outcome, Conflicted) and outcome.conflict.kind is ConflictKind.BATCH


class Meanwhile(MemoryLogStore):
    """Somebody else does something just before the next commit is put."""

    def __init__(self) -> None:
        super().__init__()
        self.first: Callable[[], object] | None = None

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if self.first is not None:
            act, self.first = self.first, None
            act()
        return super().put_if_absent(name, data)


@pytest.mark.parametrize(
    "change",
    [*COMPATIBLE.values(), DROP, SchemaChange(drop=("address.town",)), SchemaChange(rename={"address.zip": "code"})],
    ids=lambda change: str(change.to_json()),
)
def test_two_processes_that_make_the_same_change_at_once_agree(change: SchemaChange) -> None:
    store = Meanwhile()
    log = new_log(store=store)
    alter(log, SchemaChange(add={"extra": pa.int32()}))
    other = TableLog(store)
    store.first = lambda: alter(other, change)
    result = alter(log, change)
    assert not result.changed and result.version == log.refresh().version
    assert len(past_changes(log.refresh().domains)) == 2


def test_two_processes_that_rename_and_drop_what_was_added_later_agree() -> None:
    for change in (SchemaChange(rename={"late": "later"}), SchemaChange(drop=("late",))):
        store = Meanwhile()
        log = new_log(store=store)
        alter(log, DROP)
        alter(log, SchemaChange(add={"late": pa.int32()}))
        other = TableLog(store)
        store.first = lambda other=other, change=change: alter(other, change)
        assert not alter(log, change).changed
        with pytest.raises(InvalidSchema, match="no column or field 'late'"):
            alter(log, change)


def test_two_changes_at_once_both_hold() -> None:
    store = Meanwhile()
    log = new_log(store=store)
    other = TableLog(store)
    store.first = lambda: alter(other, SchemaChange(rename={"note": "comment"}, add={"a": pa.int32()}))
    assert alter(log, SchemaChange(add={"b": pa.int32()}, rename={"qty": "n"})).changed
    assert {"a", "b", "comment", "n"} <= set(log.refresh().logical_schema.names)
    store.first = lambda: set_properties(other, {"lakebed.read_budget": "3"})
    alter(log, SchemaChange(rename={"id": "key"}))
    assert log.refresh().settings.read_budget == 3 and log.refresh().logical_settings.keys == ("key", "day")


def test_a_change_found_from_the_newest_schema_is_found_again_after_a_conflict() -> None:
    store = Meanwhile()
    log = new_log(store=store)
    other = TableLog(store)
    wanted = pa.schema([*log.refresh().schema, pa.field("coupon", pa.int64())])
    store.first = lambda: alter(other, SchemaChange(add={"coupon": pa.int32()}))
    assert alter(log, lambda table: difference(table, wanted)).changed
    assert log.refresh().schema.field("coupon").type == pa.int64()
    assert not alter(log, lambda table: difference(table, wanted)).changed


def test_the_history_says_what_changed_when_and_why() -> None:
    log = new_log()
    heard: list[events.Event] = []
    stop = events.listen(heard.append)
    try:
        alter(log, COMPATIBLE["add"], reason="topic orders has it since today")
        set_properties(log, {"lakebed.read_budget": "3"})
        result = alter(log, COMPATIBLE["rename"])
    finally:
        stop()
    [first, second, third] = schemas(log).to_pylist()
    assert first["version"] == 0 and first["operation"] == "CREATE TABLE" and "coupon" not in first["schema"]
    assert second["version"] == 1 and second["reason"] == "topic orders has it since today"
    assert json.loads(second["change"]) == {"add": {"coupon": "string", "address.land": "string"}}
    assert third["version"] == result.version == 3 and '"comment"' in third["schema"]
    changed = [event for event in heard if isinstance(event, events.SchemaChanged)]
    assert [(event.version, json.loads(event.change).keys()) for event in changed] == [(1, {"add"}), (3, {"rename"})]
    commit = log.read_commit(3)
    assert commit and commit.info and commit.info.operation == "ALTER TABLE" and kind_of(commit) is CommitKind.ALTER
    assert result.notes and "column mapping" in result.notes[0]


def test_an_entry_has_the_version_that_its_commit_got() -> None:
    store = Meanwhile()
    log = new_log(store=store)
    other = TableLog(store)

    def others() -> None:
        for name in "abc":
            other.commit(other.refresh(), [AddChangePart(changes(name))], INFO, BLIND)

    store.first = others
    assert alter(log, COMPATIBLE["add"]).version == 4
    assert [each.version for each in past_changes(log.refresh().domains)] == [4]


def test_the_history_is_bounded_and_survives_the_commits() -> None:
    log = new_log(TableSettings(keys=("id", "day")))
    for number in range(KEPT_MAX + 5):
        alter(log, SchemaChange(comment={"note": f"{number}"}), reason=str(number))
        if number == KEPT_MAX:
            log.write_checkpoint(log.refresh())
    trim_log_before(log, log.refresh().version)
    past = past_changes(TableLog(log.store).refresh().domains)
    assert [each.reason for each in past] == [str(number) for number in range(5, KEPT_MAX + 5)]
    assert sum(domain.startswith(SCHEMA) for domain in log.refresh().domains) == KEPT_MAX
    rows = schemas(log).to_pylist()
    assert len(rows) == KEPT_MAX and rows[0]["schema"] is None and rows[-1]["schema"]


def test_a_damaged_entry_of_the_history_is_reported_and_does_no_harm() -> None:
    log = new_log()
    damaged = Domain(f"{SCHEMA}000001", '{"version": 0}')
    assert isinstance(log.commit(log.refresh(), [damaged], INFO, BLIND), Committed)
    assert alter(log, COMPATIBLE["add"]).changed
    assert [row["version"] for row in schemas(log).to_pylist()] == [0, 2]
    assert [each.check for each in state_findings(log.refresh(), "t", 0)] == ["entry"]


def test_nothing_to_change_is_refused_and_a_change_that_holds_already_commits_nothing() -> None:
    log = new_log()
    with pytest.raises(InvalidSchema, match="nothing to change"):
        alter(log, SchemaChange())
    assert alter(log, COMPATIBLE["add"]) == AlterResult(version=1, changed=True)
    assert alter(log, COMPATIBLE["add"]) == AlterResult(version=1, changed=False)


@pytest.mark.parametrize("change", [*COMPATIBLE.values(), DROP], ids=[*COMPATIBLE, "drop"])
@pytest.mark.parametrize("plan", [["lost request"] * 3, ["lost answer"], ["lost request", "lost answer"]])
def test_a_store_that_answers_with_errors_for_a_while_changes_the_schema_once(
    change: SchemaChange, plan: list[str]
) -> None:
    store = SilentStore()
    log = new_log(store=store)
    store.plan = list(plan)
    assert alter(log, change) == AlterResult(version=1, changed=True, notes=alter(new_log(), change).notes)
    assert not store.plan
    assert [past.version for past in past_changes(TableLog(store).refresh().domains)] == [1]


class StoreThatFallsSilent(MemoryLogStore):
    """From its next put on it answers nothing, though it did what was asked."""

    falls_silent = is_silent = False

    def put_if_absent(self, name: str, data: bytes) -> bool:
        landed = super().put_if_absent(name, data)
        self.is_silent = self.falls_silent
        return landed if not self.is_silent else self._no_answer()

    def read(self, name: str) -> bytes:
        return self._no_answer() if self.is_silent else super().read(name)

    def _no_answer(self) -> NoReturn:
        raise StoreUnavailable("no answer")


UNSAFE_TWICE = {
    "names are swapped": SchemaChange(rename={"note": "qty", "qty": "note"}),
    "a column takes the place of another": SchemaChange(drop=("note",), add={"note": pa.binary()}),
    "a name is given again": SchemaChange(rename={"note": "comment"}, add={"note": pa.binary()}),
}


@pytest.mark.parametrize(
    ("change", "advice"),
    [(COMPATIBLE[kind], "nothing is done twice") for kind in ("add", "widen", "relax", "comment")]
    + [(change, "look in the timeline whether version 1 is this") for change in (DROP, *UNSAFE_TWICE.values())],
    ids=["add", "widen", "relax", "comment", "drop", *UNSAFE_TWICE],
)
def test_a_store_that_stays_silent_ends_it_and_whoever_is_told_to_alter_again_may(
    change: SchemaChange, advice: str
) -> None:
    store = StoreThatFallsSilent()
    log = new_log(settings=TableSettings(keys=("id", "day")), store=store)
    store.falls_silent = True
    with pytest.raises(StoreUnavailable, match=advice):
        alter(log, change)
    store.falls_silent = store.is_silent = False
    log = TableLog(store, sleep=lambda seconds: None)
    changed = log.refresh()
    assert changed.version == 1, "the commit stands"
    if "twice" in advice:
        assert alter(log, change) == AlterResult(version=1, changed=False)
        assert log.refresh().logical_schema == changed.logical_schema


def test_a_sort_key_is_given_by_the_names_that_users_see() -> None:
    log = new_log()
    alter(log, SchemaChange(rename={"qty": "n", "note": "qty"}))
    set_sort_key(log, ["n desc", "qty"])
    snapshot = log.refresh()
    assert snapshot.logical_settings.sort_key == ("n desc", "qty")
    assert snapshot.settings.sort_key == ("qty desc", "note")
    assert [term.columns for term in snapshot.order_terms] == [("qty",), ("note",)]
    with pytest.raises(InvalidSchema, match="'note'"):
        set_sort_key(log, ["note"])


def test_a_table_of_wide_types_needs_no_widening_later() -> None:
    schema = pa.schema(
        [("a", pa.int8()), ("b", pa.list_(pa.struct([("c", pa.float32())]))), ("d", pa.decimal128(5, 2))]
    )
    log = TableLog(MemoryLogStore())
    create("somewhere", log, NewTable(schema=schema, types="wide"))
    wide = log.refresh().schema
    assert wide.field("a").type == pa.int64() and wide.field("d").type == pa.decimal128(38, 2)
    assert wide.field("b").type.value_type.field("c").type == pa.float64()


def test_the_base_and_the_tail_stay_as_they_are() -> None:
    log = new_log()
    settled(log)
    before = log.refresh()
    for change in (*COMPATIBLE.values(), SchemaChange(drop=("address.town",))):
        if (
            not set(change.drop) | set(change.rename) | set(change.comment)
            or "note" in log.refresh().logical_schema.names
        ):
            alter(log, change)
    after = log.refresh()
    assert after.parts is before.parts and after.tail is before.tail
    commit = log.read_commit(after.version)
    assert commit and not any(isinstance(action, (AddPart, RemovePart)) for action in commit.actions)
