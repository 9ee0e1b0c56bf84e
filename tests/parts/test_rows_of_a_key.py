"""Rows whose keys no other row has are told apart without DuckDB, which must not change what is found."""

from __future__ import annotations

import random
from datetime import date
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from lakebed.parts import key_moves
from lakebed.parts.changes import WriteSpec
from lakebed.parts.key_moves import by_key
from lakebed.storage.engine import connect

VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [0, 1, -1, 2**62, 7, 8],
    pa.string(): ["", "a", "A", "é", "e\u0301", "a "],
    pa.binary(): [b"", b"\0", b"\0\0", b"a", b"\xff", b"b"],
    pa.float64(): [0.0, -0.0, float("nan"), 1.0, float("inf"), 2.0],
    pa.decimal128(9, 2): [Decimal("0.00"), Decimal("1.10"), Decimal("-1.10"), Decimal("5"), Decimal("7"), Decimal("8")],
    pa.date32(): [date(1970, 1, day) for day in range(1, 7)],
}


@pytest.mark.few(4)
@pytest.mark.slow
@pytest.mark.parametrize("kinds", [[kind] for kind in VALUES] + [[pa.int64(), pa.string()]], ids=str)
def test_rows_whose_key_no_other_row_has_are_found_alike_with_duckdb_and_without(kinds: list[pa.DataType]) -> None:
    dice, told = random.Random(1), 0
    for _ in range(60):
        count = dice.randint(1, 6)
        columns = [pa.array([dice.choice(VALUES[kind]) for _ in range(count)], kind) for kind in kinds]
        names = [f"k{at}" for at in range(len(kinds))]
        table = pa.table(columns, names)
        chosen, alone = (np.array([dice.random() < share for _ in range(count)]) for share in (0.4, 0.5))
        spec = WriteSpec(schema=table.schema, keys=tuple(names))
        quick = key_moves.have_a_key_each(table, chosen, names)
        found = by_key(table, chosen, spec, connect(), alone=alone)
        with patch.object(key_moves, "have_a_key_each", return_value=False):
            expected = by_key(table, chosen, spec, connect(), alone=alone)
        assert sorted(found) == sorted(expected)
        told += quick
    assert bool(told) != (pa.float64() in kinds)
