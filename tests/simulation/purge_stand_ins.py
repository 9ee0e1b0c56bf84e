"""What a purge does with DuckDB, done here with dictionaries (``stand_ins``)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyroaring import BitMap64

from lakebed.errors import Corrupt
from lakebed.log.actions import Part
from lakebed.merge.kernel import MergedPart, MergeSource
from lakebed.parts.changes import WriteSpec
from lakebed.sql import Expression
from lakebed.storage.part_storage import PartStorage
from tests.simulation import files
from tests.simulation.files import Row, of

REMAINDERS = 8
_CONDITION = re.compile(r"\w+ % 8 = (\d) and \d+ > 0")


def matches_of(where: str) -> Callable[[Row], bool]:
    """The condition in Python."""
    found = _CONDITION.fullmatch(where)
    assert found, where
    remainder = int(found[1])
    return lambda row: row.value is not None and row.value % REMAINDERS == remainder


def found_in(
    part: Part, spec: WriteSpec, named: pa.Schema, where: Expression, storage: PartStorage
) -> tuple[BitMap64, pa.Table | None]:
    """See ``lakebed.operations.purge.rows.found_in``."""
    matches = matches_of(where.text)
    found = {at: row for at, row in enumerate(rows_of(part, storage)) if matches(row)}
    keys = pa.table({"k": pa.array(sorted({row.key for row in found.values()}), pa.int64())}) if spec.keys else None
    return BitMap64(found), keys


def rows_of(part: Part, storage: PartStorage) -> tuple[Row, ...]:
    """The rows of a file. Raises Corrupt if it is missing, as reading Parquet does."""
    try:
        return of(storage).rows(part.path)
    except FileNotFoundError:
        raise Corrupt(f"{part.path} is missing", path=part.path) from None


def merge_parts(
    sources: list[MergeSource], spec: WriteSpec, storage: PartStorage, connection: object, **limits: Any
) -> list[MergedPart]:
    """See ``lakebed.merge.kernel.merge_parts``."""
    return files.merge_rows(sources, spec, storage, of(storage), 1 << 62)
