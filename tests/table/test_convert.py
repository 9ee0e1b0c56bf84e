"""An existing Delta table, by delta-spark or delta-rs, is read as it is and adopted without rewriting a file."""

from __future__ import annotations

import datetime
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import lakebed
from lakebed.errors import InvalidInput, InvalidSchema, TableExists, TableNotFound, Unsupported
from tests.foreign.conftest import duckdb_delta
from tests.foreign.readers import all_agree, comparable, delta_spark, files_of, own, own_spark
from tests.internals import log_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.infra.foreign_duckdb import ForeignDuckDB

__all__ = ["duckdb_delta"]  # a fixture
ODD = [None, "a b", "50%/ü", "k=v", "a/b", "%20", "it's"]


pytestmark = pytest.mark.usefixtures("own_cache")


def parquet_files(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        name: size for name, size in files_of(folder).items() if name.endswith(".parquet") and "_delta_log" not in name
    }


def spark_table(spark: SparkSession, path: Path) -> None:
    """Appends, a column added, DELETE and UPDATE by vectors, MERGE, OPTIMIZE, checkpoints in parts, odd partitions."""
    rows = [(number, f"v{number}", ODD[number % 4], datetime.date(2026, 1, 1)) for number in range(120)]
    frame = spark.createDataFrame(rows, "id long, v string, p string, day date")
    writer = (
        frame.coalesce(1).write.format("delta").partitionBy("p", "day").option("delta.enableDeletionVectors", "true")
    )
    writer.option("delta.checkpointInterval", "3").save(str(path))
    table = f"delta.`{path}`"
    spark.sql(f"delete from {table} where id % 10 = 3")
    spark.sql(f"alter table {table} add columns (n struct<a: int, b: array<string>>)")
    spark.conf.set("spark.databricks.delta.stats.collect", "false")
    more = "select id + 1000 as id, v, p, day, named_struct('a', 1, 'b', array('x', null)) as n"
    spark.sql(f"insert into {table} {more} from {table} where id < 50")
    spark.conf.unset("spark.databricks.delta.stats.collect")
    spark.conf.set("spark.databricks.delta.checkpoint.partSize", "5")
    spark.sql(
        f"merge into {table} t using (select explode(sequence(110L, 130L)) as id) s on t.id = s.id "
        "when matched then update set v = 'merged' "
        "when not matched then insert (id, v, p, day) values (s.id, 'new', 'a b', null)"
    )
    spark.sql(f"optimize {table} where p = 'a b'")
    spark.sql(f"update {table} set v = null where id = 7")
    spark.conf.unset("spark.databricks.delta.checkpoint.partSize")
    spark.sql(f"insert into {table} values (5000, '', '', date'9999-12-31', null)")


@pytest.mark.long
@pytest.mark.slow
def test_a_table_of_delta_spark_is_read_adopted_and_changed(
    tmp_path: Path, spark: SparkSession, duckdb_delta: ForeignDuckDB
) -> None:
    path = tmp_path / "t"
    spark_table(spark, path)
    assert any(".checkpoint.0" in file.name for file in (path / "_delta_log").iterdir()), (
        "a checkpoint in several files"
    )
    plain = lakebed.open(path)
    wanted = delta_spark(plain, spark)
    assert own(plain) == wanted
    assert own_spark(plain, spark) == wanted
    for version in (1, 3):  # deletion vectors; rows without statistics, and none of the column that came before them
        schema = log_of(plain).at_version(version).schema
        theirs = spark.read.format("delta").option("versionAsOf", version).load(str(path)).toArrow()
        assert comparable(plain.to_arrow(version=version), schema) == comparable(theirs, schema), f"version {version}"
    with pytest.raises(Unsupported, match=r"lakebed\.convert"):
        plain.apply(plain.to_arrow().slice(0, 1))

    files = parquet_files(path)
    table = lakebed.convert(path, keys=["id"])
    assert parquet_files(path) == files, "no file was written anew"
    assert table.properties["lakebed.keys"] == '["id"]'
    assert all_agree(table, spark, duckdb_delta) == wanted
    with pytest.raises(Exception, match="lakebed"):
        spark.sql(f"delete from delta.`{path}` where id = 1")
    with pytest.raises(TableExists):
        lakebed.convert(path, keys=["id"])

    live = {row["id"]: row for row in table.to_arrow().to_pylist()}
    updates = [{**live[number], "v": "ours"} for number in (1, 2, 1000, 120, 5000)]
    moved = [{**live[4], "p": "a/b"}, {"id": 9000, "v": "new", "p": "fresh", "day": None, "n": None}]
    deletes = [{**live[number], "op": "d"} for number in (5, 7, 1001)]
    rows = [{"op": "u", **row} for row in (*updates, *moved)] + deletes
    table.apply(
        pa.Table.from_pylist(rows, table.schema.append(pa.field("op", pa.string()))), apply_as_deletes="op = 'd'"
    )
    for row in (*updates, *moved):
        live[row["id"]] = {name: row[name] for name in table.schema.names}
    for row in deletes:
        del live[row["id"]]
    expected = comparable(pa.Table.from_pylist(list(live.values()), table.schema), table.schema)
    assert own(table) == expected, "in the tail"
    table.settle()
    assert all_agree(table, spark, duckdb_delta) == expected, "settled"
    log_of(table).write_checkpoint(log_of(table).refresh())
    assert own(lakebed.open(path)) == expected, "from a checkpoint of ours"


