"""Every settled version is what every Delta reader reads; no foreign writer changes a file."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

import lakebed
from tests.foreign.readers import comparable, delta_rs, delta_spark, files_of, foreign_duckdb, own, own_spark
from tests.internals import log_of
from tests.oracle import Oracle, Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.infra.foreign_duckdb import ForeignDuckDB

pytestmark = pytest.mark.slow
Past = tuple[Path, dict[int, list[Row]]]
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("p", pa.string())])


def changes(first: int, last: int, text: str, op: str = "u", step: int = 1) -> list[Row]:
    return [{"id": number, "v": text, "p": f"p {number % 3}", "op": op} for number in range(first, last, step)]


def apply(table: lakebed.Table, oracle: Oracle, rows: list[Row]) -> None:
    table.apply(pa.Table.from_pylist(rows), apply_as_deletes="op = 'd'")
    oracle.apply(rows)


def a_table_with_a_past(path: Path) -> tuple[lakebed.Table, dict[int, list[Row]]]:
    """Applies, settles, checkpoints, deletion vectors inline and in files; and what each settled version must be."""
    properties = {"lakebed.checkpoint_interval": "4"}
    table = lakebed.create(path, SCHEMA, keys=["id"], partition_by=["p"], properties=properties)
    oracle = Oracle(("id",), ("id", "v", "p"))
    settled: dict[int, list[Row]] = {0: []}
    batches = [
        changes(0, 20_000, "first"),
        changes(0, 20_000, "odd", step=7),  # scattered: vectors too large to stand in the log
        changes(50, 60, "gone", "d"),
        changes(19_990, 20_010, "again"),
        changes(3_000, 9_000, "gone", "d", step=2),
        changes(3_000, 3_100, "back"),
    ]
    for number, rows in enumerate(batches):
        apply(table, oracle, rows)
        if number != 2:  # once two batches are settled at once
            result = table.settle()
            settled[result.version] = oracle.rows()
    return table, settled


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    """The folder of a table with a past, to be copied, and what each settled version must be."""
    path = tmp_path_factory.mktemp("past") / "t"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKEBED_CACHE_DIR", str(path.parent / "cache"))
        return path, a_table_with_a_past(path)[1]


@pytest.fixture(scope="module")
def past_with_vectors_in_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one that has no vector in the log: delta-spark's VACUUM stops at the first, and has to go all the way."""
    path = tmp_path_factory.mktemp("past") / "t"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKEBED_CACHE_DIR", str(path.parent / "cache"))
        patch.setattr("lakebed.parts.deletion_vector_cache._INLINE_BYTES_MAX", 0)
        table, _ = a_table_with_a_past(path)
        for batch in (changes(0, 10, "unsettled"), changes(30_000, 30_010, "unsettled")):
            table.apply(pa.Table.from_pylist(batch), apply_as_deletes="op = 'd'")
    return path


def copy_of(folder: Path, to: Path) -> lakebed.Table:
    return lakebed.open(shutil.copytree(folder, to))


@contextlib.contextmanager
def vacuums_at_once(spark: SparkSession) -> Iterator[None]:
    """Delta deletes files that are younger than a week, and lists a small folder in two tasks: its default is ten thousand."""
    conf = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in conf:
            spark.conf.unset(name)


def test_every_settled_version_is_the_same_for_every_reader(
    past: Past, tmp_path: Path, spark: SparkSession, duckdb_delta: ForeignDuckDB
) -> None:
    table, settled = copy_of(past[0], tmp_path / "t"), past[1]
    log = log_of(table)
    vectors = [
        part.deletion_vector for v in settled for part in log.at_version(v).parts.values() if part.deletion_vector
    ]
    assert {vector.storage for vector in vectors} == {"i", "u"}, "inline and in files"
    assert list((tmp_path / "t" / "_delta_log").glob("*.checkpoint.parquet"))
    versions = sorted(settled)
    read_by_spark = {*versions[::3], versions[-1]}  # which takes as long as all others
    for version, rows in settled.items():
        wanted = comparable(pa.Table.from_pylist(rows, SCHEMA), SCHEMA)
        assert own(table, version) == wanted, f"lakebed, version {version}"
        if version in read_by_spark:
            assert own_spark(table, spark, version) == wanted, f"lakebed in Spark, version {version}"
            assert delta_spark(table, spark, version) == wanted, f"delta-spark, version {version}"
        assert delta_rs(table, version) == wanted, f"delta-rs, version {version}"
        assert foreign_duckdb(table, duckdb_delta, version) == wanted, f"DuckDB, version {version}"


