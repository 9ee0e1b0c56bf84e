"""What changes cost that fill one column of their rows, beside changes that are whole rows.

    python -m benchmarks.fills [--rows 1000000] [--changes 20000] [--rounds 7] [--groups]

A table of ``rows`` rows with seven columns, sorted by its key, settled and merged. In each round, in turn, ``changes`` changes of
existing rows come in as whole rows and as rows of two columns (key and one more):

1. with keys of one narrow range, which touch few row groups, and
2. with keys from anywhere in the table.

With ``--groups`` the filled column is a group with an order of its own, so rows are resolved by group, whole ones too.

Printed are the seconds of a settle and its CPU seconds; these with those of the batch before it (of which whole rows write more,
and fills less); the CPU seconds of the first read of the tail and of the next one; the rows of the base that the settle replaced;
and the bytes that the process has read meanwhile (``rchar`` of /proc/self/io: from files, in the page cache or not). Each is the
median of the rounds. After each step the rows are compared with what they must be.

Last, the *floor* for keys of a narrow range: the CPU seconds that Arrow takes to decode the columns that were not sent, of the
row groups with these keys, and to write so many whole rows, and the bytes of these columns. Whoever completes rows does both.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import lakebed
from benchmarks.workload import KEYS, SCHEMA, Workload
from benchmarks.workload import table as print_table
from lakebed.table import internals_of

READ_CHANGES = 10_000
_AMOUNTS = itertools.count(10_000_000)
"""Which no row has yet; a later one is greater."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--groups", action="store_true", help="the filled column has an order of its own")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        orders = _filled(folder, args.rows, args.groups)
        floor, rows = _floor(orders, args), []
        for where in ("narrow", "random"):
            costs: dict[str, list[tuple[float, ...]]] = {"whole": [], "filling": []}
            for number in range(args.rounds):
                for kind in costs if number % 2 else reversed(costs):
                    costs[kind].append(_round(orders, args, number, where, kind))
            by_kind = {
                kind: [statistics.median(one) for one in zip(*several, strict=True)] for kind, several in costs.items()
            }
            rows += [[where, kind, *found] for kind, found in by_kind.items()]
            pairs = zip(by_kind["filling"], by_kind["whole"], strict=True)
            rows.append([where, "ratio", *(filling / whole if whole else 0.0 for filling, whole in pairs)])
        print_table(
            f"{args.changes:,} changes of {args.rows:,} rows, and reads of {READ_CHANGES:,} in the tail",
            [
                "keys",
                "changes",
                "replaced",
                "settle s",
                "CPU s",
                "with its batch",
                "settle MB read",
                "first read CPU s",
                "next read CPU s",
                "read MB",
            ],
            rows,
        )
        print_table("floor", ["read CPU s", "read MB", "write CPU s"], [floor])


def _floor(orders: lakebed.Table, args: argparse.Namespace) -> list[object]:
    """The median of the rounds."""
    internals = internals_of(orders)
    found = []
    for number in range(args.rounds):
        keys = _keys(np.random.default_rng(number), args.rows, args.changes, "narrow")
        low, high, pieces, size = keys[0], keys[-1], list[pa.Table](), 0
        worked = time.process_time()
        for part in internals.log.refresh().parts.values():
            with pq.ParquetFile(internals.storage.duckdb_url(part.path), pre_buffer=False) as file:
                names = [name for name in orders.schema.names if name not in ("pk", "amount")]
                for at in range(file.num_row_groups):
                    group = file.metadata.row_group(at)
                    columns = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
                    ends = columns["pk"].statistics
                    if ends.max >= low and ends.min <= high:
                        pieces.append(file.read_row_group(at, names, use_threads=False))
                        size += sum(columns[name].total_compressed_size for name in names)
        read = time.process_time() - worked
        rows = Workload(0).orders(keys)
        worked = time.process_time()
        pq.write_table(rows, pa.BufferOutputStream(), compression="zstd", use_dictionary=["region", "status"])
        found.append((read, size / 1e6, time.process_time() - worked))
    return [statistics.median(one) for one in zip(*found, strict=True)]


