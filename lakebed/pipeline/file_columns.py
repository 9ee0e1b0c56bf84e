"""Whether the files in a source's folder have the columns that a pipeline file says, judged by the first file that is there.

Spark reads Parquet by name: it leaves out a column that is not named, and takes null for one that a file lacks, without a word.
Such a null would erase a value of the table, so such a file is refused, unless ``except_columns`` has the column.
It reads CSV by position, so the header must have the same names in the same order.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lakebed.pipeline.findings import Findings
from lakebed.pipeline.settings import FilesSection
from lakebed.settings import suggest

_HEADER_CHARACTERS_MAX = 1 << 16


def check_file_columns(
    source: FilesSection, kind: str, columns: Sequence[str], left_out: Sequence[str], findings: Findings
) -> None:
    """``columns``: those of the table and the extra ones; ``left_out``: those of them that are not taken over."""
    if kind not in ("csv", "parquet") or not os.path.isdir(source.folder):
        return
    file = _first_file(source.folder)
    names = None if file is None else _names_in(file, kind, source)
    if file is None or names is None:
        return
    known = {name.lower() for name in columns}
    more = [name for name in names if name.lower() not in known]
    lacking = [
        name for name in columns if name.lower() not in {each.lower() for each in names} and name not in left_out
    ]
    if kind == "csv":
        if [name.lower() for name in names] != [name.lower() for name in columns]:
            findings.wrong(
                f"{file} has the header {', '.join(names)}, and the columns of the table and extra_columns are "
                f"{', '.join(columns)}: columns of CSV files are taken by their place, so bring them into one order, and name "
                "those that the table does not need in extra_columns and except_columns",
                "source", "folder",
            )  # fmt: skip
        return
    if more:
        findings.note(
            f"{file} has columns that no column takes: {', '.join(more)}. They are left out; a table can have them"
        )
    if lacking:
        near = suggest(lacking[0], more)
        findings.wrong(
            f"{file} lacks the columns {', '.join(lacking)}{near}; nulls in their place would erase what the table has. If they "
            "shall, name the columns in except_columns",
            "source", "folder",
        )  # fmt: skip


def _first_file(folder: str) -> Path | None:
    """The first file that Spark would read; names that begin with ``_`` or ``.`` are hidden from it."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    return next((Path(folder, name) for name in names if not name.startswith(("_", "."))), None)


def _names_in(file: Path, kind: str, source: FilesSection) -> list[str] | None:
    """The names of a file's columns; None if it has none, or can't be read here."""
    options = {name.lower(): value for name, value in source.options.items()}
    try:
        if kind == "parquet":
            return list(pq.read_schema(file).names)
        if options.get("header", "true").lower() != "true" or file.suffix != ".csv":
            return None  # no names, or perhaps compressed
        with file.open(encoding=options.get("encoding", options.get("charset", "utf-8-sig")), newline="") as text:
            line = text.readline(_HEADER_CHARACTERS_MAX)
        separator = options.get("sep", options.get("delimiter", ","))
        [names] = (
            csv.reader([line], delimiter=separator, quotechar=options.get("quote", '"')) if line.strip() else [None]
        )
    except (OSError, ValueError, TypeError, LookupError, csv.Error, pa.ArrowException):
        return None  # Spark will say what is wrong with it
    return None if names is None else [name.strip() for name in names]