@pytest.mark.long
def test_a_version_with_a_tail_is_the_last_settled_one_for_foreign_readers(
    past: Past, tmp_path: Path, spark: SparkSession, duckdb_delta: ForeignDuckDB
) -> None:
    table, settled = copy_of(past[0], tmp_path / "t"), past[1]
    version, rows = max(settled.items())
    wanted = comparable(pa.Table.from_pylist(rows, SCHEMA), SCHEMA)
    table.apply(pa.Table.from_pylist(changes(0, 10, "unsettled")), apply_as_deletes="op = 'd'")
    assert table.version == version + 1
    assert own(table) != wanted
    assert delta_spark(table, spark) == delta_rs(table) == foreign_duckdb(table, duckdb_delta) == wanted


SPARK_WRITERS: dict[str, str] = {
    "INSERT": "insert into delta.`{path}` values (-1, 'x', 'p 0')",
    "DELETE": "delete from delta.`{path}` where id = 1",
    "UPDATE": "update delta.`{path}` set v = 'x' where id = 1",
    "MERGE": "merge into delta.`{path}` t using (select 1L as id) s on t.id = s.id when matched then delete",
    "OPTIMIZE": "optimize delta.`{path}`",
    "VACUUM": "vacuum delta.`{path}` retain 0 hours",
    "REORG": "reorg table delta.`{path}` apply (purge)",
    "SET TBLPROPERTIES": "alter table delta.`{path}` set tblproperties ('a' = 'b')",
    "ADD COLUMN": "alter table delta.`{path}` add columns (w long)",
    "DROP FEATURE": "alter table delta.`{path}` drop feature lakebed",
    "DROP FEATURE deletionVectors": "alter table delta.`{path}` drop feature deletionVectors truncate history",
    "RESTORE": "restore table delta.`{path}` to version as of 2",
}
RUST_WRITERS: dict[str, Callable[[str], object]] = {
    "append": lambda path: write_deltalake(path, pa.table({"id": [-1], "v": ["x"], "p": ["p 0"]}), mode="append"),
    "overwrite": lambda path: write_deltalake(path, pa.table({"id": [-1], "v": ["x"], "p": ["p 0"]}), mode="overwrite"),
    "delete": lambda path: DeltaTable(path).delete("id = 1"),
    "update": lambda path: DeltaTable(path).update(updates={"v": "'x'"}, predicate="id = 1"),
    "compact": lambda path: DeltaTable(path).optimize.compact(),
    "z-order": lambda path: DeltaTable(path).optimize.z_order(["id"]),
    "restore": lambda path: DeltaTable(path).restore(2),
}


