"""Worlds that hunt for merges without end: tables whose statistics are an adversary's, real ones with hostile sort keys."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import lakebed
from lakebed.compaction.compaction import LocalKernel
from lakebed.compaction.merge import Merger
from lakebed.log.actions import Part, passes_after
from lakebed.log.deletion_vector import DeletionVector
from lakebed.log.snapshot import Snapshot
from lakebed.planning.plan import MergePlan
from lakebed.planning.planner import plan
from lakebed.planning.rounds import round_plans
from lakebed.settings import TableSettings, parse_depth, parse_hours
from tests.internals import deletion_vectors_of, log_of, storage_of
from tests.planning.tables import MB, measure_of, stats, table

HOUR_MS = 3_600_000
NOW = 100_000 * HOUR_MS
POLICIES = ("auto", "bin-pack", "tiered", "leveled", "recluster")
MERGES_MAX = 5_000  # of a world whose measure allows far fewer; not to wait for ever where something is wrong


# -- an adversary's statistics ---------------------------------------------------------------------------------------


Bounds = Callable[[random.Random, int], str | None]
BOUNDS: Sequence[Bounds] = (
    lambda world, rows: None,
    lambda world, rows: stats(rows, None, None),
    lambda world, rows: stats(rows, 0, 100),
    lambda world, rows: stats(rows, low := world.randrange(100), low),
    lambda world, rows: stats(rows, low := world.randrange(100), low + world.randrange(100)),
    lambda world, rows: stats(rows, 100, 0),
    lambda world, rows: world.choice(BOUNDS[:-1])(world, rows),
)
"""What a writer may say of so many rows, whatever they are."""


def hostile_parts(world: random.Random, bounds: Bounds) -> list[Part]:
    out = []
    blocks_max = world.choice((1, 1, 3, 50))
    for number in range(world.randrange(2, 40)):
        rows = world.choice((-1, 0, 1, 7, 7, 7, 30)) if world.random() < 0.2 else world.randrange(1, 100)
        dead = world.randrange(rows + 1) if rows > 0 and world.random() < 0.2 else 0
        first = world.randrange(blocks_max)
        path = f"part-{number:03d}"
        out.append(
            Part(
                path=path,
                rows=rows,
                bytes=world.randrange(1, 250) * MB,
                level=world.randrange(3),
                min_block=first,
                max_block=world.randrange(first, blocks_max),
                sort_key_version=world.choice((None, 1, 2, 2, 2)),
                deletes=world.randrange(dead + 1),
                stats=bounds(world, rows),
                deletion_vector=DeletionVector(storage="u", path_or_inline=path, offset=0, bytes=40, dead_rows=dead)
                if dead
                else None,
                modified_ms=NOW - world.choice((0, 30 * 24 * HOUR_MS)),
                passes=world.choice((0, 0, 0, 1, 5, 40)),
            )
        )
    return out


def hostile_settings(world: random.Random) -> TableSettings:
    keys = world.choice(((), ("key",)))
    return TableSettings(
        keys=keys,
        sort_key=world.choice(((), ("key",), ("key desc",))),
        sequence_by="key" if keys else None,
        sort_key_version=2,
        merge=world.choice(POLICIES),
        read_budget=world.choice((1, 1, 1, 2, 3, 8)),
        recluster_depth=parse_depth(world.choice(("1", "1.5", "2", "10%"))),
        off_peak=world.choice((None, parse_hours("22:00-06:00"))),
        plan_bytes_max=world.choice((256, 500, 2000)) * MB,
        purge_dead_ratio=world.choice((0.01, 0.3)),
    )


def hostilely_merged(
    snapshot: Snapshot, done: MergePlan, world: random.Random, bounds: Bounds, name: str, now_ms: int
) -> Snapshot:
    """The table after a merge that wrote any number of parts, with any bounds."""
    parts = dict(snapshot.parts)
    inputs = [parts.pop(path) for path in done.inputs]
    settings = snapshot.settings
    version = settings.sort_key_version if settings.sort_key or settings.keys else None
    deletes = sum(item.deletes for item in inputs if snapshot.keeps_deletes(item, now_ms))
    rows = sum(max(0, item.live_rows) + (world.randrange(99) if item.rows < 0 else 0) for item in inputs) + deletes
    passes = passes_after(inputs, rows, version)
    size = max(1, done.bytes_out)
    full = -(-size // settings.target_part_bytes)
    count = min(rows, max(full, len(inputs) + world.choice((0, 0, 1, -len(inputs)))))
    for number in range(count):
        here = rows * (number + 1) // count - rows * number // count
        kept = min(here, deletes)
        deletes -= kept
        path = f"{name}-{number}"
        parts[path] = Part(
            path=path,
            rows=here,
            bytes=max(1, size // count),
            level=done.level,
            min_block=min(item.min_block for item in inputs),
            max_block=max(item.max_block for item in inputs),
            sort_key_version=version,
            deletes=kept,
            stats=bounds(world, here),
            passes=passes,
            deletion_vector=DeletionVector(storage="u", path_or_inline=path, offset=0, bytes=40, dead_rows=kept)
            if kept
            else None,
            modified_ms=now_ms,
        )
    return replace(snapshot, parts=parts)


def merges_until_the_end(seed: int) -> int:
    """Plan and merge in a hostile world until nothing is planned; the number of merges.

    Each is checked to lower the measure. The hour goes on by any step, so that ``off_peak`` comes and goes.
    """
    world = random.Random(seed)
    settings = hostile_settings(world)
    bounds = BOUNDS[seed % len(BOUNDS)]
    snapshot = table(hostile_parts(world, bounds), settings)
    is_job = bool(settings.sort_key or settings.keys) and world.random() < 0.3
    now_ms, merges, idle = NOW, 0, 0
    while idle < 24:  # no hour of the day has a plan left
        if is_job:
            found: Sequence[MergePlan] = [one] if (one := next(round_plans(snapshot, (), now_ms), None)) else []
        else:
            found = plan(snapshot, (), now_ms).merges
        for done in found:
            before = measure_of(snapshot)
            snapshot = hostilely_merged(snapshot, done, world, bounds, f"merged-{merges}", now_ms)
            after = measure_of(snapshot)
            assert after < before, f"seed {seed}: {done.why} left the measure at {after}, from {before}"
            merges += 1
        assert merges < MERGES_MAX, f"seed {seed}: {merges} merges and no end"
        idle = 0 if found else idle + 1
        now_ms += HOUR_MS if idle else world.choice((0, HOUR_MS))
    return merges


# -- real tables with hostile sort keys ------------------------------------------------------------------------------

_URL = "https://www.example.com/products/"
_HIGHEST = "\U0010ffff"
VALUES: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "moment": (
        pa.timestamp("us"),
        [
            None, dt.datetime(1, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
            *(dt.datetime(2024, 1, 1, 0, 0, 0, micros) for micros in (0, 1, 999, 1000, 1001)),
            dt.datetime(9999, 12, 31, 23, 59, 59, 999_999),
        ],
    ),
    "url": (
        pa.string(),
        [None, *(_URL + end for end in ("", "a", "b", "de", "f" * 9)), _URL[:-1], "https://www.example.com/about", "x"]
        + ["http://z.org/" + "q" * length for length in (30, 31, 300, 301)],
    ),
    "text": (
        pa.string(),
        [None, "", "a", "a" * 32, "a" * 33, "a" * 31 + _HIGHEST * 3, _HIGHEST * 40, _HIGHEST * 400, "\0", "é"],
    ),
    "number": (
        pa.float64(),
        [None, 0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf"), 5e-324, 1e308],
    ),
    "day": (pa.date32(), [None, dt.date(1, 1, 1), dt.date(2024, 1, 1), dt.date(9999, 12, 31)]),
    "amount": (
        pa.decimal128(38, 3), [None, Decimal("-0.001"), Decimal("99999999999999999.999"), Decimal(10**35 - 1) / 1000]
    ),
    "bytes": (pa.binary(), [None, b"", b"\0"]),
    "small": (pa.int8(), [None, -128, 127, 0]),
    "flag": (pa.bool_(), [None, True, False]),
}  # fmt: skip
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), *((name, kind) for name, (kind, _) in VALUES.items())])
SORT_KEYS = (
    ["url"], ["moment"], ["text"], ["url desc"], ["moment desc"], ["text desc"], ["url nulls last"], ["number"],
    ["number desc"], ["day"], ["amount"], ["amount desc", "moment nulls last"], ["small", "url"], ["url", "small"],
    ["url", "moment"], ["moment", "small desc"], ["date(moment)"], ["year(moment) desc", "text nulls last"],
    ["hour(moment)"], ["substr(url, 1, 33)"], ["substr(url, 1, 20)", "url"], ["substr(text, 2, 3)"], ["bucket(3, url)"],
    ["bucket(3, moment)", "moment"], ["zorder(small, moment)"], ["zorder(text, number)"], ["hilbert(text, day)"],
    ["bytes"], ["small", "bytes"], ["flag", "url"], ["number", "moment"],
)  # fmt: skip


def real_merges_until_the_end(seed: int, folder: Path) -> int:
    """A real table with a hostile sort key: merged until nothing is planned; the number of merges.

    Each is checked to lower the measure, by the table that its commit made.
    """
    world = random.Random(seed)
    sort_key = SORT_KEYS[seed % len(SORT_KEYS)]
    is_keyed = world.random() < 0.5
    properties = {
        "lakebed.read_budget": world.choice("11234"), "lakebed.target_part_rows": world.choice("358"),
        "lakebed.merge": world.choice(("auto", "auto", "recluster", "leveled", "tiered")),
        "lakebed.recluster_depth": world.choice(("1", "1.5", "2")),
        "lakebed.off_peak": world.choice(("", "00:00-23:59")),
    }  # fmt: skip
    table = lakebed.create(
        str(folder / f"table-{seed}"), SCHEMA, keys=["id"] if is_keyed else [], sort_key=sort_key, properties=properties
    )
    for _ in range(world.randrange(2, 8)):
        rows = [
            {"id": place, **{name: world.choice(values) for name, (_, values) in VALUES.items()}}
            for place in world.sample(range(40), world.randrange(1, 14))
        ]
        table.apply(pa.Table.from_pylist(rows, SCHEMA))
        if is_keyed:
            table.settle()
    before = sorted(map(str, table.to_arrow().to_pylist()))
    merges = _merges(table, f"seed {seed}, sorted by {sort_key}, {properties}")
    assert sorted(map(str, table.to_arrow().to_pylist())) == before
    return merges


def _merges(table: lakebed.Table, told: str) -> int:
    log, storage = log_of(table), storage_of(table)
    merger = Merger(log, storage, deletion_vectors_of(table), "hunter")
    kernel = LocalKernel(storage, log.refresh)
    merges = 0
    while True:
        snapshot, now_ms = log.refresh(), log.now_ms()
        found = next(iter(plan(snapshot, (), now_ms).merges), None)
        found = found or next(round_plans(snapshot, (), now_ms), None)
        if found is None:
            return merges
        merger.run(found.inputs, found.level, kernel)
        merges += 1
        before, after = measure_of(snapshot), measure_of(log.refresh())
        assert after < before, f"{told}: {found.why} left the measure at {after}, from {before}"
        assert merges < MERGES_MAX, f"{told}: {merges} merges and no end"
