"""What users may rely on: names and parameters change only on purpose, together with this file."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import lakebed

FUNCTIONS = {
    "create": "path, schema, keys=(), sort_key=(), sequence_by=None, partition_by=(), properties=None",
    "open": "path",
    "convert": "path, keys=(), sort_key=(), sequence_by=None",
    "spark": "app_name='lakebed', master=None, *, s3=None, session=None, conf=None",
}
METHODS = {
    "apply": "changes, apply_as_deletes=None, except_column_list=(), batch_id=None",
    "attach_partition": "name",
    "changes": "from_version, to_version=None, spark=None",
    "claims": "",
    "clean_log": "",
    "clustering_information": "",
    "compact": "",
    "compactions": "last=1000",
    "create_view": "spark, name",
    "delete": "where",
    "detach_partition": "partition",
    "detached": "",
    "detail": "",
    "drop_detached": "name",
    "doctor": "deep=False",
    "draw_clustering": "file",
    "expire_snapshots": "older_than=None, retain_last=1, dry_run=True, allow_short_retention=False",
    "hold": "version, seconds",
    "ingest": "changes, apply_as_deletes=None, except_column_list=(), *, keys=None, sequence_by=None, checkpoint=None, "
    "query_name='ingest', quarantine='table', trigger=None",
    "ingest_with": "stream, frame, *, checkpoint=None, query_name='ingest', quarantine='table', trigger=None",
    "lookup": "keys, columns=None, version=None",
    "maintain": "spark, *, checkpoint=None, trigger=None",
    "metadata": "name, spark=None",
    "mutations": "",
    "plan": "",
    "parts": "version=None",
    "query": "sql, name=None, *, allow_files=False",
    "read": "spark, version=None, timestamp=None",
    "recluster": "where=None, final=False, on_progress=None, stop=None, dry_run=False",
    "remove_orphan_files": "older_than=None, dry_run=True, allow_short_retention=False",
    "replace_partition": "partition, rows",
    "set_properties": "properties",
    "set_sort_key": "columns",
    "settle": "",
    "status": "deep=False",
    "timeline": "last=1000",
    "to_arrow": "columns=None, where=None, version=None",
    "truncate": "",
    "update": "set, where",
    "vacuum": "retention=None, dry_run=True, allow_short_retention=False",
}
PROPERTIES = {"path", "properties", "schema", "version"}
PUBLIC = {
    "CompactResult",
    "MutationResult",
    "ReclusterResult",
    "SettleResult",
    "Table",
    "__version__",
    "convert",
    "create",
    "errors",
    "events",
    "open",
    "spark",
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


@pytest.mark.parametrize("name", METHODS)
def test_a_method_takes_these_parameters(name: str) -> None:
    assert parameters(getattr(lakebed.Table, name)) == METHODS[name]
    assert getattr(lakebed.Table, name).__doc__


def test_a_table_has_these_members_and_no_others(tmp_path: Any) -> None:
    public = {name for name in dir(lakebed.Table) if not name.startswith("_")}
    on_instances = {"path"}
    assert public | on_instances == set(METHODS) | PROPERTIES


def test_every_error_has_one_root_and_says_what_to_do() -> None:
    found = [kind for _, kind in inspect.getmembers(lakebed.errors, inspect.isclass)]
    assert all(issubclass(kind, lakebed.errors.LakebedError) and kind.__doc__ for kind in found)
    assert all(kind.__name__ in (lakebed.errors.__doc__ or "") for kind in found)
