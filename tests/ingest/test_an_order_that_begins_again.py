"""A source that goes on at lower positions is found, and nothing else; after a restart of the order its changes count."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import main
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.errors import Corrupt, InvalidInput
from lakebed.health.status import Observer
from lakebed.ingest.table_batch import BatchDone, TableIngest
from lakebed.pipeline.database.check import warnings_of_topics
from lakebed.positions import remarks, resnapshots
from lakebed.positions.remarks import remarks_of
from lakebed.positions.resnapshots import Resnapshot
from lakebed.table import internals_of
from tests.internals import log_of
from tests.sources.memory_source import MemorySource, here
from tests.worlds import seeds

COLUMNS = pa.schema([pa.field("id", pa.int64(), False), pa.field("v", pa.string())])
MINUTE = 60_000
OLD, NEW = 5_000_000_000, 20_000_000
BEGAN, LOST, FIGURE = "order_began_again", "batch_lost", "lost_by_order"


class Copy:
    """A table of a topic of events, and what reads it. ``order``: what orders its changes."""

    def __init__(self, path: Path, order: str = "source.lsn", source: MemorySource | None = None) -> None:
        self.order, self.source = order, source or MemorySource()
        if not path.exists():
            lakebed.create(path, COLUMNS, keys=["id"], sequence_by=order)
        self.table = lakebed.open(path)
        internals = internals_of(self.table)
        self.ingest = TableIngest(
            self.table.path,
            internals.log,
            self.source,
            decoder("debezium-json", DecoderSchema.of_table(COLUMNS, ("id",), order), {}),
            evolution=internals.evolution("its records need it"),
            quarantine_log=internals.quarantine_log,
        )

    def feed(self, *events: dict[str, Any], partition: int = 0) -> Copy:
        self.source.add("t", partition, *events)
        return self.read()

    def read(self) -> Copy:
        batch = self.ingest.batch(self.source.planned())
        try:
            work = next(batch)
            while True:
                work = batch.send(here(work))
        except StopIteration as done:
            assert isinstance(done.value, BatchDone)
        return self

    @property
    def rows(self) -> dict[int, str]:
        return {row["id"]: row["v"] for row in self.table.to_arrow().to_pylist()}

    @property
    def findings(self) -> list[str]:
        return sorted(one.check for one in Observer(self.table.path).look().findings)

    @property
    def figures(self) -> dict[str, int]:
        return {kind: sum(names.values()) for kind, names in remarks_of(log_of(self.table).refresh()).counts.items()}


def change(place: int, id: int, value: str | None, ms: int, op: str = "u", **more: Any) -> dict[str, Any]:
    """An event at a place of PostgreSQL's log; without a value it is a delete."""
    row = {"id": id, "v": value}
    sides = {"before": row, "after": None, "op": "d"} if value is None else {"before": None, "after": row, "op": op}
    return {**sides, "source": {"ts_ms": ms, "lsn": place, **more}, "ts_ms": ms}


def of_binlog(file: int, pos: int, id: int, value: str, ms: int) -> dict[str, Any]:
    return change(0, id, value, ms, file=f"binlog.{file:06}", pos=pos, server_id=file)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """It has rows 1 and 2."""
    return Copy(tmp_path / "t").feed(change(OLD, 1, "old", MINUTE), change(OLD + 1, 2, "old", MINUTE + 1))


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([change(NEW, 1, "new", 2 * MINUTE)], [BEGAN]),
        ([change(OLD - 5, 1, "new", 2 * MINUTE)], [BEGAN]),
        ([change(NEW, 1, "new", MINUTE + 1)], [BEGAN]),
        ([change(NEW, 3, "new", 2 * MINUTE, "c")], [BEGAN]),
        ([change(NEW, 1, None, 2 * MINUTE)], [BEGAN]),
        ([change(NEW, 1, "new", 2 * MINUTE, "r", snapshot="first", sequence=f'[null,"{NEW}"]')], [BEGAN]),
        ([change(OLD + 9, 1, "newer", 2 * MINUTE), change(NEW, 1, "new", 3 * MINUTE)], [BEGAN]),
        ([change(OLD, 1, "old", MINUTE)], []),
        ([change(NEW, 1, "older", MINUTE - 9)], []),
        ([change(OLD + 2, 1, "new", MINUTE - 9)], []),
        ([change(OLD - 1, 1, "same transaction", MINUTE + 1)], []),
        ([change(OLD + 9, 1, "newer", 2 * MINUTE), change(OLD, 1, "old", MINUTE)], []),
    ],
    ids=[
        "moved", "moved by little", "moved, and all times are equal", "moved, and the row is new", "moved, and a delete",
        "moved, and a snapshot", "moved within a batch", "sent again", "sent again and older", "a clock that steps back",
        "another place of the same moment", "sent again within a batch",
    ],
)  # fmt: skip
def test_changes_that_are_lower_and_not_earlier_are_found_as_they_come(
    copy: Copy, events: Sequence[dict[str, Any]], found: list[str]
) -> None:
    assert copy.feed(*events).findings == found


