"""Feeds hostile records to the decoders and to the task that writes what they made: ``python -m tests.decode.fuzz``.

    python -m tests.decode.fuzz --records 1000000 --seed 1
    python -m tests.decode.fuzz --seed 1 --case 4711          again, with what it was

A case is a random table, a format and a batch of records (``hostile``). It holds if

    1.  nothing raises: every record is rows, a quarantined record with a reason that was foreseen, a truncate or ignored;
    2.  the readings by columns, with the native parser and with Arrow's, and the reading one by one agree to the bit;
    3.  the task writes what was decoded: each row of its parts is a decoded one, and none is missing without keys.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakebed.decode import slices
from lakebed.decode.decoder import Decoded
from lakebed.decode.json.columns import Missed
from lakebed.decode.json.objects import JsonParser, ObjectParser
from lakebed.decode.slices import UNFORESEEN
from lakebed.ingest.batch_writer import WriteTask
from lakebed.parts.changes import UNAVAILABLE_COLUMN
from tests.decode.hostile import Case, Hostile, seed_of
from tests.decode.records import RecordChanges

ROWS_PER_CASE = 150


@contextmanager
def only_one_by_one() -> Iterator[None]:
    """The fast reading refuses everything."""
    with patch.object(ObjectParser, "parse", side_effect=Missed("off")):
        yield


@contextmanager
def without_native_code() -> Iterator[None]:
    """The fast reading uses Arrow's parser, as where the library is not built."""
    with patch.object(JsonParser, "of", return_value=None):
        yield


def plain(array: pa.Array) -> list[Any]:
    """Values that compare to the bit, also those that Python lacks."""
    array = pa.concat_arrays([array])
    kind = array.type
    if pa.types.is_temporal(kind):
        return plain(array.view(pa.int32() if kind.bit_width == 32 else pa.int64()))
    if pa.types.is_floating(kind):
        return [None if value is None else repr(value) for value in array.to_pylist()]
    if pa.types.is_struct(kind):
        members = list(zip(*[plain(member) for member in array.flatten()], strict=True)) or [()] * len(array)
        return [member if valid else None for member, valid in zip(members, array.is_valid().to_pylist(), strict=True)]
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        is_map = pa.types.is_map(kind)
        items = list(zip(plain(array.keys), plain(array.items), strict=True)) if is_map else plain(array.values)
        offsets = array.offsets.to_pylist()
        pieces = [tuple(items[low:high]) for low, high in pairwise(offsets)]
        return [piece if valid else None for piece, valid in zip(pieces, array.is_valid().to_pylist(), strict=True)]
    values: list[Any] = array.to_pylist()
    return values


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = [
        plain(column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)) for column in table.columns
    ]
    return list(zip(*columns, strict=True))


def assert_same(fast: Decoded, slow: Decoded) -> None:
    assert fast.changes.schema == slow.changes.schema
    assert rows_of(fast.changes) == rows_of(slow.changes)
    assert rows_of(fast.quarantined) == rows_of(slow.quarantined)
    assert fast.truncates == slow.truncates
    assert fast.event_time_max == slow.event_time_max
    assert (fast.ignored, fast.truncated) == (slow.ignored, slow.truncated)
    assert fast.sources == slow.sources
    assert fast.met == slow.met
    for kind in ("unknown_operation", "january_1970", "far_date", "far_timestamp", "left_out_field"):
        assert fast.remarks.get(kind, {}) == slow.remarks.get(kind, {})
    fields = (Counter(one.remarks.get("unknown_field", {})) for one in (fast, slow))
    assert not next(fields) - next(fields), "a name was counted that is in no record"