@pytest.mark.long
def test_every_foreign_writer_is_refused_and_leaves_the_table_as_it_is(
    past: Past, tmp_path: Path, spark: SparkSession
) -> None:
    table = copy_of(past[0], tmp_path / "t")
    apply(table, Oracle(("id",), ("id", "v", "p")), changes(0, 10, "unsettled"))
    before, rows, files = table.version, own(table), files_of(tmp_path / "t")
    with vacuums_at_once(spark):
        for name, sql in SPARK_WRITERS.items():
            with pytest.raises(Exception) as refused:
                spark.sql(sql.format(path=table.path)).collect()
            assert_about_the_gate(name, refused.value, ("lakebed", "DELTA_"))
            assert_untouched(tmp_path / "t", files, f"delta-spark's {name}")
        for mode in ("append", "overwrite"):
            with pytest.raises(Exception) as refused:
                spark.createDataFrame([(-1, "x", "p 0")], "id long, v string, p string").write.format("delta").mode(
                    mode
                ).save(table.path)
            assert_about_the_gate(mode, refused.value, ("lakebed",))
            assert_untouched(tmp_path / "t", files, f"delta-spark's {mode}")
    for name, write in RUST_WRITERS.items():
        with pytest.raises(Exception) as refused:
            write(table.path)
        assert_about_the_gate(name, refused.value, ("lakebed", "feature", "Feature"))
        assert_untouched(tmp_path / "t", files, f"delta-rs's {name}")
    # delta-rs asks for the gate only once there is something to delete: there must be nothing of ours.
    with contextlib.suppress(DeltaError):
        DeltaTable(table.path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert_untouched(tmp_path / "t", files, "delta-rs's vacuum")
    reopened = lakebed.open(table.path)
    assert reopened.version == before
    assert own(reopened) == rows


def assert_untouched(folder: Path, before: dict[str, tuple[int, int]], who: str) -> None:
    """No file is changed or gone, and the log has no new one. A writer may write data first and ask the log later."""
    after = files_of(folder)
    assert before.items() <= after.items(), f"{who} changed {sorted(before.items() - after.items())}"
    new = after.keys() - before.keys()
    assert not [name for name in new if name.startswith(("_delta_log", "_lakebed"))], f"{who} left {sorted(new)}"


def assert_about_the_gate(name: str, error: Exception, words: tuple[str, ...]) -> None:
    assert any(word in str(error) for word in words), f"{name} failed for another reason: {error}"


@pytest.mark.long
@pytest.mark.parametrize("who", ["delta-spark", "delta-rs"])
def test_a_vacuum_that_overlooks_the_gate_deletes_nothing_that_is_needed(
    who: str, past_with_vectors_in_files: Path, tmp_path: Path, spark: SparkSession
) -> None:
    """The gate is edited out of a copy, as a careless tool might; the layout alone must then protect every row."""
    log = past_with_vectors_in_files / "_delta_log"
    shutil.copytree(past_with_vectors_in_files, tmp_path / "copy")
    kept = {
        "delta-spark": lambda feature: feature != "lakebed",
        "delta-rs": lambda feature: feature in ENOUGH_FOR_DELTA_RS,
    }
    without_gate(tmp_path / "copy", kept[who])
    path = str(tmp_path / "copy")
    nobodys = tmp_path / "copy" / "nobodys.parquet"
    nobodys.write_bytes(b"no row")
    if who == "delta-rs":
        DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    else:
        with vacuums_at_once(spark):
            spark.sql(f"vacuum delta.`{path}` retain 0 hours").collect()
    assert not nobodys.exists(), "the vacuum deleted nothing at all"
    # lakebed takes an edited commit for damage, so it gets its own log back, and looks at the files.
    shutil.rmtree(tmp_path / "copy" / "_delta_log")
    shutil.copytree(log, tmp_path / "copy" / "_delta_log")
    vacuumed = lakebed.open(path)
    snapshot = log_of(vacuumed).refresh()
    for part in [*snapshot.parts.values(), *snapshot.tail.values()]:
        assert (tmp_path / "copy" / part.path).exists(), f"{part.path} is gone"
    assert own(vacuumed) == own(lakebed.open(past_with_vectors_in_files))


ENOUGH_FOR_DELTA_RS = {"deletionVectors", "appendOnly", "invariants"}  # it writes to no table that asks for more


def without_gate(folder: Path, is_kept: Callable[[str], bool]) -> None:
    """The table as one that any writer may change, as far as its features say."""
    for checkpoint in [
        *folder.glob("_delta_log/*.checkpoint*.parquet"),
        *folder.glob("_delta_log/_last_checkpoint"),
        *folder.glob("_delta_log/.*.crc"),
    ]:
        checkpoint.unlink()
    first = folder / "_delta_log" / f"{0:020d}.json"
    lines = [orjson.loads(line) for line in first.read_bytes().splitlines()]
    for line in lines:
        line.get("commitInfo", {}).pop("lakebedChecksum", None)
        if "protocol" in line:
            line["protocol"]["writerFeatures"] = list(filter(is_kept, line["protocol"]["writerFeatures"]))
    first.write_bytes(b"\n".join(map(orjson.dumps, lines)) + b"\n")