def _filled(folder: str, rows: int, has_groups: bool) -> lakebed.Table:
    if has_groups:
        orders = lakebed.create(
            f"{folder}/orders",
            pa.schema([*SCHEMA, pa.field("paid", pa.int64())]),
            KEYS,
            sequence_by="changed",
            properties={"lakebed.groups": {"payment": {"columns": ["amount"], "sequence_by": "paid"}}},
        )
    else:
        orders = lakebed.create(f"{folder}/orders", SCHEMA, KEYS)
    work = Workload(rows)
    for start in range(0, rows, 1_000_000):
        orders.apply(_ordered(work.base(start, min(rows, start + 1_000_000)), orders, 0.0, ["paid", "changed"]))
    orders.settle()
    orders.maintenance.compact()
    return orders


def _round(orders: lakebed.Table, args: argparse.Namespace, number: int, where: str, kind: str) -> tuple[float, ...]:
    rng = np.random.default_rng(number)
    amount = float(next(_AMOUNTS))
    keys = _keys(rng, args.rows, READ_CHANGES, where)
    _apply(orders, _changes(orders, keys, amount, kind), kind)
    _, first, bytes_read = _timed(orders.to_arrow)
    found = _timed(orders.to_arrow)
    _check(orders, keys, amount)
    orders.settle()
    keys, amount = _keys(rng, args.rows, args.changes, where), float(next(_AMOUNTS))
    changes = _changes(orders, keys, amount, kind)
    _, batch_seconds, _ = _timed(lambda: _apply(orders, changes, kind))
    results = list[lakebed.SettleResult]()
    seconds, cpu_seconds, settled = _timed(lambda: results.append(orders.settle()))
    _check(orders, keys, amount)
    orders.maintenance.compact()
    replaced = float(results[0].rows_marked_dead)
    return replaced, seconds, cpu_seconds, batch_seconds + cpu_seconds, settled / 1e6, first, found[1], bytes_read / 1e6


def _keys(rng: np.random.Generator, rows: int, count: int, where: str) -> npt.NDArray[np.int64]:
    """Of keys of one narrow range every second one is taken."""
    if where == "random":
        return rng.choice(rows, count, replace=False)
    return rng.integers(rows - 2 * count) + 2 * np.arange(count)


def _apply(orders: lakebed.Table, changes: pa.Table, kind: str) -> None:
    orders.apply(changes, columns="sent" if kind == "filling" else None)


def _changes(orders: lakebed.Table, keys: npt.NDArray[np.int64], amount: float, kind: str) -> pa.Table:
    amounts = pa.array(np.full(len(keys), amount))
    if kind == "filling":
        return _ordered(pa.table({"pk": keys, "amount": amounts}), orders, amount, ["paid"])
    rows = Workload(0).orders(keys)
    rows = rows.set_column(rows.schema.get_field_index("amount"), "amount", amounts)
    return _ordered(rows, orders, amount, ["paid", "changed"])


def _ordered(rows: pa.Table, orders: lakebed.Table, moment: float, names: list[str]) -> pa.Table:
    """The changes with what orders them, if the table has groups; ``moment`` grows from batch to batch."""
    for name in names if "paid" in orders.schema.names else ():
        rows = rows.append_column(name, pa.array(np.full(len(rows), int(moment))))
    return rows


def _check(orders: lakebed.Table, keys: npt.NDArray[np.int64], amount: float) -> None:
    rows = orders.to_arrow()
    changed = rows.filter(pc.equal(rows["amount"], amount))
    assert sorted(changed["pk"].to_pylist()) == sorted(keys.tolist())
    assert changed["status"].null_count == 0


def _timed(act: Callable[[], object]) -> tuple[float, float, int]:
    """Seconds, CPU seconds of all threads, and bytes read."""
    before, started, worked = _read(), time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - started, time.process_time() - worked, _read() - before


def _read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


if __name__ == "__main__":
    main()
