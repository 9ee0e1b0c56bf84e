"""The tables below a folder as a catalog: found, described, created, altered."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakebed.database import warehouse
from lakebed.discovery import TableName, all_tables_below
from lakebed.errors import InvalidInput, TableDropped, TableExists, TableNotFound
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.names.definitions import READS, VERSION, alteration_of, definition_of
from lakebed.operations.drop import drop_table, remove_dropped
from lakebed.parts.changes import write_spec_of
from lakebed.schema.change import path_of
from lakebed.settings import suggest
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.roots import parse_root
from lakebed.table import Table, create, internals_of, undrop
from lakebed.table import open as open_table
from lakebed.view.arrow_scan import snapshot_at
from lakebed.view.spark_scan import schemas_for_spark

_TABLES_MAX = 256
METADATA = (
    "parts",
    "timeline",
    "schemas",
    "positions",
    "compactions",
    "claims",
    "mutations",
    "waiting",
    "detached",
    "clustering",
    "detail",
)
"""The metadata tables: ``table.inspect`` has them under these names."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A table, or one of its metadata tables (``metadata``), as a query has it."""

    table: Table
    snapshot: Snapshot
    metadata: str | None = None

    def rows(self) -> pa.Table:
        """The rows of the metadata table."""
        assert self.metadata is not None
        found: pa.Table = getattr(self.table.inspect, self.metadata)()
        return found


