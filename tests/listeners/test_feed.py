"""The feed: whoever reads from a cursor gets every event once and in order, or is shown what was lost."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from lakebed.discovery import SECONDS_MIN
from lakebed.errors import Corrupt, InvalidInput, TableNotFound, VersionNotFound
from lakebed.listeners import feed as feed_module
from lakebed.listeners.event_types import Dropped, Resync, TableEvent
from lakebed.listeners.feed import CHECK_SECONDS, DISCOVERY_SECONDS, LOOK_SECONDS_MAX, At, Cursor, Feed
from lakebed.log.log_reader import LogReader
from lakebed.log.stores import LocalLogStore, commit_name, open_store
from lakebed.log.table_log import TableLog
from lakebed.positions.point_log import FOLDER, PointLog
from tests.clock import Clock
from tests.listeners.worlds import TABLES, World
from tests.positions.test_point_log import point
from tests.worlds import seeds


class Reader:
    """Reads from a cursor, and collects. ``feed`` may be a new one at any time."""

    def __init__(self, feed: Feed, cursor: Cursor | None = None) -> None:
        self.feed = feed
        self.cursor = cursor or Cursor()
        self.events: list[TableEvent] = []

    def read(self, limit: int = 1000) -> bool:
        """Whether there may be more to read at once."""
        batch = self.feed.read(self.cursor, limit)
        assert not batch.errors
        self.events += batch.events
        moved = batch.cursor is not self.cursor
        self.cursor = Cursor.of_text(batch.cursor.to_text())
        return batch.more or moved

    def read_all(self, clock: Clock, limit: int = 1000) -> list[TableEvent]:
        """Everything there is."""
        while self.read(limit) or self.read(limit):
            clock.now += LOOK_SECONDS_MAX
        return self.events


def feed_of(world: World, clock: Clock) -> Feed:
    return Feed(str(world.root), clock=clock)


def by_table(events: Iterable[TableEvent]) -> dict[str, list[TableEvent]]:
    out: dict[str, list[TableEvent]] = {}
    for event in events:
        out.setdefault(event.table, []).append(event)
    return out


def expected(world: World, name: str) -> list[TableEvent]:
    recorded = world.events[world.table_id(name)]
    return [event for version in sorted(recorded) for event in recorded[version]]


@seeds(4)
def test_any_chunks_give_the_same_stream(seed: int, tmp_path: Path) -> None:
    rng, clock = random.Random(seed), Clock(0.0)
    world = World(tmp_path / "lake", rng)
    for name in TABLES:
        world.create(name)
    shared = feed_of(world, clock)
    readers = [Reader(shared), Reader(shared), Reader(feed_of(world, clock))]
    for _ in range(40):
        world.commit(rng.choice(list(TABLES)))
        clock.now += rng.choice([0.0, 0.3, 2.0, 100.0])
        if rng.random() < 0.7:
            reader = rng.choice(readers)
            reader.read(rng.choice([1, 2, 5, 1000]))
            reader.feed = rng.choice([reader.feed, reader.feed, shared, feed_of(world, clock)])
    clock.now += DISCOVERY_SECONDS + LOOK_SECONDS_MAX
    wanted = {name: expected(world, name) for name in TABLES}
    for reader in (*readers, Reader(feed_of(world, clock))):
        clock.now += LOOK_SECONDS_MAX
        assert by_table(reader.read_all(clock, rng.choice([1, 3, 1000]))) == wanted, seed
        assert {name: at.version for name, at in reader.cursor.tables.items()} == {
            name: log.refresh().version for name, log in world.logs.items()
        }


@pytest.mark.few(3)
@seeds(6)
def test_nothing_is_lost_in_silence_when_logs_are_cleaned_and_tables_made_anew(seed: int, tmp_path: Path) -> None:
    rng, clock = random.Random(seed), Clock(0.0)
    world = World(tmp_path / "lake", rng)
    world.create("orders")
    shared = feed_of(world, clock)
    readers = [Reader(shared), Reader(shared), Reader(feed_of(world, clock))]
    for _ in range(40):
        name = rng.choice(list(TABLES))
        action = rng.choice(["commit"] * 6 + ["clean", "drop"])
        if name not in world.logs:
            world.create(name)
        elif action == "clean":
            world.clean(name)
        elif action == "drop" and len(world.logs) > 1:
            world.drop(name)
            if rng.random() < 0.5:
                world.create(name)
        else:
            world.commit(name)
        clock.now += rng.choice([0.0, 0.3, 2.0, 100.0, 700.0])
        reader = rng.choice(readers)
        reader.read(rng.choice([1, 2, 5, 1000]))
        reader.feed = rng.choice([reader.feed, shared, feed_of(world, clock)])
    for reader in readers:
        for _ in range(3):  # a table that is gone is noticed at the discovery, or at the check
            clock.now += CHECK_SECONDS
            reader.read_all(clock)
        for name, events in by_table(reader.events).items():
            check_stream(world, name, events, reader.cursor.tables.get(name))
        assert reader.cursor.tables.keys() == world.logs.keys(), seed


def check_stream(world: World, name: str, events: list[TableEvent], at: At | None) -> None:
    """Each event follows the one before; where one does not, Resync or Dropped says so. The end is the table as it is.

    ``seen``: the version of the last event; the reader may know later ones that have no event, up to ``version``.
    """
    table_id, seen, version = "", -1, -1
    left = iter(events)
    for event in left:
        if isinstance(event, Dropped):
            assert event.table_id == table_id and seen <= event.version <= version
            table_id, seen, version = "", -1, -1
            continue
        if isinstance(event, Resync):
            assert event.lost_after is None if seen < 0 else seen <= (event.lost_after or 0) <= version
            assert not table_id or (event.table_id == table_id and event.version > seen)
        else:
            recorded = world.events[event.table_id]
            assert event.version == version + 1
            group = [event] + [next(left) for _ in recorded[event.version][1:]]
            assert tuple(group) == recorded[event.version]
            assert event.table_id == (table_id or event.table_id)
        table_id, seen = event.table_id, event.version
        version = skip_silent(world.events[table_id], seen)
    if name in world.logs:
        newest = world.logs[name].refresh()
        assert (table_id, at.version if at else None, version) == (newest.metadata.id, newest.version, newest.version)
    else:
        assert table_id == ""


def skip_silent(recorded: dict[int, tuple[TableEvent, ...]], version: int) -> int:
    """The newest version after this one up to which no commit has an event."""
    while version + 1 in recorded and not recorded[version + 1]:
        version += 1
    return version


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "lake", random.Random(0))


def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests of all logs from now on."""
    made: list[str] = []
    for method in ("read", "list_from"):
        plain = getattr(LocalLogStore, method)

        def counted(self: LocalLogStore, *args: str, plain: object = plain) -> object:
            made.append(args[0])
            return plain(self, *args)  # type: ignore[operator]

        monkeypatch.setattr(LocalLogStore, method, counted)
    return made


