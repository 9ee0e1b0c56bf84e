"""What a user's SQL may be: one expression over one row, or one query; and what it can reach where it runs."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.errors import InvalidInput
from lakebed.sql import connection_for, expression, mistakes, parquet, registered, require_query
from lakebed.storage import engine
from lakebed.storage.data_files import LocalPartStorage
from lakebed.storage.engine import connect, connect_sealed

ROWS = pa.table(
    {
        "id": [1, 2],
        "s": ["a", "b"],
        "l": pa.array([[1, 2], []], pa.list_(pa.int64())),
        "j": ['{"x": 1}', "{}"],
        "t": pa.array([0, 1], pa.timestamp("us", "UTC")),
        "p": [{"x": 1}, {"x": 2}],
    }
)

OF_ONE_ROW = [
    "id = 1", "id + 1 -- why", "not s like 'a%' and id between 1 and 2", "id in (1, 2)", "s is distinct from 'a'",
    "case id when 1 then 'x' else s end", "coalesce(s, 'x')", "nullif(id, 1)", "s || 'x'", "id // 2 ** 2", "l[1]", "l[1:2]",
    "list_transform(l, lambda x: x + 1)", "[x + 1 for x in l if x > 1]", "list_sum(l)", "id in l", "{'a': id}.a", "p.x",
    "map {'a': id}", "j->>'$.x'", "json_extract(j, '$.x')", "s.upper().lower()", "try_cast(s as int)", "try(s::int)",
    "s::varchar collate nocase", "extract(year from t)", "t at time zone 'UTC'", "t + interval 1 day", "t > now()",
    "date '2020-01-01'", "current_date", "random() < 0.5", "uuid()", "trim(both 'x' from s)", "position('a' in s)",
    "regexp_matches(s, 'a.')", "s similar to 'a|b'", "struct_pack(a := id)", "(id, s)", "range(id)", "repeat(s, 2)",
    "list_aggregate(l, 'sum')", "array_to_string(l, ',')", "if(id = 1, 2, 3)", "typeof(id)", "hash(id)", "$$it's$$ = s",
    "$1 = 1".replace("$1", "1"), "main.lower(s)", '"id"', "date_trunc('day', t)", "error('no')", "count", "sum",
]  # fmt: skip


@pytest.mark.parametrize("text", OF_ONE_ROW)
def test_an_expression_gives_one_value_a_row(text: str) -> None:
    checked = expression(text, "where")
    with (
        connect_sealed() as connection,
        registered(connection, "rows_", ROWS.append_column("count", ROWS["id"]).append_column("sum", ROWS["id"])),
    ):
        if text != "error('no')":
            assert len(connection.sql(f"select {checked.sql} from rows_").to_arrow_table()) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("unnest(l)", "'unnest', which makes several rows"),
        ("unlist(l)", "'unlist', which makes several rows"),
        ("1 + UNNEST(range(id))", "'unnest', which makes several rows"),
        ("l.unnest()", "'unnest', which makes several rows"),
        ("main.unnest(l)", "'unnest', which makes several rows"),
        ("generate_subscripts(l, 1)", "'generate_subscripts', which is 'unnest'"),
        ("regexp_split_to_table(s, 'x')", "'regexp_split_to_table', which is 'unnest'"),
        ("sum(id)", "'sum', an aggregate"),
        ("Count(*)", "an aggregate"),
        ('"sum"(id)', "'sum', an aggregate"),
        ("system.main.sum(id)", "'sum', an aggregate"),
        ("lower(max(s))", "'max', an aggregate"),
        ("list_transform(l, x -> sum(x))", "'sum', an aggregate"),
        ("geomean(id)", "'geomean', which is 'avg', an aggregate"),
        ("json_group_array(id)", "'json_group_array', which is 'string_agg', an aggregate"),
        ("sum(id) over ()", "a window function"),
        ("row_number() over ()", "a window function"),
        ("row_number()", "a window function"),
        ("(select 1)", "a subquery"),
        ("id in (select 5)", "a subquery"),
        ("exists (from ROWS)", "a subquery"),
        ("id = any(l)", "a subquery"),
        ("array(select 1)", "a subquery"),
        ("*", "a star"),
        ("COLUMNS(*) > 1", "a star"),
        ("greatest(*COLUMNS(*))", "OPERATOR_UNPACK|a star"),
        ("$1 = id", "a parameter"),
        ("? = id", "a parameter"),
        ("#1", "the number of a column"),
        ("default", "DEFAULT"),
        ("grouping(id)", "GROUPING_FUNCTION"),
        ("read_text('/etc/hostname')", "'read_text', which is not a function of one row"),
        ("no_such_function(id)", "'no_such_function', which is not a function"),
        ("get_block_size('memory')", "a subquery"),
        ("nextval('x')", "'nextval', which does more"),
        ("write_log('x')", "'write_log', which does more"),
        ("pg_sleep(1)", "'pg_sleep', which is 'sleep_ms'"),
        ("json_serialize_plan('from x')", "does more than give a value"),
        ("", "not one SQL expression"),
        ("  -- nothing", "not one SQL expression"),
        ("id = ", "not one SQL expression"),
        ("id = 1) or (id = 2", "not one SQL expression"),
        ("id = 1) --", "not one SQL expression"),
        ("id /* open", "not one SQL expression"),
        ("'open", "not one SQL expression"),
        ("id; drop table t", "not one SQL expression"),
        ("id;", "not one SQL expression"),
        ("id as x", "not one SQL expression"),
        ("id from t", "not one SQL expression"),
        ("id where true", "not one SQL expression"),
        ("id limit 1", "not one SQL expression"),
        ("id union select 2", "not one SQL expression"),
        ("true); copy (select 1) to 'x.csv'; select (true", "not one SQL expression"),
        ("id = 1\0", "NUL"),
        ("s = '\ud800'", "half of a surrogate pair"),
        (5, "it must be SQL, as a text"),
        (None, "it must be SQL, as a text"),
    ],
)  # fmt: skip
def test_what_is_no_value_of_one_row_is_refused_by_name(text: object, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"where.*({why})"):
        expression(text, "where")


@pytest.mark.parametrize("text", ["(" * 5000 + "1" + ")" * 5000, "not " * 5000 + "true", "-" + " -" * 5000 + "1"])
def test_a_text_that_is_nested_too_deeply_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        expression(text, "where")


def test_every_function_of_duckdbs_is_known_by_its_kind() -> None:
    """None that aggregates, looks at other rows or makes rows passes: DuckDB's plan has nothing but a projection."""
    with connect() as connection:
        names = connection.execute("select distinct function_name, function_type from duckdb_functions()").fetchall()
    refused = {"aggregate", "window", "table", "pragma", "table_macro"}
    also_scalar = {name for name, kind in names if kind == "scalar"}
    for name, kind in names:
        if kind in refused and name not in also_scalar and name.isidentifier():
            with pytest.raises(InvalidInput, match=f"'{name}'"):
                expression(f'"{name}"(id)', "where")


