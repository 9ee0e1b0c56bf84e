"""Delivery: at least once and in order for each table, whatever fails, is killed, or is delivered by two processes at once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from lakebed.errors import InvalidInput, StoreUnavailable
from lakebed.listeners.delivery import Delivery
from lakebed.listeners.destination import Failure, Groups, Sent
from lakebed.listeners.event_types import TableEvent
from lakebed.listeners.feed import CHECK_SECONDS, DISCOVERY_SECONDS, LOOK_SECONDS_MAX, At, Cursor, Feed
from lakebed.listeners.listener import BEAT_SECONDS, DEAD_SECONDS, Listener, ListenerLog
from lakebed.listeners.targets import Webhook
from tests.clock import Clock
from tests.listeners.test_feed import by_table, check_stream, expected
from tests.listeners.worlds import TABLES, World
from tests.worlds import seeds

LISTENER = Listener(name="shop", target=Webhook(url="https://localhost/hook"))


class Receiver:
    """What a listener gets; ``first``: each event when it came first."""

    def __init__(self, rng: random.Random | None = None, loses_answers: bool = True) -> None:
        self.rng = rng
        self.loses_answers = loses_answers
        self.all: list[TableEvent] = []
        self.first: list[TableEvent] = []
        self._known: set[str] = set()
        self.refuses: set[str] = set()

    def send(self, groups: Groups) -> Mapping[str, Sent]:
        sent = {}
        for table, events in groups.items():
            for number, event in enumerate(events):
                failure = self._get(event)
                if failure is not None:
                    sent[table] = Sent(number, failure)
                    break
            else:
                sent[table] = Sent(len(events))
        return sent

    def close(self) -> None:
        """Nothing is held."""

    def _get(self, event: TableEvent) -> Failure | None:
        fails = self.rng is not None and self.rng.random() < 0.2
        if event.table in self.refuses:
            return Failure(reason=f"{event.table} is refused")
        came = not fails or (self.loses_answers and self.rng is not None and self.rng.random() < 0.5)
        if came:
            self.all.append(event)
            if event.id not in self._known:
                self._known.add(event.id)
                self.first.append(event)
        return Failure(reason="it fails", is_of_all=bool(self.rng and self.rng.random() < 0.3)) if fails else None


class Process:
    """One that may deliver, as long as the log says so or longer: it notices late."""

    def __init__(self, name: str, world: World, clock: Clock, receiver: Receiver) -> None:
        self.name = name
        self.clock = clock
        self.receiver = receiver
        self.log = ListenerLog(str(world.root), clock)
        self.feed = Feed(str(world.root), clock=clock)
        self.delivery: Delivery | None = None

    def beat(self) -> None:
        mine = self.log.beat(self.name, {})
        if "shop" not in mine or (self.delivery is not None and self.delivery.is_lost):
            self.delivery = None
        if "shop" in mine and self.delivery is None:
            self.delivery = Delivery(
                "shop",
                self.feed,
                self.receiver,
                self.log.cursor("shop"),
                wants_table=LISTENER.wants_table,
                wants=LISTENER.wants,
                keep=lambda moved: self.log.move("shop", self.name, moved),
                clock=self.clock,
            )

    def step(self) -> None:
        if self.delivery is not None and not self.delivery.is_lost:
            self.delivery.step()


@seeds(4)
def test_every_event_comes_at_least_once_and_in_order(seed: int, tmp_path: Path) -> None:
    """Processes are killed between a delivery and the commit of its cursor, pause, and take over from each other."""
    rng, clock = random.Random(seed), Clock(0.0)
    world, receiver = World(tmp_path / "lake", rng), Receiver(random.Random(seed))
    for name in TABLES:
        world.create(name)
    processes = [Process(name, world, clock, receiver) for name in "ab"]
    processes[0].log.put(LISTENER, Cursor())
    for step in range(60):
        world.commit(rng.choice(list(TABLES)))
        clock.now += rng.choice([0.0, 0.5, 2.0, BEAT_SECONDS, DEAD_SECONDS])
        place = rng.randrange(len(processes))
        match rng.choice(["beat", "step", "step", "step", "kill"]):
            case "beat":
                processes[place].beat()
            case "step":
                processes[place].step()
            case "kill":
                processes[place] = Process(f"{place}-{step}", world, clock, receiver)
    receiver.rng = None
    last = Process("last", world, clock, receiver)
    for _ in range(8):
        clock.now += DEAD_SECONDS + LOOK_SECONDS_MAX
        last.beat()
        for _ in range(4):
            clock.now += LOOK_SECONDS_MAX * 6
            last.step()
    assert by_table(receiver.first) == {name: expected(world, name) for name in TABLES}, seed
    assert last.log.cursor("shop").tables.keys() == TABLES.keys()
    assert len(receiver.all) >= len(receiver.first)


@pytest.mark.few(2)
@seeds(4)
def test_a_listener_that_fell_behind_is_shown_what_it_lost(seed: int, tmp_path: Path) -> None:
    """The logs are cleaned and tables are made anew while the receiver fails."""
    rng, clock = random.Random(seed), Clock(0.0)
    world, receiver = World(tmp_path / "lake", rng), Receiver(random.Random(seed), loses_answers=False)
    world.create("plain")
    process = Process("a", world, clock, receiver)
    process.log.put(LISTENER, Cursor())
    for _ in range(50):
        name = rng.choice(list(TABLES))
        if name not in world.logs:
            world.create(name)
        elif rng.random() < 0.15:
            world.clean(name)
        elif rng.random() < 0.1 and len(world.logs) > 1:
            world.drop(name)
        else:
            world.commit(name)
        clock.now += rng.choice([0.5, 2.0, BEAT_SECONDS, CHECK_SECONDS])
        process.beat()
        process.step()
    receiver.rng = None
    for _ in range(30):
        clock.now += CHECK_SECONDS + DISCOVERY_SECONDS
        process.step()
    kept = process.log.cursor("shop").tables
    for name, events in by_table(receiver.first).items():
        check_stream(world, name, whole_versions(world, events), kept.get(name))


def whole_versions(world: World, events: list[TableEvent]) -> list[TableEvent]:
    """Without events of a version of which only the first ones came before it was lost."""
    count = Counter((event.table_id, event.version) for event in events if event.index >= 0)
    return [
        event
        for event in events
        if event.index < 0 or count[event.table_id, event.version] == len(world.events[event.table_id][event.version])
    ]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "lake", random.Random(0))


def test_a_table_whose_events_are_refused_holds_up_no_other(world: World) -> None:
    clock, receiver = Clock(0.0), Receiver()
    for name in ("orders", "plain"):
        world.create(name)
    process = Process("a", world, clock, receiver)
    process.log.put(LISTENER, Cursor())
    process.beat()
    receiver.refuses = {"orders"}
    for _ in range(20):
        for name in ("orders", "plain"):
            world.commit(name)
        clock.now += LOOK_SECONDS_MAX
        process.step()
    assert by_table(receiver.all) == {"plain": expected(world, "plain")}
    assert process.delivery is not None and process.delivery.error == "orders is refused"
    assert process.delivery.behind_seconds(1_900_000_000_000) > 0
    receiver.refuses = set()
    clock.now += 1000.0
    process.step()
    assert by_table(receiver.all)["orders"] == expected(world, "orders")
    assert process.delivery.error == "" and process.delivery.behind_seconds(1_900_000_000_000) == 0


def test_a_listener_is_behind_while_a_send_is_under_way_and_outlives_whatever_it_raises(world: World) -> None:
    clock, behind = Clock(0.0), []

    class Raising(Receiver):
        def send(self, groups: Groups) -> Mapping[str, Sent]:
            assert process.delivery is not None
            behind.append(process.delivery.behind_seconds(1_900_000_000_000))
            raise UnicodeError("label empty or too long")

    world.create("orders")
    process = Process("a", world, clock, Raising())
    process.log.put(LISTENER, Cursor())
    process.beat()
    process.step()
    assert process.delivery is not None and process.delivery.error == "UnicodeError: label empty or too long"
    assert behind[0] > 0
    process.receiver.__class__ = Receiver
    clock.now += 1000.0
    process.step()
    assert by_table(process.receiver.all)["orders"] == expected(world, "orders")
    assert process.delivery.error == "" and process.delivery.behind_seconds(1_900_000_000_000) == 0


def test_one_process_delivers_and_another_takes_over_when_it_is_silent(world: World) -> None:
    clock, receiver = Clock(0.0), Receiver()
    world.create("orders")
    first, second = (Process(name, world, clock, receiver) for name in "ab")
    first.log.put(LISTENER, Cursor())
    for _ in range(10):
        clock.now += BEAT_SECONDS
        first.beat()
        second.beat()
    assert first.delivery is not None and second.delivery is None
    clock.now += DEAD_SECONDS / 2
    second.beat()
    assert second.delivery is None
    clock.now += DEAD_SECONDS
    second.beat()
    assert second.delivery is not None
    first.step()  # it has not noticed: it sends, and its commit is refused
    second.step()
    assert first.delivery.is_lost and not second.delivery.is_lost
    assert [event.kind for event in receiver.all] == ["created", "created"]
    second.log.leave("b")
    first.beat()
    assert first.delivery is not None and not first.delivery.is_lost


def test_a_standby_commits_nothing(world: World) -> None:
    clock = Clock(0.0)
    first, second = (Process(name, world, clock, Receiver()) for name in "ab")
    first.log.put(LISTENER, Cursor())
    first.beat()
    version = first.log.log.refresh().version
    for _ in range(5):
        second.beat()
    assert first.log.log.refresh().version == version


def test_a_listener_that_is_changed_goes_on_and_one_that_is_removed_is_forgotten(world: World) -> None:
    clock, receiver = Clock(0.0), Receiver()
    world.create("orders")
    process = Process("a", world, clock, receiver)
    log = process.log
    assert log.put(LISTENER, Cursor({"orders": At(0, world.table_id("orders"))}))
    assert not log.put(LISTENER, Cursor())
    assert log.cursor("shop").tables.keys() == {"orders"}
    process.beat()
    with pytest.raises(InvalidInput, match="there is no listener 'other'; there are: shop"):
        log.remove("other")
    log.remove("shop")
    assert log.state() == ({}, {}) and log.cursor("shop") == Cursor()
    world.commit("orders")
    clock.now += LOOK_SECONDS_MAX
    process.step()
    assert process.delivery is not None and process.delivery.is_lost


def test_a_store_that_does_not_answer_is_asked_again_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, receiver = Clock(0.0), Receiver()
    world.create("orders")
    process = Process("a", world, clock, receiver)
    process.log.put(LISTENER, Cursor())
    process.beat()
    assert process.delivery is not None
    plain = ListenerLog.move

    def unavailable(*_: object) -> bool:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(ListenerLog, "move", unavailable)
    pauses = []
    for _ in range(4):
        pauses.append(process.delivery.step())
        clock.now += pauses[-1]
    assert pauses == [1.0, 2.0, 4.0, 8.0] and process.delivery.error == "no answer"
    monkeypatch.setattr(ListenerLog, "move", plain)
    process.delivery.step()
    assert process.log.cursor("shop").tables["orders"].version == 0
    assert [event.kind for event in receiver.all] == ["created"]  # it was acknowledged, so it is not sent again


def test_only_the_kinds_and_tables_that_are_wanted_come_but_losses_always(world: World) -> None:
    clock, receiver = Clock(0.0), Receiver()
    listener = Listener(name="shop", target=LISTENER.target, tables=("public.*",), kinds=("parked",))
    for name in TABLES:
        world.create(name)
        for _ in range(10):
            world.commit(name)

    def deliver(cursor: Cursor) -> None:
        delivery = Delivery(
            "shop",
            Feed(str(world.root), clock=clock),
            receiver,
            cursor,
            wants_table=listener.wants_table,
            wants=listener.wants,
            keep=lambda moved: True,
            clock=clock,
        )
        while delivery.step() == 0.0:
            pass

    deliver(Cursor())
    wanted = [event for event in expected(world, "public.items") if event.kind == "parked"]
    assert receiver.all == wanted and wanted
    world.clean("public.items")
    deliver(Cursor({"public.items": At(0, world.table_id("public.items"))}))
    assert receiver.all[len(wanted)].kind == "resync"


def test_a_table_that_goes_before_its_first_event_is_acknowledged_is_not_waited_for(world: World) -> None:
    clock, receiver = Clock(0.0), Receiver()
    for name in ("orders", "plain"):
        world.create(name)
    process = Process("a", world, clock, receiver)
    process.log.put(LISTENER, Cursor())
    process.beat()
    receiver.refuses = {"orders"}
    process.step()
    assert process.delivery is not None and process.delivery.behind_seconds(1_900_000_000_000) > 0
    world.drop("orders")
    for _ in range(2):
        clock.now += CHECK_SECONDS
        process.step()
    assert process.delivery.behind_seconds(1_900_000_000_000) == 0 and process.delivery.error == ""
