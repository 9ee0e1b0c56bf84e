"""What ``lakebed verify`` costs on both sides, at any speed: processor time, what PostgreSQL reads, and whether all is found.

    python -m benchmarks.verify [--rows 2000000] [--columns 23]

1. A table of PostgreSQL with 22 types is filled by a formula, and a table of the lake by the same formula in DuckDB, in
   three batches that a merge makes one part of. No Kafka is between them, so nothing is waited for.
2. The tables are compared without a pace. Processor time is that of the session's backend and of this process; blocks are those
   that PostgreSQL counted for the table and its index; memory is the most that this process had meanwhile.
3. The same with all rows of the database as they were at one position (``--snapshot``).
4. Differences of seven kinds are planted in the lake, and the tables compared again: exactly these must be found.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import closing
from pathlib import Path

import lakebed
from lakebed.log.snapshot import Snapshot
from lakebed.storage.engine import connect
from lakebed.table import internals_of
from lakebed.verify.canonical import Shape
from lakebed.verify.databases import shape_of
from lakebed.verify.lake import LakeTable
from lakebed.verify.postgres import Database, PostgresTable
from lakebed.verify.proof import Found, Proof
from lakebed.verify.source import Pace
from tests.infra.postgres import PostgresServer
from tests.infra.server import HOST

COLUMNS = {
    "id": ("bigint", "n", "n::bigint"),
    "small": ("smallint", "(n % 1000)::smallint", "(n % 1000)::smallint"),
    "amount": ("numeric(12,2)", "((n % 100000) / 100.0)::numeric(12,2)", "((n % 100000) / 100.0)::decimal(12,2)"),
    "ratio": ("double precision", "n / 7.0::float8", "n / 7.0::double"),
    "share": ("real", "(n % 100)::real / 3::real", "(n % 100)::float / 3::float"),
    "ok": ("boolean", "n % 3 = 0", "n % 3 = 0"),
    "name": ("text", "'name ' || n % 997", "'name ' || n % 997"),
    "note": ("text", "case when n % 5 = 0 then null else md5(n::text) end", "if(n % 5 = 0, null, md5(n::varchar))"),
    "day": ("date", "date '2020-01-01' + (n % 1000)::int", "(date '2020-01-01' + (n % 1000)::int)::date"),
    "at": (
        "timestamptz",
        "timestamptz '2024-01-01 00:00+00' + n * interval '1 second'",
        "make_timestamptz(1704067200000000 + n * 1000000)",
    ),
    "uid": ("uuid", "md5(n::text)::uuid", "md5(n::varchar)::uuid::varchar"),
    "bytes": ("bytea", "decode(md5(n::text), 'hex')", "unhex(md5(n::varchar))"),
    "digits": ("numeric", "n::numeric", "n::varchar"),
    "code": ("char(4)", "lpad((n % 1000)::text, 4, '0')", "lpad((n % 1000)::varchar, 4, '0')"),
    "label": ("varchar(20)", "'label ' || n % 13", "'label ' || n % 13"),
    "doc": ("jsonb", "jsonb_build_object('n', n)", "'{\"n\": ' || n || '}'"),
    "lasts": ("interval", "n * interval '1 second'", "n * 1000000"),
    "clock": (
        "time",
        "time '00:00' + (n % 86400) * interval '1 second'",
        "strftime(timestamp '2024-01-01' + to_seconds(n % 86400), '%H:%M:%S')",
    ),
    "local": (
        "timestamp",
        "timestamp '2024-01-01' + n * interval '1 microsecond'",
        "make_timestamptz(1704067200000000 + n)",
    ),
    "numbers": ("int[]", "array[(n % 7)::int, null, 3]", "[(n % 7)::int, null, 3]"),
    "flags": ("bit(8)", "(n % 256)::int::bit(8)", "unhex(lpad(to_hex(n % 256), 2, '0'))"),
    "address": ("inet", "('10.0.' || n % 256 || '.1')::inet", "'10.0.' || n % 256 || '.1'"),
    "place": ("point", "point(n, n / 4.0)", "{'x': n::double, 'y': n / 4.0::double}"),
}
"""The type in PostgreSQL, and the value of row ``n`` in the SQL of both."""
BATCHES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--columns", type=int, default=len(COLUMNS), help="so many of them, twelve at least")
    args = parser.parse_args()
    for name in list(COLUMNS)[args.columns :]:
        del COLUMNS[name]
    with tempfile.TemporaryDirectory() as folder, PostgresServer() as postgres:
        columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in COLUMNS.items())
        values = ", ".join(value for _, value, _ in COLUMNS.values())
        postgres.sql(
            f"create table proven ({columns}, primary key (id)); insert into proven select {values} "
            f"from generate_series(1, {args.rows}) n; vacuum analyze proven"
        )
        table = filled(Path(folder, "lake"), args.rows)
        with closing(Database(f"postgresql://postgres@{HOST}:{postgres.port}/postgres")) as database:
            print(
                "| | seconds | backend CPU | own CPU | CPU µs a row | blocks read | MB of memory | keys one by one | differ |"
            )
            print("| --- " * 9 + "|")
            report("equal", table, database)
            with closing(database.frozen(3600)) as frozen:
                report("equal at one position", table, database, frozen)
            planted = plant(table, args.rows)
            found = report("seven differences", table, database)
        assert {one.key["id"]: one.kind for one in found.differences} == planted, found.differences


def filled(path: Path, rows: int) -> lakebed.Table:
    """The same rows in the lake."""
    values = ", ".join(f"{value} as {name}" for name, (_, _, value) in COLUMNS.items())
    with connect() as connection:
        schema = connection.sql(f"select {values} from range(0) t(n)").to_arrow_table().schema
        table = lakebed.create(path, schema, keys=["id"])
        for batch in range(BATCHES):
            numbers = f"range({1 + batch}, {rows + 1}, {BATCHES}) t(n)"
            table.apply(connection.sql(f"select {values} from {numbers}").to_arrow_table())
            table.settle()
    return table


def plant(table: lakebed.Table, rows: int) -> dict[str, str]:
    """Differences of all kinds, all over the table; returns their kinds by key."""
    keys = [rows * share // 10 + 1 for share in range(1, 8)]
    table.update({"amount": "amount + 0.01"}, f"id = {keys[0]}")
    table.update({"at": '"at" + interval 1 hour'}, f"id = {keys[1]}")
    table.update({"name": "name[:4]"}, f"id = {keys[2]}")
    table.update({"name": "uid", "uid": "name"}, f"id = {keys[3]}")
    table.delete(f"id = {keys[4]}")
    table.update({"ratio": "ratio * 1.0000000000000002"}, f"id = {keys[5]}")
    [row] = table.to_arrow(where=f"id = {keys[6]}").to_pylist()
    table.apply([row | {"id": 10 * rows}])
    kinds = ("differs", "differs", "differs", "differs", "missing", "differs", "surplus")
    return {str(key): kind for key, kind in zip([*keys[:6], 10 * rows], kinds, strict=True)}


def report(what: str, table: lakebed.Table, database: Database, frozen: Database | None = None) -> Found:
    """Compare, and print a line."""
    internals = internals_of(table)
    snapshot: Snapshot = internals.log.refresh()
    shape = shape_of(database.columns("public", "proven"), snapshot)
    assert isinstance(shape, Shape) and shape.is_ordered and not shape.left_out, shape
    source = PostgresTable(database, "public", "proven", shape)
    scan = frozen.table("public", "proven", shape) if frozen else None
    [(backend,)] = (frozen or database).all("select pg_backend_pid()")
    Path("/proc/self/clear_refs").write_text("5")  # the most memory is that from now on
    began, own, its, blocks = time.monotonic(), time.process_time(), cpu_of(backend), blocks_of(database)
    with closing(LakeTable(internals, shape, lambda _: snapshot)) as lake:
        found = Proof(shape, source, lake, Pace(float("inf")), scan=scan).run()
    seconds, own, its = time.monotonic() - began, time.process_time() - own, cpu_of(backend) - its
    if frozen:
        frozen.close()  # PostgreSQL counts its blocks then
    per_row = (own + its) / found.rows.rows * 1e6
    print(
        f"| {what} | {seconds:.1f} | {its:.1f} | {own:.1f} | {per_row:.2f} | {blocks_of(database) - blocks:,} | "
        f"{most_memory_mb():,.0f} | "
        f"{found.keys:,} | {found.differing_keys:,} |",
        flush=True,
    )
    return found


def cpu_of(pid: int) -> float:
    """The processor seconds of a process (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def most_memory_mb(pid: int | str = "self") -> float:
    """The most memory that a process had (Linux)."""
    [line] = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmHWM")]
    return int(line.split()[1]) / 1e3


def blocks_of(database: Database) -> int:
    """The blocks of the table and its index that PostgreSQL has looked at, in its cache or not."""
    database.all("select pg_stat_force_next_flush()")
    [(count,)] = database.all(
        "select heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit from pg_statio_all_tables "
        "where relname = 'proven'"
    )
    return int(count)


if __name__ == "__main__":
    main()
