"""What the classes of Spark's catalogs ask (``sparks/catalog``), and who answers; and streams of a table by its name."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakebed.errors import InvalidInput
from lakebed.ingest.apply import How, frame_changes
from lakebed.ingest.stream import Backpressure, FrameIngest
from lakebed.log.snapshot import Snapshot
from lakebed.names.catalog import Catalog, Loaded, described
from lakebed.names.definitions import has_properties
from lakebed.names.procedures import called, described_procedure, procedures_in
from lakebed.names.statements import require_verb, run
from lakebed.parts.change_columns import columns_at
from lakebed.quoting import quote_for_spark
from lakebed.schema.fitting import EvolvePolicy
from lakebed.sparks.names import StatementInJvm, frame_of_jvm, id_of, logical_plan, session_of
from lakebed.table import Table, internals_of
from lakebed.table import open as open_table
from lakebed.view.arrow_scan import snapshot_at
from lakebed.view.changes import ONLY_ROWS_OF, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# -- Streams of a table by its name ----------------------------------------------------------------------------------------
#
# **That are written to it**: ``df.writeStream.toTable("lake.shop.orders")``.
#
# Each batch is brought as ``Table.ingest`` brings it: in one commit, which has the number of the batch and the id of the query,
# so a batch that Spark repeats is left out. A row that does not fit ends the query, as it ends an INSERT. In the mode
# ``complete`` a batch is all rows, and replaces those of the table.
#
# **That are read from it**: ``spark.readStream.table("lake.shop.orders")`` is the stream of its changes (``view.changes``) in
# the columns of the table. These can't say that a row has left, so a delete ends the query.


_FIRST = "startingVersion"
_HOW = How(policy=EvolvePolicy(on_mismatch="fail"))


class _StreamedTable:
    """A table that streams are written to."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._backpressure = Backpressure(table.path, internals_of(table).log)

    def bring(self, rows: DataFrame, batch_id: int, *, replaces: bool) -> None:
        """Bring a batch. Raises InvalidChanges, InvalidInput, Contention, StoreUnavailable."""
        if replaces:
            self._table.overwrite(rows)
            return
        internals = internals_of(self._table)
        evolution = internals.evolution("a stream needs it")
        stream, frame, _ = frame_changes(rows, _HOW, internals.log, evolution, strict=True)
        common = internals.path, internals.log, stream, "fail", internals.quarantine_log
        FrameIngest(*common, backpressure=self._backpressure)(frame, batch_id)


def _stream_of(session: SparkSession, root: str, table: str, options: Mapping[str, str]) -> DataFrame:
    """The rows that versions brought, the newest whole row of a key that changed.

    Raises InvalidInput for an option that is unknown; the stream ends with an error at a version in which rows left.
    """
    given = {name.lower(): value for name, value in options.items()}
    first = given.pop(_FIRST.lower(), "0")
    if given or not first.isdecimal():
        raise InvalidInput(f"a stream of {table} has one option, {_FIRST}, which is the number of a version")
    columns = columns_at(internals_of(open_table(root)).log.refresh())
    register(session)
    changes = session.readStream.format("lakebed_changes").option("path", root).option(_FIRST, first)
    rows = changes.option(ONLY_ROWS_OF, table).load()
    return rows.select(*map(quote_for_spark, columns.mapping.logical.names))


_LOADED_MAX = 256
_SESSIONS_MAX = 16


