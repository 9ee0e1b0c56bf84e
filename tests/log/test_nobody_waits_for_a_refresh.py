"""A store that takes long to answer one thread's refresh keeps no other thread waiting that need not read the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lakebed import waits
from lakebed.log.conflicts import BLIND
from lakebed.log.stores import MemoryLogStore
from lakebed.log.table_log import TableLog, commit_name
from tests.log.test_table_log import INFO, change_part, committed, new_log

SECONDS_MAX = 60.0


class HeldStore(MemoryLogStore):
    """The answer to a read of one name is held back, as it was when the read came, until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.held_name = ""
        self.reached, self.may_go_on = threading.Semaphore(0), threading.Event()
        self.reads = 0

    def read(self, name: str) -> bytes:
        self.reads += 1
        try:
            return super().read(name)
        finally:
            if name == self.held_name:
                self.reached.release()
                assert self.may_go_on.wait(SECONDS_MAX)


@pytest.fixture
def store() -> HeldStore:
    return HeldStore()


@pytest.fixture
def log(store: HeldStore) -> TableLog:
    return new_log(store=store)


@pytest.fixture
def pool(store: HeldStore) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool
        store.may_go_on.set()


def test_a_commit_and_who_reads_it_do_not_wait_for_a_refresh(
    log: TableLog, store: HeldStore, pool: ThreadPoolExecutor
) -> None:
    read = committed(log.commit(log.refresh(), [change_part("a")], INFO, BLIND))
    store.held_name = commit_name(2)
    refresh = pool.submit(log.refresh)
    assert store.reached.acquire(timeout=SECONDS_MAX)
    new = committed(pool.submit(log.commit, read, [change_part("b")], INFO, BLIND).result(SECONDS_MAX))
    assert pool.submit(log.at_version, 2).result(SECONDS_MAX) == new
    reads = store.reads
    assert log.newest == new and store.reads == reads
    assert not refresh.done(), "its read is held still"
    store.may_go_on.set()
    assert refresh.result(SECONDS_MAX).version >= 1
    assert log.newest is new, "what the refresh read did not take the place of what is newer"


def test_a_refresh_that_comes_second_sees_what_was_committed_before_it(
    log: TableLog, store: HeldStore, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = threading.Semaphore(0)

    class Counted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waiting.release()
            return super().wait(timeout)

    monkeypatch.setattr(waits, "Event", Counted)
    log.refresh()
    store.held_name = commit_name(1)
    first = pool.submit(log.refresh)
    assert store.reached.acquire(timeout=SECONDS_MAX)
    store.held_name = ""
    other = TableLog(store, sleep=lambda seconds: None)
    committed(other.commit(other.refresh(), [change_part("a")], INFO, BLIND))
    second = pool.submit(log.refresh)
    assert waiting.acquire(timeout=SECONDS_MAX)
    store.may_go_on.set()
    assert second.result(SECONDS_MAX).version == 1
    assert first.result(SECONDS_MAX).version == 0, "it had asked before"
    assert log.refresh().version == 1