def five_readers(world: World) -> tuple[Clock, list[Reader]]:
    """Readers of one feed, who have read all that there is."""
    clock = Clock(0.0)
    world.create("orders")
    feed = feed_of(world, clock)
    readers = [Reader(feed) for _ in range(5)]
    for reader in readers:
        reader.read_all(clock)
    return clock, readers


def test_an_idle_table_costs_one_request_a_look_and_readers_share_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, readers = five_readers(world)
    made, looks = requests(monkeypatch), 0
    checks = 0
    for _ in range(3600):
        clock.now += 1.0
        before = len(made)
        for reader in readers:
            reader.read()
        looks += len(made) > before
        checks += len(made) > before + 1
    assert 60 <= looks <= 100 and checks == 6  # every 60 s after ten minutes; what a check adds, every ten minutes
    assert len(made) == looks + 2 * checks


def test_a_commit_is_read_once_for_all_readers_and_found_within_a_second(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, readers = five_readers(world)
    made = requests(monkeypatch)
    for _ in range(10):
        world.commit("orders")
        clock.now += LOOK_SECONDS_MAX
        made.clear()
        for reader in readers:
            reader.read()
        assert len(made) == 3  # the commit, the one after it that is missing, and the one before it that must be there
        assert len({at.version for reader in readers for at in reader.cursor.tables.values()}) == 1
        world.commit("orders")
        clock.now += SECONDS_MIN
        assert readers[0].read()


@pytest.mark.parametrize("kept_max", [4, 64])
def test_a_reader_from_long_ago_takes_nothing_from_those_who_read_what_is_new(
    kept_max: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "_AT_ONCE", 3)
    monkeypatch.setattr(feed_module, "_KEPT_MAX", kept_max)
    clock, readers = five_readers(world)
    for _ in range(9):
        world.commit("orders")
    clock.now += LOOK_SECONDS_MAX
    for reader in readers:
        while reader.read():
            pass
    assert Reader(readers[0].feed).read(), "there is more than it has read"
    made = requests(monkeypatch)
    for reader in readers:
        reader.read()
    assert len(made) == 1  # the commit that is missing; one that is no longer kept would be looked for too


def test_a_poke_ends_the_pause(world: World) -> None:
    clock = Clock(0.0)
    world.create("orders")
    reader = Reader(feed_of(world, clock))
    reader.read_all(clock)
    clock.now += 3600.0
    reader.read_all(clock)
    for place in ("orders", str(world.folder("orders"))):
        world.commit("orders")
        assert not reader.read()
        reader.feed.poke(place)
        assert reader.feed.pause_seconds() == 0.0 and reader.read()
    reader.feed.poke("public.items")  # not known yet
    world.create("public.items")
    assert reader.read() and by_table(reader.events).keys() == {"orders", "public.items"}


def test_to_find_no_new_table_among_a_thousand_takes_a_few_listings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1000):
        (tmp_path / f"public/t{number}/_delta_log").mkdir(parents=True)
    clock, listed = Clock(0.0), list[str]()
    feed = Feed(str(tmp_path), clock=clock)
    assert len(feed.tables()) == 1000
    plain = feed_module.Folders.below
    monkeypatch.setattr(feed_module.Folders, "below", lambda self, at="": listed.append(at) or plain(self, at))
    clock.now += DISCOVERY_SECONDS
    assert len(feed.tables()) == 1000
    assert sorted(listed) == ["", FOLDER, "public"]


