"""Who is in the fleet: leases that compare no two clocks."""

from __future__ import annotations

import pytest

from lakebed.errors import StoreUnavailable
from lakebed.fleet.membership import DEAD_BEATS, Membership, Worker, workers_of
from lakebed.log.stores import LogStore, MemoryLogStore
from lakebed.log.table_log import TableLog


def member(store: LogStore, name: str, clock_seconds: float = 1_700_000_000.0, cores: float = 2.0) -> Membership:
    log = TableLog(store, sleep=lambda seconds: None)
    return Membership(log, Worker(id=name, host="here", cores=cores), lambda: clock_seconds)


def test_workers_see_each_other_after_a_beat_each() -> None:
    store = MemoryLogStore()
    a, b = member(store, "a"), member(store, "b", cores=8.0)
    assert a.beat() == {"a": 2.0}
    assert b.beat() == {"a": 2.0, "b": 8.0}
    assert a.beat() == {"a": 2.0, "b": 8.0}


def test_a_killed_worker_is_dead_after_three_beats_of_the_others() -> None:
    store = MemoryLogStore()
    a, b = member(store, "a"), member(store, "b")
    b.beat()
    seen = [set(a.beat()) for _ in range(DEAD_BEATS + 1)]
    assert seen == [{"a", "b"}] * DEAD_BEATS + [{"a"}]


def test_clocks_that_are_days_apart_kill_nobody_and_keep_nobody_alive() -> None:
    store = MemoryLogStore()
    a, b = member(store, "a"), member(store, "b", clock_seconds=1_700_000_000.0 - 5 * 86_400)
    c = member(store, "c", clock_seconds=1_700_000_000.0 + 5 * 86_400)
    for _ in range(2 * DEAD_BEATS):
        views = [set(each.beat()) for each in (a, b, c)]
    assert views == [{"a", "b", "c"}] * 3
    for _ in range(DEAD_BEATS + 1):
        views = [set(each.beat()) for each in (a, b)]
    assert views == [{"a", "b"}] * 2


def test_who_was_only_asleep_is_back_with_its_next_beat() -> None:
    store = MemoryLogStore()
    a, b = member(store, "a"), member(store, "b")
    b.beat()
    for _ in range(3 * DEAD_BEATS):
        a.beat()
    assert set(workers_of(TableLog(store).refresh())) == {"a"}, "the entry of a dead worker is removed"
    assert set(b.beat()) == {"a", "b"} and set(a.beat()) == {"a", "b"}


def test_who_ends_on_purpose_is_gone_at_once() -> None:
    store = MemoryLogStore()
    a, b = member(store, "a"), member(store, "b")
    b.beat()
    a.beat()
    b.leave()
    assert a.beat() == {"a": 2.0}


def test_a_store_that_nobody_reaches_makes_nobody_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryLogStore()
    a, b = member(store, "a"), member(store, "b")
    for _ in range(2):
        a.beat()
        b.beat()

    def silent(name: str, data: bytes = b"") -> bytes:
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as outage:
        for method in ("read", "put_if_absent"):
            outage.setattr(store, method, silent)
        for _ in range(3 * DEAD_BEATS):
            for each in (a, b):
                with pytest.raises(StoreUnavailable):
                    each.beat()
    assert set(a.beat()) == {"a", "b"} and set(b.beat()) == {"a", "b"}


def test_the_log_of_the_fleet_stays_short() -> None:
    store = MemoryLogStore()
    now = [1_700_000_000.0]
    log = TableLog(store, clock=lambda: now[0])
    a = Membership(log, Worker(id="a", host="here", cores=1.0), lambda: now[0])
    for _ in range(1000):
        now[0] += 20.0
        a.beat()
        a.tidy()
    assert len(store.list_from("_delta_log", "")) < 600


def test_all_know_the_tables_with_a_freshness_also_those_of_a_dead_worker_until_its_entry_is_removed() -> None:
    store = MemoryLogStore()
    a, b = member(store, "a"), member(store, "b")
    b.beat(["/lake/x", "/lake/y"])
    seen = []
    for _ in range(2 * DEAD_BEATS + 2):
        a.beat(["/lake/z"])
        seen.append(len(a.fresh_tables))
    assert seen == [3] * (2 * DEAD_BEATS + 1) + [1] and a.fresh_tables == {"/lake/z"}
    b.beat(["/lake/x"])
    a.beat([])
    assert a.fresh_tables == {"/lake/x"}
    b.leave()
    a.beat()
    assert not a.fresh_tables and set(workers_of(TableLog(store).refresh())) == {"a"}


def test_a_beat_repeats_no_list_of_tables_that_has_not_changed() -> None:
    store = MemoryLogStore()
    a = member(store, "a")
    for _ in range(3):
        a.beat(["/lake/x"])
    commits = [store.read(f"_delta_log/{version:020d}.json") for version in range(4)]
    assert [b"lakebed.fresh.a" in each for each in commits] == [False, True, False, False]