class Catalog:
    """The tables of a folder. Safe to use from several threads."""

    def __init__(self, folder: str, at: str | None = None, known_as: str = "lake") -> None:
        """``at``: the point of the database that all tables are read at; None for their newest versions.

        ``known_as``: the catalog's name in SQL, for messages.
        """
        self._known_as = known_as
        self.folder = str(parse_root(folder))
        self.at = at
        self._tables: OrderedDict[str, Table] = OrderedDict()
        self._made: set[str] = set()
        """Namespaces that were created and have no table yet."""
        self._lock = threading.Lock()

    # -- finding -------------------------------------------------------------------------------------------------------

    def names(self) -> dict[str, str]:
        """The roots of all tables by name. Raises StoreUnavailable."""
        return all_tables_below(self.folder)

    def namespaces(self) -> list[str]:
        """The schemas that have a table."""
        return sorted({name.partition(".")[0] for name in self.names() if "." in name} | self._made)

    def tables(self, namespace: Sequence[str]) -> list[str] | None:
        """The names of the tables of a namespace; None if there is none."""
        start = "".join(f"{part}." for part in namespace)
        found = [name[len(start) :] for name in self.names() if name.startswith(start)]
        found = [name for name in found if namespace or "." not in name]
        return found if found or self.has_namespace(namespace) or not namespace else None

    def load(self, name: Sequence[str], version: int | None = None, seconds: float | None = None) -> Loaded | None:
        """A table, or a metadata table (``[schema, table, parts]``), at a version; None if there is none.

        Raises TableDropped, VersionNotFound, InvalidInput, StoreUnavailable.
        """
        table = self._open(name)
        if table is not None:
            is_newest = version is None and seconds is None and self.at is None
            newest = internals_of(table).log.newest if is_newest else None
            return Loaded(table, newest or self._snapshot(table, name, version, seconds))
        if len(name) > 1 and name[-1] in METADATA and (of := self._open(name[:-1])) is not None:
            return Loaded(of, internals_of(of).log.refresh(), name[-1])
        return None

    def exists(self, name: Sequence[str]) -> bool:
        """Whether there is such a table, or files of one that are being deleted: DROP … PURGE then goes on with that."""
        try:
            return self.load(name) is not None
        except TableDropped as error:
            return error.is_final

    def table(self, name: Sequence[str]) -> Table:
        """A table. Raises TableNotFound with the nearest name, TableDropped, StoreUnavailable."""
        found = self._open(name)
        if found is None:
            raise TableNotFound(self.missing(name))
        return found

    def missing(self, name: Sequence[str]) -> str:
        """What to say of a table that is not there."""
        wanted, known = ".".join(name), self.names()
        if len(name) > 1 and self._open(name[:-1]) is not None:
            return f"{'.'.join(name[:-1])} has no metadata table {name[-1]!r}{suggest(name[-1], METADATA)}"
        return f"there is no table {wanted} below {self.folder}{suggest(wanted, list(known))}"

    def _snapshot(self, table: Table, name: Sequence[str], version: int | None, seconds: float | None) -> Snapshot:
        if version is None and seconds is None and self.at is not None:
            moment = warehouse(self.folder).at(int(self.at) if self.at.isdecimal() else self.at)
            at = moment.versions.get(".".join(name))
            if at is None:
                raise TableNotFound(f"the point {self.at} has no table {'.'.join(name)}", table=table.path)
            version = at
        return snapshot_at(internals_of(table).log, version, seconds)

    def _open(self, name: Sequence[str]) -> Table | None:
        dropped: TableDropped | None = None
        for root in self._roots(name):
            with self._lock:
                known = self._tables.get(root)
            if known is not None and self._is_same(known):
                return known
            try:
                table = open_table(root)
            except TableDropped as error:
                dropped = error
                continue
            except TableNotFound:
                continue
            with self._lock:
                self._tables[root] = table
                while len(self._tables) > _TABLES_MAX:
                    self._tables.popitem(last=False)
            return table
        if dropped is not None:
            raise self._in_sql(dropped, name, "undrop")
        return None

    def _in_sql(self, error: TableDropped, name: Sequence[str], *procedures: str) -> TableDropped:
        """The error with the ways out that SQL has."""
        if error.is_final:
            return error
        quoted = path_of(name).replace("'", "\\'")
        calls = [f"CALL {self._known_as}.system.{one}('{quoted}')" for one in procedures]
        return error.with_text(f"{error}; in SQL: {', '.join(calls)}")

    def _is_same(self, table: Table) -> bool:
        """Whether the table is still the one that was opened, not one that was created in its place."""
        log = internals_of(table).log
        before = log.newest.metadata.id if log.newest is not None else None
        try:
            return before is not None and log.refresh().metadata.id == before
        except TableNotFound:
            with self._lock:
                self._tables.pop(table.path, None)
            return False

    def _roots(self, name: Sequence[str]) -> list[str]:
        """Where a table of this name may be: as pipelines of databases name folders, and as people do."""
        as_database, plain = TableName(".".join(name)).folder, "/".join(name)
        return [f"{self.folder}/{folder}" for folder in dict.fromkeys((as_database, plain))]

    def has_namespace(self, namespace: Sequence[str]) -> bool:
        """Whether it has a table, or was created by this process."""
        return len(namespace) == 1 and (namespace[0] in self._made or namespace[0] in self.namespaces())

    def create_namespace(self, namespace: Sequence[str]) -> None:
        """Remember it until it has a table: a namespace is a folder with tables, and nothing else. Raises InvalidInput."""
        if len(namespace) != 1:
            raise InvalidInput(f"{'.'.join(namespace)}: a namespace has one name, that of a folder below {self.folder}")
        self._made.add(namespace[0])

    def drop_namespace(self, namespace: Sequence[str]) -> bool:
        """Forget an empty one; returns whether it was there. Raises InvalidInput for one that has tables."""
        if tables := self.tables(namespace):
            raise InvalidInput(f"{'.'.join(namespace)} has tables ({', '.join(tables[:5])}): drop these first")
        there = self.has_namespace(namespace)
        self._made -= set(namespace)
        return there

    def drop(self, name: Sequence[str], purge: bool) -> bool:
        """Drop a table; returns whether it was there. Raises TableDropped, InvalidInput, Contention, StoreUnavailable."""
        try:
            table = self._open(name)
        except TableDropped as error:
            if not purge or not error.is_final or error.table is None:
                raise
            drop_table(TableLog(open_store(error.table)), open_part_storage(error.table), purge=True)
            return True
        if table is not None:
            table.drop(purge=purge)
        elif self.load(name) is not None:
            raise InvalidInput(f"{'.'.join(name)} is a metadata table: it goes with its table")
        return table is not None

    def undrop(self, name: Sequence[str]) -> int:
        """Bring back a table that was dropped; returns its version. Raises TableNotFound, TableDropped."""
        for root in self._roots(name):
            try:
                return undrop(root).version
            except TableDropped:
                raise
            except TableNotFound:
                continue
        known = [row["table"] for row in self.remove_dropped(None, dry_run=True).to_pylist()]
        raise TableNotFound(f"{self.folder} has no dropped table {'.'.join(name)}{suggest('.'.join(name), known)}")

    def remove_dropped(self, name: Sequence[str] | None, dry_run: bool = False) -> pa.Table:
        """Delete the files of tables that were dropped long enough ago, or of this one. See ``operations.drop``."""
        if name is None:
            return remove_dropped(self.folder, dry_run=dry_run)
        try:
            table = self._open(name)
        except TableDropped as error:
            return remove_dropped(self.folder, error.table, dry_run=dry_run)
        if table is None:
            raise TableNotFound(self.missing(name))
        raise InvalidInput(
            f"{'.'.join(name)} is not dropped: DROP TABLE {'.'.join(name)} PURGE deletes it with its files"
        )

    # -- changing ------------------------------------------------------------------------------------------------------

    def create(self, name: Sequence[str], schema: Any, partition_by: Sequence[str], given: Mapping[str, str]) -> bool:
        """Create a table from what CREATE TABLE says; returns whether it was not there yet.

        Raises InvalidInput, InvalidSchema, TableDropped (the files of one of this name are still there), StoreUnavailable.
        """
        definition = definition_of(schema, partition_by, given)
        try:
            made = create(self._roots(name)[0 if len(name) > 1 else -1], schema, **definition.arguments)
        except TableDropped as error:
            raise self._in_sql(error, name, "undrop", "remove_dropped") from None
        except TableExists:
            return False
        if definition.comments:
            made.alter(comment=definition.comments, reason=Operation.CREATE.value)
        return True

    def alter(self, name: Sequence[str], changes: Sequence[Mapping[str, Any]]) -> None:
        """Do what ALTER TABLE says. Raises TableNotFound, InvalidSchema, InvalidInput, Contention, StoreUnavailable."""
        table = self.table(name)
        asked = alteration_of(changes, table.properties)
        if asked.sort_key is not None:
            table.set_sort_key(asked.sort_key)
        if asked.properties:
            table.set_properties(asked.properties)
        if asked.columns:
            table.alter(**asked.columns)


