"""Many tables, each on its own feet: no trouble of one stops or delays the others, and nothing is lost or read twice."""

from __future__ import annotations

import logging
import random
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

import lakebed
from lakebed.coordination.failing import Parked, park, parked_of, resume
from lakebed.errors import DataLoss, LakebedError, Retry, StoreUnavailable
from lakebed.failures import unwell_here
from lakebed.ingest import database_member, table_batch
from lakebed.ingest import database_runner as runner
from lakebed.ingest.database_batch import DatabaseIngest
from lakebed.ingest.database_member import FAILURES_MAX, Ignored
from lakebed.log.table_log import TableLog
from lakebed.sources.kafka.gathering import PlannedBatch
from lakebed.sources.source import Range
from tests.ingest.database.databases import Database, Gate, database, filled, more
from tests.internals import log_of
from tests.waiting import wait_until
from tests.worlds import seeds

ALL = ("a", "b", "c", "sick")


@contextmanager
def failing(owner: Any, name: str, topic: str, error: LakebedError | Callable[[], object]) -> Iterator[list[int]]:
    """A method that fails, or does something first, for the log of one table. Yields a list that grows with each call."""
    whole, calls = getattr(owner, name), []

    def called(log: TableLog, *args: Any, **named: Any) -> Any:
        if Path(log.root).name == topic:
            calls.append(1)
            if isinstance(error, LakebedError):
                raise error
            error()
        return whole(log, *args, **named)

    with patch.object(owner, name, called):
        yield calls


def refusing(topic: str) -> Any:
    return failing(TableLog, "commit", topic, StoreUnavailable("the store refuses writes"))


def catches_up(one: Database, topic: str, count: int) -> None:
    """Batch by batch all records come into the table, once."""
    wait_until(lambda: (one.batches(1), one.position(topic) == {0: count})[1], one.ingest.standings().__repr__)
    assert one.rows(topic) == list(range(count))


def everything(one: Database, count: int, topics: tuple[str, ...] = ALL) -> None:
    """All records are in all tables, once."""
    for topic in topics:
        assert one.rows(topic) == list(range(count)), topic


def test_each_topic_becomes_a_table_with_its_own_position(tmp_path: Path) -> None:
    source = filled(*ALL)
    with database(tmp_path, source) as one:
        one.batch()
        more(source, "a", 3)
        one.batch()
        assert one.position("a") == {0: 8} and one.position("b") == {0: 5}
        assert (one.rows("a"), one.rows("b")) == (list(range(8)), list(range(5)))
        assert one.table("a").version == 2 and one.table("b").version == 1
        assert set(one.states().values()) == {"live"}


def test_a_topic_that_is_no_table_is_asked_about_once_and_left_out_of_batches(tmp_path: Path) -> None:
    source, asked = filled("_heartbeat", "a"), []
    with database(tmp_path, source) as one:
        one.opening = asked.append
        one.batches(2)
        more(source, "_heartbeat", 1)
        assert one.planner.request.left_out == {"_heartbeat"}
        one.batches(2)
        assert asked.count("_heartbeat") == 1 and list(one.states()) == ["a"]


def test_a_table_whose_log_refuses_writes_stops_nobody_and_is_not_parked(tmp_path: Path) -> None:
    source = filled(*ALL)
    with database(tmp_path, source) as one:
        with refusing("sick") as calls:
            for number in range(FAILURES_MAX):
                one.batches(1)
                assert [one.position(topic) for topic in ALL] == [{0: 5 + number}] * 3 + [{}]
                for topic in ALL:
                    more(source, topic, 1)
            assert one.states() == {"a": "live", "b": "live", "c": "live", "sick": "waiting"} and calls
        one.ingest.wake()
        one.batch()
        assert one.position("sick") == {0: 5 + FAILURES_MAX}