def test_a_cursor_of_a_version_alone_goes_on_after_it(world: World) -> None:
    world.create("orders")
    for _ in range(9):
        world.commit("orders")
    feed = Feed(str(world.folder("orders")))
    batch = feed.read(Cursor({"orders": At(4)}))
    assert list(batch.events) == [event for event in expected(world, "orders") if event.version > 4]
    assert batch.cursor.tables["orders"].table_id == world.table_id("orders")
    with pytest.raises(VersionNotFound, match="there is no version 100: the newest is 9"):
        raise feed.read(Cursor({"orders": At(100)})).errors["orders"]
    world.clean("orders")
    [resync, *_] = Feed(str(world.folder("orders"))).read(Cursor({"orders": At(4)})).events
    assert isinstance(resync, Resync) and resync.lost_after == 4


def test_what_comes_after_now_is_read_from_now(world: World) -> None:
    world.create("orders")
    world.commit("orders")
    clock = Clock(0.0)
    feed = feed_of(world, clock)
    now = feed.newest()
    assert feed.read(now).events == ()
    world.commit("orders")
    world.create("plain")
    clock.now += DISCOVERY_SECONDS
    events = feed.read(now).events
    assert {event.table for event in events} == {"orders", "plain"} or expected(world, "orders")[-1].version < 2
    assert all(event.version == 2 for event in events if event.table == "orders")


def test_a_busy_table_keeps_no_other_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.rng, "choice", lambda kinds: kinds[0])  # each commit has events
    clock = Clock(0.0)
    for name in ("orders", "plain"):
        world.create(name)
    feed = feed_of(world, clock)
    cursor, seen = feed.newest(), set[str]()
    for _ in range(4):
        for name in ("orders", "plain"):
            world.commit(name)
        clock.now += LOOK_SECONDS_MAX
        batch = feed.read(cursor, limit=1)
        cursor, seen = batch.cursor, seen | {event.table for event in batch.events}
    assert seen == {"orders", "plain"}


def test_a_damaged_table_stops_no_other_and_goes_on_when_it_is_mended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(0.0)
    for name in ("orders", "plain"):
        world.create(name)
        world.commit(name)
    file = world.folder("orders") / commit_name(1)
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    feed = feed_of(world, clock)
    batch = feed.read(Cursor())
    assert isinstance(batch.errors["orders"], Corrupt) and {event.table for event in batch.events} == {"plain"}
    made = requests(monkeypatch)
    assert isinstance(feed.read(batch.cursor).errors["orders"], Corrupt) and not made, "it is asked again after a pause"
    file.write_bytes(whole)
    clock.now += LOOK_SECONDS_MAX
    rest = feed.read(batch.cursor)
    assert not rest.errors and by_table(rest.events)["orders"] == expected(world, "orders")


def test_points_are_events_of_the_database(world: World) -> None:
    points = PointLog(TableLog(open_store(f"{world.root}/{FOLDER}")))
    points.create()
    points.take(point(7, orders=2))
    world.create("orders")
    events = by_table(feed_of(world, Clock(0.0)).read(Cursor()).events)
    [reached] = events[FOLDER]
    assert (reached.kind, reached.version) == ("point_reached", 1)


def test_a_root_that_is_empty_or_gone_is_no_proof_that_its_tables_were_dropped(world: World, tmp_path: Path) -> None:
    clock = Clock(0.0)
    world.create("orders")
    reader = Reader(feed_of(world, clock))
    reader.read_all(clock)
    world.root.rename(tmp_path / "elsewhere")
    clock.now += CHECK_SECONDS
    with pytest.raises(TableNotFound, match="no folder with tables"):
        reader.read()
    (tmp_path / "elsewhere").rename(world.root)
    world.commit("orders")
    clock.now += CHECK_SECONDS
    assert by_table(reader.read_all(clock))["orders"] == expected(world, "orders")