def described(loaded: Loaded) -> dict[str, Any]:
    """What ``NamedTable.java`` keeps of a table: schema, keys, partitions, properties."""
    from pyspark.sql.pandas.types import from_arrow_schema

    if loaded.metadata is not None:
        rows = loaded.rows()
        return {
            "handle": {"root": loaded.table.path, "metadata": loaded.metadata},
            "schema": json.loads(from_arrow_schema(rows.schema).json()),
            "keys": [],
            "partitions": [],
            "is_metadata": True,
            "combines": False,
            "rows": len(rows),
            "bytes": rows.nbytes,
            "properties": {"provider": "lakebed", "location": loaded.table.path},
        }
    snapshot, spec = loaded.snapshot, write_spec_of(loaded.snapshot)
    schema, _ = schemas_for_spark(snapshot.metadata.schema_string, snapshot.columns.is_identity)
    properties = {
        **snapshot.metadata.configuration,
        "provider": "lakebed",
        "location": loaded.table.path,
        "is_managed_location": "true",
        READS: "fresh",
        VERSION: str(snapshot.version),
    }
    keys, fields = list(snapshot.logical_settings.keys), json.loads(schema)
    for field in fields["fields"]:
        field["nullable"] = field["nullable"] and field["name"] not in keys  # whatever the schema says, no key is null
    return {
        "handle": {"root": loaded.table.path, "id": snapshot.metadata.id, "version": snapshot.version},
        "schema": fields,
        "keys": keys,
        "partitions": list(snapshot.metadata.partition_columns),
        "is_metadata": False,
        "combines": spec.combines_changes,
        "rows": sum(part.rows - part.dead_rows for part in snapshot.parts.values())
        + sum(part.rows - 2 * part.deletes for part in snapshot.tail.values()),
        "bytes": sum(part.bytes for parts in (snapshot.parts, snapshot.tail) for part in parts.values()),
        "properties": properties,
    }
