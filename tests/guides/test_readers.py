"""The table of docs/readers.md says what readers make of a lakebed table; the readers that tests have anyway are tried again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import lakebed
from benchmarks.readers import READERS, TABLES, Program, tables_in, try_reader
from tests.guides.pages import ROOT

INSTALLED = {"deltalake", "pandas", "polars", "pyarrow", "pyiceberg"}


def shown() -> dict[str, list[str]]:
    """The rows of the page's table: by reader its version and its cells."""
    lines = (ROOT / "docs/readers.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")]
    return {row[0]: row[1:] for row in rows if len(row) == len(TABLES) + 2}


def package(reader: Program) -> tuple[str, str]:
    name, _, version = reader.packages[0].partition("==") if reader.packages else ("lakebed", "", "")
    return name, version


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, lakebed.Table]:
    return tables_in(tmp_path_factory.mktemp("tables"))


def test_the_page_has_the_readers_that_the_command_tries_in_the_versions_that_it_installs() -> None:
    wanted = {reader.name: package(reader)[1] for reader in READERS if reader.packages}
    assert {name: row[0] for name, row in shown().items() if name in wanted} == wanted
    assert {reader.name for reader in READERS} <= set(shown())


@pytest.mark.few(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    "reader", [one for one in READERS if package(one)[0] in INSTALLED], ids=lambda reader: str(reader.name)
)
def test_the_page_says_what_a_reader_makes_of_each_table(
    reader: Program, tables: dict[str, lakebed.Table], tmp_path: Path
) -> None:
    _, found = try_reader(reader, sys.executable, tables)
    assert [found[kind].cell for kind in TABLES] == shown()[reader.name][1:]
