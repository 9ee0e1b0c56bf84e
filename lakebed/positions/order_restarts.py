"""Restarts of the order of changes: from some offsets of a topic on, changes are newer than all that the table has.

A source that goes on at lower places than before (``lateness``) would lose all its changes. So a user who knows that this is so
restarts the order: the entry ``lakebed.order_restarts`` of the table's log says from which offsets on.

    {"restarts": [{"topic": "shop.public.orders", "id": "…", "offsets": {"0": 1200}, "add": 5000000002}]}

To the place of every record at or behind one of these offsets ``add`` is added, which is at least the greatest place that the
table has. So such changes are newer than all before them, and among each other they have the order of the source. If the topic
was created again since, with another ``id``, all of its records are behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import orjson

from lakebed.log.actions import Domain
from lakebed.log.entries import ORDER_RESTARTS
from lakebed.log.entry_values import checked, document_of, reading
from lakebed.log.snapshot import Snapshot

RESTARTS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """From these offsets of a topic on, ``add`` is added to each place. ``offsets``: by partition; without one, all of the
    partition is behind."""

    topic: str
    id: str | None
    offsets: Mapping[int, int]
    add: int

    def offset(self, partition: int, topic_id: str | None) -> int:
        """From where it applies. ``topic_id``: of the topic that is read now."""
        is_another = self.id is not None and topic_id is not None and self.id != topic_id
        return 0 if is_another else self.offsets.get(partition, 0)


def restarts_of(snapshot: Snapshot) -> tuple[Restart, ...]:
    """The restarts of a table's order, in the order in which they were made. Raises Corrupt."""
    text = snapshot.domains.get(ORDER_RESTARTS)
    return () if text is None else restarts_in(ORDER_RESTARTS, text)


def restarts_in(domain: str, text: str) -> tuple[Restart, ...]:
    """The restarts in an entry of the log. Raises Corrupt."""
    document = document_of(domain, text)
    with reading(domain):
        found: tuple[Restart, ...] = checked(tuple[Restart, ...], document["restarts"], "restarts")
        return found


def restarts_entry(restarts: tuple[Restart, ...]) -> Domain:
    """The entry of the log that has these restarts."""
    listed = [asdict(one) for one in restarts]
    return Domain(ORDER_RESTARTS, orjson.dumps({"restarts": listed}, option=orjson.OPT_NON_STR_KEYS).decode())
