"""What users' SQL can do to a table and its host: nothing but what it says, row by row, and never on rows that are dead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import Corrupt, InvalidInput
from tests.oracle import in_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string()), ("v", pa.int64())])


pytestmark = pytest.mark.usefixtures("own_cache")


def rows(texts: list[str], start: int = 0) -> pa.Table:
    return pa.table({"id": range(start, start + len(texts)), "s": texts, "v": [1] * len(texts)}, schema=SCHEMA)


@pytest.fixture(params=["keyed", "unkeyed"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> lakebed.Table:
    """Of two parts; with keys, the first is settled."""
    made = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"] if request.param == "keyed" else [])
    made.apply(rows(["a", "b"]))
    if request.param == "keyed":
        made.settle()
    made.apply(rows(["c"], 2))
    return made


# -- one row in, one row out -------------------------------------------------------------------------------------------


SEVERAL_ROWS = [
    "unnest([10, 20])", "unnest([]::bigint[])", "unnest(range(v))", "generate_subscripts([1, 2], 1)", "sum(v) over ()",
    "sum(v)", "row_number() over ()", "(select count(*) from lakebed_mutated)", "(select 1)", "COLUMNS(*)",
]  # fmt: skip


def test_an_update_leaves_each_row_one_row_or_is_refused(table: lakebed.Table) -> None:
    before, version = in_order(table.to_arrow().to_pylist()), table.version
    files = sorted(Path(table.path).rglob("*.parquet"))
    for value in SEVERAL_ROWS:
        with pytest.raises(InvalidInput, match="one expression over the columns of one row"):
            table.update({"v": value}, "id >= 0")
    assert (in_order(table.to_arrow().to_pylist()), table.version) == (before, version)
    assert sorted(Path(table.path).rglob("*.parquet")) == files


def test_an_update_may_take_other_values_at_each_call(table: lakebed.Table) -> None:
    assert table.update({"s": "uuid()", "v": "epoch_us(now())"}, "random() >= 0").rows == 3
    assert len(set(table.to_arrow()["s"].to_pylist())) == 3


# -- no statements, no files -------------------------------------------------------------------------------------------

HOSTILE = [
    "true) is not null; copy (select 1) to '{out}'; select (true",
    "false)::boolean, false); copy (select 1 as a) to '{out}'; select coalesce((true",
    "s in (select content from read_text('/etc/hostname'))",
    "exists (from read_csv('/etc/passwd'))",
    "exists (from glob('/etc/*'))",
    "exists (from '/etc/passwd')",
    "exists (from variable)",
    "true; drop table x",
]


def test_no_expression_runs_statements_or_reads_files(table: lakebed.Table, tmp_path: Path) -> None:
    variable = rows(["x"])
    version = table.version
    calls: list[Callable[[str], object]] = [
        lambda text: table.to_arrow(where=text),
        lambda text: table.delete(text),
        lambda text: table.update({"v": "0"}, text),
        lambda text: table.update({"s": f"case when {text} then 'x' end"}, "true"),
        lambda text: table.update({"s": text}, "true"),
    ]
    if table.properties.get("lakebed.keys"):
        calls.append(lambda text: table.apply(variable, apply_as_deletes=text))
        calls.append(lambda text: table.maintenance.recluster(where=text))
    for text in HOSTILE:
        for call in calls:
            with pytest.raises(InvalidInput):
                call(text.format(out=tmp_path / "out.csv"))
    assert table.version == version
    assert not (tmp_path / "out.csv").exists()


NO_QUERY = [
    "copy t to '{out}'", "explain analyze copy t to '{out}'", "from read_text('/etc/hostname')", "from '/etc/passwd'",
    "from variable", "from '{path}/../other/x.parquet'", "create table x as select 1", "set timezone = 'Asia/Tokyo'",
    "attach '{out}'", "install httpfs", "load httpfs", "pragma version", "export database '{out}'", "select 1; select 2",
    "", "-- nothing", "selct 1", "select nothing from t", "select s::int from t", "from nowhere", "select error('no')",
]  # fmt: skip


def test_a_query_is_one_select_of_the_table(table: lakebed.Table, tmp_path: Path) -> None:
    variable = rows(["x"])  # noqa: F841
    for sql in NO_QUERY:
        with pytest.raises(InvalidInput, match="query"):
            table.query(sql.format(out=tmp_path / "out", path=table.path))
    assert not (tmp_path / "out").exists()
    left = table.query("select count(*) as n, current_setting('TimeZone') as zone from t")
    assert left.to_pylist() == [{"n": 3, "zone": "UTC"}]


def test_a_trusted_query_may_use_files_and_leaves_nothing_behind(table: lakebed.Table, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    table.query(f"copy (select id from t) to '{out}'", allow_files=True)
    assert len(table.query(f"from t join '{out}' using (id)", allow_files=True)) == 3
    table.query("set timezone = 'Asia/Tokyo'; create table made as select 1", allow_files=True)
    assert table.query("select current_setting('TimeZone')")[0].to_pylist() == ["UTC"]
    with pytest.raises(InvalidInput, match="made"):
        table.query("from made")
    with pytest.raises(InvalidInput, match="made"):
        table.query("from made", allow_files=True)


def test_a_damaged_file_is_no_mistake_in_the_users_sql(table: lakebed.Table) -> None:
    for part in table.inspect.parts().to_pylist():
        (Path(table.path) / part["path"]).write_bytes(b"PAR1 garbage PAR1")
    again = lakebed.open(table.path)
    for call in (
        lambda: again.to_arrow(where="v = 1"),
        lambda: again.delete("s like 'a%'"),
        lambda: again.query("select max(s) from t"),
    ):
        with pytest.raises(Corrupt, match="missing or damaged"):
            call()


@pytest.mark.slow
def test_what_deletes_in_a_dataframe_is_one_expression_of_sparks(tmp_path: Path, spark: SparkSession) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    frame = spark.createDataFrame([(1, "a", 1, "u"), (2, "b", 1, "d")], "id long, s string, v long, op string")
    for text in (
        "op = 'd') or (true",
        "op as x",
        "op; select 1",
        "",
        "op = ",
        "explode(array(1)) = 1",
        "sum(v) > 1",
        "nope = 1",
    ):
        with pytest.raises(InvalidInput, match="apply_as_deletes="):
            table.apply(frame, apply_as_deletes=text)
    table.apply(frame, apply_as_deletes="op = 'd' -- of the source")
    assert table.to_arrow()["id"].to_pylist() == [1]


# -- dead rows ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["keyed", "keyed, settled", "unkeyed"])
def with_dead_rows(request: pytest.FixtureRequest, tmp_path: Path) -> lakebed.Table:
    """Live rows whose text is their id as a number; dead ones, in base and tail, whose text is none."""
    keys = [] if request.param == "unkeyed" else ["id"]
    made = lakebed.create(tmp_path / "t", SCHEMA, keys=keys)
    made.apply(rows(["none" if id % 5 == 3 else str(id) for id in range(1000)]))
    if keys:
        made.settle()
    made.apply(rows(["none" if id % 5 == 3 else str(id) for id in range(1000, 1010)], 1000))
    made.delete("s = 'none'")
    if request.param == "keyed, settled":
        made.settle()
    return made


WHERE = {
    "s::int = 7": "int(s) == 7",
    "s::int % 7 = 0 and v = 1": "int(s) % 7 == 0",
    "coalesce(s, 'none')::int >= 0": "True",
    "case when s = 'none' then error('seen') else true end": "True",
    "id < 500 and s::int > 100": "id < 500 and int(s) > 100",
}
"""Predicates that fail on a dead row, and what they mean, in Python."""


@pytest.mark.parametrize("where", WHERE)
def test_no_expression_is_evaluated_on_a_dead_row(with_dead_rows: lakebed.Table, where: str) -> None:
    live = with_dead_rows.to_arrow().to_pylist()
    assert len(live) == 808
    expected = sorted(row["id"] for row in live if eval(WHERE[where], {}, row))
    assert sorted(with_dead_rows.to_arrow(["id"], where=where)["id"].to_pylist()) == expected
    assert with_dead_rows.update({"v": "s::int", "s": "(s::int + 1)::varchar"}, where).rows == len(expected)
    assert with_dead_rows.delete("s::int = id + 1").rows == len(expected)
    assert len(with_dead_rows.to_arrow(where="s::int >= 0")) == 808 - len(expected)


QUERIES = [
    "select count(*) from t where s::int >= 0",
    "select sum(s::int) from t",
    "select count(*) from t a join t b on a.s::int = b.id",
    "select count(*) from t where s::int in (select s::int from t where v = 1)",
    "select count(*) from (select s::int as n from t) where n >= 0",
    "select max(n) from (select distinct s::int as n from t order by s::int limit 2000)",
]


def test_no_query_fails_on_a_dead_row(with_dead_rows: lakebed.Table) -> None:
    for sql in QUERIES:
        assert with_dead_rows.query(sql)[0][0].as_py() > 0, sql


def test_an_expression_that_fails_on_a_live_row_is_refused(with_dead_rows: lakebed.Table) -> None:
    with_dead_rows.apply(rows(["live"], 5000))
    for call in (
        lambda: with_dead_rows.to_arrow(where="s::int = 7"),
        lambda: with_dead_rows.delete("s::int = 7"),
        lambda: with_dead_rows.update({"v": "s::int"}, "true"),
        lambda: with_dead_rows.query("select sum(s::int) from t"),
    ):
        with pytest.raises(InvalidInput, match="Could not convert string 'live'"):
            call()
