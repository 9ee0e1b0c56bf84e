"""The input that all systems get, made once: files of first rows and of batches, and what the table must be equal to.

The oracle is DuckDB over the change files alone: the newest row of each key by ``seq``, without those that were deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.fresh_read import AGGREGATE, SELECTIVE
from benchmarks.workload import Workload

_ROWS_PER_FILE = 1_000_000
_POINTS = 8
# Small row groups let Spark skip and read in parallel: the plain file is as good as plain Parquet gets.
_PLAIN = "(format parquet, compression zstd, row_group_size 122880)"
_COLUMNS = "pk, ts, region, status, amount, note, seq"


@dataclass(frozen=True, slots=True)
class Scale:
    """What to make. ``updates``: skewed to recent keys, or uniform. ``append_only``: batches of new keys alone."""

    rows: int
    batches: int
    warmup: int
    changes: int
    read_every: int
    updates: str = "skewed"
    append_only: bool = False
    memory: str = "4g"


@dataclass(frozen=True, slots=True)
class Given:
    """Files of the input. ``checks``: by number of batches, the rows then, as plain sorted Parquet."""

    initial: list[str]
    batches: list[str]
    change_bytes: int
    checks: dict[int, str]
    final: str
    queries: dict[str, list[str]]


def make(scale: Scale, folder: Path) -> Given:
    """Write the input into a folder."""
    folder.mkdir(parents=True)
    work = Workload(scale.rows, scale.changes, updates=scale.updates)
    initial = []
    for start in range(0, scale.rows, _ROWS_PER_FILE):
        initial.append(str(folder / f"initial-{start // _ROWS_PER_FILE:03}.parquet"))
        rows = work.base(start, min(scale.rows, start + _ROWS_PER_FILE))
        pq.write_table(rows.append_column("op", pa.array(["c"] * len(rows))), initial[-1])
    batches, change_bytes, next_key = [], 0, scale.rows
    for number in range(scale.warmup + scale.batches):
        if scale.append_only:
            rows = work.base(next_key, next_key + scale.changes)
            batch = rows.append_column("op", pa.array(["c"] * len(rows)))
            next_key += scale.changes
        else:
            batch = work.batch()
        change_bytes += batch.nbytes if number >= scale.warmup else 0
        batches.append(str(folder / f"batch-{number:04}.parquet"))
        pq.write_table(batch, batches[-1])
    checks = {
        done: _oracle(initial, batches[:done], folder / f"plain-{done:04}")
        for done in range(scale.warmup, len(batches) + 1)
        if (done - scale.warmup) % scale.read_every == 0 or done == len(batches)
    }
    return Given(initial, batches, change_bytes, checks, checks[len(batches)], _queries(checks[len(batches)]))


def _oracle(initial: list[str], batches: list[str], folder: Path) -> str:
    folder.mkdir()
    with duckdb.connect() as connection:
        connection.execute("set TimeZone = 'UTC'")
        changes = f"read_parquet({batches})" if batches else f"(from read_parquet({initial}) limit 0)"
        connection.execute(
            f"create table changed as from {changes} qualify row_number() over (partition by pk order by seq desc) = 1"
        )
        connection.execute(
            f"copy (select {_COLUMNS} from read_parquet({initial}) anti join changed using (pk) "
            f"union all select {_COLUMNS} from changed where op <> 'd' order by region, ts, pk) "
            f"to '{folder}/rows.parquet' {_PLAIN}"
        )
    return str(folder)


def _queries(final: str) -> dict[str, list[str]]:
    """The aggregate, a query of half a percent of the rows, look-ups of some keys."""
    with duckdb.connect() as connection:
        connection.execute("set TimeZone = 'UTC'")
        rows = f"read_parquet('{final}/*.parquet')"
        low, high = connection.execute(
            "select (min(ts) + (max(ts) - min(ts)) * 0.6)::timestamp, (min(ts) + (max(ts) - min(ts)) * 0.7)::timestamp "
            f"from {rows}"
        ).fetchall()[0]
        keys = connection.execute(f"select pk from {rows} order by hash(pk) limit {_POINTS}").fetchall()
    return {
        "aggregate": [AGGREGATE.replace("{name}", "{table}")],
        "selective": [SELECTIVE.replace("{name}", "{table}").format(table="{table}", low=low, high=high)],
        "point": [f"select * from {{table}} where pk = {key}" for (key,) in keys],
    }


def difference(given: Given, final: Path, resolved: bool) -> str | None:
    """What is wrong with a system's final rows; None if count and hash are those of the oracle.

    The hash is the sum of the hashes of the rows, whatever their order. ``resolved`` False: all changes must be there.
    """
    with duckdb.connect() as connection:
        connection.execute("set TimeZone = 'UTC'")
        wanted = (
            f"read_parquet('{given.final}/*.parquet')" if resolved else f"read_parquet({given.initial + given.batches})"
        )
        return differ(connection, wanted, f"read_parquet('{final}/*.parquet')", _TYPED)


_TYPED = "pk, epoch_us(ts) as ts, region, status, amount, note, seq"


def differ(connection: duckdb.DuckDBPyConnection, expected: str, there: str, columns: str) -> str | None:
    """How two relations differ as multisets of rows of some columns; None if they don't, by count and hash."""
    wanted, found = _fingerprint(connection, expected, columns), _fingerprint(connection, there, columns)
    if wanted == found:
        return None
    rows = connection.execute(
        f"(select {columns} from {there} except select {columns} from {expected} limit 2) union all "
        f"(select {columns} from {expected} except select {columns} from {there} limit 2)"
    ).fetchall()
    return f"{found[0]:,} rows, must be {wanted[0]:,}; among those that differ: {rows}"


def _fingerprint(connection: duckdb.DuckDBPyConnection, rows: str, columns: str) -> tuple[int, int]:
    text = f"select count(*), sum(hash(r)::hugeint) from (select {columns} from {rows}) r"
    count, total = connection.execute(text).fetchall()[0]
    return int(count), int(total or 0)
