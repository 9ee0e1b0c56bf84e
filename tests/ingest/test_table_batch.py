"""A table's own positions decide what it reads: each record is in it exactly once, whatever is planned, crashes or runs twice."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

import lakebed
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.errors import DataLoss, QuarantineRefused, StoreUnavailable
from lakebed.ingest.batch_writer import Written
from lakebed.ingest.table_batch import WriteWork
from lakebed.log.table_log import TableLog
from lakebed.parts.changes import WriteSpec
from lakebed.parts.quarantine import QUARANTINE_SUFFIX, Handover
from lakebed.positions.positions import Position, positions_of
from lakebed.schema.fitting import EvolvePolicy
from lakebed.sources.source import Range
from lakebed.table import internals_of
from tests.decode.records import event, with_schema
from tests.ingest.crashes import POINTS, Crash, dying
from tests.internals import log_of
from tests.sources.memory_source import COLUMNS, MemorySource, Process, here, ids, quarantined, row
from tests.worlds import seeds


def unkeyed(tmp_path: Path) -> lakebed.Table:
    """A table without keys: what is read twice is in it twice."""
    return lakebed.create(tmp_path / "t", COLUMNS)


def positions(table: lakebed.Table) -> dict[str, Position]:
    return positions_of(log_of(table).refresh())


def filled(*counts: int) -> MemorySource:
    """A topic with so many records in each partition: ids are unique over all partitions."""
    source, first = MemorySource(), 0
    for partition, count in enumerate(counts):
        source.add("t", partition, *(row(first + n) for n in range(count)))
        first += count
    return source


def test_a_batch_brings_the_records_and_the_position_in_one_commit(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(5, 3)
    source.ids["t"] = "first"
    done = Process(table.path, source).run()
    assert (done.version, done.rows, done.left, dict(done.read_to)) == (1, 8, 0, {("t", 0): 5, ("t", 1): 3})
    assert positions(table) == {"t": Position(offsets={0: 5, 1: 3}, topic_id="first")}
    assert ids(table) == list(range(8))


def test_small_ranges_share_one_decoding(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(*[2] * 20)
    reading = decoder("json", DecoderSchema.of_table(COLUMNS, (), None))
    plain, decoded = type(reading).decode, []

    def counted(self: Any, records: pa.Table, *rest: Any) -> Any:
        decoded.append(len(records))
        return plain(self, records, *rest)

    with patch.object(type(reading), "decode", counted):
        Process(table.path, source, reading=reading).run()
    assert (decoded, ids(table)) == ([40], list(range(40)))


def test_the_same_ranges_again_change_nothing_and_ask_nobody(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(5)
    process = Process(table.path, source)
    process.run()
    for again in (process, Process(table.path, source)):
        assert again.run().version is None
    assert (table.version, source.asked, ids(table)) == (1, 0, list(range(5)))


def test_an_old_a_lost_and_a_foreign_plan_are_harmless(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(10, 10)
    Process(table.path, source).run()
    source.add("t", 0, *(row(n) for n in range(20, 25)))
    old = [Range("t", 0, 2, 6), Range("t", 1, 0, 3)]
    assert Process(table.path, source).run(old).version is None
    overlapping = [Range("t", 0, 4, 12), Range("t", 1, 0, 10)]
    Process(table.path, source).run(overlapping)
    Process(table.path, source).run()  # a new checkpoint begins with everything
    assert ids(table) == list(range(25))


def test_a_table_behind_the_plan_reads_from_its_own_position_in_bounded_pieces(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(100, 50)
    process = Process(table.path, source)
    process.run([Range("t", 0, 0, 5, is_first=True), Range("t", 1, 0, 5, is_first=True)])
    plan = [Range("t", 0, 90, 100), Range("t", 1, 50, 50)]
    lefts, sizes = [], []
    while True:
        done = process.run(plan, records_max=30)
        lefts.append(done.left)
        sizes.append(done.rows)
        if not done.left:
            break
    assert ids(table) == list(range(150))
    assert lefts == sorted(lefts, reverse=True) and max(sizes) <= 30 and len(sizes) == 5


def test_a_new_table_reads_a_partition_that_others_have_read_from_its_beginning(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(10)
    Process(table.path, source).run([Range("t", 0, 7, 10)])
    assert (ids(table), source.asked) == (list(range(10)), 1)


def test_a_table_that_begins_at_the_end_misses_nothing_after_it(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(10)
    source.starting = "latest"
    Process(table.path, source).run()
    assert positions(table)["t"].offsets == {0: 10}
    source.add("t", 0, row(10), row(11))
    Process(table.path, source).run()  # a lost checkpoint: the plan begins at the new end
    assert ids(table) == [10, 11]


# -- two processes -----------------------------------------------------------------------------------------------------


def during(other: Callable[[], object]) -> Callable[[WriteWork], Written]:
    """Does the work, and has somebody else do something before it is committed, once."""
    left = [other]

    def run(work: WriteWork) -> Written:
        rows = here(work)
        while left:
            left.pop()()
        return rows

    return run


@pytest.mark.parametrize("other_end", [3, 10, 12])
def test_of_two_processes_on_one_topic_each_record_is_brought_by_one(tmp_path: Path, other_end: int) -> None:
    table, source = unkeyed(tmp_path), filled(10)
    slow, fast = Process(table.path, source), Process(table.path, source)
    plan = source.planned()
    source.add("t", 0, row(10), row(11))
    done = slow.run(plan, run=during(lambda: fast.run([Range("t", 0, 0, other_end, is_first=True)])))
    assert ids(table) == list(range(max(10, other_end)))
    assert positions(table)["t"].offsets == {0: max(10, other_end)}
    assert done.rows == max(0, 10 - other_end)


def test_processes_that_read_different_topics_do_not_disturb_each_other(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(5)
    source.add("u", 0, *(row(n) for n in range(5, 9)))
    plans = {topic: [one for one in source.planned() if one.topic == topic] for topic in "tu"}
    other, works = Process(table.path, source), []
    run = during(lambda: other.run(plans["u"]))

    def counted(work: WriteWork) -> Written:
        works.append(work)
        return run(work)

    Process(table.path, source).run(plans["t"], run=counted)
    assert (ids(table), len(works)) == (list(range(9)), 1)


def test_a_record_that_two_processes_can_not_use_is_quarantined_once(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(3)
    source.add("t", 0, b"{", row(4))
    slow, fast = Process(table.path, source), Process(table.path, source)
    slow.run(run=during(fast.run))
    assert (ids(table), quarantined(table)) == ([0, 1, 2, 4], [3])


def before_the_first_commit(root: str, other: Callable[[], object]) -> Any:
    """Has somebody else do something right before the first commit to a table, once."""
    commit, left = TableLog.commit, [other]

    def later(self: TableLog, *args: Any) -> Any:
        if self.root == root and left:
            left.pop()()
        return commit(self, *args)

    return patch.object(TableLog, "commit", later)


def test_two_processes_that_deliver_at_once_deliver_once(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(1)
    source.add("t", 0, b"{")
    with dying(Handover, "deliver", "before", 2), pytest.raises(Crash):
        Process(table.path, source).run()
    one, other = Process(table.path, source), Process(table.path, source)
    internals_of(table).quarantine_log()
    with before_the_first_commit(table.path + QUARANTINE_SUFFIX, other.run):
        one.run()
    assert quarantined(table) == [1]


def test_a_commit_keeps_what_another_process_has_listed_and_not_delivered(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(1)
    source.add("u", 0, b"{")
    plans = {topic: [one for one in source.planned() if one.topic == topic] for topic in "tu"}

    def dies() -> None:
        with dying(Handover, "deliver", "before", 2), pytest.raises(Crash):
            Process(table.path, source).run(plans["u"])

    source.add("t", 0, b"[")
    with dying(Handover, "deliver", "before", 3), pytest.raises(Crash):
        Process(table.path, source).run(source.planned()[:1], run=during(dies))
    Process(table.path, source).run()
    assert quarantined(table) == [0, 1]


def test_rewinding_moves_no_other_partition_that_a_pipeline_reads_meanwhile(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(3, 3)
    process = Process(table.path, source)
    process.run()
    source.add("t", 1, row(6))
    with before_the_first_commit(table.path, process.run):
        table.maintenance.rewind("t", {0: 2})
    assert positions(table)["t"].offsets == {0: 2, 1: 4}


def test_what_was_written_for_a_schema_that_is_gone_is_read_again(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(3)
    fits, refused = WriteSpec.fits, [True]

    def once(self: WriteSpec, now: WriteSpec) -> bool:
        return False if refused and refused.pop() else fits(self, now)

    with patch.object(WriteSpec, "fits", once):
        Process(table.path, source).run()
    assert ids(table) == [0, 1, 2]


def test_a_record_that_fits_for_one_process_alone_is_in_one_place(tmp_path: Path) -> None:
    """One of them knows how to change the table, and the other one sets the record aside."""
    for fast_first in (True, False):
        table = unkeyed(tmp_path / str(fast_first))
        source = filled(3)
        source.add("t", 0, {"id": 3, "n": 3, "note": "x"})
        strict = EvolvePolicy(by_schema=True)
        loose = EvolvePolicy(allowed=frozenset({"add"}))
        one, other = (Process(table.path, source, policy=policy) for policy in (strict, loose))
        first, second = (one, other) if fast_first else (other, one)
        second.run(run=during(first.run))
        assert sorted(ids(table) + quarantined(table)) == [0, 1, 2, 3]


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("owner", "name", "when", "count"), POINTS)
def test_a_process_that_dies_anywhere_loses_and_doubles_nothing(
    tmp_path: Path, owner: Any, name: str, when: str, count: int
) -> None:
    table, source = unkeyed(tmp_path), filled(3, 2)
    source.add("t", 0, b"{", row(10), b"}")
    with dying(owner, name, when, count), pytest.raises(Crash):
        Process(table.path, source).run()
    source.add("t", 1, row(11), b"[")
    table.alter(add={"note": "string"})
    for _ in range(2):
        Process(table.path, source).run()
    assert ids(table) == [0, 1, 2, 3, 4, 10, 11]
    assert quarantined(table) == [3, 3, 5]


def test_between_the_two_commits_the_quarantine_waits_for_the_next_batch(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(3)
    source.add("t", 0, b"{")
    with dying(Handover, "deliver", "before", 2), pytest.raises(Crash):
        Process(table.path, source).run()
    assert (ids(table), quarantined(table)) == ([0, 1, 2], [])
    assert Process(table.path, source).run().version is None
    assert quarantined(table) == [3]


def test_a_commit_whose_answer_was_lost_is_not_made_twice(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(5)
    process = Process(table.path, source)
    commit = TableLog.commit

    def lost(self: TableLog, *args: Any) -> Any:
        commit(self, *args)
        raise StoreUnavailable("no answer")

    with patch.object(TableLog, "commit", lost), pytest.raises(StoreUnavailable):
        process.run()
    assert process.run().version is None
    assert ids(table) == list(range(5))


# -- topics that change ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_id", [True, False])
def test_a_topic_that_was_made_anew_is_a_loss_or_begins_again(tmp_path: Path, with_id: bool) -> None:
    table, source = unkeyed(tmp_path), filled(5, 5)
    source.ids |= {"t": "old"} if with_id else {}
    Process(table.path, source).run()
    source.make_anew("t", "new" if with_id else None)
    source.add("t", 0, row(10), row(11))
    why = (
        "deleted and created again, or is one of another cluster"
        if with_id
        else "it ends at offset 2, and the table has 5"
    )
    with pytest.raises(DataLoss, match=why) as raised:
        Process(table.path, source).run()
    assert (raised.value.topic, raised.value.table, table.version) == ("t", table.path, 1)
    source.skips_losses = True
    for _ in range(2):
        Process(table.path, source).run()
    assert ids(table) == [*range(10), 10, 11]
    assert positions(table)["t"] == Position(offsets={0: 2, 1: 0}, topic_id="new" if with_id else None)


def test_a_topic_that_was_made_anew_is_read_whole_though_its_partitions_come_one_by_one(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(5, 1)
    source.ids["t"], source.skips_losses = "old", True
    Process(table.path, source).run()
    source.starting = "latest"
    source.make_anew("t", "new")
    source.add("t", 0, row(10))
    source.add("t", 1, row(11), row(12))
    process = Process(table.path, source)
    process.run([Range("t", 0, 0, 1, topic_id="new")])
    process.run([Range("t", 1, 1, 2, topic_id="new")])
    assert ids(table) == [*range(6), 10, 11, 12]


def test_a_plan_from_before_the_topic_was_made_anew_reads_nothing(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(5)
    source.ids["t"], source.skips_losses = "old", True
    old = source.planned()
    source.make_anew("t", "new")
    source.add("t", 0, row(10))
    Process(table.path, source).run()
    assert Process(table.path, source).run(old).version is None
    assert ids(table) == [10]


def test_a_table_ahead_of_an_old_plan_asks_the_source_once(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(5)
    Process(table.path, source).run()
    process = Process(table.path, source)
    for end in (1, 2, 3):
        process.run([Range("t", 0, 0, end, is_first=True)])
    assert (source.asked, ids(table)) == (1, list(range(5)))


def test_a_partition_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(5)
    Process(table.path, source).run([*source.planned(), Range("gone", 0, 7, 9)])
    assert ids(table) == list(range(5))


# -- quarantine --------------------------------------------------------------------------------------------------------


def test_a_cleanup_of_the_quarantine_leaves_what_its_table_lists(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(1)
    source.add("t", 0, b"{")
    Process(table.path, source).run()
    source.add("t", 0, b"}")
    with dying(Handover, "deliver", "before", 2), pytest.raises(Crash):
        Process(table.path, source).run()
    quarantine = lakebed.open(table.path + QUARANTINE_SUFFIX)
    quarantine.maintenance.remove_orphan_files(older_than="0 seconds", dry_run=False, allow_short_retention=True)
    Process(table.path, source).run()
    assert quarantined(table) == [1, 2]


def test_the_entry_of_the_quarantine_does_not_grow(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(1)
    process, sizes = Process(table.path, source), []
    for _ in range(5):
        source.add("t", 0, b"{")
        process.run()
        sizes.append(len(log_of(table).refresh().domains["lakebed.quarantined"]))
    assert max(sizes) < sizes[0] + 10
    source.add("t", 0, row(9))
    process.run()
    assert '"parts":[]' in log_of(table).refresh().domains["lakebed.quarantined"]
    assert quarantined(table) == [1, 2, 3, 4, 5]


def test_a_quarantine_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(1)
    source.add("t", 0, b"{")
    Process(table.path, source).run()
    shutil.rmtree(table.path + QUARANTINE_SUFFIX)
    source.add("t", 0, b"}")
    Process(table.path, source).run()
    assert quarantined(table) == [2]


def test_a_table_made_anew_beside_its_old_quarantine_fills_it(tmp_path: Path) -> None:
    for _ in range(2):
        table, source = unkeyed(tmp_path), filled(1)
        source.add("t", 0, b"{")
        Process(table.path, source).run()
        shutil.rmtree(table.path)
    lakebed.create(tmp_path / "t", COLUMNS)
    assert quarantined(table) == [1, 1]


def test_quarantine_fail_commits_nothing(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(1)
    source.add("t", 0, b"{")
    with pytest.raises(QuarantineRefused, match="the first is at topic t, partition 0, offset 1"):
        Process(table.path, source, quarantine="fail").run()
    assert (table.version, positions(table)) == (0, {})
    assert files_of(table) == [[], []]


def test_the_files_of_a_batch_that_came_too_late_are_deleted(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(3)
    source.add("t", 0, b"{")
    fast = Process(table.path, source)
    Process(table.path, source).run(run=during(fast.run))
    assert list(map(len, files_of(table))) == [1, 1]


def files_of(table: lakebed.Table) -> list[list[Path]]:
    """The data files of the table, and of its quarantine."""
    return [list(Path(path).glob("**/*.parquet")) for path in (table.path, table.path + QUARANTINE_SUFFIX)]


# -- all of it at random -----------------------------------------------------------------------------------------------


@seeds(3, quick=0)
def test_whatever_is_planned_and_dies_each_record_is_in_the_table_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    table, source, count = unkeyed(tmp_path), MemorySource(), 0
    processes = [Process(table.path, source) for _ in range(3)]
    marks: list[dict[Any, int] | None] = [None] * 3
    bad = 0
    for _ in range(25):
        for _ in range(chance.randrange(4)):
            if chance.random() < 0.2:
                source.add(chance.choice("ab"), chance.randrange(2), b"{")
                bad += 1
            else:
                source.add(chance.choice("ab"), chance.randrange(2), row(count))
                count += 1
        who = chance.randrange(3)
        since = marks[who] if chance.random() < 0.7 else None  # else its checkpoint is lost
        run = during(processes[chance.randrange(3)].run) if chance.random() < 0.4 else here
        try:
            owner, name, when, number = chance.choice(POINTS)
            if chance.random() < 0.4:
                with dying(owner, name, when, number):
                    processes[who].run(source.planned(since), run=run)
            else:
                processes[who].run(source.planned(since), chance.choice([None, 3]), run)
            marks[who] = source.ends() if chance.random() < 0.8 else marks[who]
        except Crash:
            processes[who] = Process(table.path, source)
        assert len(set(ids(table))) == len(ids(table))
        if chance.random() < 0.1:
            table.settle()
    Process(table.path, source).run()
    assert ids(table) == list(range(count))
    assert len(quarantined(table)) == bad


def test_a_table_with_keys_has_the_newest_change_whoever_brought_it(tmp_path: Path) -> None:
    table = lakebed.create(
        tmp_path / "t", pa.schema([pa.field("id", pa.int64(), False), ("n", pa.int64())]), keys=["id"]
    )
    source = MemorySource()
    source.add("t", 0, *({"id": n % 4, "n": n} for n in range(20)))
    slow, fast = Process(table.path, source), Process(table.path, source)
    slow.run(run=during(lambda: fast.run([Range("t", 0, 0, 7, is_first=True)])))
    table.settle()
    assert sorted(table.to_arrow()["n"].to_pylist()) == [16, 17, 18, 19]


def test_a_table_that_forgets_a_topic_that_was_made_anew_begins_with_the_new_one(tmp_path: Path) -> None:
    table, source = unkeyed(tmp_path), filled(5)
    source.ids["t"] = "old"
    Process(table.path, source).run()
    source.make_anew("t", "new")
    source.add("t", 0, row(10), row(11))
    since = {("t", 0): 2}  # the plan is further
    with pytest.raises(DataLoss, match=f"lakebed source rewind {table.path} t$"):
        Process(table.path, source).run(source.planned(since))
    table.maintenance.rewind("t")
    Process(table.path, source).run(source.planned(since))
    assert ids(table) == [*range(5), 10, 11]


# -- truncates and schemas ---------------------------------------------------------------------------------------------

KEYED = pa.schema([pa.field("id", pa.int64(), False), ("n", pa.int64())])


def truncated_topic() -> MemorySource:
    """Two rows, a truncate, a row, and one with a column that the table lacks."""
    source = MemorySource()
    fields = [{"type": "int64", "field": "id", "optional": False}, {"type": "int64", "field": "n", "optional": True}]
    note = {"type": "string", "field": "note", "optional": True}
    changes = [
        with_schema(event("c", {"id": 1, "n": 1}, lsn=1), fields),
        with_schema(event("c", {"id": 2, "n": 2}, lsn=2), fields),
        with_schema(event("t", lsn=3), fields),
        with_schema(event("c", {"id": 3, "n": 3}, lsn=4), fields),
        with_schema(event("c", {"id": 4, "n": 4, "note": "x"}, lsn=5), [*fields, note]),
    ]
    source.add("t", 0, *changes)
    return source


def debezium(table: lakebed.Table, source: MemorySource) -> Process:
    policy = EvolvePolicy(allowed=frozenset({"add"}), by_schema=True)
    return Process(
        table.path, source, reading=decoder("debezium-json", DecoderSchema.of_table(KEYED, ("id",), None, policy))
    )


@pytest.mark.parametrize(("owner", "name", "when", "count"), POINTS)
def test_a_truncate_and_a_schema_in_a_batch_that_dies_anywhere_count_once(
    tmp_path: Path, owner: Any, name: str, when: str, count: int
) -> None:
    table, source = lakebed.create(tmp_path / "t", KEYED, keys=["id"]), truncated_topic()
    with dying(owner, name, when, count), pytest.raises(Crash):
        debezium(table, source).run()
    for _ in range(2):
        debezium(table, source).run()
    assert sorted((row["id"], row["note"]) for row in table.to_arrow().to_pylist()) == [(3, None), (4, "x")]


def test_rewinding_over_a_truncate_takes_nothing_away_that_came_after_it(tmp_path: Path) -> None:
    table, source = lakebed.create(tmp_path / "t", KEYED, keys=["id"]), truncated_topic()
    debezium(table, source).run()
    table.apply(pa.table({"id": [9], "n": [9], "note": ["by hand"]}, schema=table.schema))
    table.maintenance.rewind("t", 0)
    done = debezium(table, source).run()
    assert (done.rows, done.written.truncated) == (2, 2)
    assert ids(table) == [3, 4, 9]


def test_two_processes_that_meet_a_truncate_empty_the_table_once(tmp_path: Path) -> None:
    table, source = lakebed.create(tmp_path / "t", KEYED, keys=["id"]), truncated_topic()
    fast = debezium(table, source)
    debezium(table, source).run(run=during(fast.run))
    assert ids(table) == [3, 4]
