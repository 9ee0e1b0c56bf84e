"""Which worker looks after which table: rendezvous hashing, weighted by the workers' cores. Pure.

Each worker draws a number for each table, from a hash of both ids; the highest one owns the table. So workers that see the same
workers agree without asking each other, and a worker that comes or goes moves no table but those that it gets or had. The owner
is a hint: claims in a table's log decide who may do what, so two that think they own a table cost a second look, nothing else.

The workers with the next numbers *stand by*: they look after a table whose readers wait too long, whatever keeps the owner from
it. Who stands by first is who owns the table when the owner is gone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from hashlib import blake2b

STANDBYS = 2
"""So many workers stand by for a table with a freshness: it is settled in time though as many die at once."""
_HASHES = 2.0**64


def owner_of(table: str, workers: Mapping[str, float]) -> str | None:
    """The worker that owns a table, by its root; None if there is no worker. ``workers``: the weight of each, above 0."""
    return max(workers, key=lambda worker: (_draw(table, worker, workers[worker]), worker), default=None)


def standbys_of(table: str, workers: Mapping[str, float]) -> tuple[str, ...]:
    """The workers that stand by for a table with a freshness, the first one first. ``workers``: the weight of each, above 0."""
    return tuple(_ranked(table, workers)[1 : 1 + STANDBYS])


def ranks_of(
    worker: str, tables: Collection[str], fresh_tables: Collection[str], workers: Mapping[str, float]
) -> dict[str, int]:
    """The tables that a worker looks after: 0 for one that it owns, else how many come before it of those that stand by.

    ``fresh_tables``: those with a freshness; nobody stands by for others.
    """
    ranks: dict[str, int] = {}
    for table in tables:
        if table not in fresh_tables:
            if owner_of(table, workers) == worker:
                ranks[table] = 0
            continue
        ranked = _ranked(table, workers)
        if worker in ranked[: 1 + STANDBYS]:
            ranks[table] = ranked.index(worker)
    return ranks


def _ranked(table: str, workers: Mapping[str, float]) -> list[str]:
    return sorted(workers, key=lambda worker: (_draw(table, worker, workers[worker]), worker), reverse=True)


def _draw(table: str, worker: str, weight: float) -> float:
    digest = blake2b(f"{worker}\0{table}".encode(errors="surrogateescape"), digest_size=8).digest()
    return -weight / math.log((int.from_bytes(digest, "big") + 0.5) / _HASHES)
