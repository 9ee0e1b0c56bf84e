"""Only ``lakebed.sparks`` reaches into Spark: the other rooms use what PySpark documents for all its versions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import lakebed

ROOT = Path(lakebed.__file__).parent
ROOM = ROOT / "sparks"
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
    """What stands in files of other rooms that name something of PySpark."""
    for file in sorted(ROOT.rglob("*.py")):
        text = "" if ROOM in file.parents else file.read_text()
        if any(word in text for word in ("pyspark", "py4j", *PRIVATE)):
            for node in ast.walk(ast.parse(text)):
                yield file.relative_to(ROOT).as_posix(), node


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
