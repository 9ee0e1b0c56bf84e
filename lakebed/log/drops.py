"""A table that is dropped, as an entry of its log (``operations.drop``).

``lakebed.dropped`` says since when the table counts as not there, and whether that is final: then its files are being deleted.
Its log can still be read. Who reads it to get the newest version, or to commit, is told so (``LogReader.refresh``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import orjson

from lakebed.errors import Corrupt, TableDropped
from lakebed.log.actions import Domain
from lakebed.log.entries import DROPPED
from lakebed.log.entry_values import MS_MAX, decoded
from lakebed.log.snapshot import Snapshot
from lakebed.settings import retention_seconds

DROPPED_FOLDER = "_lakebed_dropped"
"""A folder of this name in that of a table hides it from those who list tables, and read no log for that."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """That a table is dropped."""

    at_ms: int | None  # epoch milliseconds; None: the entry can't be read
    is_final: bool = False  # its files are being deleted, and it does not come back

    def to_action(self) -> Domain:
        """The action that sets the entry."""
        return Domain(DROPPED, orjson.dumps(asdict(self)).decode())

    def until_ms(self, configuration: Mapping[str, str]) -> int | None:
        """Until when its files stay: as long as those of an old version of the table would; None if that is not known."""
        return None if self.at_ms is None else min(MS_MAX, self.at_ms + retention_seconds(configuration) * 1000)


def dropped_of(domains: Mapping[str, str]) -> Dropped | None:
    """What a version says of it; None for a table that is there. An entry that can't be read is one too."""
    text = domains.get(DROPPED)
    if text is None:
        return None
    try:
        return decoded(Dropped, DROPPED, text)
    except Corrupt:
        return Dropped(None)


def undropped() -> Domain:
    """The action that removes the entry."""
    return Domain(DROPPED, "", removed=True)


def require_there(snapshot: Snapshot, root: str) -> Snapshot:
    """The snapshot. Raises TableDropped if the table is dropped."""
    dropped = dropped_of(snapshot.domains)
    if dropped is None:
        return snapshot
    what = f"the table at {root} was dropped at {utc(dropped.at_ms)}"
    if dropped.is_final:
        what += ", and its files are being deleted: lakebed clean on the folder that it is in goes on with that"
    else:
        until = utc(dropped.until_ms(snapshot.metadata.configuration))
        what += f"; lakebed.undrop({root!r}) brings it back, and from {until} on its files may be deleted"
    raise TableDropped(what, is_final=dropped.is_final, table=root)


def utc(ms: int | None) -> str:
    """A time for people, in UTC."""
    return "an unknown time" if ms is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(ms / 1000))
