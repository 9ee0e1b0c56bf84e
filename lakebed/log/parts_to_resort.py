"""Parts that wait to be sorted by the table's sort key: maintenance sorts them again, readers count how often they are read."""

from __future__ import annotations

from lakebed.log.actions import Part
from lakebed.log.snapshot import Snapshot


def parts_to_resort(snapshot: Snapshot) -> list[Part]:
    """The parts of the base that an earlier sort key sorted; none in a table without an order.

    Parts whose order is unknown (another writer's) are left as they are until the table's order is changed.
    """
    settings = snapshot.settings
    if not settings.order_by:
        return []
    version = settings.sort_key_version
    return [
        part
        for part in snapshot.parts.values()
        if part.sort_key_version != version and (part.sort_key_version is not None or version > 1)
    ]
