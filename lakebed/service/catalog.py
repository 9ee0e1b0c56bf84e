"""Which tables the service has, what each is at a version, and what is kept in memory of them.

A root is a table, or a folder with tables in it: ``<root>/<table>``, or ``<root>/<schema>/<table>`` as a database has them. The
name of a table is its path below the root with a dot between the parts: ``orders``, ``public.orders``; that of a root which is a
table is the name of its folder. Names are looked up as folders, and no list of them is kept: two services give the same answer.
A name never leads out of a root: a part of it is a plain word, or is escaped as the folders of a database are (``TableName``).

What is kept are logs and open tables, both bounded. Every request asks the log for its newest version.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

import orjson

from lakebed.coordination.failing import parked_of
from lakebed.coordination.jobs import jobs_of
from lakebed.coordination.log_cache import LogCache
from lakebed.coordination.table_figures import figures_of
from lakebed.discovery import TableName, named_tables, require_apart, tables_in
from lakebed.errors import InvalidInput, LakebedError, TableNotFound
from lakebed.jobs import DROP
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.service.answers import Refused, columns_of, time_text
from lakebed.storage.data_files import open_part_storage
from lakebed.table import Internals

# -- What a table is at a version: made once a version, however often it is asked for --------------------------------------


_DESCRIBED_MAX = 1_000
_FIGURES = ("rows", "dead_rows", "bytes", "parts", "tail_parts", "tail_rows", "tail_bytes", "unsorted_parts")


class _Descriptions:
    """Descriptions of tables, made once a version."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[str, bytes]] = OrderedDict()  # by root: of which version, and the JSON
        self._lock = threading.Lock()  # of what is kept

    def of(self, name: str, log: TableLog, snapshot: Snapshot) -> bytes:
        """The description of a version of a table, as JSON."""
        tag = _tag_of(snapshot)
        kept = self._kept.get(log.root)
        if kept is None or kept[0] != tag:
            kept = tag, orjson.dumps(describe(name, log.root, snapshot))
        with self._lock:
            self._kept[log.root] = kept
            self._kept.move_to_end(log.root)
            if len(self._kept) > _DESCRIBED_MAX:
                self._kept.popitem(last=False)
        return kept[1]


def _tag_of(snapshot: Snapshot) -> str:
    """Differs between any two versions of any two tables."""
    return f"{snapshot.metadata.id}-{snapshot.version}-{snapshot.digest}"


def describe(name: str, root: str, snapshot: Snapshot) -> dict[str, Any]:
    """What a table is at a version."""
    settings, figures, parked = snapshot.logical_settings, figures_of(snapshot), parked_of(snapshot)
    dropped = next((job for job in jobs_of(snapshot) if job.kind == DROP and not job.has_ended), None)
    return {
        "name": name,
        "root": root,
        "id": snapshot.metadata.id,
        "version": snapshot.version,
        "committed_at": time_text(snapshot.timestamp_ms),
        "columns": columns_of(snapshot.logical_schema),
        "keys": list(settings.keys),
        "sort_key": list(settings.sort_key),
        "sequence_by": settings.sequence_by,
        "partition_by": list(snapshot.metadata.partition_columns),
        "properties": dict(snapshot.metadata.configuration),
        "figures": {each: getattr(figures, each) for each in _FIGURES},
        "parked": None if parked is None else asdict(parked),
        "drop_at": None if dropped is None else time_text(dropped.not_before_ms),
    }


# -- Which tables the service has ------------------------------------------------------------------------------------------