def test_what_waits_is_tried_at_once_when_what_was_down_is_back(tmp_path: Path) -> None:
    with database(tmp_path, filled("a")) as one:
        with refusing("a") as calls:
            one.batches(5)
        assert len(calls) >= 5
        one.batch()
        assert one.position("a") == {}, "it waits for its pause"
        one.ingest.wake()
        one.batch()
        assert one.position("a") == {0: 5}


def test_a_table_whose_topic_is_made_anew_parks_at_once_and_its_log_says_why(tmp_path: Path) -> None:
    source = filled(*ALL)
    with database(tmp_path, source) as one:
        one.batch()
        source.make_anew("sick")
        one.planner.positions["sick", 0] = 0
        for topic in ALL:
            more(source, topic, 2)
        one.batches(1)
        everything(one, 7, ALL[:3])
        assert one.states()["sick"] == "parked"
        wait_until(lambda: parked_of(log_of(one.table("sick")).refresh()) is not None)
        parked = parked_of(log_of(one.table("sick")).refresh())
        assert parked is not None and parked.kind == "DataLoss" and "lost" in parked.error


def test_a_parked_table_stays_parked_in_the_next_run_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    source = filled(*ALL)
    with database(tmp_path, source) as one:
        one.batch()
        more(source, "sick", 10)
        more(source, "a", 10)
        with patch.object(runner, "run_here", refusing_work("sick", DataLoss("gone"))):
            one.batches(1)
        wait_until(lambda: parked_of(log_of(one.table("sick")).refresh()) is not None)
    with database(tmp_path, source) as two:
        more(source, "sick", 5)
        two.batches(2)
        assert two.states()["sick"] == "parked" and two.rows("sick") == list(range(5))
        assert two.planner.request.left_out == {"sick"}
        assert resume(log_of(lakebed.open(tmp_path / "sick"))) is True  # another process
        catches_up(two, "sick", 20)
        assert two.rows("a") == list(range(15))


def test_a_table_that_another_process_parks_is_left_alone_here_too(tmp_path: Path) -> None:
    source = filled("a", "b")
    with database(tmp_path, source) as one:
        one.batch()
        park(log_of(lakebed.open(tmp_path / "a")), Parked(error="gone", kind="DataLoss", since_ms=0))
        for _ in range(3):
            more(source, "a", 1)
            more(source, "b", 1)
            one.batches(1)
        assert one.states() == {"a": "parked", "b": "live"}
        assert one.position("a") == {0: 6} and one.position("b") == {0: 8}  # it notices when it reads the log next
        resume(log_of(lakebed.open(tmp_path / "a")))
        catches_up(one, "a", 8)


@pytest.mark.parametrize("first", ["it is written that it is parked", "it comes back"])
def test_a_table_that_is_dropped_parks_and_goes_on_when_it_is_back(tmp_path: Path, first: str) -> None:
    source, written, back = filled("a", "b"), threading.Event(), threading.Event()

    def parks(log: TableLog, parked: Parked) -> bool:
        if first == "it comes back":
            back.wait()
        try:
            return park(log, parked)
        finally:
            written.set()  # or refused, since the table is dropped

    with (
        database(tmp_path, source) as one,
        patch.object(database_member, "park", parks),
        closing(SimpleNamespace(close=back.set)),
    ):
        one.batch()
        lakebed.open(tmp_path / "a").drop()
        more(source, "a", 5)
        more(source, "b", 5)
        one.batches(1)
        assert one.states() == {"a": "parked", "b": "live"} and one.rows("b") == list(range(10))
        if first != "it comes back":
            written.wait()
        lakebed.undrop(tmp_path / "a")
        back.set()
        catches_up(one, "a", 10)
        assert parked_of(log_of(one.table("a")).refresh()) is None