def check(case: Case, folder: str) -> Counter[str]:
    """Raises AssertionError, or whatever the decoder or the task raised; else how many records became what."""
    with patch.object(slices, "ONE_BY_ONE_ROWS", 2):  # so that the records beside a bad one are still read by columns
        decoded = case.decoder().decode(case.records, case.cutoff)
        with without_native_code():
            by_arrow = case.decoder().decode(case.records, case.cutoff)
    with only_one_by_one():
        one_by_one = case.decoder().decode(case.records, case.cutoff)
    assert_same(decoded, one_by_one)
    assert_same(by_arrow, one_by_one)
    reasons = decoded.quarantined["reason"].to_pylist()
    assert not [reason for reason in reasons if reason.startswith(UNFORESEEN)]
    told = len(reasons) + len(decoded.truncates) + decoded.ignored + decoded.truncated
    assert case.spec.keys or told + len(decoded.changes) == len(case.records)

    task = WriteTask(case.spec, folder, RecordChanges(case.decoder(), case.cutoff))
    written = task.write(task.stream(iter(case.records.to_batches())))
    assert written.ignored == decoded.ignored
    aside, rows = sum(part.rows for part in written.quarantined), written.rows
    assert aside >= len(reasons)
    assert case.spec.keys or rows + aside + told - len(reasons) == len(case.records)
    names = case.spec.schema.names
    if UNAVAILABLE_COLUMN not in decoded.changes.column_names:  # else rows are completed from others
        known = Counter(rows_of(_as_written(decoded.changes, case).select(names)))
        for part in written.parts:
            found = Counter(rows_of(pq.read_table(f"{folder}/{part.path}", partitioning=None).select(names)))
            assert not found - known, "a part holds what was not decoded"
    return Counter(records=len(case.records), quarantined=aside, rows=rows, ignored=decoded.ignored)


def _as_written(changes: pa.Table, case: Case) -> pa.Table:
    """An empty partition value is null."""
    for name in case.spec.partition_by:
        if pa.types.is_string(changes.schema.field(name).type):
            at = changes.column_names.index(name)
            values = pc.if_else(pc.equal(changes[name], ""), pa.scalar(None, pa.string()), changes[name])
            changes = changes.set_column(at, changes.schema.field(name), values)
    return changes


def run(records: int, seed: int, rows: int = ROWS_PER_CASE, first: int = 0) -> Counter[str]:
    """As many cases as it takes. Raises the failure of a case, with a note that says how to see it again."""
    total: Counter[str] = Counter()
    number = first
    while total["records"] < records:
        case = Hostile(seed_of(seed, number)).case(rows)
        with tempfile.TemporaryDirectory() as folder:
            try:
                total += check(case, f"{folder}/table")
            except Exception as error:
                least = _least(case, type(error), folder)
                error.add_note(f"python -m tests.decode.fuzz --seed {seed} --case {number}\n{case.spec}\n{least}")
                raise
        number += 1
    return total


def _least(case: Case, failure: type[Exception], folder: str) -> list[Any]:
    """Few records that fail alike, with their keys and times."""
    records, size = case.records, len(case.records) // 2
    while size:
        for start in range(0, len(records), size):
            fewer = pa.concat_tables([records.slice(0, start), records.slice(start + size)])
            try:
                check(replace(case, records=fewer), f"{folder}/{start}")
            except failure:
                records = fewer
                break
            except Exception:
                continue
        else:
            size //= 2
    return [
        records[name].cast(pa.int64()).to_pylist() if name == "timestamp" else records[name].to_pylist()
        for name in ("key", "value", "timestamp")
    ]


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--records", type=int, default=1_000_000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--case", type=int, default=None, help="only this one")
    given = arguments.parse_args()
    if given.case is not None:
        print(run(1, given.seed, first=given.case))
        return
    started, total, number = time.monotonic(), Counter[str](), 0
    while total["records"] < given.records:
        total += run(min(given.records, 100 * ROWS_PER_CASE), given.seed, first=number)
        number += 100
        seconds = time.monotonic() - started
        print(f"{dict(total)} in {seconds:.0f} s, up to case {number}", file=sys.stderr, flush=True)
    print(dict(total))


if __name__ == "__main__":
    main()