@pytest.mark.parametrize(
    "sql",
    [
        "select 1", "from t", "values (1)", "table t", "describe t", "summarize t", "show tables", "explain select 1",
        "EXPLAIN ANALYZE select 1", "explain (format json) select 1", "(select 1) union all (select 2)", "select 1; -- done",
        "with a as (select 1) select * from a", "with recursive a as (select 1 union all select 2) from a",
        "select unnest([1, 2]), sum(1) over ()", "from range(3)", "from t, unnest(t.l)", "unpivot t on a",
    ],
)  # fmt: skip
def test_a_query_is_let_through(sql: str) -> None:
    assert require_query(sql) == sql


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("", "empty"), ("  ", "empty"), ("-- nothing", "empty"), ("selct 1", "not valid"), ("select 1; select 2", "2 statements"),
        ("copy (select 1) to 'x.csv'", "COPY"), ("set threads = 1", "SET"), ("attach 'x.db'", "ATTACH"),
        ("install httpfs", "LOAD"), ("load httpfs", "LOAD"), ("create table x as select 1", "CREATE"),
        ("pragma version", "PRAGMA"), ("export database 'x'", "EXPORT"), ("checkpoint", "CALL"), ("use memory", "SET"),
        ("explain analyze copy (select 1) to 'x.csv'", "COPY"), ("explain (analyze) copy (select 1) to 'x.csv'", "COPY"),
        ("explain create table x as select 1", "CREATE"), ("truncate t", "DELETE"),
        ("with a as (insert into x values (1) returning *) from a", "changes rows .INSERT"),
        ("with a as (delete from x returning *) from a", "changes rows .DELETE"),
        ("from read_csv('/etc/passwd')", "read_csv"), ("select (select content from read_text('/etc/passwd'))", "read_text"),
        ("from t, glob('/etc/*')", "glob"), ("from query('select 1')", "query"), ("from duckdb_secrets()", "duckdb_secrets"),
        ("with a as (from read_blob('x')) from a", "read_blob"), ("summarize from read_csv('x')", "read_csv"),
        ("from checkpoint()", "checkpoint"), (None, "a text"), ("select '\ud800'", "surrogate"),
    ],
)  # fmt: skip
def test_what_is_no_query_of_the_table_is_refused_by_name(sql: object, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        require_query(sql)


# -- the connection ----------------------------------------------------------------------------------------------------


@pytest.fixture
def sealed(tmp_path: Path) -> duckdb.DuckDBPyConnection:
    """For a table in ``tmp_path/table``; beside it is a file of others."""
    for folder in ("table", "table_of_others"):
        (tmp_path / folder).mkdir()
        pq.write_table(ROWS, tmp_path / folder / "a.parquet")
    return connection_for(LocalPartStorage(str(tmp_path / "table")), [])


def test_a_connection_for_users_sql_reads_the_table(sealed: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    assert sealed.sql(f"from {parquet(str(tmp_path / 'table' / 'a.parquet'))}").to_arrow_table() == ROWS


def test_it_reaches_nothing_else(sealed: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    variable = ROWS  # noqa: F841
    others = tmp_path / "table_of_others" / "a.parquet"
    for sql in (
        f"from '{others}'",
        f"from read_parquet('{others}')",
        f"from read_text('{tmp_path}/table/../table_of_others/a.parquet')",
        "from read_csv('/etc/passwd')",
        "from glob('/etc/*')",
        f"copy (select 1) to '{tmp_path}/out.csv'",
        f"attach '{tmp_path}/out.db'",
        "load httpfs",
        "from variable",
        "set enable_external_access = true",
        "set allowed_directories = ['/']",
        "set python_enable_replacements = true",
        "set timezone = 'America/New_York'",
        "set global timezone = 'America/New_York'",
        "set lock_configuration = false",
    ):
        with pytest.raises(duckdb.Error):
            sealed.execute(sql).fetchall()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table", "table_of_others"]


def test_a_table_is_read_wherever_it_is(tmp_path: Path) -> None:
    for name in ("a[b]", "a*b", "a?b", "it's", " a ", "ü", "x=1", "a%20b", "a;b\n"):
        root = tmp_path / name
        (root / "p=[1]*").mkdir(parents=True)
        pq.write_table(ROWS, root / "p=[1]*" / "a.parquet")
        storage = LocalPartStorage(str(root))
        found = connection_for(storage, []).sql(f"from {parquet(storage.duckdb_url('p=[1]*/a.parquet'))}")
        assert found.to_arrow_table() == ROWS


def test_a_part_elsewhere_that_the_log_names_is_read(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    pq.write_table(ROWS, tmp_path / "far" / "a.parquet")
    storage = LocalPartStorage(str(tmp_path / "table"))
    for path in (str(tmp_path / "far" / "a.parquet"), f"file://{tmp_path}/far/a.parquet"):
        found = connection_for(storage, [path]).sql(f"from {parquet(storage.duckdb_url(path))}")
        assert found.to_arrow_table() == ROWS


def test_few_databases_for_users_sql_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engine, "SEALED_MAX", 2)
    first = connect_sealed([str(tmp_path / "0")])
    first.execute("create table made as select 1")
    for number in range(1, 4):
        connect_sealed([str(tmp_path / str(number))]).close()
    assert first.execute("from made").fetchall() == [(1,)]  # it lives as long as who has it
    with connect_sealed([str(tmp_path / "0")]) as again, pytest.raises(duckdb.CatalogException):
        again.execute("from made")


def test_ordinary_connections_do_not_see_pythons_variables() -> None:
    variable = ROWS  # noqa: F841
    with connect() as connection, pytest.raises(duckdb.CatalogException):
        connection.execute("from variable")


@pytest.mark.parametrize(
    "sql", ["select nothing", "select 's'::int", "select error('no')", "selct", "select no_such()", "from nowhere"]
)
def test_mistakes_name_what_was_given(sql: str) -> None:
    with connect_sealed() as connection, pytest.raises(InvalidInput, match=r"^where='x': "), mistakes("where='x'"):
        connection.execute(sql).fetchall()