@pytest.mark.parametrize("error", [Retry("no broker"), StoreUnavailable("no store"), DataLoss("all gone")])
def test_what_fails_for_all_tables_is_the_pipelines_trouble_and_parks_nobody(
    tmp_path: Path, error: LakebedError
) -> None:
    source = filled(*ALL)
    with database(tmp_path, source) as one:
        with patch.object(runner, "run_here", side_effect=error):
            one.batches(3 * FAILURES_MAX)
            assert set(one.states().values()) == {"waiting"} and type(one.ingest.trouble) is type(error)
            assert not any(parked_of(log_of(one.table(topic)).refresh()) for topic in ALL)
        one.batches(2)
        everything(one, 5)
        assert one.ingest.trouble is None and set(one.states().values()) == {"live"}


def test_a_table_that_can_not_be_made_waits_and_stops_nobody(tmp_path: Path) -> None:
    source = filled(*ALL)
    with database(tmp_path, source) as one:

        def impossible(topic: str) -> None:
            if topic == "sick":
                raise LakebedError("no type for the column")

        one.opening = impossible
        one.batches(3)
        everything(one, 5, ALL[:3])
        assert one.states()["sick"] == "waiting" and not (tmp_path / "sick").exists()
        assert unwell_here("sick")
        one.opening = lambda topic: None
        one.batches(1)
        everything(one, 5)
        assert not unwell_here("sick") and not unwell_here(str(tmp_path / "sick"))


def test_nobody_waits_for_a_table_whose_store_hangs_and_what_it_does_late_counts(tmp_path: Path) -> None:
    source, gate = filled(*ALL), Gate()
    with database(tmp_path, source, patience_seconds=0.3) as one:
        with failing(TableLog, "commit", "sick", gate):
            for number in range(4):
                for topic in ALL if number else ():
                    more(source, topic, 1)
                wanted = [{0: 5 + number}] * 3 + [{}]
                wait_until(lambda wanted=wanted: (one.batches(1), [one.position(each) for each in ALL] == wanted)[1])
                everything(one, 5 + number, ALL[:3])
            assert gate.waiting == 1  # no later batch reads it meanwhile
            assert one.rows("sick") == []
            gate.is_open.set()
            wait_until(lambda: one.position("sick") == {0: 5})
        catches_up(one, "sick", 8)


def test_the_last_tables_of_a_batch_are_read_on_while_the_next_one_is_planned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, gate = filled(*ALL), Gate()
    with database(tmp_path, source) as one:
        one.planner.more = True
        with failing(TableLog, "commit", "sick", gate):
            wait_until(lambda: (one.batches(1), all(one.position(each) for each in ALL[:3]) and gate.waiting)[1])
            everything(one, 5, ALL[:3])
            assert "takes longer" not in caplog.text
            assert (one.states()["sick"], one.rows("sick"), gate.waiting) == ("live", [], 1)
            one.planner.more = False
            gate.is_open.set()
            one.batches(1)
        assert one.ingest.is_idle(), "no other batch follows, so this one has waited for all"
        assert one.rows("sick") == list(range(5))
        assert not unwell_here(str(tmp_path / "sick"))


def test_a_table_that_hangs_while_the_next_batch_is_planned_is_left_behind_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, gate = filled(*ALL), Gate()
    with database(tmp_path, source, patience_seconds=0.3) as one, failing(TableLog, "commit", "sick", gate):
        one.planner.more = True
        wait_until(lambda: (one.batches(1), "sick takes longer than" in caplog.text)[1])
        gate.is_open.set()


def test_many_tables_that_hang_take_no_thread_from_the_others(tmp_path: Path) -> None:
    sick = [f"sick{number}" for number in range(2 * runner.THREADS)]
    source, gate = filled("a", *sick), Gate()
    with database(tmp_path, source, patience_seconds=0.3) as one:

        def hangs(topic: str) -> None:
            if topic in sick:
                gate()

        one.opening = hangs
        for _ in range(6):
            one.batches(1)
            more(source, "a", 1)
        catches_up(one, "a", 11)
        gate.is_open.set()
        wait_until(lambda: (one.batches(1), one.ingest.is_idle())[1])
        everything(one, 5, tuple(sick))


