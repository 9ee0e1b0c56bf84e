"""Which worker looks after which table: rendezvous hashing, weighted by the workers' cores. Pure.

Each worker draws a number for each table, from a hash of both ids; the highest one owns the table. So workers that see the same
workers agree without asking each other, and a worker that comes or goes moves no table but those that it gets or had. The owner
is a hint: claims in a table's log decide who may do what, so two that think they own a table cost a second look, nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import blake2b

_HASHES = 2.0**64


def owner_of(table: str, workers: Mapping[str, float]) -> str | None:
    """The worker that owns a table, by its root; None if there is no worker. ``workers``: the weight of each, above 0."""
    return max(workers, key=lambda worker: (_draw(table, worker, workers[worker]), worker), default=None)


def _draw(table: str, worker: str, weight: float) -> float:
    digest = blake2b(f"{worker}\0{table}".encode(errors="surrogateescape"), digest_size=8).digest()
    return -weight / math.log((int.from_bytes(digest, "big") + 0.5) / _HASHES)
