"""What a version is read from is kept, for the table that it is a version of."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import lakebed
from lakebed.table import internals_of


def test_a_version_of_another_table_in_the_same_place_is_resolved_for_itself(tmp_path: Path) -> None:
    tables = [lakebed.create(tmp_path / name, pa.schema([("id", pa.int64())]), keys=["id"]) for name in "ab"]
    for number, table in enumerate(tables):
        table.apply(pa.table({"id": pa.array([number], pa.int64())}))
        table.settle()
    view, (one, other) = internals_of(tables[0]).view, [internals_of(table).log.refresh() for table in tables]
    assert one.version == other.version
    before = view.pin(one)
    assert view.pin(one) is before
    assert view.pin(other).files != before.files
    assert view.pin(other) is view.pin(other)
