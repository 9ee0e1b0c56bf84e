"""Replaying the quarantine: what is fine now is applied once, whatever crashes or comes between; the rest stays."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction.compaction import LocalKernel
from lakebed.compaction.merge import Merger
from lakebed.decode.decoder import Decoded, Decoder, DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.errors import InvalidInput, TableNotFound
from lakebed.ingest import replay as module
from lakebed.ingest.replay import ALREADY_DECODED, TRUNCATE
from lakebed.log.actions import CommitInfo
from lakebed.log.conflicts import ReadWriteSet
from lakebed.parts.quarantine import QUARANTINE_SCHEMA, QUARANTINE_SUFFIX
from lakebed.positions.truncates import NO_CUTOFF, Cutoff, Truncate, to_domain
from lakebed.table import internals_of
from tests.decode.records import event, records
from tests.internals import deletion_vectors_of, log_of, storage_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
BAD = [{"id": 1, "n": "n1"}, {"id": 2, "n": "no number"}, {"id": 3, "n": "n3"}, {"id": 3, "n": "n33"}]


class Crash(BaseException):
    """The process ends here."""


class Standing:
    """A decoder that stays as it is."""

    decoder_schema = DecoderSchema(SCHEMA)

    def bound_to(self, decoder_schema: DecoderSchema) -> Self:
        return self

    def schema_needed(self, records: pa.Table) -> None:
        return None


class Tolerant(Standing):
    """Reads the numbers that others refuse, as a format does with another setting."""

    def __init__(self, keys: tuple[str, ...], before: Callable[[], object] = lambda: None) -> None:
        self._inner = decoder("json", DecoderSchema(SCHEMA, keys))
        self._before = before

    def decode(self, records: pa.Table, cutoff: Cutoff = NO_CUTOFF) -> Decoded:
        self._before()
        values = [re.sub(rb'"n(\d+)"', rb"\1", value) for value in records["value"].to_pylist()]
        return self._inner.decode(records.set_column(1, "value", pa.array(values, pa.binary())), cutoff)


def new_table(tmp_path: Path, keys: tuple[str, ...] = (), **settings: Any) -> lakebed.Table:
    return lakebed.create(tmp_path / "t", SCHEMA, keys=keys, **settings)


def set_aside(table: lakebed.Table, values: list[Any], of: Decoder | None = None) -> lakebed.Table:
    """The quarantine of the table, with what the decoder refuses of these records, a part each."""
    path = table.path + QUARANTINE_SUFFIX
    try:
        made = lakebed.open(path)
    except TableNotFound:
        made = lakebed.create(path, QUARANTINE_SCHEMA, properties={"lakebed.read_budget": "2"})
    refused = (of or decoder("json", DecoderSchema(SCHEMA, ()))).decode(records(values)).quarantined
    assert len(refused) == len(values)
    for row in range(len(refused)):
        made.apply(refused.slice(row, 1))
    return made


def rows(table: lakebed.Table) -> list[tuple[int, int]]:
    return sorted((row["id"], row["n"]) for row in table.to_arrow().to_pylist())


def test_records_that_are_fine_now_are_applied_and_leave_the_quarantine(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    quarantine = set_aside(table, BAD)
    done = internals_of(table).replay_quarantine(Tolerant(()))
    assert (done.records, done.rows, done.version) == (3, 3, table.version - 1)
    [(reason, count)] = done.left.items()
    assert "'n'" in reason and count == 1
    assert rows(table) == [(1, 1), (3, 3), (3, 33)]
    assert [b"no number" in value for value in quarantine.to_arrow()["value"].to_pylist()] == [True]
    again = internals_of(table).replay_quarantine(Tolerant(()))
    assert (again.records, sum(again.left.values()), len(rows(table))) == (0, 1, 3)


def test_only_the_records_that_are_asked_for_are_replayed(tmp_path: Path) -> None:
    table = new_table(tmp_path, keys=("id",))
    quarantine = set_aside(table, BAD)
    internals_of(table).replay_quarantine(Tolerant(("id",)), "topic = 'shop.orders' and \"offset\" >= 2")
    assert rows(table) == [(3, 33)], "in their order"
    assert quarantine.to_arrow()["offset"].to_pylist() == [0, 1]
    for where in ("nothing = 1", "offset", "count(*) > 1"):
        with pytest.raises(InvalidInput):
            internals_of(table).replay_quarantine(Tolerant(("id",)), where)


def test_a_replayed_record_that_is_older_loses(tmp_path: Path) -> None:
    table = new_table(tmp_path, keys=("id",), sequence_by="n")
    table.apply(pa.table({"id": [1, 3], "n": [100, 2]}, SCHEMA))
    set_aside(table, BAD)
    internals_of(table).replay_quarantine(Tolerant(("id",)))
    assert rows(table) == [(1, 100), (3, 33)]


@pytest.mark.parametrize(("commit", "moment"), list(itertools.product(range(3), ("before", "after"))))
def test_after_a_crash_no_record_is_applied_twice_and_none_is_lost(
    commit: int, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(tmp_path)
    quarantine = set_aside(table, BAD)
    with monkeypatch.context() as crashing:
        crashing.setattr(module, "commit_loop", crashing_at(commit, moment))
        with pytest.raises(Crash):
            internals_of(table).replay_quarantine(Tolerant(()))
    strict = decoder("json", DecoderSchema(SCHEMA, ()))
    applied = len(rows(table))
    assert applied == (0 if (commit, moment) == (0, "before") else 3)
    internals_of(table).replay_quarantine(strict)  # settings that accept none of them
    assert (len(rows(table)), len(quarantine.to_arrow())) == (applied, 4 - applied)
    internals_of(table).replay_quarantine(Tolerant(()))
    assert (rows(table), len(quarantine.to_arrow())) == ([(1, 1), (3, 3), (3, 33)], 1)
    assert not [name for name in internals_of(table).log.refresh().domains if "replay" in name]


def crashing_at(commit: int, moment: str) -> Callable[..., Any]:
    real, calls = module.commit_loop, itertools.count()

    def crash(*arguments: Any, **named: Any) -> Any:
        number = next(calls)
        if (number, moment) == (commit, "before"):
            raise Crash
        result = real(*arguments, **named)
        if (number, moment) == (commit, "after"):
            raise Crash
        return result

    return crash


def test_a_replay_that_comes_between_is_seen(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    quarantine = set_aside(table, BAD)
    between = iter([lambda: internals_of(lakebed.open(table.path)).replay_quarantine(Tolerant(()))])
    done = internals_of(table).replay_quarantine(Tolerant((), lambda: next(between, lambda: None)()))
    assert (done.records, len(quarantine.to_arrow())) == (0, 1)
    assert rows(table) == [(1, 1), (3, 3), (3, 33)]


def test_a_replay_that_crashes_between_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path)
    quarantine = set_aside(table, BAD)

    def crashes() -> None:
        with monkeypatch.context() as crashing:
            crashing.setattr(module, "commit_loop", crashing_at(0, "after"))
            with pytest.raises(Crash):
                internals_of(lakebed.open(table.path)).replay_quarantine(Tolerant(()))

    between = iter([crashes])
    internals_of(table).replay_quarantine(Tolerant((), lambda: next(between, lambda: None)()))
    assert (rows(table), len(quarantine.to_arrow())) == ([(1, 1), (3, 3), (3, 33)], 1)


def test_a_truncate_of_the_source_that_comes_between_is_seen(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    set_aside(table, BAD)
    log, seen = internals_of(table).log, list[Cutoff]()
    new = Cutoff(new=(Truncate(topic="shop.orders", partition=3, offset=17),))

    def truncate() -> None:
        info = CommitInfo(operation="STREAMING UPDATE", commit_id="")
        log.commit(log.refresh(), [to_domain(new)], info, ReadWriteSet())

    class Watched(Tolerant):
        def decode(self, records: pa.Table, cutoff: Cutoff = NO_CUTOFF) -> Decoded:
            seen.append(cutoff)
            return super().decode(records, cutoff)

    between = iter([truncate])
    internals_of(table).replay_quarantine(Watched((), lambda: next(between, lambda: None)()))
    assert [bool(cutoff.remembered()) for cutoff in seen] == [False, True]
    assert len(rows(table)) == 3


def test_what_comes_into_the_table_and_the_quarantine_meanwhile_stays(tmp_path: Path) -> None:
    table = new_table(tmp_path, keys=("id",))
    quarantine = set_aside(table, BAD)

    def meanwhile() -> None:
        table.apply(pa.table({"id": [9], "n": [9]}, SCHEMA))
        table.settle()
        set_aside(table, BAD[:1])

    between = iter([meanwhile])
    internals_of(table).replay_quarantine(Tolerant(("id",), lambda: next(between, lambda: None)()))
    assert rows(table) == [(1, 1), (3, 33), (9, 9)]
    assert len(quarantine.to_arrow()) == 2


def test_rows_that_a_merge_moved_before_they_were_marked_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(tmp_path)
    quarantine = set_aside(table, [*BAD, BAD[0]])
    with monkeypatch.context() as crashing:
        crashing.setattr(module, "commit_loop", crashing_at(0, "after"))
        with pytest.raises(Crash):
            internals_of(table).replay_quarantine(Tolerant(()), '"offset" < 4')
    for _ in range(8):
        set_aside(table, BAD[1:2])
    assert quarantine.maintenance.compact().merges
    assert len(quarantine.to_arrow()) == 13
    internals_of(table).replay_quarantine(Tolerant(()))
    assert rows(table) == [(1, 1), (1, 1), (3, 3), (3, 33)]
    assert len(quarantine.to_arrow()) == 9


@pytest.mark.parametrize("at_once", [1, 20_000])
def test_records_of_a_key_are_applied_in_their_order_whatever_was_merged(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(tmp_path, keys=("id",))
    refused = decoder("json", DecoderSchema(SCHEMA, ())).decode(records([{"id": 1, "n": f"n{n}"} for n in range(4)]))
    quarantine = lakebed.create(table.path + QUARANTINE_SUFFIX, QUARANTINE_SCHEMA)
    for row in range(4):
        quarantine.apply(refused.quarantined.slice(row, 1))
    parts = sorted(log_of(quarantine).refresh().parts.values(), key=lambda part: part.min_block)
    merger = Merger(log_of(quarantine), storage_of(quarantine), deletion_vectors_of(quarantine), "somebody")
    merger.run([parts[0].path, parts[3].path], 1, LocalKernel(storage_of(quarantine), log_of(quarantine).refresh))
    monkeypatch.setattr(module, "RECORDS_MAX", at_once)
    internals_of(table).replay_quarantine(Tolerant(("id",)), '"offset" < 2')
    assert rows(table) == [(1, 1)]
    internals_of(table).replay_quarantine(Tolerant(("id",)))
    assert rows(table) == [(1, 3)]


def test_a_truncate_and_what_has_no_record_stay(tmp_path: Path) -> None:
    table = new_table(tmp_path, keys=("id",))
    quarantine = set_aside(table, ["{", {"id": 1}], decoder("debezium-json", DecoderSchema(SCHEMA, ("id",))))
    rows_without = {"value": b'{"id": 7}', "reason": "it lacked a value"}
    quarantine.apply(pa.Table.from_pylist([rows_without], QUARANTINE_SCHEMA))

    class Healed(Standing):
        def decode(self, given: pa.Table, cutoff: Cutoff = NO_CUTOFF) -> Decoded:
            values = [event("c", {"id": 4, "n": 4}), event("t")]
            fixed = [values[offset] for offset in given["offset"].to_pylist()]
            meant = records(fixed).set_column(4, "offset", given["offset"])
            return decoder("debezium-json", DecoderSchema(SCHEMA, ("id",))).decode(meant, cutoff)

    done = internals_of(table).replay_quarantine(Healed())
    assert dict(done.left) == {TRUNCATE: 1, ALREADY_DECODED: 1}
    assert (rows(table), len(quarantine.to_arrow())) == ([(4, 4)], 2)
