"""Conventions that the sources of the package keep: who spells names of the log, raises and recognises errors, or uses Spark.

All look at the whole package, so they share its trees.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import lakebed
from lakebed.ingest.batch_writer import WriteTask
from lakebed.ingest.database_batch import DatabaseIngest
from lakebed.ingest.stream import FrameIngest, RangeIngest
from lakebed.log import entries
from lakebed.log.entries import Operation
from tests.test_errors import tree

pytestmark = pytest.mark.slow  # they parse the whole package
PACKAGE = Path(lakebed.__file__).parent


@pytest.fixture(scope="module", autouse=True)
def trees_are_kept_for_these_tests_only() -> Iterator[None]:
    gc.disable()  # which would look at millions of nodes again and again
    yield
    modules.cache_clear()
    gc.enable()


@cache
def modules() -> dict[str, tuple[ast.AST, ...]]:
    """All nodes of each file, by its path in the package."""
    return {
        path.relative_to(PACKAGE).as_posix(): tuple(ast.walk(ast.parse(path.read_text())))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def texts(nodes: tuple[ast.AST, ...]) -> set[str]:
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


# -- names of the log --------------------------------------------------------------------------------------------------

NAMES = {value for name, value in vars(entries).items() if name.isupper() and isinstance(value, str)}


def test_no_other_module_spells_a_name_of_the_log() -> None:
    found = {(path, text) for path, nodes in modules().items() for text in texts(nodes) & NAMES}
    found.discard(("settings.py", entries.SORT_KEY_VERSION_TAG))  # the property of a table has the same name
    assert {path for path, _ in found} == {"log/entries.py"}, found


def test_no_other_module_spells_an_operation() -> None:
    spelled = {operation.value for operation in Operation if " " in operation.value}
    found = {(path, text) for path, nodes in modules().items() for text in texts(nodes) & spelled}
    assert {path for path, _ in found} == {"log/entries.py"}, found


def test_only_the_loop_commits_to_a_log() -> None:
    found = set()
    for path, nodes in modules().items():
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "commit":
                found.add((path, ast.unparse(node.func.value)))
    assert found == {
        ("log/commit_loop.py", "log"),
        ("compaction/merge.py", "self"),  # Merger.commit, which runs the loop
        ("compaction/volatile.py", "self._merger"),
        ("sparks/older_streams.py", "self._stream"),  # of Spark, to a stream
    }


def test_the_name_of_an_operation_in_the_log_is_for_people() -> None:
    """Whoever reads it, shows it."""
    readers = set()
    for path, nodes in modules().items():
        for node in nodes:
            if (
                isinstance(node, ast.Attribute)
                and node.attr == "operation"
                and ast.unparse(node.value).endswith("info")
            ):
                readers.add(path)
    assert readers == {
        "log/commit_codec.py", "log/table_log.py",  # writes it, and emits the event
        "compaction/log_source.py", "monitoring/table_state.py", "operations/mutate_keyed.py", "ui/history.py",
        "view/metadata_tables.py", "service/table_routes.py",
    }  # fmt: skip


# -- errors -----------------------------------------------------------------------------------------------------------


def test_all_classes_of_the_tree_are_in_one_module() -> None:
    names = {kind.__name__ for kind in tree()}
    elsewhere = {
        node.name
        for nodes in modules().values()
        for node in nodes
        if isinstance(node, ast.ClassDef) and names & {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    }
    assert elsewhere == names - {"LakebedError"}
    assert all(kind.__module__ == "lakebed.errors" for kind in tree())


def test_nobody_raises_the_root() -> None:
    raised = [
        f"{path}:{node.lineno}"
        for path, nodes in modules().items()
        for node in nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("LakebedError", "errors.LakebedError")
    ]
    assert raised == []


KNOWN_TEXTS = {
    "failures.py",  # what Spark says of itself
    "ingest/stream.py",  # what Spark says of a line
    "storage/engine.py",  # what DuckDB says of files
}


def test_nothing_else_recognises_an_error_by_its_text() -> None:
    """A comparison or a search in ``str(error)``; what only shows the text is none."""
    names = {"error", "exception", "failure", "cause", "gone", "first", "exc"}

    def is_text(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and ast.unparse(node.func) == "str" and ast.unparse(node.args[0]) in names

    found = set()
    for path, nodes in modules().items():
        for node in nodes:
            compared = isinstance(node, ast.Compare) and any(map(is_text, [node.left, *node.comparators]))
            searched = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and (
                    (node.func.attr in ("match", "search", "findall", "finditer") and any(map(is_text, node.args)))
                    or (node.func.attr in ("startswith", "endswith", "find") and is_text(node.func.value))
                )
            )
            if compared or searched:
                found.add(path)
    assert found <= KNOWN_TEXTS


def test_everything_that_spark_calls_passes_on_its_errors() -> None:
    """Data sources and their readers, tasks, and what gets the batches of a query."""
    bare = set()
    for path, nodes in modules().items():
        given = {
            ast.unparse(argument).rpartition(".")[2]
            for call in nodes
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
            for argument in call.args[:1]
            if call.func.attr in ("mapPartitions", "foreachBatch") and isinstance(argument, ast.Name)
        }
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
                if isinstance(node, ast.FunctionDef):
                    needs = {"crosses_spark"} if node.name in given else set()
                else:
                    bases = {ast.unparse(base) for base in node.bases}
                    needs = {"methods_cross_spark"} if any(base.startswith("DataSource") for base in bases) else set()
                if not needs <= decorators:
                    bare.add(f"{path}: {node.name}")
    assert bare == set()
    assert all(hasattr(kind.__call__, "__wrapped__") for kind in (WriteTask, RangeIngest, FrameIngest, DatabaseIngest))


# -- Spark ------------------------------------------------------------------------------------------------------------

PUBLIC = {
    "pyspark",
    "pyspark.daemon",  # what spark.python.daemon.module names begins it
    "pyspark.errors",
    "pyspark.sql",
    "pyspark.sql.functions",
    "pyspark.sql.pandas.types",
    "pyspark.sql.streaming.query",
    "pyspark.sql.types",
}
PRIVATE = {"_jvm", "_jsc", "_jdf", "_jsparkSession", "_jsq", "_jconf", "_gateway", "_ensure_initialized"}


def others() -> Iterator[tuple[str, ast.AST]]:
    """What stands in files of other rooms."""
    return ((path, node) for path, nodes in modules().items() if not path.startswith("sparks/") for node in nodes)


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [name.name for name in node.names] if isinstance(node, ast.Import) else []


def test_no_other_room_imports_what_py_spark_does_not_promise() -> None:
    names = [(file, name) for file, node in others() for name in imported(node)]
    assert [(file, name) for file, name in names if name.split(".")[0] == "py4j"] == []
    assert [(file, name) for file, name in names if name.split(".")[0] == "pyspark" and name not in PUBLIC] == []


def test_no_other_room_names_an_internal_of_py_spark() -> None:
    assert [
        (file, node.attr) for file, node in others() if isinstance(node, ast.Attribute) and node.attr in PRIVATE
    ] == []
