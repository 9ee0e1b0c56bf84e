"""A process that lives long: how much of its memory a commit leaves taken.

What is kept for a while (of parts that left, of the commits of an hour) is kept for moments here. What still grows then does so
as long as the process lives.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pytest

import lakebed
from lakebed import events
from lakebed.log import log_reader, snapshot
from lakebed.monitoring import table_state
from lakebed.monitoring.metrics import Metrics
from lakebed.monitoring.progress import Progress
from lakebed.sortkey import statistics_cache
from lakebed.storage import engine
from lakebed.table import Table, internals_of

ROWS = 2_000
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("region", pa.string()), ("amount", pa.float64())])
WARM_UP, WINDOW, WINDOWS = 100, 50, 6
PYTHON_BLOCKS_MAX = 12  # objects of Python's allocator, by commit
NATIVE_BYTES_MAX = 2_500  # by commit; with what DuckDB keeps of files and queries it was 4,500


class _MallocInformation(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _names_ = (
        "arena",
        "ordblks",
        "smblks",
        "hblks",
        "hblkhd",
        "usmblks",
        "fsmblks",
        "uordblks",
        "fordblks",
        "keepcost",
    )
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names_)


@dataclass(frozen=True, slots=True)
class Memory:
    """What is in use, not what was freed and not given back: Python's small objects by number; all that malloc gave; Arrow's."""

    python_blocks: int
    native_bytes: int
    arrow_bytes: int


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="asks glibc what is in use"),
]


@pytest.mark.long
def test_a_commit_leaves_at_most_a_dozen_objects_and_two_and_a_half_kilobytes_behind(
    tmp_path: Path, kept_for_moments: None
) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], sort_key=["region", "id"])
    table.apply(rows(range(ROWS)))
    with watched(table):
        commits(table, WARM_UP)
        looks = [memory()]
        for _ in range(WINDOWS):
            commits(table, WINDOW)
            looks.append(memory())
    grown = {name: growth(looks, name) for name in ("python_blocks", "native_bytes", "arrow_bytes")}
    assert grown["python_blocks"] < PYTHON_BLOCKS_MAX, grown
    assert grown["native_bytes"] < NATIVE_BYTES_MAX, grown
    assert grown["arrow_bytes"] < NATIVE_BYTES_MAX, grown


@pytest.fixture
def kept_for_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_RELIST_SECONDS", 0.1)
    monkeypatch.setattr(snapshot, "_REMOVED_SECONDS", (0, 0.1))
    monkeypatch.setattr(table_state, "WINDOW_SECONDS", 0.1)
    monkeypatch.setattr(statistics_cache, "SPARE_TEXTS", 16)
    monkeypatch.setattr(engine, "CURSORS_MAX", 100)


@contextmanager
def watched(table: Table) -> Iterator[None]:
    """As ``lakebed run`` watches it."""
    forget = [events.listen(Metrics()), events.listen(Progress(table.path))]
    yield
    for each in forget:
        each()


def commits(table: Table, batches: int) -> None:
    random, sampler = np.random.default_rng(1), internals_of(table).sampler()
    for number in range(batches):
        table.apply(rows(np.unique(random.integers(0, ROWS, 50))))
        table.settle()
        if number % 4 == 0:
            table.maintenance.compact()
        if number % 20 == 0:
            sampler.sample()


def rows(ids: range | np.ndarray) -> pa.Table:
    keys = np.array(ids)
    regions = pa.array([f"region-{key % 8}" for key in keys.tolist()])
    return pa.table({"id": keys, "region": regions, "amount": keys / 7})


def memory() -> Memory:
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _MallocInformation
    found = libc.mallinfo2()
    return Memory(sys.getallocatedblocks(), found.uordblks + found.hblkhd, pa.total_allocated_bytes())


def growth(looks: list[Memory], name: str) -> float:
    """By batch; the median of windows, since a table of the interpreter that doubles once is no growth."""
    values = [getattr(each, name) for each in looks]
    return median((after - before) / WINDOW for before, after in pairwise(values))
