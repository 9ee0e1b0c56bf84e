"""Logs of many tables in memory, within a bound."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from lakebed.coordination.log_cache import LogCache, memory_of
from lakebed.log.actions import AddPart, Part
from lakebed.log.conflicts import BLIND
from lakebed.log.stores import MemoryLogStore
from lakebed.log.table_log import TableLog
from tests.log.test_table_log import INFO, committed, new_log


def store_with(parts: int, name: str = "t") -> MemoryLogStore:
    store = MemoryLogStore()
    log = new_log(store=store)
    stats = '{"numRecords":1000,"minValues":{"id":%d,"region":"eu"},"maxValues":{"id":%d,"region":"us-west"},"nullCount":{}}'
    added = [
        AddPart(
            Part(path=f"_lakebed/{name}-{each:032d}.parquet", rows=1000, bytes=10**6, stats=stats % (each, each + 1))
        )
        for each in range(parts)
    ]
    log.write_checkpoint(committed(log.commit(log.refresh(), added, INFO, BLIND)))
    return store


def cache_of(stores: dict[str, MemoryLogStore], bytes_max: int) -> LogCache:
    return LogCache(bytes_max, lambda root: TableLog(stores[root]))


def test_the_log_that_was_not_used_for_longest_is_let_go() -> None:
    stores = {name: store_with(50) for name in "abc"}
    cache = cache_of(stores, 0)
    size = memory_of(TableLog(stores["a"]).refresh())
    cache = cache_of(stores, 2 * size + size // 2)
    first = {name: cache.open(name) for name in "ab"}
    for log in first.values():
        log.refresh()
    assert cache.open("b") is first["b"] and cache.open("a") is first["a"] and len(cache) == 2
    cache.open("c").refresh()
    cache.open("c")
    assert len(cache) == 2 and cache.bytes <= 2 * size + size // 2
    assert cache.open("a") is first["a"] and cache.open("b") is not first["b"]


def test_one_log_stays_however_large_it_is() -> None:
    cache = cache_of({"a": store_with(100)}, 1)
    log = cache.open("a")
    log.refresh()
    assert cache.open("a") is log and cache.bytes > 1


def test_a_log_that_grew_counts_with_what_it_is_now() -> None:
    stores = {"a": store_with(10), "b": store_with(10)}
    cache = cache_of(stores, 10**9)
    log = cache.open("a")
    log.refresh()
    cache.open("a")
    before = cache.bytes
    new = [AddPart(Part(path=f"_lakebed/n{each}.parquet", rows=1, bytes=1)) for each in range(100)]
    committed(log.commit(log.refresh(), new, INFO, BLIND))
    cache.open("a")
    assert cache.bytes > before + 50_000
    cache.forget("a")
    assert cache.bytes == 0 and cache.open("a") is not log


@pytest.mark.slow
def test_the_estimate_is_about_what_a_log_needs() -> None:
    store = store_with(2_000)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    log = TableLog(store)
    snapshot = log.refresh()
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.5 * used < memory_of(snapshot) < 2.5 * used, (used, memory_of(snapshot))