@pytest.mark.parametrize(
    ("order", "before", "after"),
    [
        ("source.pos", of_binlog(412, 9000, 1, "old", 1), of_binlog(7, 4, 1, "new", MINUTE)),
        ("source.pos", of_binlog(7, 9000, 1, "old", 1), of_binlog(7, 4, 1, "new", MINUTE)),
        (
            "source.scn",
            change(0, 1, "old", 1, scn="500", commit_scn="510"),
            change(0, 1, "new", MINUTE, scn="9", commit_scn=None),
        ),
        (
            "source.commit_lsn",
            change(0, 1, "old", 1, commit_lsn="00000027:00000ac0:0002"),
            change(0, 1, "new", MINUTE, commit_lsn="00000002:00000ac0:0002"),
        ),
        ("source.commit_ts", change(0, 1, "old", 1, commit_ts=500), change(0, 1, "new", MINUTE, commit_ts=4)),
    ],
    ids=["another server", "a log that was reset", "Oracle", "SQL Server", "TiDB"],
)  # fmt: skip
def test_the_order_of_each_source_may_begin_again(
    tmp_path: Path, order: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    copy = Copy(tmp_path / "t", order).feed(before).feed(after)
    assert copy.findings == [BEGAN]
    copy.table.maintenance.restart_order()
    assert copy.feed(after).rows == {1: "new"}


def test_partitions_that_are_read_one_after_the_other_are_no_moved_source(copy: Copy) -> None:
    copy.feed(change(OLD + 5, 3, "new", 5 * MINUTE), partition=1)
    copy.feed(change(NEW, 4, "a row of the snapshot", 9 * MINUTE, "r", snapshot="true"), partition=2)
    assert copy.feed(change(OLD + 2, 1, "new", 2 * MINUTE)).findings == [] and copy.rows[1] == "new"


def test_changes_that_lose_are_counted_and_those_that_were_sent_again_are_no_finding(copy: Copy) -> None:
    copy.feed(change(OLD - 1, 1, "older", MINUTE - 9), change(OLD - 2, 2, "older", MINUTE - 9))
    settled = copy.table.settle()
    assert (settled.late_rows, copy.figures, copy.findings) == (2, {FIGURE: 2}, [])
    copy.feed(change(OLD - 1, 1, "older", MINUTE - 9))
    assert (copy.table.settle().late_rows, copy.figures) == (1, {FIGURE: 3})
    assert copy.rows == {1: "old", 2: "old"}


def test_a_change_of_the_same_moment_that_loses_is_found_when_it_is_settled(copy: Copy) -> None:
    copy.table.settle()
    assert copy.feed(change(OLD, 2, "lower", MINUTE + 1), change(OLD - 1, 3, "new", MINUTE + 1)).findings == []
    copy.table.settle()
    assert copy.findings == [BEGAN] and copy.rows == {1: "old", 2: "old", 3: "new"}


def test_a_batch_that_loses_whole_is_a_finding_where_no_clock_tells_why(tmp_path: Path) -> None:
    columns = pa.schema([*COLUMNS, pa.field("version", pa.int64())])
    table = lakebed.create(tmp_path / "t", columns, keys=["id"], sequence_by="version")
    table.apply([{"id": id, "v": "new", "version": 50} for id in (1, 2)])
    table.apply([{"id": 1, "v": "late", "version": 7}, {"id": 3, "v": "new", "version": 7}])
    assert table.settle().late_rows == 1 and not table.status().findings
    table.apply([{"id": 1, "v": "late", "version": 7}])
    assert table.settle().late_rows == 1
    [finding] = table.status().findings
    assert finding.check == LOST and "lakebed delete --all" in finding.remedy
    with pytest.raises(InvalidInput, match="column 'version' orders its changes"):
        table.maintenance.restart_order()


def restarted(copy: Copy) -> Copy:
    """The source has moved, and the order is restarted."""
    copy.feed(change(NEW, 1, "moved", 2 * MINUTE), change(NEW + 1, 2, None, 2 * MINUTE))
    assert copy.rows == {1: "old", 2: "old"} and copy.findings == [BEGAN]
    copy.table.maintenance.restart_order()
    return copy


@pytest.mark.parametrize("settles", [False, True])
def test_no_order_is_made_by_a_damaged_file(copy: Copy, settles: bool) -> None:
    if settles:
        copy.table.settle()
    [part] = copy.table.inspect.parts()["path"].to_pylist()
    file = Path(copy.table.path, part)
    file.write_bytes(file.read_bytes()[:50] + b"!" + file.read_bytes()[51:])
    with pytest.raises(Corrupt, match=part):
        copy.table.maintenance.restart_order()


SENT_AGAIN = [change(NEW + 1, 1, "moved", 3 * MINUTE, "r"), change(NEW + 2, 3, "new", 3 * MINUTE, "c")]


@pytest.mark.parametrize("settles", [False, True])
def test_after_a_restart_of_the_order_what_comes_wins_and_has_an_order_of_its_own(copy: Copy, settles: bool) -> None:
    restarted(copy).feed(*SENT_AGAIN)
    if settles:
        copy.table.settle()
    copy.feed(
        change(NEW + 9, 1, "newest", 4 * MINUTE),
        change(NEW + 5, 1, "late", 3 * MINUTE),
        change(NEW + 6, 3, None, 4 * MINUTE),
    )
    assert copy.rows == {1: "newest", 2: "old"}
    copy.feed(change(NEW + 4, 3, "older than the delete", 3 * MINUTE))
    assert copy.rows == {1: "newest", 2: "old"}


def test_where_a_table_began_says_nothing_about_the_order_after_a_restart(copy: Copy) -> None:
    copy.table.set_properties({"lakebed.source_begin": str(OLD)})
    restarted(copy).feed(
        change(NEW + 9, 1, "newest", 4 * MINUTE, sequence='[null,"1"]'),
        change(NEW + 5, 1, "late", 3 * MINUTE, sequence='[null,"1"]'),
    )
    assert copy.rows[1] == "newest"


def test_a_topic_that_is_read_again_or_made_anew_gives_the_same_rows_after_a_restart(copy: Copy) -> None:
    copy.source.ids["t"] = "one"
    restarted(copy.read()).feed(*SENT_AGAIN)
    rows = copy.rows
    for _ in range(2):
        copy.table.maintenance.rewind("t", 0)
        assert copy.read().rows == rows
    copy.source.skips_losses = True
    copy.source.make_anew("t", "two")
    assert copy.feed(change(NEW + 30, 1, "later", 5 * MINUTE)).rows == {**rows, 1: "later"}


def test_an_order_may_be_restarted_again_and_again(copy: Copy) -> None:
    for number in range(1, 5):
        copy.feed(change(100 - number, 1, "lower", (10 * number) * MINUTE))
        assert copy.rows[1] != "lower"
        copy.table.maintenance.restart_order()
        copy.feed(change(100 - number, 1, str(number), (10 * number + 1) * MINUTE))
        assert copy.rows[1] == str(number)


def test_a_batch_that_was_read_before_the_restart_is_read_again_with_it(copy: Copy) -> None:
    copy.source.add("t", 0, change(NEW, 1, "moved", 2 * MINUTE))
    batch = copy.ingest.batch(copy.source.planned())
    work = next(batch)
    written = here(work)
    copy.table.maintenance.restart_order()
    with pytest.raises(StopIteration):
        while True:
            written = here(batch.send(written))
    assert copy.rows[1] == "moved"


def test_the_order_of_arrival_can_not_be_restarted(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", COLUMNS, keys=["id"])
    with pytest.raises(InvalidInput, match="order of their arrival"):
        table.maintenance.restart_order()
    with pytest.raises(InvalidInput, match="no topic yet"):
        Copy(tmp_path / "u").table.maintenance.restart_order()


# -- who says so -------------------------------------------------------------------------------------------------------


def test_validate_and_the_status_of_a_database_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copy = Copy(tmp_path / "lake" / "public" / "t").feed(change(OLD, 1, "old", MINUTE))
    kafka = "source: {kind: kafka, topics: [t], config: {bootstrap.servers: 'nowhere:1'}}\nformat: debezium-json\n"
    Path("one.yml").write_text(f"table: {{path: {copy.table.path}, keys: [id], sequence_by: source.lsn}}\n{kafka}")
    assert main(["validate", "one.yml"]) == 0 and "warning" not in capsys.readouterr().out
    assert main(["status", "lake"]) == 0
    copy.feed(change(NEW, 1, "moved", 2 * MINUTE))
    assert main(["validate", "one.yml"]) == 0
    assert "# warning: changes are later by the source's clock" in capsys.readouterr().out
    assert main(["status", "lake"]) == 1
    assert main(["source", "restart-order", copy.table.path]) == 0


@pytest.mark.parametrize("is_moved", [True, False])
def test_validate_looks_at_the_newest_records_that_no_run_has_read_yet(copy: Copy, is_moved: bool) -> None:
    copy.source.add("t", 0, change(NEW if is_moved else OLD + 9, 1, "new", 2 * MINUTE))
    log = log_of(copy.table)
    reading = decoder("debezium-json", DecoderSchema.of_table(COLUMNS, ("id",), copy.order), {})
    found = list(warnings_of_topics(log.refresh(), reading, copy.source, copy.source.ends()))
    assert len(found) == is_moved


# -- when the finding ends ---------------------------------------------------------------------------------------------


def ask(copy: Copy, **more: Any) -> Resnapshot:
    log = log_of(copy.table)
    asked = Resnapshot(id="r", topic="t", asked_ms=log.now_ms() + 5, begin={0: 0}, **more)
    resnapshots.ask(log, asked)
    return asked


def end(copy: Copy) -> None:
    resnapshots.advance(log_of(copy.table), "r", lambda one: resnapshots.replace(one, state="ended", ended_ms=1))


def test_the_finding_ends_with_a_resnapshot_that_was_asked_for_later_and_not_with_time(copy: Copy) -> None:
    restarted(copy)
    week = Observer(copy.table.path, clock=lambda: log_of(copy.table).now_ms() / 1000 + 30 * 86_400)
    assert BEGAN in [one.check for one in week.look().findings]
    ask(copy, is_partial=True)
    end(copy)
    assert BEGAN in copy.findings
    ask(copy)
    assert BEGAN in copy.findings, "it has not ended"
    end(copy)
    assert BEGAN not in copy.findings


def test_the_finding_ends_when_the_table_is_emptied_or_somebody_says_so(copy: Copy) -> None:
    restarted(copy).table.truncate()
    assert copy.feed(change(5, 1, "low", 9 * MINUTE)).findings == [] and copy.rows == {1: "low"}
    assert copy.feed(change(3, 1, "lower", 19 * MINUTE)).findings == [BEGAN]
    assert copy.table.maintenance.resume() and copy.findings == []
    assert not remarks.dismiss(log_of(copy.table))


# -- at random ---------------------------------------------------------------------------------------------------------


@pytest.mark.few(1)
@seeds(3, quick=0)
def test_after_each_move_and_restart_the_table_is_what_the_source_is(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    copy = Copy(tmp_path / "t")
    place, ms, rows, sent = 10**9, MINUTE, dict[int, str](), list[dict[str, Any]]()
    for _ in range(25):
        some = []
        for _ in range(draw.randint(1, 8)):
            place, ms, id = place + draw.randint(1, 9), ms + draw.randint(0, 5), draw.randrange(6)
            rows[id] = f"{place} at {ms}"
            if draw.random() < 0.2:
                del rows[id]
            some.append(change(place, id, rows.get(id), ms))
        again = sent[-draw.randint(1, 9) :] if draw.random() < 0.3 else []
        copy.feed(*again, *some)
        sent += some
        if draw.random() < 0.3:
            copy.table.settle()
        assert copy.rows == rows and copy.findings == []
        if draw.random() < 0.2:  # the source moves: nothing of the earlier log is sent again
            place, ms, sent = draw.randint(1, place), ms + MINUTE, []
            copy.table.maintenance.restart_order()
