"""The log: what a commit answers when others commit too, when the store stays silent, and what a reader then sees."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.errors import Corrupt, StoreUnavailable, TableNotFound, Unsupported, VersionNotFound
from lakebed.log.actions import (
    AddChangePart,
    AddPart,
    ChangePart,
    CommitInfo,
    Part,
    RemoveChangePart,
    RemovePart,
    Transaction,
)
from lakebed.log.checkpoint import decode_checkpoint, encode_checkpoint
from lakebed.log.conflicts import BLIND, ConflictKind, ReadWriteSet
from lakebed.log.deletion_vector import bitmap, inline
from lakebed.log.holds import Hold, trim_log, trim_log_before
from lakebed.log.snapshot import Snapshot, without_expired
from lakebed.log.stores import MemoryLogStore
from lakebed.log.table_log import Committed, Conflicted, Outcome, TableLog, Unknown, checkpoint_name, commit_name
from lakebed.operations.create import create_log
from lakebed.settings import TableSettings
from lakebed.sortkey import statistics_cache
from lakebed.sortkey.ranges import order_columns
from tests.clock import Clock
from tests.worlds import seeds

INFO = CommitInfo(operation="TEST", commit_id="", blind_append=True)
SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string())])


class SilentStore(MemoryLogStore):
    """Answers some puts with an error, before or after the object is there."""

    def __init__(self) -> None:
        super().__init__()
        self.plan: list[str] = []

    def put_if_absent(self, name: str, data: bytes) -> bool:
        step = self.plan.pop(0) if self.plan else "ok"
        if step == "lost request":
            raise StoreUnavailable("no answer")
        landed = super().put_if_absent(name, data)
        if step == "lost answer":
            raise StoreUnavailable("no answer")
        return landed


def new_log(settings: TableSettings | None = None, store: MemoryLogStore | None = None) -> TableLog:
    log = TableLog(store or MemoryLogStore(), Clock(1_800_000_000.0, step=1.0), sleep=lambda seconds: None)
    outcome = create_log(log, SCHEMA, settings or TableSettings(keys=("id",)), (), {}, "test")
    assert isinstance(outcome, Committed)
    return log


def change_part(name: str, ordinal: int = 0) -> AddChangePart:
    return AddChangePart(
        ChangePart(path=f"_lakebed/{name}.parquet", version=-1, ordinal=ordinal, rows=10, bytes=100, deletes=1)
    )


def base_part(name: str, dead: int = 0) -> Part:
    vector = inline(bitmap(range(dead))) if dead else None
    part = Part(
        path=f"_lakebed/{name}.parquet", rows=10, bytes=100, min_block=-1, max_block=-1, stats='{"numRecords":10}'
    )
    return part.marked(vector)


def committed(outcome: object) -> Snapshot:
    assert isinstance(outcome, Committed), outcome
    return outcome.snapshot


def test_a_blind_append_that_lost_the_race_takes_the_next_version() -> None:
    log = new_log()
    read = log.refresh()
    committed(log.commit(read, [change_part("a")], INFO, BLIND))
    outcome = log.commit(read, [change_part("b")], INFO, BLIND)
    assert isinstance(outcome, Committed) and outcome.version == 2 and outcome.attempts == 2
    assert [part.order for part in outcome.snapshot.tail_in_order()] == [(1, 0), (2, 0)]


def test_a_batch_is_committed_at_most_once_also_by_a_writer_that_did_not_see_it() -> None:
    log = new_log()
    read = log.refresh()
    committed(log.commit(read, [change_part("a")], INFO, BLIND, Transaction("query", 7)))
    outcome = log.commit(read, [change_part("b")], INFO, BLIND, Transaction("query", 7))
    assert isinstance(outcome, Conflicted) and outcome.conflict.kind is ConflictKind.BATCH
    older = log.commit(log.refresh(), [change_part("c")], INFO, BLIND, Transaction("query", 6))
    assert isinstance(older, Conflicted)
    assert len(log.refresh().tail) == 1


def test_a_commit_whose_answer_was_lost_is_found_by_reading_back() -> None:
    store = SilentStore()
    log = new_log(store=store)
    store.plan = ["lost answer"]
    outcome = log.commit(log.refresh(), [change_part("a")], INFO, BLIND)
    assert isinstance(outcome, Committed) and outcome.version == 1
    assert len(TableLog(store).refresh().tail) == 1


def test_a_commit_that_lands_after_it_was_looked_for_in_vain_is_found_when_it_is_put_again() -> None:
    class SlowStore(SilentStore):
        under_way: tuple[str, bytes] | None = None

        def put_if_absent(self, name: str, data: bytes) -> bool:
            if self.plan and self.plan.pop(0) == "slow":
                self.under_way = (name, data)
                raise StoreUnavailable("no answer")
            if self.under_way:
                super().put_if_absent(*self.under_way)
                self.under_way = None
            return super().put_if_absent(name, data)

    store = SlowStore()
    log = new_log(store=store)
    store.plan = ["slow"]
    snapshot = committed(log.commit(log.refresh(), [change_part("a")], INFO, BLIND))
    assert snapshot.version == 1
    assert log.refresh().version == 1, "not a second time under the next version"


def test_a_commit_whose_request_was_lost_is_put_again() -> None:
    store = SilentStore()
    log = new_log(store=store)
    store.plan = ["lost request", "lost request", "lost answer"]
    assert committed(log.commit(log.refresh(), [change_part("a")], INFO, BLIND)).version == 1


def test_a_store_that_stays_silent_leaves_the_outcome_unknown() -> None:
    store = SilentStore()
    log = new_log(store=store)
    store.plan = ["lost request"] * 100
    outcome = log.commit(log.refresh(), [change_part("a")], INFO, BLIND)
    assert isinstance(outcome, Unknown) and outcome.version == 1 and "no answer" in outcome.cause


def test_a_settle_gives_up_to_a_commit_that_replaced_its_part() -> None:
    log = new_log()
    part = base_part("base")
    read = committed(log.commit(log.refresh(), [AddPart(part)], INFO, BLIND))
    stored = read.parts[part.path]
    merged = [
        RemovePart(path=part.path, deleted_ms=1, data_change=False),
        AddPart(replace(base_part("merged"), level=1), False),
    ]
    access = ReadWriteSet(parts={part.path: ()})
    committed(log.commit(read, merged, replace(INFO, blind_append=False), access))
    marked = [RemovePart(path=part.path, deleted_ms=1), AddPart(stored.marked(inline(bitmap([3]))))]
    outcome = log.commit(read, marked, INFO, access)
    assert isinstance(outcome, Conflicted) and outcome.conflict.kind is ConflictKind.PARTS


def test_a_settle_gives_up_to_a_commit_that_brought_new_rows_but_not_to_a_merge_elsewhere() -> None:
    log = new_log()
    read = committed(log.commit(log.refresh(), [change_part("a"), AddPart(base_part("x"))], INFO, BLIND))
    domain = next(iter(read.tail))
    settle = ReadWriteSet(change_parts=frozenset({domain}), looked_up_keys=True)
    x = read.parts["_lakebed/x.parquet"]
    merge = [RemovePart(path=x.path, deleted_ms=1, data_change=False), AddPart(replace(base_part("y"), level=1), False)]
    committed(log.commit(read, merge, INFO, ReadWriteSet(parts={x.path: ()})))
    ours = [RemoveChangePart(domain), AddPart(read.tail[domain].settled(inline(bitmap([0]))))]
    assert committed(log.commit(read, ours, INFO, settle)).version == 3
    late = committed(log.commit(log.refresh(), [change_part("b")], INFO, BLIND))
    domain = next(iter(late.tail))
    committed(log.commit(late, [AddPart(base_part("attached"))], INFO, BLIND))
    ours = [RemoveChangePart(domain), AddPart(late.tail[domain].settled(inline(bitmap([0]))))]
    outcome = log.commit(late, ours, INFO, ReadWriteSet(change_parts=frozenset({domain}), looked_up_keys=True))
    assert isinstance(outcome, Conflicted) and outcome.conflict.kind is ConflictKind.NEW_ROWS


class _AnyKey:
    def may_meet(self, part: Part | ChangePart, /) -> bool:
        return True


def test_a_commit_about_some_keys_gives_up_to_rows_that_join_the_base_but_not_to_a_settle() -> None:
    """A settle brings what was in the tail, which the commit has seen."""
    log = new_log()
    read = committed(log.commit(log.refresh(), [change_part("a")], INFO, BLIND))
    [(domain, part)] = read.tail.items()
    settle = [RemoveChangePart(domain), AddPart(part.settled(inline(bitmap([0]))))]
    committed(log.commit(read, settle, INFO, ReadWriteSet(change_parts=frozenset({domain}))))
    about_keys = ReadWriteSet(joining=_AnyKey())
    assert committed(log.commit(read, [change_part("b")], INFO, about_keys)).version == 3
    committed(log.commit(log.refresh(), [AddPart(base_part("attached"))], INFO, BLIND))
    outcome = log.commit(read, [change_part("c")], INFO, about_keys)
    assert isinstance(outcome, Conflicted) and outcome.conflict.kind is ConflictKind.NEW_ROWS


@pytest.mark.parametrize(("scope", "conflicts"), [("file", False), ("partition", True), ("table", True)])
def test_the_scope_of_a_conflict_is_the_table_s_setting(scope: str, conflicts: bool) -> None:
    log = new_log(TableSettings(conflict_scope=scope))
    parts = [replace(base_part(name), partition_values={"region": "eu"}) for name in "ab"]
    read = committed(log.commit(log.refresh(), [AddPart(part) for part in parts], INFO, BLIND))
    a, b = (read.parts[part.path] for part in parts)
    key = (("region", "eu"),)
    theirs = [
        RemovePart(
            path=a.path,
            deleted_ms=1,
            data_change=True,
            deletion_vector=None,
            bytes=a.bytes,
            partition_values=a.partition_values,
        )
    ]
    committed(log.commit(read, theirs, replace(INFO, blind_append=False), ReadWriteSet(parts={a.path: key})))
    ours = [
        RemovePart(
            path=b.path,
            deleted_ms=1,
            data_change=True,
            deletion_vector=None,
            bytes=b.bytes,
            partition_values=b.partition_values,
        )
    ]
    assert isinstance(log.commit(read, ours, INFO, ReadWriteSet(parts={b.path: key})), Conflicted) is conflicts


def test_of_two_settles_of_the_same_change_part_the_second_gives_up() -> None:
    log = new_log()
    read = committed(log.commit(log.refresh(), [change_part("a")], INFO, BLIND))
    [(domain, part)] = read.tail.items()
    access = ReadWriteSet(change_parts=frozenset({domain}))
    late = [RemoveChangePart(domain)]  # all of it was late: no part joins the base
    committed(log.commit(read, late, replace(INFO, blind_append=False), access))
    ours = [RemoveChangePart(domain), AddPart(part.settled(inline(bitmap([0]))))]
    outcome = log.commit(read, ours, INFO, access)
    assert isinstance(outcome, Conflicted) and outcome.conflict.kind is ConflictKind.PARTS


def test_a_change_of_the_protocol_stands_in_the_way_of_every_commit_that_did_not_see_it() -> None:
    log = new_log()
    read = log.refresh()
    another = replace(read.protocol, writer_features=read.protocol.writer_features - {"appendOnly"})
    committed(log.commit(read, [another], INFO, BLIND))
    outcome = log.commit(read, [change_part("a")], INFO, BLIND)
    assert isinstance(outcome, Conflicted) and outcome.conflict.kind is ConflictKind.METADATA


@pytest.mark.parametrize("scope", ["file", "partition", "table"])
def test_a_blind_append_stands_in_nobodys_way_in_any_scope(scope: str) -> None:
    log = new_log(TableSettings(conflict_scope=scope))
    part = replace(base_part("a"), partition_values={"region": "eu"})
    read = committed(log.commit(log.refresh(), [AddPart(part)], INFO, BLIND))
    committed(log.commit(read, [change_part("b")], INFO, BLIND))
    ours = [
        RemovePart(
            path=part.path,
            deleted_ms=1,
            data_change=True,
            deletion_vector=None,
            bytes=part.bytes,
            partition_values=part.partition_values,
        )
    ]
    access = ReadWriteSet(parts={part.path: (("region", "eu"),)}, looked_up_keys=True)
    assert isinstance(log.commit(read, ours, replace(INFO, blind_append=False), access), Committed)


@pytest.mark.parametrize(
    ("invariant", "actions"),
    [
        ("B5", [RemovePart(path="_lakebed/none.parquet", deleted_ms=1)]),
        ("B5", [AddPart(base_part("base"))]),
        ("B5", [AddPart(replace(base_part("new", dead=10), rows=5))]),
        ("B5", [AddPart(replace(base_part("new"), deletes=3))]),
        ("B5", [AddPart(replace(base_part("new"), min_block=9, max_block=9))]),
        ("T1", [RemoveChangePart("lakebed.part.none")]),
        ("T1", [RemoveChangePart("lakebed.part.second")]),
    ],
)
def test_a_commit_that_would_break_an_invariant_is_not_written(invariant: str, actions: list[object]) -> None:
    log = new_log()
    first = committed(log.commit(log.refresh(), [AddPart(base_part("base")), change_part("first")], INFO, BLIND))
    second = committed(log.commit(first, [change_part("second")], INFO, BLIND))
    with pytest.raises(Corrupt, match=invariant):
        log.commit(second, actions, INFO, BLIND)  # type: ignore[arg-type]
    assert log.refresh().version == second.version


def test_dead_rows_never_come_back_to_life() -> None:
    log = new_log()
    part = base_part("base", dead=4)
    read = committed(log.commit(log.refresh(), [AddPart(part)], INFO, BLIND))
    stored = read.parts[part.path]
    undead = [
        RemovePart(path=part.path, deleted_ms=1, data_change=True, deletion_vector=stored.deletion_vector),
        AddPart(stored.marked(inline(bitmap([0])))),
    ]
    with pytest.raises(Corrupt, match="live again"):
        log.commit(read, undead, INFO, ReadWriteSet(parts={part.path: ()}))


def test_a_snapshot_from_any_checkpoint_equals_the_one_from_the_start() -> None:
    log = new_log()
    snapshots = [log.refresh()]
    for number in range(12):
        actions = [change_part(f"c{number}"), AddPart(base_part(f"p{number}", dead=number % 3))]
        snapshots.append(committed(log.commit(snapshots[-1], actions, INFO, BLIND, Transaction("query", number))))
        if number % 4 == 0:
            log.write_checkpoint(snapshots[-1])
    for snapshot in snapshots:
        assert TableLog(log.store).at_version(snapshot.version) == snapshot
    assert TableLog(log.store).refresh() == snapshots[-1]


def test_a_checkpoint_holds_parts_of_every_kind_and_one_of_another_writer_may_lack_tags() -> None:
    snapshot = new_log().refresh()
    tagged = replace(base_part("a b%", dead=3), min_block=4, max_block=7, level=2, sort_key_version=1, deletes=2)
    kinds = [
        tagged, base_part("plain"), replace(base_part("eu"), partition_values={"region": "eu", "day": None}),
        replace(base_part("none"), rows=-1, stats=None, partition_values={"region": ""}),
    ]  # fmt: skip
    snapshot = replace(snapshot, parts={part.path: part for part in kinds}, domains={"d": "{}"})
    data, actions = encode_checkpoint(snapshot)
    found = decode_checkpoint(snapshot.version, [data])
    assert (
        replace(found, timestamp_ms=snapshot.timestamp_ms) == snapshot
        and actions == pq.read_metadata(BytesIO(data)).num_rows
    )
    table = pq.read_table(BytesIO(data)).replace_schema_metadata()
    adds = table["add"].to_pylist(maps_as_pydicts="strict")
    untagged = pa.array([add and add | {"tags": None} for add in adds], table.schema.field("add").type)
    out = BytesIO()
    pq.write_table(table.set_column(table.column_names.index("add"), "add", untagged), out)
    foreign = decode_checkpoint(snapshot.version, [out.getvalue()]).parts
    assert {path: part.level for path, part in foreign.items()} == dict.fromkeys(snapshot.parts, 0)
    assert foreign["_lakebed/eu.parquet"].partition_values == {"region": "eu", "day": None}


def test_statistics_of_parts_that_left_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics_cache, "SPARE_TEXTS", 10)
    log = new_log()
    snapshot, terms = log.refresh(), order_columns(SCHEMA, ["id"], ())
    for number in range(100):
        stats = f'{{"numRecords":10,"minValues":{{"id":{number}}},"maxValues":{{"id":{number + 9}}}}}'
        added = AddPart(replace(base_part(f"p{number}"), stats=stats))
        leaving = [part.removed(0) for part in snapshot.parts.values()] if number % 3 == 2 else []
        snapshot = committed(log.commit(snapshot, [*leaving, added], INFO, BLIND))
        log.statistics.ranges([part.stats for part in snapshot.parts.values()], terms)
        if number % 10 == 9:
            log.write_checkpoint(snapshot)
            assert len(log.statistics) <= 20
    for version in range(1, 100):
        old = log.at_version(version)
        log.statistics.ranges([part.stats for part in old.parts.values()], terms)
    assert len(log.statistics) <= 30


@pytest.mark.parametrize(("log_retention", "remembered"), [(60, 900), (1_000, 3_000), (7 * 86_400, 3 * 3_600)])
def test_what_left_is_remembered_as_long_as_a_few_cleanups_need_it(log_retention: int, remembered: int) -> None:
    log = new_log(TableSettings(keys=("id",), log_retention_seconds=log_retention))
    committed(log.commit(log.refresh(), [AddPart(base_part("p"))], INFO, BLIND))
    now_ms = log.now_ms()
    leaving = log.refresh().parts["_lakebed/p.parquet"].removed(now_ms)
    snapshot = committed(log.commit(log.refresh(), [leaving], INFO, BLIND))
    assert without_expired(snapshot, now_ms + remembered * 1000).removed
    assert not without_expired(snapshot, now_ms + remembered * 1000 + 1).removed


def test_a_cleaned_log_keeps_every_version_within_retention_readable() -> None:
    clock = Clock(1_800_000_000.0, step=1.0)
    log = TableLog(MemoryLogStore(), clock, sleep=lambda seconds: None)
    create_log(log, SCHEMA, TableSettings(), (), {}, "test")
    for number in range(20):
        snapshot = committed(log.commit(log.refresh(), [AddPart(base_part(str(number)))], INFO, BLIND))
        clock.now += 100
        if number % 5 == 4:
            log.write_checkpoint(snapshot)
    assert trim_log(log, retention_seconds=700) > 0
    reader = TableLog(log.store, clock)
    assert all(len(reader.at_version(version).parts) == version for version in range(14, 21))
    with pytest.raises(VersionNotFound):
        reader.at_version(2)
    assert trim_log(log, retention_seconds=700) == 0, "a second cleaning finds nothing"


def test_a_cleaning_leaves_what_a_reader_began_to_hold_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log()
    for number in range(8):
        committed(log.commit(log.refresh(), [change_part(str(number))], INFO, BLIND))
    log.write_checkpoint(log.refresh())
    committed(log.commit(log.refresh(), [change_part("after")], INFO, BLIND))
    reader, commit, hold = TableLog(log.store), log.commit, Hold("reader", 3, 1 << 46)

    def late(*arguments: Any) -> Outcome:
        committed(
            reader.commit(reader.refresh(), [hold.to_action()], INFO, ReadWriteSet(domains=frozenset([hold.domain])))
        )
        return commit(*arguments)

    monkeypatch.setattr(log, "commit", late)
    assert trim_log(log, retention_seconds=0) == 0
    assert TableLog(log.store).at_version(3).version == 3


def test_a_missing_version_between_others_is_reported_as_a_gap() -> None:
    log = new_log()
    for number in range(4):
        committed(log.commit(log.refresh(), [change_part(str(number))], INFO, BLIND))
    log.store.delete(commit_name(2))
    with pytest.raises(Corrupt, match="gap"):
        TableLog(log.store).refresh()


def damaged(data: bytes) -> Iterator[bytes]:
    """What may be left of a commit: less than all of it, or as many bytes of nothing."""
    yield from (data[:length] for length in range(len(data) - 1))
    yield from (b"\n", b" \n\n", b"\0" * len(data), b"{}", b"null", b"[]\n", b"\xff")


def test_a_commit_that_is_not_whole_is_named_by_all_who_read_it() -> None:
    log = new_log()
    for number in range(4):
        actions = [change_part(f"c{number}"), AddPart(base_part(f"p{number}"))]
        read = log.refresh()
        committed(log.commit(read, actions, INFO, BLIND, Transaction("query", number)))
    newest, name = log.refresh(), commit_name(4)
    whole, at_3 = log.store.read(name), log.at_version(3)
    for rest in damaged(whole):
        log.store.put(name, rest)
        with pytest.raises(Corrupt, match=name):
            TableLog(log.store).refresh()
        with pytest.raises(Corrupt, match=name):
            TableLog(log.store).commit(at_3, [change_part("late")], INFO, BLIND)
    log.write_checkpoint(newest)
    with pytest.raises(Corrupt, match=name):
        TableLog(log.store).refresh()
    log.store.put(name, whole)
    assert TableLog(log.store).refresh() == newest


@pytest.mark.slow
def test_a_flipped_bit_of_a_commit_or_a_checkpoint_is_reported_or_changes_nothing() -> None:
    log = new_log()
    for number in range(3):
        committed(log.commit(log.refresh(), [AddPart(base_part(f"p{number}"))], INFO, BLIND))
    newest = log.refresh()
    log.write_checkpoint(log.at_version(2))
    for name in (commit_name(3), checkpoint_name(2)):
        whole = log.store.read(name)
        for at in range(0, len(whole), 1 + len(whole) // 300):
            log.store.put(name, whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
            with suppress(Corrupt):
                found = replace(
                    TableLog(log.store).refresh(), timestamp_ms=newest.timestamp_ms
                )  # of a line that is no info
                assert found == newest, f"{name}, byte {at}"
        log.store.put(name, whole)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-20], lambda data: data[:40] + b"x" + data[41:], lambda data: b""]
)
@pytest.mark.parametrize("damaged", [{6}, {4, 6}, {2, 4, 6}])
def test_in_place_of_a_damaged_checkpoint_the_commits_are_read_if_they_are_there(
    damage: Callable[[bytes], bytes], damaged: set[int]
) -> None:
    log = new_log(TableSettings(keys=("id",), checkpoint_interval=2))
    snapshots = [log.refresh()]
    for number in range(7):
        committed(log.commit(log.refresh(), [AddPart(base_part(f"p{number}"))], INFO, BLIND))
        snapshots.append(log.refresh())
        if snapshots[-1].version in (2, 4, 6):
            log.write_checkpoint(snapshots[-1])
    for version in damaged:
        log.store.put(checkpoint_name(version), damage(log.store.read(checkpoint_name(version))))
    fresh = TableLog(log.store)
    assert fresh.refresh() == snapshots[-1]
    assert [fresh.at_version(version) for version in range(8)] == snapshots
    fresh.checkpoint_if_due(fresh.refresh())
    assert TableLog(log.store).read_checkpoint(7) == snapshots[-1], "a whole one takes its place"
    log.store.delete(checkpoint_name(7))
    log.store.delete(commit_name(1))
    is_lost = damaged == {2, 4, 6}
    with pytest.raises(Corrupt, match="the checkpoint of version 6 can't be read") if is_lost else nullcontext():
        assert TableLog(log.store).refresh() == snapshots[-1]


@pytest.mark.parametrize(("path", "flips"), [(b"part\xff", False), (b"part", True)])
def test_damage_in_a_checkpoint_of_another_writer_is_reported_as_such(path: bytes, flips: bool) -> None:
    """It has no checksum of the whole file, but its pages may have some."""
    paths = pa.array([path]).view(pa.string())
    out = BytesIO()
    table = pa.table({"add": pa.StructArray.from_arrays([paths], ["path"])})
    pq.write_table(
        table, out, use_dictionary=False, compression="none", write_page_checksum=True, write_statistics=False
    )
    data = bytearray(out.getvalue())
    data[data.index(path)] ^= flips
    with pytest.raises(Corrupt, match="CRC checksum" if flips else "codec can't decode"):
        decode_checkpoint(1, [bytes(data)])


def test_a_commit_of_another_writer_needs_no_checksum() -> None:
    store = MemoryLogStore()
    log = new_log(store=store)
    for version, text in enumerate((b'{"commitInfo":{"timestamp":1}}', b'{"cdc":null}\n', b'{"txn":null}'), 1):
        store.put(commit_name(version), text)
    assert log.refresh().version == 3


def test_a_writer_that_slept_through_a_cleanup_does_not_take_a_name_that_became_free() -> None:
    store = MemoryLogStore()
    log = new_log(TableSettings(keys=("id",), log_retention_seconds=60), store)
    asleep = TableLog(store, Clock(1_800_000_000.0, step=1.0), sleep=lambda seconds: None)
    read = asleep.refresh()
    for number in range(30):
        committed(log.commit(log.refresh(), [change_part(f"p{number}")], INFO, BLIND))
    log.write_checkpoint(log.refresh())
    committed(log.commit(log.refresh(), [change_part("after")], INFO, BLIND))
    assert trim_log(log, retention_seconds=0) > 0
    assert log.read_commit(read.version + 1) is None, "the name is free"
    for _ in range(60):
        asleep.clock()
    outcome = asleep.commit(read, [change_part("late")], INFO, BLIND)
    assert isinstance(outcome, Conflicted)
    assert outcome.snapshot.version == 32
    assert committed(asleep.commit(outcome.snapshot, [change_part("late")], INFO, BLIND)).version == 33


@pytest.mark.parametrize("by_time", [False, True])
def test_a_reader_all_of_whose_versions_were_cleaned_finds_newer_ones(by_time: bool) -> None:
    store = MemoryLogStore()
    log, now = new_log(store=store), 1_800_000_000.0
    reader = TableLog(store, lambda: now)
    reader.refresh()
    for number in range(7):
        committed(log.commit(log.refresh(), [change_part(f"p{number}")], INFO, BLIND))
    log.write_checkpoint(log.refresh())
    committed(log.commit(log.refresh(), [change_part("after")], INFO, BLIND))
    assert trim_log_before(log, 7) > 0
    assert reader.refresh().version == 0, "the name of the next version is free, and it has not listed the log again"
    assert (reader.version_at(log.now_ms()) if by_time else reader.at_version(8).version) == 9 - (not by_time)


def test_the_time_of_commits_grows_when_the_clock_does_not() -> None:
    times = iter([1000.0, 1000.0, 1000.0, 990.0, 990.0, 990.0])
    log = TableLog(MemoryLogStore(), lambda: next(times, 980.0), sleep=lambda seconds: None)
    committed(create_log(log, SCHEMA, TableSettings(keys=("id",)), (), {}, "test"))
    for number in range(4):
        committed(log.commit(log.refresh(), [change_part(f"p{number}")], INFO, BLIND))
    moments = [commit.timestamp_ms for commit in log.commits(0, 4)]
    assert moments == sorted(set(moments))
    assert log.version_at(moments[2]) == 2


def test_a_refresh_sees_all_that_others_committed_meanwhile() -> None:
    store = MemoryLogStore()
    log = new_log(store=store)
    other = TableLog(store, Clock(1_800_000_000.0, step=1.0), sleep=lambda seconds: None)
    for number in range(3):
        committed(other.commit(other.refresh(), [change_part(f"p{number}")], INFO, BLIND))
    assert log.refresh() == other.refresh()


def test_a_hint_at_a_checkpoint_that_is_gone_does_not_hide_the_table() -> None:
    store = MemoryLogStore()
    log = new_log(store=store)
    for number in range(6):
        snapshot = committed(log.commit(log.refresh(), [change_part(f"p{number}")], INFO, BLIND))
        if snapshot.version in (3, 6):
            log.write_checkpoint(snapshot)
    store.delete(checkpoint_name(6))
    for version in range(3):
        store.delete(commit_name(version))
    assert TableLog(store, Clock(1_800_000_000.0, step=1.0)).refresh() == snapshot


def test_a_version_is_found_by_its_time() -> None:
    log = new_log()
    for number in range(9):
        committed(log.commit(log.refresh(), [change_part(str(number))], INFO, BLIND))
    for version in range(10):
        commit = log.read_commit(version)
        assert commit is not None
        assert log.version_at(commit.timestamp_ms) == version
        assert log.version_at(commit.timestamp_ms + 1) == version
    with pytest.raises(VersionNotFound, match="oldest version"):
        log.version_at(0)


@seeds(6, quick=6)
def test_times_of_another_writer_that_go_back_or_are_missing_do_not_mislead(seed: int) -> None:
    """A version is the newest at a time from the latest of its own time and all before it, as in Delta's own readers."""
    rng, store = random.Random(seed), MemoryLogStore()
    log = new_log(store=store)
    times = [log.refresh().timestamp_ms]
    for version in range(1, 12):
        time_ms = rng.choice([0, times[0] + rng.randrange(-5, 40)])
        text = b'{"commitInfo":{"timestamp":%d}}' % time_ms if time_ms else b'{"txn":{"appId":"x","version":1}}'
        store.put(commit_name(version), text)
        times.append(max(times[-1], time_ms))
    read = TableLog(store).refresh()
    enabled = {"delta.inCommitTimestampEnablementVersion": "12"}
    metadata = replace(read.metadata, configuration=dict(read.metadata.configuration) | enabled)
    log.clock = lambda: (times[-1] + 1) / 1000
    committed(log.commit(log.refresh(), [metadata], INFO, BLIND))
    for number in range(6):
        committed(log.commit(log.refresh(), [change_part(str(number))], INFO, BLIND))
    times += [commit.timestamp_ms for commit in log.commits(12, 18)]
    assert times == sorted(times)
    for time_ms in range(times[0], times[-1] + 3):
        expected = max(version for version, at in enumerate(times) if at <= time_ms)
        assert log.version_at(time_ms) == expected
    with pytest.raises(VersionNotFound):
        log.version_at(times[0] - 1)


def test_a_log_that_is_not_there_is_named() -> None:
    with pytest.raises(TableNotFound):
        TableLog(MemoryLogStore()).refresh()


def test_a_plain_delta_table_is_not_written_to_before_it_is_adopted() -> None:
    log = new_log()
    read = log.refresh()
    plain = replace(read, protocol=replace(read.protocol, writer_features=frozenset({"deletionVectors"})))
    with pytest.raises(Unsupported, match=r"lakebed\.convert"):
        log.commit(plain, [change_part("a")], INFO, BLIND)
    beyond = replace(
        read, protocol=replace(read.protocol, writer_features=read.protocol.writer_features | {"rowTracking"})
    )
    with pytest.raises(Unsupported, match="rowTracking"):
        log.commit(beyond, [change_part("a")], INFO, BLIND)