@pytest.mark.parametrize("text", ["", "x", "!!!", "eJwDAAAAAAE", Cursor({"a": At(1)}).to_text()[:-4]])
def test_a_text_that_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is no cursor of a feed"):
        Cursor.of_text(text)


def test_a_cursor_of_a_thousand_tables_is_a_text_of_bounded_length() -> None:
    rng = random.Random(1)
    tables = {f"public.t{n}": At(n, rng.randbytes(16).hex(), rng.randbytes(16).hex()) for n in range(1000)}
    text = Cursor(tables).to_text()
    assert Cursor.of_text(text) == Cursor(tables)
    assert len(text) < 65_000


def test_a_commit_that_counts_for_nobody_is_no_event(world: World) -> None:
    """A writer that paused put its commit under a name that a cleanup had freed, and died before it deleted it."""
    clock = Clock(0.0)
    world.create("orders")
    reader = Reader(feed_of(world, clock))
    reader.read_all(clock)
    stray = (world.folder("orders") / commit_name(0)).read_bytes()
    for _ in range(4):
        world.commit("orders")
    log = LogReader(open_store(str(world.folder("orders"))))
    late = log.store.read(commit_name(1))
    world.clean("orders")
    reader.events.clear()
    log.store.put(commit_name(1), late)
    log.store.put(commit_name(0), stray)
    clock.now += CHECK_SECONDS
    while not any(isinstance(event, Resync) for event in reader.read_all(clock)):
        assert len(reader.events) < 10
        clock.now += CHECK_SECONDS
    assert reader.cursor.tables["orders"].version == world.logs["orders"].refresh().version


def test_a_place_without_a_digest_is_known_to_be_of_a_table_that_is_gone(world: World) -> None:
    world.create("orders")
    for _ in range(5):
        world.commit("orders")
    place = At(4, world.table_id("orders"))
    world.create("plain")
    world.drop("orders")
    world.create("orders")
    batch = feed_of(world, Clock(0.0)).read(Cursor({"orders": place}))
    assert not batch.errors
    assert [event.kind for event in batch.events if event.table == "orders"] == ["dropped", "created"]


def test_a_commit_of_another_table_under_the_next_name_is_no_event(world: World) -> None:
    """A writer of an earlier table left it behind, and has not deleted it yet."""
    clock = Clock(0.0)
    world.create("orders")
    world.create("plain")
    world.commit("plain")
    world.commit("orders")
    feed = feed_of(world, clock)
    reader = Reader(feed)
    reader.read_all(clock)
    before = len(reader.events)
    strays = LogReader(open_store(str(world.folder("plain")))).store.read(commit_name(1))
    store = open_store(str(world.folder("orders")))
    store.put(commit_name(2), strays)
    clock.now += CHECK_SECONDS
    reader.read_all(clock)
    assert len(reader.events) == before
    store.delete(commit_name(2))
    world.commit("orders")
    world.commit("orders")
    clock.now += CHECK_SECONDS
    assert by_table(reader.read_all(clock))["orders"] == expected(world, "orders")


def test_of_two_looks_at_once_none_leaves_commits_that_the_log_no_longer_has(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody puts another log in the place of one while it is read, as a copy that is brought back would be."""
    monkeypatch.setattr(world.rng, "choice", lambda kinds: kinds[0])  # each commit has events
    world.create("orders")
    here = feed_of(world, Clock(0.0)).newest()
    first, second = (world.folder("orders") / commit_name(version) for version in (1, 2))
    world.commit("orders")
    stale = first.read_bytes()
    first.unlink()
    world.logs["orders"] = TableLog(open_store(str(world.folder("orders"))), world.clock)
    world.commit("orders")
    world.commit("orders")
    brought = first.read_bytes(), second.read_bytes()
    first.write_bytes(stale)
    second.unlink()
    opened: list[str] = []

    def open_log(root: str) -> LogReader:
        opened.append(root)
        if len(opened) == 1:
            assert feed.read(here).cursor.tables["orders"].version == 1, "the other look, which ends first"
            first.write_bytes(brought[0])
            second.write_bytes(brought[1])
        return LogReader(open_store(root))

    feed = Feed(str(world.root), open_log=open_log, clock=Clock(0.0))
    assert feed.read(here).cursor.tables["orders"].version == 2
    assert len(opened) == 2
    kept = feed.read(here, limit=1)
    assert len(opened) == 2, "nobody looks again at what is kept"
    assert kept == feed_of(world, Clock(0.0)).read(here, limit=1)
