"""The tables of a service as Iceberg's REST catalog has them: their names, which there are, and the newest metadata of each.

The table ``shop.orders`` is ``orders`` of the namespace ``shop``, and ``a.b.c`` is ``c`` of a namespace with two levels. A name
without a dot, or with nothing before, between or after its dots, is in the namespace ``default``. Each table has one such name.

What is served is what maintenance published. A table is there if a hint names its metadata, and no mark says that it is dropped.
No log is read for that; only if nothing is published the log says why.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeAlias, TypeVar

from lakebed.errors import InvalidInput, InvalidSchema, TableNotFound
from lakebed.iceberg.metadata import FOLDER, HINT, Head, Heads
from lakebed.iceberg.publisher import publish
from lakebed.log.removals import DROPPED_FOLDER
from lakebed.log.stores import LogStore, has_object, open_store
from lakebed.service.answers import Refused
from lakebed.service.catalog import Catalog
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.object_store import Folders

_K = TypeVar("_K")
_V = TypeVar("_V")
Namespace: TypeAlias = tuple[str, ...]
DEFAULT: Namespace = ("default",)
_LISTED_SECONDS = 5.0
_KEPT_MAX = 256
_THREADS = 16


def identifier_of(name: str) -> tuple[Namespace, str]:
    """The namespace of a table, and its name there."""
    *levels, table = name.split(".")
    return (tuple(levels), table) if levels and table and all(levels) else (DEFAULT, name)


def _names_of(namespace: Namespace, table: str) -> list[str]:
    """What a table of this identifier may be called. The first one that is there counts."""
    names = [table] if namespace == DEFAULT else []
    return [name for name in (*names, ".".join((*namespace, table))) if identifier_of(name) == (namespace, table)]


class NoSuch(Refused):
    """There is no such namespace or table. ``kind``: Iceberg's name of the error."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(HTTPStatus.NOT_FOUND, text)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table with the newest metadata that was published."""

    root: str
    head: Head


class _Place:
    """Where a table is, or may be."""

    def __init__(self, root: str) -> None:
        self._location = f"{root.rstrip('/')}/{FOLDER}"
        self.store: LogStore = open_store(root)
        self._folders = Folders(root)
        self._heads = Heads(self.store)

    def published(self) -> Head | None:
        """The newest metadata; None if there is none, or if it is of another place. Four requests if it is known already."""
        if self._heads.hinted() is None or self._folders.has(DROPPED_FOLDER):
            return None
        head = self._heads.newest().head
        return head if head is not None and head.document["location"] == self._location else None


class PublishedTables:
    """What a catalog's tables have published. Safe to use from several threads."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._known: OrderedDict[tuple[Namespace, str], str] = OrderedDict()  # the roots of tables that were found
        self._lock = threading.Lock()  # of the two above; nothing is read under it

    def find(self, namespace: Namespace, table: str) -> PublishedTable | None:
        """A table that has published something. Raises Refused if several roots have one of this name; StoreUnavailable."""
        known = self._known.get((namespace, table))
        if known is not None and (found := self._at(known)) is not None:
            return found
        for name in _names_of(namespace, table):
            there = [found for root in self._catalog.places_of(name) if (found := self._at(root)) is not None]
            if len(there) > 1:
                raise Refused(
                    HTTPStatus.BAD_REQUEST,
                    f"several roots have a table {name!r}: {', '.join(each.root for each in there)}; serve them by services of "
                    "their own",
                )
            for found in there:
                with self._lock:
                    _keep(self._known, (namespace, table), found.root)
                return found
        return None

    def require(self, namespace: Namespace, table: str, *, may_publish: bool) -> PublishedTable:
        """The table. If nothing is published yet that is done now, if it may be.

        Raises NoSuch; Refused for a table that has to be published first; what ``publish`` raises.
        """
        found = self.find(namespace, table)
        if found is not None:
            return found
        for name in _names_of(namespace, table):
            try:
                log, snapshot = self._catalog.newest(name)
            except TableNotFound:
                continue
            if not snapshot.settings.iceberg:
                raise _no_table(
                    namespace, table, f"lakebed.iceberg is off for {name}, so Iceberg's readers have no metadata"
                )
            if not may_publish:
                raise _unpublished(name, "and so does this service for an operator")
            try:
                publish(log, open_part_storage(log.root))
            except InvalidSchema:
                raise
            except InvalidInput as error:  # the store takes nothing from this service
                raise _unpublished(name, f"but this service can't: {error}") from error
            if (found := self._at(log.root)) is not None:
                return found
        raise _no_table(namespace, table, "GET …/tables lists the tables of a namespace")

    def identifiers(self) -> dict[tuple[Namespace, str], list[str]]:
        """The roots of all tables, whether they have published something or not, in the order of their identifiers."""
        found: dict[tuple[Namespace, str], list[str]] = {}
        for name, roots in self._catalog.tables_lately(_LISTED_SECONDS).items():
            found.setdefault(identifier_of(name), []).extend(roots)
        return dict(sorted(found.items()))

    def namespaces(self) -> list[Namespace]:
        """All namespaces with those above them, in order."""
        found = {namespace for namespace, _ in self.identifiers()}
        return sorted({one[:depth] for one in found for depth in range(1, len(one) + 1)})

    def require_namespace(self, namespace: Namespace) -> None:
        """Raises NoSuch."""
        if namespace not in self.namespaces():
            text = f"there is no namespace {_shown(namespace)}: a namespace is there while it has a table"
            raise NoSuch("NoSuchNamespaceException", text)

    def tables_in(self, namespace: Namespace, after: str, count: int | None) -> list[str]:
        """The tables of a namespace that have published something, in order: the first ``count`` after a name."""
        asked = [
            (table, roots) for (one, table), roots in self.identifiers().items() if one == namespace and table > after
        ]
        found: list[str] = []
        with ThreadPoolExecutor(_THREADS) as pool:
            for some in _pieces(asked, _THREADS * 4):
                are_there = pool.map(lambda each: any(map(self._has_hint, each[1])), some)
                found += [table for (table, _), is_there in zip(some, are_there, strict=True) if is_there]
                if count is not None and len(found) >= count:
                    return found[:count]
        return found

    def _has_hint(self, root: str) -> bool:
        return has_object(self._place(root).store, HINT)

    def _place(self, root: str) -> _Place:
        return self._places.get(root) or _Place(root)

    def _at(self, root: str) -> PublishedTable | None:
        """The table at a root, if it has published something. Only such roots are kept: a caller may ask for any name."""
        place = self._place(root)
        head = place.published()
        if head is None:
            return None
        with self._lock:
            _keep(self._places, root, place)
        return PublishedTable(root, head)


def _keep(kept: OrderedDict[_K, _V], key: _K, value: _V) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > _KEPT_MAX:
        kept.popitem(last=False)


def _unpublished(name: str, here: str) -> Refused:
    return Refused(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"nothing of {name} is published yet, though lakebed.iceberg is on: maintenance does it every "
        f"lakebed.iceberg_seconds, lakebed compact --only publish at once, {here}",
        {"Retry-After": "10"},
    )


def _no_table(namespace: Namespace, table: str, why: str) -> NoSuch:
    return NoSuch("NoSuchTableException", f"there is no table {_shown((*namespace, table))}: {why}")


def _shown(levels: Sequence[str]) -> str:
    return repr(".".join(levels)[:200])


def _pieces(values: Sequence[_V], size: int) -> Iterator[Sequence[_V]]:
    return (values[at : at + size] for at in range(0, len(values), size))