def test_the_source_fetches_at_once_what_threads_read_but_for_tables_that_failed(tmp_path: Path) -> None:
    source = filled(*ALL)
    fetched: list[dict[str, tuple[int, int]]] = []
    committed: list[dict[str, object]] = []

    @contextmanager
    def together(ranges: Sequence[Range]) -> Iterator[None]:
        fetched.append({each.topic: (each.start, each.end) for each in ranges})
        yield
        committed.append({topic: one.position(topic) for topic in ALL[:3]})

    with database(tmp_path, source, together=together) as one, refusing("sick"):
        one.batches(1)
        for topic in ALL:
            more(source, topic, 1)
        one.batches(1)
    assert fetched == [dict.fromkeys(ALL, (0, 5)), dict.fromkeys(ALL[:3], (5, 6))]
    assert committed == [{topic: {0: end} for topic in ALL[:3]} for end in (5, 6)]


def test_a_table_with_more_records_than_a_batch_takes_asks_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RECORDS_HERE_MAX", 10)
    source = filled("a", "b", count=25)
    with database(tmp_path, source) as one:
        one.batch()
        assert one.position("a") == {0: 10} and one.planner.request.tick == 1
        one.batch()
        one.batch()
        everything(one, 25, ("a", "b"))
        tick = one.planner.request.tick
        one.batch()
        assert one.planner.request.tick == tick and one.table("a").version == 3


@seeds(2)
def test_a_run_that_ends_between_the_commits_of_tables_loses_nothing(tmp_path: Path, seed: int) -> None:
    """Also where two processes keep the same tables at once, and tables fail or crash at random."""
    dice, source = random.Random(seed), filled(*ALL)
    for _ in range(4):
        with database(tmp_path, source) as one, database(tmp_path, source) as other:
            for _ in range(3):
                more(source, dice.choice(ALL), dice.randint(1, 20))
                with patch.object(table_batch, "commit_written", at_random(dice)):
                    dice.choice([one, other]).batches(1)
                if dice.random() < 0.3:
                    one.begin()  # the query was started again
            other.batches(dice.randint(0, 1))
    with database(tmp_path, source) as last:
        for topic in ALL:
            if (tmp_path / topic).exists() and resume(log_of(last.table(topic))):
                last.wait_for(topic, "live")
            catches_up(last, topic, source.topics[topic][0].end)


def at_random(dice: random.Random) -> Callable[..., Any]:
    """Commits of which some fail before, and some after they were done."""
    whole = table_batch.commit_written

    def committed(*args: Any, **named: Any) -> Any:
        when = dice.random()
        if when < 0.2:
            raise StoreUnavailable("before")
        result = whole(*args, **named)
        if when < 0.4:
            raise StoreUnavailable("after")
        return result

    return committed


def refusing_work(topic: str, error: LakebedError) -> Callable[..., Any]:
    """Work that fails for one table."""
    whole = runner.run_here

    def run(work: Any) -> Any:
        if any(one.topic == topic for one in work.ranges):
            raise error
        return whole(work)

    return run


def test_a_planner_that_cannot_be_asked_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    full = [True]

    def ask(request: object) -> None:
        if full[0]:
            raise OSError(28, "No space left on device", f"control-{uuid.uuid4().hex}")

    ingest = DatabaseIngest("lake", lambda topic, ranges: Ignored("no table"))
    ingest.close()  # so that no other thread asks
    ingest.begin(lambda batch_id: None, ask)  # type: ignore[arg-type,return-value]
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            ingest.ask()
        ingest.batch(
            PlannedBatch(number=1, tick=1, ranges=(), begin={}, left=())
        )  # starting the query again takes long
        full[0] = False
        ingest.ask()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "No space left" in said[0] and said[1] == "asking the planner for a batch works again"
