"""Errors form one tree, carry data, and lose neither class, text nor data on their way."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakebed
from lakebed import errors
from lakebed.cli.exit_codes import exit_code_of
from lakebed.errors import LakebedError
from lakebed.failures import decode, encode

PAGE = Path(lakebed.__file__).parents[1] / "docs/errors.md"


def tree(kind: type[LakebedError] = LakebedError) -> Iterator[type[LakebedError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__.startswith("lakebed."):
            yield from tree(child)


def filled(kind: type[LakebedError]) -> LakebedError:
    """An error of the class with a value for each of its fields."""
    values: dict[str, object] = {"table": 's3://b/\u00e4 "t"', "version": 7, "path": "a/part-1.parquet"}
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name not in values:
            values[name] = ("B1", "P4") if name == "invariants" else 3 if "int" in str(parameter.annotation) else "x\ny"
    return kind("two\nlines: \\ and \u00fc", **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", list(tree()), ids=lambda kind: kind.__name__)
def test_an_error_keeps_class_text_and_data(kind: type[LakebedError]) -> None:
    error = filled(kind)
    assert {"table", "version", "path"} <= error.data().keys()
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), decode(encode(error))):
        assert type(other) is kind
        assert (str(other), other.data()) == (str(error), error.data())


def test_another_text_leaves_the_data_and_drops_notes() -> None:
    error = errors.Corrupt("the password is secret", path="a", part="b")
    error.add_note("the password is secret")
    changed = error.with_text("the password is ***")
    assert (str(changed), changed.data()) == ("the password is ***", {"path": "a", "part": "b"})
    assert not getattr(changed, "__notes__", None)
    assert str(error) == "the password is secret"


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = [line for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]
    parents: list[str] = []
    found = []
    for line in drawn:
        depth = (len(line) - len(line.lstrip(" \u2502\u251c\u2514\u2500")) - 4) // 4
        name = line.lstrip(" \u2502\u251c\u2514\u2500").split()[0]
        parents[depth:] = [name]
        found.append((name, parents[depth - 1] if depth else "Exception"))
    assert sorted(found) == sorted((kind.__name__, kind.__bases__[0].__name__) for kind in tree())


def test_the_page_has_every_error_with_its_fields_and_its_exit_code() -> None:
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `")
    ]
    page = {row[0].strip("`"): (set(re.findall(r"`(\w+)`", row[3])), int(row[4])) for row in rows}
    everywhere = {"table", "version", "path"}
    assert page == {
        kind.__name__: (filled(kind).data().keys() - everywhere, exit_code_of(kind("x")))
        for kind in tree()
        if kind is not LakebedError
    }
