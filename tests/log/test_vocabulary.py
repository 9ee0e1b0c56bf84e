"""The names that stand in the log are written once, in ``entries``, and operations commit in one loop."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import lakebed
from lakebed.log import entries
from lakebed.log.entries import Operation

pytestmark = pytest.mark.slow  # they parse the whole package
PACKAGE = Path(lakebed.__file__).parent
NAMES = {value for name, value in vars(entries).items() if name.isupper() and isinstance(value, str)}


@cache
def modules() -> tuple[tuple[str, ast.Module], ...]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return tuple((path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())) for path in paths)


def texts(module: ast.Module) -> set[str]:
    return {node.value for node in ast.walk(module) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_no_other_module_spells_a_name_of_the_log() -> None:
    found = {(path, text) for path, module in modules() for text in texts(module) & NAMES}
    found.discard(("settings.py", entries.SORT_KEY_VERSION_TAG))  # the property of a table has the same name
    assert {path for path, _ in found} == {"log/entries.py"}, found


def test_no_other_module_spells_an_operation() -> None:
    spelled = {operation.value for operation in Operation if " " in operation.value}
    found = {(path, text) for path, module in modules() for text in texts(module) & spelled}
    assert {path for path, _ in found} == {"log/entries.py"}, found


def test_only_the_loop_commits_to_a_log() -> None:
    found = set()
    for path, module in modules():
        for node in ast.walk(module):
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
    for path, module in modules():
        for node in ast.walk(module):
            if (
                isinstance(node, ast.Attribute)
                and node.attr == "operation"
                and ast.unparse(node.value).endswith("info")
            ):
                readers.add(path)
    assert readers == {
        "log/files/commit_codec.py", "log/table_log.py",  # writes it, and emits the event
        "compaction/log_source.py", "monitoring/table_state.py", "operations/mutate_keyed.py", "ui/history.py",
        "view/metadata_tables.py", "service/table_routes.py",
    }  # fmt: skip
