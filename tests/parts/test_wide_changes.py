"""The cost of a batch grows with the number of its columns, and not with the square of it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lakebed.parts.changes import WriteSpec, prepare
from lakebed.storage.engine import connect


class Counting:
    """An Arrow table or schema, and how many names it was asked for: the list of names is made anew each time."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.names_asked_for = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name in ("names", "column_names"):
            self.names_asked_for += len(found)
        return found

    def __getitem__(self, name: str) -> Any:
        return self.inner[name]

    def __iter__(self) -> Any:
        return iter(self.inner)

    def __len__(self) -> int:
        return len(self.inner)


def names_for(columns: int) -> int:
    schema = pa.schema([pa.field("id", pa.int64(), False), *((f"c{number}", pa.int64()) for number in range(columns))])
    changes: Any = Counting(pa.table([pa.array([1], pa.int64())] * len(schema), schema=schema))
    known: Any = Counting(schema)
    prepared = prepare(changes, WriteSpec(schema=known, keys=("id",)), connect())
    assert prepared.num_columns == columns + 2
    return int(changes.names_asked_for + known.names_asked_for)


def test_ten_times_the_columns_are_ten_times_the_work() -> None:
    assert names_for(1_000) <= 11 * names_for(100)