class Answers:
    """Answers for all catalogs of a JVM."""

    def __init__(self) -> None:
        self._catalogs: dict[tuple[str, str, str | None], Catalog] = {}
        self._loaded: OrderedDict[tuple[str, str, int], tuple[Loaded, str]] = OrderedDict()
        self._sessions: dict[str, SparkSession] = {}
        self._streams: dict[tuple[str, str], _StreamedTable] = {}
        self._lock = threading.Lock()

    def __call__(self, session: SparkSession, what: str, values: Sequence[Any], given: Any) -> Any:
        """The answer; see ``Python.java``."""
        if what == "scan":
            return self._scan(self._session(session, given), json.loads(values[0]))
        if what == "statement":
            table, _ = self._of_handle(json.loads(values[0]))
            return ",".join(map(str, run(table, StatementInJvm(session, given))))
        if what == "require_verb":
            require_verb(StatementInJvm(session, given))
            return ""
        if what == "stream":
            handle, name, *rest = values
            options = dict(zip(rest[::2], rest[1::2], strict=True))
            return logical_plan(_stream_of(self._session(session, given), json.loads(handle)["root"], name, options))
        if what == "batch":
            return self._batch(session, given, *values)
        if what == "truncate":
            table, _ = self._of_handle(json.loads(values[0]))
            return str(table.truncate())
        if what == "missing":
            name, folder, table = values
            return self._catalog(name, folder, None).missing(table.split("."))
        name, folder, at, *rest = values
        catalog = self._catalog(name, folder, at)
        if what == "call":
            here = self._session(session, given)
            return logical_plan(here.createDataFrame(called(catalog, name, here, *rest)))
        if what == "changes":
            table, first, last = rest
            frame = catalog.table(json.loads(table)).changes(
                int(first), None if last is None else int(last), self._session(session, given)
            )
            return logical_plan(frame)
        return self._load(catalog, *rest) if what == "load" else json.dumps(self._of_catalog(what, catalog, rest))

    def _batch(self, session: SparkSession, java_rows: Any, handle: str, number: str, replaces: str) -> str:
        """Bring a batch of a stream."""
        which = json.loads(handle)
        with self._lock:
            stream = self._streams.get((which["root"], which["id"]))
        if stream is None:
            stream = _StreamedTable(self._of_handle(which)[0])
            with self._lock:
                kept = [*self._streams.items()][-_LOADED_MAX:]
                self._streams = {**dict(kept), (which["root"], which["id"]): stream}
        stream.bring(frame_of_jvm(session, java_rows), int(number), replaces=replaces == "true")
        return ""

    def _session(self, session: SparkSession, java_session: Any) -> SparkSession:
        """The session that asks: to make one costs more than to know it."""
        name = id_of(java_session)
        if name not in self._sessions:
            self._sessions = dict([*self._sessions.items()][-_SESSIONS_MAX:]) | {
                name: session_of(session, java_session)
            }
        return self._sessions[name]

    def _catalog(self, name: str, folder: str, at: str | None) -> Catalog:
        with self._lock:
            found = self._catalogs.get((name, folder, at))
            if found is None:
                found = self._catalogs[name, folder, at] = Catalog(folder, at, name)
        return found

    def _of_catalog(self, what: str, catalog: Catalog, values: list[Any]) -> Any:
        match what, values:
            case "exists", (name,):
                return catalog.exists(json.loads(name))
            case "tables", (namespace,):
                return catalog.tables(json.loads(namespace))
            case "namespaces", ():
                return catalog.namespaces()
            case "has_namespace", (namespace,):
                return catalog.has_namespace(json.loads(namespace))
            case "location", (namespace,):
                return "/".join([catalog.folder, *json.loads(namespace)])
            case "create_namespace", (namespace,):
                return catalog.create_namespace(json.loads(namespace))
            case "drop_namespace", (namespace, _):
                return catalog.drop_namespace(json.loads(namespace))
            case "create", (name, schema, by, options):
                return (
                    True
                    if catalog.create(json.loads(name), _schema(schema), json.loads(by), json.loads(options))
                    else None
                )
            case "has", (name, properties):
                return has_properties(catalog.table(json.loads(name)).properties, json.loads(properties))
            case "alter", (name, changes):
                return catalog.alter(json.loads(name), json.loads(changes))
            case "drop", (name, purge):
                return catalog.drop(json.loads(name), purge == "true")
            case "procedure", (name,):
                return described_procedure(json.loads(name))
            case "procedures", (namespace,):
                return procedures_in(json.loads(namespace))
        raise InvalidInput(f"lakebed's catalog has no answer to {what!r}")

    def _load(self, catalog: Catalog, name: str, when: str) -> str:
        """What there is to say of a table at a version, which a scan or a statement may ask for next."""
        loaded = catalog.load(json.loads(name), **_when(json.loads(when)))
        if loaded is None:
            return "null"
        if loaded.metadata is not None:
            return json.dumps(described(loaded))
        key = loaded.table.path, loaded.snapshot.metadata.id, loaded.snapshot.version
        with self._lock:
            known = self._loaded.get(key)
        if known is None:
            known = loaded, json.dumps(described(loaded))
        with self._lock:
            self._loaded[key] = known
            self._loaded.move_to_end(key)
            while len(self._loaded) > _LOADED_MAX:
                self._loaded.popitem(last=False)
        return known[1]

    def _of_handle(self, handle: dict[str, Any]) -> tuple[Table, Snapshot]:
        """The table and the version that a query has named."""
        with self._lock:
            found = self._loaded.get((handle["root"], handle["id"], handle["version"]))
        if found is not None:
            return found[0].table, found[0].snapshot
        table = open_table(handle["root"])
        return table, snapshot_at(internals_of(table).log, handle["version"])

    def _scan(self, session: SparkSession, handle: dict[str, Any]) -> Any:
        """The plan that reads a table at the version that was loaded."""
        if "metadata" in handle:
            table = open_table(handle["root"])
            return logical_plan(
                session.createDataFrame(Loaded(table, internals_of(table).log.refresh(), handle["metadata"]).rows())
            )
        table, snapshot = self._of_handle(handle)
        return logical_plan(internals_of(table).view.dataframe(session, snapshot))


def _when(when: dict[str, Any] | None) -> dict[str, Any]:
    if not when:
        return {}
    if "micros" in when:
        return {"seconds": when["micros"] / 1e6}
    if not str(when["version"]).isdecimal():
        raise InvalidInput(f"VERSION AS OF {when['version']!r}: versions are numbers")
    return {"version": int(when["version"])}


def _schema(text: str) -> Any:
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(text))
