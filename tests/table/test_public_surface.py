"""What users may rely on: names and parameters change only on purpose, together with this file."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction.maintenance import Maintenance
from lakebed.table.inspect import TableInspect
from lakebed.table.maintenance import TableMaintenance

FUNCTIONS = {
    "connect": "url, token=None, *, certificates=None",
    "create": "path, schema, keys=(), sort_key=(), *, sequence_by=None, partition_by=(), properties=None, "
    "types='given'",
    "open": "path",
    "convert": "path, keys=(), sort_key=(), sequence_by=None",
    "undrop": "path",
    "spark": "app_name='lakebed', master=None, *, s3=None, session=None, conf=None, catalogs=None",
}
METHODS = {
    "alter": "*, add=None, widen=None, rename=None, drop=(), relax=(), comment=None, reason='', dry_run=False",
    "apply": "changes, apply_as_deletes=None, except_column_list=(), batch_id=None, *, evolve=(), on_mismatch='fail', "
    "columns=None, ignore_null_updates=False, renamed_columns=None",
    "attach_partition": "name",
    "changes": "from_version, to_version=None, spark=None",
    "create_view": "spark, name",
    "delete": "where",
    "detach_partition": "partition",
    "doctor": "deep=False",
    "drop": "*, purge=False",
    "drop_detached": "name",
    "ingest": "changes, apply_as_deletes=None, except_column_list=(), *, keys=None, sequence_by=None, checkpoint=None, "
    "query_name='ingest', quarantine='table', trigger=None, evolve=(), on_mismatch='quarantine', columns=None, "
    "ignore_null_updates=False, renamed_columns=None",
    "lookup": "keys, columns=None, version=None",
    "maintain": "spark, as_query=None, *, trigger_seconds=1.0, checkpoint=None",
    "query": "sql, name=None, *, allow_files=False",
    "overwrite": "rows, where=None",
    "purge": "where, *, dry_run=False, force=False, quarantine=None",
    "read": "spark, version=None, timestamp=None",
    "replace_partition": "partition, rows",
    "set_properties": "properties",
    "set_sort_key": "columns",
    "restore": "version=None, timestamp=None, *, positions=False",
    "settle": "",
    "status": "deep=False",
    "to_arrow": "columns=None, where=None, version=None",
    "to_pandas": "columns=None, where=None, version=None",
    "to_polars": "columns=None, where=None, version=None",
    "truncate": "",
    "update": "set, where",
}
PROPERTIES = {"inspect", "maintenance", "path", "properties", "schema", "version"}
INSPECT = {
    "claims": "",
    "clustering": "",
    "compactions": "last=1000",
    "detached": "",
    "detail": "",
    "draw_clustering": "file",
    "mutations": "",
    "parts": "version=None",
    "positions": "",
    "schemas": "",
    "timeline": "last=1000",
    "waiting": "",
}
MAINTENANCE = {
    "clean_log": "",
    "compact": "",
    "expire_rows": "dry_run=True",
    "expire_snapshots": "older_than=None, retain_last=1, dry_run=True, allow_short_retention=False",
    "hold": "version, seconds",
    "plan": "",
    "publish_iceberg": "",
    "recluster": "where=None, final=False, on_progress=None, stop=None, dry_run=False, spark=None",
    "resume": "",
    "remove_entry": "name",
    "remove_orphan_files": "older_than=None, dry_run=True, allow_short_retention=False",
    "restart_order": "",
    "rewind": "topic, to=None",
    "vacuum": "retention=None, dry_run=True, allow_short_retention=False",
}
MAINTAINED = {"awaitTermination": "timeout=None", "exception": "", "stop": ""}
WAREHOUSE = {
    "at": "moment='newest', *, settled=False, hold_seconds=3600.0",
    "create_views": "spark, at='newest'",
    "points": "limit=100",
    "query": "sql, at='newest'",
    "table": "name",
    "tables": "",
    "watermark": "",
}
MOMENT = {
    "create_views": "spark",
    "query": "sql",
    "read": "spark, name",
    "to_arrow": "name, columns=None, where=None",
}
SURFACES: tuple[tuple[type, dict[str, str]], ...] = (
    (lakebed.Table, METHODS),
    (Maintenance, MAINTAINED),
    (TableInspect, INSPECT),
    (TableMaintenance, MAINTENANCE),
    (lakebed.Warehouse, WAREHOUSE),
    (lakebed.Moment, MOMENT),
)
PUBLIC = {
    "AlterResult",
    "CompactResult",
    "Moment",
    "MutationResult",
    "ReclusterResult",
    "SettleResult",
    "Table",
    "Warehouse",
    "__version__",
    "connect",
    "convert",
    "create",
    "errors",
    "events",
    "open",
    "spark",
    "undrop",
    "warehouse",
}


def parameters(function: Callable[..., Any]) -> str:
    """The parameters as they are written, without types and without ``self``."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=inspect.Parameter.empty) for name, p in signature.parameters.items() if name != "self"]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))[1:-1]


def test_the_package_exports_these_names_and_no_others() -> None:
    assert set(lakebed.__all__) == PUBLIC
    assert all(hasattr(lakebed, name) for name in PUBLIC)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_these_parameters(name: str) -> None:
    assert parameters(getattr(lakebed, name)) == FUNCTIONS[name]
    assert getattr(lakebed, name).__doc__


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, methods in SURFACES for name in methods])
def test_a_method_takes_these_parameters(kind: type, name: str) -> None:
    expected = next(methods for each, methods in SURFACES if each is kind)[name]
    assert parameters(getattr(kind, name)) == expected
    assert getattr(kind, name).__doc__


def test_a_table_has_these_members_and_no_others(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64())]))
    assert members(table) == set(METHODS) | PROPERTIES
    assert members(table.inspect) == set(INSPECT)
    assert members(table.maintenance) == set(MAINTENANCE)


def test_no_method_is_there_twice() -> None:
    names = [name for kind, methods in SURFACES if kind not in (lakebed.Warehouse, lakebed.Moment) for name in methods]
    assert len(names) == len(set(names))


def members(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_every_error_has_one_root_and_says_what_to_do() -> None:
    classes = inspect.getmembers(lakebed.errors, inspect.isclass)
    found = [kind for name, kind in classes if not name.startswith("_")]
    assert all(issubclass(kind, lakebed.errors.LakebedError) and kind.__doc__ for kind in found)
    assert all(kind.__name__ in (lakebed.errors.__doc__ or "") for kind in found)