def test_a_table_of_delta_rs_is_read_adopted_and_changed(
    tmp_path: Path, spark: SparkSession, duckdb_delta: ForeignDuckDB
) -> None:
    path = str(tmp_path / "t")
    rows = pa.table(
        {"id": list(range(100)), "v": [f"v{n}" for n in range(100)], "p": [ODD[n % len(ODD)] for n in range(100)]}
    )
    write_deltalake(path, rows.slice(0, 50), partition_by=["p"])
    write_deltalake(path, rows.slice(50), mode="append")
    DeltaTable(path).delete("id >= 10 and id < 20")
    DeltaTable(path).create_checkpoint()
    write_deltalake(path, pa.table({"id": [10], "v": ["back"], "p": ["k=v"]}), mode="append")
    DeltaTable(path).optimize.compact()
    live = {row["id"]: row for row in rows.to_pylist() if not 10 <= row["id"] < 20} | {
        10: {"id": 10, "v": "back", "p": "k=v"}
    }
    files = parquet_files(tmp_path / "t")
    table = lakebed.convert(path, keys=["id"], sort_key=["v"])
    assert parquet_files(tmp_path / "t") == files
    assert own(table) == comparable(pa.Table.from_pylist(list(live.values())), table.schema)
    table.apply(pa.table({"id": [0, 200], "v": ["ours", "ours"], "p": ["ü", None]}))
    live |= {0: {"id": 0, "v": "ours", "p": "ü"}, 200: {"id": 200, "v": "ours", "p": None}}
    table.settle()
    expected = comparable(pa.Table.from_pylist(list(live.values())), table.schema)
    assert all_agree(table, spark, duckdb_delta) == expected


def test_a_table_adopted_without_keys_is_appended_to(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"id": [1, 1, None]}))
    table = lakebed.convert(tmp_path / "t")
    table.apply(pa.table({"id": [1]}))
    assert table.to_arrow()["id"].to_pylist() == [1, 1, None, 1]


def test_a_partition_column_may_be_a_key(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"p": ["a b", "a/b"], "id": [1, 1], "v": [0, 0]}), partition_by=["p"])
    table = lakebed.convert(tmp_path / "t", keys=["p", "id"])
    table.apply(pa.table({"p": ["a/b"], "id": [1], "v": [1]}))
    table.settle()
    assert own(table) == comparable(pa.table({"p": ["a b", "a/b"], "id": [1, 1], "v": [0, 1]}), table.schema)


