"""Tables for the page: one that has lived, as of a clock of its own; others in trouble."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

import lakebed
from lakebed.log.actions import Action, CommitInfo, Transaction
from lakebed.log.claims import Claim
from lakebed.log.conflicts import BLIND, ReadWriteSet
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import Committed, Outcome, TableLog
from lakebed.operations.create import create_log
from lakebed.settings import TableSettings
from lakebed.version import ENGINE
from tests.clock import Clock
from tests.internals import log_of, table_of

SCHEMA = pa.schema(
    [
        pa.field("order_id", pa.int64(), nullable=False),
        ("region", pa.string()),
        ("created", pa.date32()),
        ("amount", pa.int64()),
    ]
)
REGIONS = ("eu-north", "eu-west", "us-east", "us-west")


class _LikeLargeParts(TableLog):
    """Says of merges that they took as long as those of large parts do."""

    def commit(
        self,
        read: Snapshot,
        actions: Sequence[Action],
        info: CommitInfo,
        access: ReadWriteSet,
        batch: Transaction | None = None,
    ) -> Outcome:
        if info.operation == "MERGE":
            info = replace(info, metrics={**info.metrics, "seconds": 6.0 + len(actions)})
        return super().commit(read, actions, info, access, batch)


def orders(folder: Path, clock: Clock, read_budget: int = 6, part_rows: int = 1_000_000) -> lakebed.Table:
    """An empty table of orders, sorted by region and day."""
    settings = TableSettings(
        keys=("order_id",),
        sort_key=("region", "created"),
        sort_key_version=1,
        read_budget=read_budget,
        target_part_rows=part_rows,
    )
    log = _LikeLargeParts(open_store(str(folder)), clock)
    assert isinstance(create_log(log, SCHEMA, settings, (), {}, ENGINE), Committed)
    return table_of(str(folder), log)


def batch(rng: random.Random, start: int, rows: int, day: int) -> pa.Table:
    """Orders of some regions: mostly new ones, and changes of earlier ones."""
    regions = rng.sample(REGIONS, rng.choice([1, 1, 2, 4]))
    ids = [start + number if rng.random() < 0.65 or not start else rng.randrange(start) for number in range(rows)]
    ids = list(dict.fromkeys(ids))
    columns = {
        "order_id": ids,
        "region": [rng.choice(regions) for _ in ids],
        "created": [day + rng.randrange(-20, 2) for _ in ids],
        "amount": [rng.randrange(100_000) for _ in ids],
    }
    return pa.table({name: pa.array(values, SCHEMA.field(name).type) for name, values in columns.items()}, SCHEMA)


def lived_in(
    folder: Path, clock: Clock, batches: int = 40, seconds: float = 50.0, seed: int = 7, **options: int
) -> lakebed.Table:
    """A table after so many batches, ``seconds`` apart, settled each and merged now and then."""
    rng, table = random.Random(seed), orders(folder, clock, **options)
    for number in range(batches):
        table.apply(batch(rng, number * 400, 400, 20_700 + number))
        clock.now += 1
        table.settle()
        if number % 4 == 3:
            table.maintenance.compact()
        clock.now += seconds
    return table


def claim(
    table: lakebed.Table,
    clock: Clock,
    sources: int,
    seconds_ago: float,
    lease_seconds: float = 95,
    volatile: bool = False,
) -> Claim:
    """A claim on so many parts of the table, those of level 0 first."""
    snapshot = log_of(table).refresh()
    paths = sorted(snapshot.parts, key=lambda path: (snapshot.parts[path].level, path))[:sources]
    level = 1 + max(snapshot.parts[path].level for path in paths)
    lease_ms, since_ms = int((clock.now + lease_seconds) * 1000), int((clock.now - seconds_ago) * 1000)
    made = Claim(
        id=f"5e1f0c3a-{sources}",
        replica="worker-2",
        sources=tuple(paths),
        level=level,
        lease_ms=lease_ms,
        since_ms=since_ms,
        volatile=volatile,
    )
    info = CommitInfo(operation="CLAIM", commit_id="", metrics={"parts": sources}, engine=ENGINE)
    assert isinstance(log_of(table).commit(snapshot, [made.to_action()], info, BLIND), Committed)
    return made
