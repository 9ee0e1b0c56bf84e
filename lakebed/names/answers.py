"""What the classes of Spark's catalogs ask (``sparks/catalog``), word by word, and who answers."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakebed.errors import InvalidInput
from lakebed.log.snapshot import Snapshot
from lakebed.names.catalog import Catalog, Loaded, described
from lakebed.names.statements import run
from lakebed.sparks.names import StatementInJvm, logical_plan, session_of
from lakebed.table import Table, internals_of
from lakebed.table import open as open_table
from lakebed.view.query_reads import snapshot_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOADED_MAX = 256


class Answers:
    """Answers for all catalogs of a JVM."""

    def __init__(self) -> None:
        self._catalogs: dict[tuple[str, str, str | None], Catalog] = {}
        self._loaded: OrderedDict[tuple[str, int], tuple[Table, Snapshot]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, session: SparkSession, what: str, values: Sequence[Any]) -> Any:
        """The answer; see ``Python.java``."""
        if what == "scan":
            java_session, handle = values
            return self._scan(session_of(session, java_session), json.loads(handle))
        if what == "statement":
            java_session, statement = values
            here = StatementInJvm(session, java_session, statement)
            table, _ = self._of_handle(json.loads(here.handle))
            return ",".join(map(str, run(table, here)))
        if what == "truncate":
            table, _ = self._of_handle(json.loads(values[0]))
            return str(table.truncate())
        name, folder, *rest = values
        if what == "missing":
            return self._catalog(name, folder, None).missing(rest[0].split("."))
        at = session.conf.get(f"spark.sql.catalog.{name}.at", None)
        return json.dumps(self._of_catalog(what, self._catalog(name, folder, at), rest))

    def _catalog(self, name: str, folder: str, at: str | None) -> Catalog:
        with self._lock:
            found = self._catalogs.get((name, folder, at))
            if found is None:
                found = self._catalogs[name, folder, at] = Catalog(folder, at)
        return found

    def _of_catalog(self, what: str, catalog: Catalog, values: list[Any]) -> Any:
        match what, values:
            case "load", (name, when):
                loaded = catalog.load(json.loads(name), **_when(json.loads(when)))
                return None if loaded is None else self._kept(loaded)
            case "exists", (name,):
                return catalog.load(json.loads(name)) is not None
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
            case "alter", (name, changes):
                return catalog.alter(json.loads(name), json.loads(changes))
            case "drop", (name, purge):
                return catalog.drop(json.loads(name), purge == "true")
        raise InvalidInput(f"lakebed's catalog has no answer to {what!r}")

    def _kept(self, loaded: Loaded) -> dict[str, Any]:
        if loaded.metadata is None:
            with self._lock:
                self._loaded[loaded.table.path, loaded.snapshot.version] = loaded.table, loaded.snapshot
                self._loaded.move_to_end((loaded.table.path, loaded.snapshot.version))
                while len(self._loaded) > _LOADED_MAX:
                    self._loaded.popitem(last=False)
        return described(loaded)

    def _of_handle(self, handle: dict[str, Any]) -> tuple[Table, Snapshot]:
        """The table and the version that a query has named."""
        with self._lock:
            found = self._loaded.get((handle["root"], handle["version"]))
        if found is None:
            table = open_table(handle["root"])
            found = table, snapshot_at(internals_of(table).log, handle["version"])
        return found

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
    if not str(when["version"]).isdigit():
        raise InvalidInput(f"VERSION AS OF {when['version']!r}: versions are numbers")
    return {"version": int(when["version"])}


def _schema(text: str) -> Any:
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(text))
