"""Purges and drops, as entries of the log (``operations.purge.purge``, ``operations.drop``).

- ``lakebed.purge.<id>``: a purge under way. It has the condition until the rows are out, and no value of a row after that.
- ``lakebed.purged``: the newest purge whose rows are out, and how many parts the table had then. Versions before its own can't be
  read any more.
- ``lakebed.fence``: a number. A commit of files that were written for a version with a lower number is a conflict, and
  ``WriteSpec.fits`` is false for them. So a file that was there before the number grew, and that no version refers to then, is
  never committed. No clock is needed to know that.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from lakebed.errors import Corrupt, TableDropped
from lakebed.log.actions import Commit, Domain
from lakebed.log.entries import DROPPED, FENCE, PURGE, PURGED
from lakebed.log.entry_values import MS_MAX, decoded, document_of, integer_of, made, reading
from lakebed.log.snapshot import Snapshot
from lakebed.settings import retention_seconds

LEASE_MS = 15 * 60_000  # a purge without a sign of life for this long is taken over by maintenance


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeState:
    """A purge under way. ``where``: None once its rows are out. ``columns``: the names that it has for columns, by stored names.

    ``quarantine``: a condition for records of the quarantine; ``force``: it ends holds of readers.
    """

    id: str
    where: str | None
    columns: Mapping[str, str]
    quarantine: str | None = None
    force: bool = False
    until_ms: int = 0
    rows: int = 0

    @property
    def domain(self) -> str:
        return PURGE + self.id

    def to_action(self) -> Domain:
        """The action that sets the entry."""
        value: dict[str, Any] = {"force": self.force, "until_ms": self.until_ms, "rows": self.rows}
        if self.where is not None:
            value |= {"where": self.where, "columns": dict(self.columns), "quarantine": self.quarantine}
        return Domain(self.domain, orjson.dumps(value).decode())

    def ended(self) -> Domain:
        """The action that removes the entry."""
        return Domain(self.domain, "", removed=True)


def purges_of(domains: Mapping[str, str]) -> dict[str, PurgeState]:
    """The purges under way, by id. Raises Corrupt."""
    purges = [purge_of(domain, text) for domain, text in sorted(domains.items()) if domain.startswith(PURGE)]
    return {each.id: each for each in purges}


def purge_of(domain: str, text: str) -> PurgeState:
    """The purge in an entry of the log. Raises Corrupt."""
    document = document_of(domain, text)
    with reading(domain):
        always = {name: document[name] for name in ("force", "until_ms", "rows")}
        without: dict[str, object] = {"where": None, "columns": {}}
        return made(PurgeState, {**without, **document, **always, "id": domain.removeprefix(PURGE)})


def purged(rows: int, id: str) -> Domain:
    """The action that ends all versions before that of its commit; it gets its version and its ``parts`` when it is committed."""
    return Domain(PURGED, orjson.dumps({"version": -1, "parts": -1, "rows": rows, "id": id}).decode())


def purged_before(domains: Mapping[str, str]) -> int:
    """The version of the newest purge: older versions are gone. 0 without one. Raises Corrupt."""
    return integer_of(PURGED, domains.get(PURGED), "version")


def purged_empty(commit: Commit) -> bool:
    """Whether the commit is of a purge that recorded that the table had no part, neither in its base nor in its tail."""
    entries = (action for action in commit.actions if isinstance(action, Domain) and action.domain == PURGED)
    return any(not entry.removed and document_of(PURGED, entry.configuration).get("parts") == 0 for entry in entries)


def fence_of(domains: Mapping[str, str]) -> int:
    """The number of the fence, 0 without one."""
    return integer_of(FENCE, domains.get(FENCE), "number")


def next_fence(domains: Mapping[str, str]) -> Domain:
    """The action that raises the fence."""
    return Domain(FENCE, orjson.dumps({"number": fence_of(domains) + 1}).decode())


# -- A table that is dropped, as an entry of its log (operations.drop) -----------------------------------------------------
#
# ``lakebed.dropped`` says since when the table counts as not there, and whether that is final: then its files are being
# deleted. Its log can still be read. Who reads it to get the newest version, or to commit, is told so (``LogReader.refresh``).


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
