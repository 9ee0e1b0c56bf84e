"""``lakebed verify`` beside a pipeline that runs: what it costs on both sides, what it finds, and how fresh the table stays.

    python -m benchmarks.verify_live [--rows 10000000] [--rate 200] [--windows 3] [--seconds 60] [--pace 50000]

1. A table of PostgreSQL gets a thousand rows with all types that Debezium sends, and ``rows`` in all: these have the same values
   but for six columns, which a formula makes. Of types that differ in their size alone there is one, and of arrays there are
   three. Debezium and a pipeline bring the first thousand into the lake. The rest of the table is made from them by the same
   formula in DuckDB, since bringing all of it through Kafka would show nothing more.
2. Differences of ten kinds are planted in the lake. Then ``lakebed run`` follows the table through Debezium and Kafka, while
   ``rate`` rows a second change, come and go: nine of ten are of the newest hundredth of the table, the others are anywhere.
3. ``windows`` times, in turn: for ``seconds`` nothing else runs, and for as long ``lakebed verify`` at its pace. Each change
   carries the time of its statement; its age when a Delta reader sees it comes from the table's log.
4. One comparison runs to its end, while all goes on: exactly what was planted must be found. Of few rows at a high rate it says
   that some change faster than they can be compared (``unsettled``). Processor time and memory are those
   of the session's backend and of the process; bytes are what the process read, and PostgreSQL's blocks of 8 kB, cached or not.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

import lakebed
from benchmarks.freshness import ages
from benchmarks.verify import cpu_of, most_memory_mb
from benchmarks.workload import table as print_table
from lakebed.log.actions import AddPart, CommitInfo
from lakebed.log.conflicts import BLIND
from lakebed.log.table_log import Committed
from lakebed.storage.engine import connect
from lakebed.version import ENGINE
from tests.end_to_end.every_type import DIALECTS, Reading
from tests.end_to_end.meanwhile import meanwhile
from tests.end_to_end.run_process import RunProcess, newest_version
from tests.end_to_end.test_verify import EDGES, NOT_SENT
from tests.end_to_end.types_of_postgres import POSTGRES
from tests.infra.connect import avro_converters
from tests.infra.debezium import DebeziumServer
from tests.infra.kafka import KafkaServer
from tests.infra.postgres import PostgresServer
from tests.infra.registry import RegistryServer
from tests.infra.server import HOST
from tests.internals import log_of

NAME, TABLE = "live", "public.proven"
FIRST, AT_ONCE = 1_000, 250_000
ALIKE = {"time(3)", "timestamp(3)", "timestamptz(0)", "macaddr8"}
ALIKE |= {"int4range", "int8range", "numrange", "tsrange", "daterange"}
ARRAYS = ("int[]", "text[]", "double precision[]")
CASES = {
    one.type: one
    for one in reversed(POSTGRES)
    if one.type not in {*NOT_SENT, *ALIKE, "numeric(40,2)"} and (one.type in ARRAYS or not one.type.endswith("[]"))
}
"""Each type of docs/guides/verify.md; Avro has no room for more than 38 digits."""
OURS = {
    "id": ("bigint", "{n}", "{n}"),
    "updated_at": (
        "timestamptz",
        "timestamptz '2024-01-01 00:00+00' + {n} * interval '1 second'",
        "make_timestamptz(1704067200000000 + {n} * 1000000)",
    ),
    "amount": ("numeric(12,2)", "({n} % 100000) / 100.0", "({n} % 100000) / 100.0"),
    "ratio": ("double precision", "{n} / 7.0::float8", "{n} / 7.0::double"),
    "note": ("text", "md5({n}::text)", "md5({n}::varchar)"),
    "other": ("text", "'other ' || {n}", "'other ' || {n}"),
}
"""The type of each column that is not the same in each thousand rows, and the value of row ``n`` in PostgreSQL and DuckDB."""
PLANTED = {
    "a lost update": ("differs", "note"),
    "a wrong last digit": ("differs", "amount"),
    "the last bit of a double": ("differs", "ratio"),
    "a time zone": ("differs", "updated_at"),
    "a truncated text": ("differs", "note"),
    "a swapped column": ("differs", "note"),
    "a lost insert": ("missing", ""),
    "a lost delete": ("surplus", ""),
    "a doubled row": ("doubled", ""),
    "a stale key after a move": ("missing", ""),
}
"""How each is reported. Of the last one the key that is still there is reported as well."""


class Pipeline(RunProcess):
    """``lakebed run`` of the database."""

    def version(self) -> int:
        return newest_version(self.table / "public/proven")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rate", type=int, default=200, help="changes a second")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--pace", type=float, default=50_000.0, help="rows a second that are compared; 0: without pauses"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        postgres = servers.enter_context(PostgresServer())
        kafka = servers.enter_context(KafkaServer())
        registry = servers.enter_context(RegistryServer())
        debezium = servers.enter_context(DebeziumServer(kafka, postgres))
        settings = avro_converters(registry)
        postgres.create_database(NAME)
        same = create(postgres)
        slot = debezium.capture(NAME, [TABLE], NAME, settings)
        form = f"debezium-avro\nregistry: {{url: '{registry.url}'}}"
        table = Reading(NAME, kafka, Path(folder, "lake"), form).table(TABLE)
        assert isinstance(table, lakebed.Table), table
        debezium.release(slot)
        filling = threading.Thread(
            target=timed, args=("filled the table of PostgreSQL", lambda: fill(postgres, same, args.rows))
        )
        filling.start()
        timed("filled the table of the lake", lambda: fill_lake(table, args.rows))
        planted = plant(table, args.rows)
        filling.join()
        goes_on = {**settings, "topic.prefix": NAME, "snapshot.mode": "no_data"}
        slot = debezium.capture(NAME, [TABLE], f"{NAME}_on", goes_on)
        verify = {"url": url(postgres), "slot": slot, "rows_per_second": args.pace}
        pipeline = Pipeline("live", Path(folder), document(Path(folder, "lake"), kafka, registry, verify))
        postgres.sql("update proven set ratio = 1 where id = 3", NAME)
        with pipeline, busy(postgres, args):
            print("all goes on", flush=True)
            if args.windows:
                time.sleep(30)
                beside(table, pipeline, args)
            to_the_end(table, pipeline, postgres, planted)


def document(lake: Path, kafka: KafkaServer, registry: RegistryServer, verify: dict[str, Any]) -> dict[str, Any]:
    source = {"kind": "kafka", "topic_pattern": f"{NAME}\\..*", "config": {"bootstrap.servers": kafka.bootstrap}}
    return {
        "database": {"path": str(lake), "verify": verify},
        "source": source,
        "format": {"kind": "debezium-avro"},
        "registry": {"url": registry.url},
        "metrics": {"port": None},
        "page": {"port": None},
    }


def url(postgres: PostgresServer) -> str:
    return f"postgresql://postgres@{HOST}:{postgres.port}/{NAME}"


def timed(what: str, work: Callable[[], object]) -> None:
    began = time.monotonic()
    work()
    print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)


# -- Tables -----------------------------------------------------------------------------------------------------------------


def create(postgres: PostgresServer) -> list[str]:
    """The table with its first rows; returns the columns that no formula makes."""
    same = {f"c{number}": case for number, case in enumerate(CASES.values())}
    columns = [f"{name} {kind}" for name, (kind, _, _) in OURS.items()]
    columns += [f"{name} {case.type}" for name, case in same.items()]
    postgres.sql(DIALECTS["postgres"].begin, NAME)
    postgres.sql(f"create table proven ({', '.join(columns)}, primary key (id))", NAME)
    values = [[*case.values, *EDGES.get(case.type, ()), "null"] for case in same.values()]
    made = (
        ", ".join([*(of_postgres(f"{n}::bigint")), *(some[n % len(some)] for some in values)])
        for n in range(1, FIRST + 1)
    )
    postgres.sql("insert into proven values " + ", ".join(f"({row})" for row in made), NAME)
    return list(same)


def of_postgres(n: str) -> list[str]:
    return [value.format(n=n) for _, value, _ in OURS.values()]


def fill(postgres: PostgresServer, same: list[str], rows: int) -> None:
    others = ", ".join([*of_postgres(f"(f.id + {FIRST} * g)"), *(f"f.{name}" for name in same)])
    postgres.sql(
        f"insert into proven select {others} from generate_series(1, {rows // FIRST - 1}) g, "
        f"(select * from proven order by id) f; vacuum analyze proven",
        NAME,
    )


def fill_lake(table: lakebed.Table, rows: int) -> None:
    first = table.to_arrow()
    ours = ", ".join(f"{value.format(n='n')} as {name}" for name, (_, _, value) in OURS.items())
    with connect() as connection:
        for begin in range(FIRST, rows, AT_ONCE):
            numbers = range(begin + 1, min(begin + AT_ONCE, rows) + 1)
            made = connection.sql(f"select {ours} from range({numbers.start}, {numbers.stop}) t(n)").to_arrow_table()
            ids = pc.index_in(
                pa.array([(n - 1) % FIRST + 1 for n in numbers], pa.int64()), first["id"].combine_chunks()
            )
            copied = first.take(ids)
            for name in OURS:
                at = copied.schema.get_field_index(name)
                copied = copied.set_column(at, first.schema.field(name), made[name].cast(first.schema.field(name).type))
            table.apply(copied.append_column("source.lsn", pa.repeat(1, len(copied))))
            table.settle()
    table.maintenance.compact()


def plant(table: lakebed.Table, rows: int) -> dict[str, tuple[str, str]]:
    """All kinds of differences, all over the table, in rows that nobody changes; returns how they are reported, by key."""
    keys = {kind: rows * number // len(PLANTED) // 10 * 10 + 7 for number, kind in enumerate(PLANTED)}
    sets = {
        "a lost update": {"note": "'as it was before'"},
        "a wrong last digit": {"amount": "amount + 0.01"},
        "the last bit of a double": {"ratio": "ratio * 1.0000000000000002"},
        "a time zone": {"updated_at": "updated_at + interval 2 hour"},
        "a truncated text": {"note": "note[:20]"},
        "a swapped column": {"note": "other", "other": "note"},
    }
    for kind, set_ in sets.items():
        table.update(set_, f"id = {keys[kind]}")
    found = {str(keys[kind]): said for kind, said in PLANTED.items() if kind != "a lost delete"}
    for kind, key in (("a lost delete", 50 * rows), ("a stale key after a move", 60 * rows)):
        [row] = table.to_arrow(where=f"id = {keys[kind]}").to_pylist()
        table.apply([row | {"id": key, "source.lsn": 2}])
        found[str(key)] = ("surplus", "")
    table.delete(f"id in ({keys['a lost insert']}, {keys['a stale key after a move']})")
    table.settle()
    log = log_of(table)
    before = log.refresh().parts
    [row] = table.to_arrow(where=f"id = {keys['a doubled row']}").to_pylist()
    table.apply([row | {"source.lsn": 2}])
    table.settle()
    [part] = [part for name, part in log.refresh().parts.items() if name not in before]
    copied = f"_lakebed/{uuid.uuid4()}.parquet"
    shutil.copyfile(Path(table.path, part.path), Path(table.path, copied))
    info = CommitInfo(operation="TEST", commit_id="", engine=ENGINE)
    assert isinstance(log.commit(log.refresh(), [AddPart(replace(part, path=copied))], info, BLIND), Committed)
    return found


@contextmanager
def busy(postgres: PostgresServer, args: argparse.Namespace) -> Iterator[None]:
    """While the block runs, rows change, come and go; none of those whose key ends with 7."""
    chance, began, done = np.random.default_rng(), time.monotonic(), 0

    def step(_: int) -> None:
        nonlocal done
        time.sleep(0.1)
        due = round((time.monotonic() - began) * args.rate)
        tens = args.rows // 10  # nine of ten changes are of the newest hundredth
        keys = chance.integers(tens * 99 // 100, tens, due - done)
        keys[::10] = chance.integers(0, tens, len(keys[::10]))
        keys = (keys * 10 + 3).tolist()
        database.execute(
            "update proven set updated_at = clock_timestamp(), amount = amount + 1, note = md5(random()::text) "
            "where id = any(%s)",
            [keys[5:]],
        )
        database.execute("delete from proven where id = any(%s)", [[key + 1 for key in keys[:2]]])
        database.execute(
            "insert into proven (id, updated_at) select n, clock_timestamp() from unnest(%s::bigint[]) n "
            "on conflict do nothing",
            [[args.rows + key for key in keys[:3]]],
        )
        done = due

    with (
        psycopg.connect(url(postgres), autocommit=True) as database,
        meanwhile(step),
    ):
        yield


# -- Freshness --------------------------------------------------------------------------------------------------------------


def beside(table: lakebed.Table, pipeline: Pipeline, args: argparse.Namespace) -> None:
    """How fresh the table is, without and with a comparison."""
    spans: dict[str, list[tuple[float, float]]] = {"alone": [], "beside verify": []}
    for _ in range(args.windows):
        for what, found in spans.items():
            process = verify(pipeline) if what != "alone" else None
            time.sleep(10)  # it starts, and what was before is over
            since = time.time()
            while time.time() < since + args.seconds:
                time.sleep(1)
                if process is not None and process.poll() is not None:
                    process = verify(pipeline)
            found.append((since, time.time()))
            if process is not None:
                process.terminate()
                process.wait()
    time.sleep(20)  # the last changes are settled
    seen = {
        what: np.concatenate([np.ma.filled(ages(table.path, *span)["any Delta reader"], np.nan) for span in found])
        for what, found in spans.items()
    }
    rows = [
        [what, f"{len(found):,}", *(float(np.nanpercentile(found, q)) for q in (50, 99, 100))]
        for what, found in seen.items()
    ]
    print_table(
        f"{args.rate:,} changes/s, {args.windows} x {args.seconds:.0f} s",
        ["change until any Delta reader", "changes", "p50 s", "p99 s", "max s"],
        rows,
    )
    for name, q in (("median", 50), ("p99", 99)):
        ratio = np.nanpercentile(seen["beside verify"], q) / np.nanpercentile(seen["alone"], q)
        print(f"{name}: {ratio:.2f} x", flush=True)


# -- A whole comparison -----------------------------------------------------------------------------------------------------


def verify(pipeline: Pipeline, out: IO[str] | int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    command = [*pipeline.command()[:3], "verify", str(pipeline.file), TABLE, "--format", "json"]
    with (pipeline.run_folder / "verify.log").open("w") as log:
        return subprocess.Popen(command, stdout=out, stderr=log, text=True)


def to_the_end(
    table: lakebed.Table, pipeline: Pipeline, postgres: PostgresServer, planted: dict[str, tuple[str, str]]
) -> None:
    blocks, began = blocks_of(postgres), time.monotonic()
    own = its = megabytes = read = 0.0
    backends: set[str] = set()
    with tempfile.TemporaryFile("w+") as out:
        process = verify(pipeline, out)
        while process.poll() is None:
            try:
                own, read, megabytes = cpu_of(process.pid), bytes_read(process.pid), most_memory_mb(process.pid)
                backends |= {pid for [pid] in postgres.sql(BACKENDS)}
                its = max(its, sum(cpu_of(int(pid)) for pid in backends))
            except (FileNotFoundError, ProcessLookupError, ValueError):
                pass  # it is over
            time.sleep(2)
        out.seek(0)
        report = json.loads(next(line for line in out if line.startswith("{")))
    seconds, rows = time.monotonic() - began, report["rows"]
    blocks = blocks_of(postgres) - blocks
    size = sum(table.inspect.parts()["bytes"].to_pylist())
    print_table(
        f"{rows:,} rows, {len(table.schema)} columns, table of {size / 1e6:,.0f} MB",
        ["", "CPU s", "µs a row", "read MB", "most memory MB"],
        [
            ["PostgreSQL's backend", its, its / rows * 1e6, blocks * 8192 / 1e6, "-"],
            ["lakebed verify", own, own / rows * 1e6, read / 1e6, megabytes],
        ],
    )
    print({name: report[name] for name in report if name != "shown"})
    found = {one["key"]["id"]: (one["kind"], one["column"]) for one in report["shown"]}
    print(f"{seconds:.0f} s; found {found}; as planted: {found == planted}", flush=True)
    assert found == planted and report["differences"] == len(planted), (found, planted)


BACKENDS = "select pid from pg_stat_activity where application_name = 'lakebed verify'"


def bytes_read(pid: int) -> float:
    """What a process has read, from files in memory too (Linux)."""
    return float(Path(f"/proc/{pid}/io").read_text().split("rchar: ")[1].split()[0])


def blocks_of(postgres: PostgresServer) -> int:
    """The blocks of the table and its index that PostgreSQL has looked at, in its cache or not."""
    counts = "heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit"
    [[count]] = postgres.sql(f"select {counts} from pg_statio_all_tables where relname = 'proven'", NAME)
    return int(count)


if __name__ == "__main__":
    main()
