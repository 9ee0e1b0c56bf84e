"""A stream whose records need another schema of their table alters it and goes on, whatever crashes or comes between."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.errors import InvalidChanges, InvalidSchema, QuarantineRefused
from lakebed.ingest import stream as stream_module
from lakebed.ingest import table_batch
from lakebed.ingest.evolving import Evolution
from lakebed.ingest.stream import RangeIngest
from lakebed.operations.alter import alter
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.schema.change import SchemaChange
from lakebed.schema.fitting import EVOLUTIONS, EvolvePolicy
from lakebed.sources.files.settings import FilesSettings
from lakebed.sources.files.source import FileSource
from lakebed.sources.source import Bounds, Place, Range, RangeChanges
from lakebed.table import internals_of
from tests.decode.records import event, records, with_schema
from tests.ingest.crashes import Crash, dying
from tests.waiting import ended, started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = pa.schema([pa.field("id", pa.int64(), False), ("qty", pa.int32())])
ID = {"type": "int64", "field": "id", "optional": False}
QTY = {"type": "int32", "field": "qty", "optional": True}
WIDE = {**QTY, "type": "int64"}
COUPON = {"type": "string", "field": "coupon", "optional": True}
ALL = EvolvePolicy(allowed=frozenset(EVOLUTIONS), by_schema=True)
DEFAULT = EvolvePolicy(allowed=frozenset({"add", "relax"}), by_schema=True)


@dataclass(slots=True)
class Topic:
    """A topic of one partition, and the reader of its ranges."""

    values: list[Any] = field(default_factory=list)
    records_lost: int = 0
    step: int = 2
    skips_losses: bool = False
    name: str = "shop.orders"

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
        return [Range(self.name, 3, start.get("end", 0), end["end"], is_first=not start)]

    def bounds(self, places: Sequence[Place]) -> dict[Place, Bounds]:
        return {place: Bounds(earliest=0, starting=0, end=len(self.values)) for place in places}

    def impatient(self) -> Topic:
        return self

    def read(self, chosen: Range) -> Iterator[pa.Table]:
        whole = records(self.values)
        for first in range(chosen.start, chosen.end, self.step):
            yield whole.slice(first, min(self.step, chosen.end - first))


class Planned:
    """Batches by their ends."""

    def __init__(self, ends: Sequence[int]) -> None:
        self.ends = list(ends)

    def of_batch(self, batch_id: int) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"end": self.ends[batch_id - 1]} if batch_id else {}, {"end": self.ends[batch_id]}


FRAME: Any = SimpleNamespace(
    sparkSession=SimpleNamespace(sparkContext=SimpleNamespace(getLocalProperty=lambda name: "query", master="local[1]"))
)


class Stream:
    """One execution of a pipeline: a process that reads a topic into a table, batch by batch."""

    def __init__(
        self,
        table: lakebed.Table,
        values: list[Any],
        policy: EvolvePolicy = DEFAULT,
        *,
        ends: Sequence[int] = (),
        format: str = "debezium-json",
        topic: str = "shop.orders",
        alter: Callable[[SchemaChange, str], object] | None = None,
    ) -> None:
        internals = internals_of(lakebed.open(table.path))
        self.log = internals.log
        snapshot = self.log.refresh()
        columns = DecoderSchema.of_table(snapshot.logical_schema, ("id",), None, policy)
        self.tasks = 0
        self.topic = Topic(values, name=topic)
        changes = RangeChanges(self.topic, decoder(format, columns))
        evolution = Evolution(self.log, alter or self.alter, "its records need it")
        documents: Any = Planned(ends or [len(values)])
        self.ingest = RangeIngest(
            table.path, self.log, changes, "table", internals.quarantine_log, evolution=evolution, documents=documents
        )

    def alter(self, change: SchemaChange, reason: str) -> None:
        alter(self.log, change, reason=reason)

    def run(self, batch_id: int = 0) -> None:
        write = table_batch.in_this_process

        def counted(*args: Any) -> Any:
            self.tasks += 1
            return write(*args)

        with patch.object(table_batch, "in_this_process", counted):
            self.ingest(FRAME, batch_id)


def table_at(tmp_path: Path, columns: pa.Schema = COLUMNS) -> lakebed.Table:
    return lakebed.create(tmp_path / "t", columns, keys=["id"])


def created(fields: list[dict[str, Any]], **after: Any) -> dict[str, Any]:
    return with_schema(event("c", after), fields)


def rows(table: lakebed.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_arrow().to_pylist())


def quarantined(table: lakebed.Table) -> list[int]:
    path = table.path + QUARANTINE_SUFFIX
    return sorted(lakebed.open(path).to_arrow()["offset"].to_pylist()) if Path(path, "_delta_log").exists() else []


OLD = [created([ID, QTY], id=n, qty=n) for n in (1, 2, 3)]
NEW = [created([ID, QTY, COUPON], id=n, qty=n, coupon=f"c{n}") for n in (4, 5, 6)]
BOTH = [(1, 1, None), (2, 2, None), (3, 3, None), (4, 4, "c4"), (5, 5, "c5"), (6, 6, "c6")]


@pytest.mark.parametrize("order", [1, -1])
def test_a_column_that_came_in_the_middle_of_a_batch_is_added_and_nothing_is_lost(tmp_path: Path, order: int) -> None:
    table = table_at(tmp_path)
    Stream(table, (OLD + NEW)[::order]).run()
    assert rows(table) == BOTH
    assert table.schema.field("coupon").type == pa.string()
    assert table.inspect.timeline()["operation"].to_pylist().count("STREAMING UPDATE") == 1


def test_a_change_costs_one_more_reading_of_its_batch_and_later_batches_nothing(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    tip = {"type": "int64", "field": "tip", "optional": True}
    stream = Stream(table, [*OLD, *NEW, *OLD, created([ID, WIDE, tip], id=9, tip=1)], ALL, ends=[3, 6, 9, 10])
    tasks = []
    for batch_id in range(4):
        before = stream.tasks
        stream.run(batch_id)
        tasks.append(stream.tasks - before)
    assert tasks == [1, 2, 1, 2]
    # Two changes of one batch, of two tables of records, cost one reading more too.
    stream = Stream(table_at(tmp_path / "again"), [*OLD, *NEW, created([ID, WIDE, tip], id=9, tip=1)], ALL)
    stream.run()
    assert stream.tasks == 2


def test_decoding_ends_where_a_new_schema_is_met(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    stream = Stream(table, [*OLD, *NEW, *NEW, *NEW])
    decoded = 0
    plain = DebeziumJson.decode

    def counted(self: Any, given: pa.Table, *rest: Any) -> Any:
        nonlocal decoded
        decoded += len(given)
        return plain(self, given, *rest)

    with patch.object(DebeziumJson, "decode", counted):
        stream.run()
    assert decoded == 4 + 12  # those before the new schema and with it; then all of them


def test_a_widening_and_values_that_need_it_come_in_one_batch(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    Stream(table, [*OLD, created([ID, WIDE], id=7, qty=2**40)], ALL).run()
    assert (7, 2**40) in rows(table)
    assert table.schema.field("qty").type == pa.int64()


def test_without_the_permission_to_widen_the_value_decides(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    Stream(table, [created([ID, WIDE], id=7, qty=7), created([ID, WIDE], id=8, qty=2**40)], DEFAULT).run()
    assert (rows(table), quarantined(table)) == ([(7, 7)], [1])


def test_what_was_quarantined_fits_after_somebody_altered_the_table(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    values = [created([ID, WIDE], id=7, qty=7), created([ID, WIDE], id=8, qty=2**40)]
    stream = Stream(table, values, DEFAULT)
    stream.run()
    table.alter(widen={"qty": "long"})
    columns = DecoderSchema.of_table(COLUMNS, ("id",), None, DEFAULT)
    done = internals_of(table).replay_quarantine(decoder("debezium-json", columns))
    assert (done.records, rows(table), quarantined(table)) == (1, [(7, 7), (8, 2**40)], [])


def test_a_replay_of_the_quarantine_alters_the_table_too(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    Stream(table, OLD + NEW, EvolvePolicy(by_schema=True)).run()
    assert quarantined(table) == [3, 4, 5]
    columns = DecoderSchema.of_table(COLUMNS, ("id",), None, DEFAULT)
    done = internals_of(table).replay_quarantine(decoder("debezium-json", columns))
    assert (done.records, rows(table), quarantined(table)) == (3, BOTH, [])


def test_a_stream_can_end_at_a_record_that_does_not_fit(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    stream = Stream(table, OLD + NEW, EvolvePolicy(by_schema=True, on_mismatch="fail"))
    with pytest.raises(QuarantineRefused, match=r"3 records do not fit the table; the first: .*coupon"):
        stream.run()
    assert (rows(table), quarantined(table)) == ([], [])
    table.alter(add={"coupon": "string"})
    stream.run()
    assert rows(table) == BOTH


def test_rescued_values_make_their_column_and_the_row_comes_in(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    values = [{"id": 1, "qty": 1}, {"id": 2, "qty": "many", "coupon": "A"}]
    stream = Stream(table, [*values, *values[:1]], EvolvePolicy(on_mismatch="rescue"), format="json", ends=[1, 2, 3])
    stream.run()
    assert table.schema.names == ["id", "qty"]
    stream.run(1)
    stream.run(2)
    found = {row[0]: row[1:] for row in rows(table)}
    assert found[1] == (1, None)
    assert (found[2][0], json.loads(found[2][1])) == (None, {"qty": "many", "coupon": "A"})
    assert (stream.tasks, quarantined(table)) == (4, [])


# -- others, at the same time ------------------------------------------------------------------------------------------


def test_a_table_that_somebody_altered_stops_no_stream(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    stream = Stream(table, OLD, ends=[1, 2, 3])
    stream.run(0)
    table.alter(add={"note": "string"}, widen={"qty": "long"})
    stream.run(1)
    table.alter(drop=["note"], rename={"qty": "pieces"})
    stream.run(2)
    assert table.schema.names == ["id", "pieces"]
    assert rows(table) == [(1, 1), (2, 2), (3, 3)]


def test_a_table_that_is_altered_while_a_batch_is_written_takes_it(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    stream = Stream(table, OLD)
    write = table_batch.in_this_process

    def meanwhile(*args: Any) -> Any:
        written = write(*args)
        table.alter(add={"coupon": "string"}, widen={"qty": "long"})
        return written

    with patch.object(table_batch, "in_this_process", meanwhile):
        stream.ingest(FRAME, 0)
    assert rows(table) == BOTH[:3]


def test_two_processes_that_meet_a_schema_at_once_agree(tmp_path: Path) -> None:
    for attempt in range(5):
        table = table_at(tmp_path / str(attempt))
        barrier = threading.Barrier(2)
        errors: list[BaseException] = []
        tip = {"type": "int64", "field": "tip", "optional": True}
        small = {**tip, "type": "int32"}

        def run(
            values: list[Any], topic: str, table: Any = table, barrier: Any = barrier, errors: Any = errors
        ) -> None:
            def together(change: SchemaChange, reason: str) -> None:
                if not met:  # at once only the first time: one of them may need a second change
                    met.append(change)
                    barrier.wait()
                stream.alter(change, reason)

            met: list[SchemaChange] = []
            stream = Stream(table, values, ALL, alter=together, topic=topic)
            try:
                stream.ingest(FRAME, 0)
            except BaseException as error:
                errors.append(error)

        one = [created([ID, QTY, small], id=1, tip=1)]
        other = [created([ID, QTY, tip, COUPON], id=2, tip=2**40, coupon="x")]
        threads = [threading.Thread(target=run, args=args) for args in ((one, "one"), (other, "other"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert table.schema.field("tip").type == pa.int64()
        named = [{name: row[name] for name in ("id", "tip", "coupon")} for row in table.to_arrow().to_pylist()]
        assert sorted(named, key=lambda row: row["id"]) == [
            {"id": 1, "tip": 1, "coupon": None},
            {"id": 2, "tip": 2**40, "coupon": "x"},
        ]
        assert quarantined(table) == []


def test_what_the_table_refuses_is_asked_for_once_and_its_records_are_set_aside(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    asked = []

    def refusing(change: SchemaChange, reason: str) -> None:
        asked.append(change)
        if "coupon" in change.add:
            raise InvalidSchema("no coupons here")
        alter(stream.log, change, reason=reason)

    stream = Stream(table, [*NEW, created([ID, WIDE], id=9, qty=9), *NEW], ALL, ends=[4, 7], alter=refusing)
    stream.run(0)
    count = len(asked)
    stream.run(1)
    assert len(asked) == count
    assert table.schema.field("qty").type == pa.int64()
    assert (rows(table), quarantined(table)) == ([(9, 9)], [0, 1, 2, 4, 5, 6])


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [OLD + NEW, NEW + OLD])
def test_a_process_that_dies_between_the_table_and_the_batch_loses_and_doubles_nothing(
    tmp_path: Path, values: list[Any]
) -> None:
    table = table_at(tmp_path)
    with dying(table_batch, "commit_written", "before"), pytest.raises(Crash):
        Stream(table, values).run()
    assert table.schema.names == ["id", "qty", "coupon"]
    assert rows(table) == []
    again = Stream(table, values)
    again.run()
    assert (rows(table), again.tasks) == (BOTH, 1)
    again = Stream(table, values)
    again.run()
    assert (rows(table), again.tasks) == (BOTH, 0)


def test_a_process_that_dies_before_the_table_is_altered_alters_it_next_time(tmp_path: Path) -> None:
    table = table_at(tmp_path)

    def dies(change: SchemaChange, reason: str) -> None:
        raise Crash

    with pytest.raises(Crash):
        Stream(table, OLD + NEW, alter=dies).run()
    Stream(table, OLD + NEW).run()
    assert rows(table) == BOTH


# -- in tasks of Spark -------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
def test_tasks_report_a_schema_and_a_dataframe_keeps_its_columns(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "RECORDS_HERE_MAX", 0)  # so that not this process reads these few
    table = table_at(tmp_path)
    folder = tmp_path / "lines"
    folder.mkdir()

    def run(number: int, values: list[Any]) -> int:
        (folder / f"{number}.jsonl").write_text("\n".join(json.dumps(value) for value in values))
        source = FileSource(FilesSettings(folder=str(folder), format="debezium-json", table=table.path))
        shape = DecoderSchema.of_table(table.schema, ("id",), None, DEFAULT)
        changes = RangeChanges(source.reader, decoder("debezium-json", shape))
        ingest = partial(
            internals_of(table).start_ingest, changes, source.stream(spark), trigger={"availableNow": True}
        )
        ended(query := started(ingest))
        return len(spark.sparkContext.statusTracker().getJobIdsForGroup(str(query.runId)))

    assert [run(0, OLD), run(1, NEW), run(2, OLD[:1])] == [1, 2, 1]
    assert rows(table) == BOTH
    assert "stream ingest" in str(table.inspect.schemas().to_pylist()[-1])

    (tmp_path / "rows").mkdir()
    given = {"id": [7, 8], "pieces": pa.array([7, 8], pa.int32()), "coupon": ["c7", "c8"], "tag": ["t7", None]}
    more = pa.table(given)
    pq.write_table(more, tmp_path / "rows" / "1.parquet")
    frame = spark.readStream.schema("id long, pieces int, coupon string, tag string").parquet(str(tmp_path / "rows"))
    names = {"pieces": "qty"}
    for number in (1, 2):
        ingest = partial(
            table.ingest,
            frame,
            evolve=["add"],
            on_mismatch="rescue",
            renamed_columns=names,
            query_name="rows",
            trigger={"availableNow": True},
        )
        ended(started(ingest))
        if number == 1:
            table.alter(rename={"tag": "label"})
            pq.write_table(more.slice(0, 1), tmp_path / "rows" / "2.parquet")
    table.alter(add={"later": "string"})
    with pytest.raises(InvalidChanges, match="lack the column 'later'"):
        ingest()
    assert table.schema.names == ["id", "qty", "coupon", "label", "_rescued", "later"]
    assert rows(table)[6:] == [(7, 7, "c7", "t7", None, None), (8, 8, "c8", None, None, None)]


# -- in processes of their own -----------------------------------------------------------------------------------------


def run_and_die(path: str) -> None:
    """A process that is killed after it altered the table, before it commits its batch."""

    def kill(*args: Any, **kwargs: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with patch.object(table_batch, "commit_written", kill):
        Stream(lakebed.open(path), OLD + NEW).run()


def run_at_once(path: str, topic: str, start: Any) -> None:
    """A process that meets the new schema at the same moment as another one."""

    def together(change: SchemaChange, reason: str) -> None:
        start.wait()
        alter(internals_of(lakebed.open(path)).log, change, reason=reason)

    own = [created([ID, QTY, COUPON], id=10 + len(topic), qty=1, coupon=topic)]
    Stream(lakebed.open(path), OLD + own, alter=together, topic=topic).run()


@pytest.mark.slow
def test_killed_and_racing_processes_agree_on_the_schema_and_lose_nothing(tmp_path: Path) -> None:
    spawning = multiprocessing.get_context("spawn")
    table, raced = table_at(tmp_path / "killed"), table_at(tmp_path / "raced")
    start = spawning.Barrier(2)
    dying = spawning.Process(target=run_and_die, args=(table.path,))
    racing = [spawning.Process(target=run_at_once, args=(raced.path, name, start)) for name in ("one", "other")]
    for process in (dying, *racing):
        process.start()
    for process in (dying, *racing):
        process.join()
    assert [process.exitcode for process in (dying, *racing)] == [-signal.SIGKILL, 0, 0]
    assert (table.schema.names, rows(table)) == (["id", "qty", "coupon"], [])
    again = Stream(table, OLD + NEW)
    again.run()
    assert (rows(table), again.tasks) == (BOTH, 1)
    assert raced.schema.names == ["id", "qty", "coupon"]
    assert rows(raced) == [*BOTH[:3], (13, 1, "one"), (15, 1, "other")]
    assert raced.inspect.timeline()["operation"].to_pylist().count("ALTER TABLE") == 1