_LOG_BYTES_MAX = 1 << 30
_OPEN_MAX = 64
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class Catalog:
    """The tables of some roots. Safe to use from several threads."""

    def __init__(self, roots: Sequence[str], log_bytes_max: int = _LOG_BYTES_MAX) -> None:
        """Raises InvalidInput for a root that can't be one."""
        require_apart(roots)
        self.roots = tuple(dict.fromkeys(open_part_storage(root).root for root in roots))
        self.logs = LogCache(log_bytes_max)
        self.descriptions = _Descriptions()
        self.on_hint: Callable[[str], object] = lambda root: None
        """What is called with the root of a table for which a job was requested."""
        self._listed: tuple[float, dict[str, list[str]]] = (-math.inf, {})
        self._known: dict[str, str] = {}  # roots of tables that were found, by name
        self._open: OrderedDict[str, Internals] = OrderedDict()
        self._lock = threading.Lock()  # of the two above; nothing is read under it

    def tables(self) -> dict[str, list[str]]:
        """The roots of all tables there are now, by name; several if roots share a name. Raises StoreUnavailable."""
        found: dict[str, list[str]] = {}
        for root in self.roots:
            for name, path in _tables_of(root).items():
                found.setdefault(name, []).append(path)
        self._listed = time.monotonic(), dict(sorted(found.items()))
        return dict(self._listed[1])

    def tables_lately(self, seconds: float) -> dict[str, list[str]]:
        """As ``tables``, listed by anybody at most so many seconds ago: a listing is a request for each table."""
        listed, found = self._listed
        return dict(found) if time.monotonic() - listed < seconds else self.tables()

    def folders(self) -> list[str]:
        """The roots that are no tables."""
        return [root for root in self.roots if not self._is_table(root)]

    def root_of(self, name: str) -> str:
        """The root of a table. Raises TableNotFound; Refused if several roots have a table of that name."""
        known = self._known.get(name)
        if known is not None:
            return known
        found = [root for root in self.places_of(name) if self._is_table(root)]
        if not found:
            raise TableNotFound(f"there is no table {name!r} here; GET /v1/tables lists the tables")
        if len(found) > 1:
            raise Refused(
                HTTPStatus.CONFLICT,
                f"several roots have a table {name!r}: {', '.join(found)}; serve them by services of their own",
            )
        with self._lock:
            if len(self._known) > 100_000:
                self._known.clear()
            self._known[name] = found[0]
        return found[0]

    def places_of(self, name: str) -> list[str]:
        """The roots at which a table of this name may be."""
        out = list[str]()
        for root in self.roots:
            if root.rstrip("/").rpartition("/")[2] == name:
                out.append(root)
            if _is_word(name):
                out.append(f"{root}/{name}")
            out.append(f"{root}/{TableName(name).folder}")
        return list(dict.fromkeys(out))

    def newest(self, name: str) -> tuple[TableLog, Snapshot]:
        """The log of a table, and its newest version. Raises as ``root_of``, StoreUnavailable, Corrupt."""
        root = self.root_of(name)
        log = self.logs.open(root)
        try:
            return log, log.refresh()
        except TableNotFound:  # it was found before, and is gone
            self.forget(root)
        log = self.logs.open(self.root_of(name))
        return log, log.refresh()

    def opened(self, name: str) -> tuple[Internals, Snapshot]:
        """The table, open, for what needs more of it than its log; and its newest version. Raises as ``newest``."""
        log, snapshot = self.newest(name)
        return self.opened_at(log.root), snapshot

    def opened_at(self, root: str) -> Internals:
        """The table at a root, open."""
        log = self.logs.open(root)
        found = self._open.get(root)
        if found is None or found.log is not log:
            found = Internals(root, log)
        with self._lock:
            self._open[root] = found
            self._open.move_to_end(root)
            let_go = self._open.popitem(last=False)[1] if len(self._open) > _OPEN_MAX else None
        if let_go is not None:
            let_go.locators.release()
        return found

    def place_of_new(self, name: str) -> str:
        """Where a new table of this name is made: below the first root that is no table. Raises InvalidInput."""
        folders = name.split(".", 1)
        for root in self.folders():
            if all(map(_is_word, folders)) and TableName(name).folder.split("/")[-len(folders) :] == folders:
                return "/".join((root, *folders))
            raise InvalidInput(
                f"{name!r} can't be the name of a new table; write table or schema.table, each of letters, digits, _, - "
                f"and dots, not beginning with _ or a dot, and not ending in a dot or in {QUARANTINE_SUFFIX}"
            )
        raise InvalidInput("every root of this service is a table, so there is no place for another one")

    def hint(self, root: str) -> None:
        """Have a thread look for jobs of a table at once."""
        self.on_hint(root)

    def look_again(self, name: str) -> None:
        """Read a table from its beginning when it is asked for next."""
        if (root := self._known.get(name)) is not None:
            self.forget(root)

    def forget(self, root: str) -> None:
        """Let go of a table that is gone."""
        self.logs.forget(root)
        with self._lock:
            self._open.pop(root, None)
            self._known = {name: each for name, each in self._known.items() if each != root}

    def close(self) -> None:
        """Let go of all tables."""
        with self._lock:
            tables = list(self._open.values())
            self._open.clear()
        for each in tables:
            each.locators.release()

    def _is_table(self, root: str) -> bool:
        log = self.logs.open(root)
        try:
            log.refresh()
        except TableNotFound:
            self.logs.forget(root)
            return False
        except LakebedError:
            return True  # it is there, and what reads it says what is wrong with it
        return True


def _tables_of(root: str) -> dict[str, str]:
    """The roots of the tables at a path and below it, by name. Raises StoreUnavailable."""
    roots = tables_in(root)
    if roots == [root]:
        return {root.rstrip("/").rpartition("/")[2]: root}
    below = {each.removeprefix(f"{root}/"): each for each in roots}
    return named_tables(root, roots) | {folder: each for folder, each in below.items() if _is_word(folder)}


def _is_word(text: str) -> bool:
    """Whether it can stand in a path as it is, as the folder of a table."""
    return bool(_WORD.fullmatch(text)) and len(text) <= 160 and not text.endswith((".", QUARANTINE_SUFFIX))