@pytest.mark.parametrize(
    ("rows", "keys", "message"),
    [
        ({"id": [1, 2, 2], "v": [1, 1, 1]}, ["id"], r"\{'id': 2\} is in the table 2 times"),
        ({"id": [1, 2, None], "v": [1, 1, 1]}, ["id"], "'id' can't be a key: it is null in 1 row"),
        ({"id": [1, 1, 1], "v": [1, 2, 1]}, ["id", "v"], r"\{'id': 1, 'v': 1\} is in the table 2 times"),
    ],
)
def test_keys_that_do_not_identify_a_row_are_refused(
    rows: dict[str, list[int | None]], keys: list[str], message: str, tmp_path: Path
) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table(rows))
    before = files_of(tmp_path / "t")
    with pytest.raises(InvalidInput, match=message):
        lakebed.convert(tmp_path / "t", keys=keys)
    assert files_of(tmp_path / "t") == before


def test_a_wrong_key_or_path_is_named(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"id": [1]}))
    with pytest.raises(InvalidSchema, match="'nope'"):
        lakebed.convert(tmp_path / "t", keys=["nope"])
    with pytest.raises(TableNotFound, match="none"):
        lakebed.convert(tmp_path / "none", keys=["id"])


REFUSED: dict[str, tuple[str, str]] = {
    "columns mapped by id": (
        "create table {t} (id long) using delta tblproperties ('delta.columnMapping.mode' = 'id')",
        "columnMapping",
    ),
    "change data feed": (
        "create table {t} (id long) using delta tblproperties ('delta.enableChangeDataFeed' = 'true')",
        "enableChangeDataFeed|changeDataFeed",
    ),
    "generated columns": (
        "create table {t} (id long, d long generated always as (id + 1)) using delta",
        "generatedColumns|generationExpression",
    ),
    "identity columns": ("create table {t} (id long generated always as identity, v long) using delta", "identity"),
    "constraints": (
        "create table {t} (id long) using delta; alter table {t} add constraint positive check (id > 0)",
        "constraints|checkConstraints",
    ),
    "v2 checkpoints": (
        "create table {t} (id long) using delta tblproperties ('delta.checkpointPolicy' = 'v2')",
        "v2Checkpoint",
    ),
    "row tracking": (
        "create table {t} (id long) using delta tblproperties ('delta.enableRowTracking' = 'true')",
        "rowTracking|RowTracking",
    ),
    "column defaults": (
        "create table {t} (id long default 3) using delta "
        "tblproperties ('delta.feature.allowColumnDefaults' = 'supported')",
        "allowColumnDefaults|CURRENT_DEFAULT",
    ),
    "clustering": ("create table {t} (id long) using delta cluster by (id)", "clustering"),
    "variants": ("create table {t} (id long, v variant) using delta", "variant"),
}


@pytest.mark.long
@pytest.mark.slow
def test_what_lakebed_would_not_keep_is_refused_by_name(tmp_path: Path, spark: SparkSession) -> None:
    for name, (statements, message) in REFUSED.items():
        path = tmp_path / name.replace(" ", "_")
        for statement in statements.format(t=f"delta.`{path}`").split("; "):
            spark.sql(statement)
        before = files_of(path)
        with pytest.raises((Unsupported, InvalidSchema), match=message):
            lakebed.convert(path, keys=["id"])
        assert files_of(path) == before, name


def test_a_log_that_grew_meanwhile_is_adopted_as_it_is_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer's commit between the check of the keys and the commit: the keys are checked again."""
    path = str(tmp_path / "t")
    write_deltalake(path, pa.table({"id": [1, 2]}))
    module = importlib.import_module("lakebed.operations.create")
    checked: list[int] = []
    check: Callable[..., None] = module.check_unique

    def check_then_another_appends(rows: pa.Table, keys: object) -> None:
        check(rows, keys)
        checked.append(len(rows))
        if len(checked) == 1:
            write_deltalake(path, pa.table({"id": [3]}), mode="append")

    monkeypatch.setattr(module, "check_unique", check_then_another_appends)
    table = lakebed.convert(path, keys=["id"])
    assert checked == [2, 3]
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 3]
    first = orjson.loads((tmp_path / "t" / "_delta_log" / f"{table.version:020d}.json").read_bytes().splitlines()[0])
    assert first["commitInfo"]["operation"] == "CONVERT"
