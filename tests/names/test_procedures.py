"""CALL lake.system.…: verbs of a table by their names and arguments in Python, and their results as rows."""

from __future__ import annotations

import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import lakebed
from lakebed.health.status import Status
from lakebed.names.catalog import Catalog
from lakebed.names.procedures import PROCEDURES, Parameter, Procedure, described_procedure, rows_of
from lakebed.table.maintenance import TableMaintenance
from tests.heard import SECONDS_MAX
from tests.names.conftest import Sql

NOT_IN_SQL = {"self", "spark", "on_progress", "stop"}


@pytest.mark.parametrize("name", PROCEDURES)
def test_a_procedure_takes_what_its_method_takes(name: str) -> None:
    owner = next(one for one in (lakebed.Table, TableMaintenance, Catalog) if hasattr(one, name))
    wanted = {each.name: each.default for each in inspect.signature(getattr(owner, name)).parameters.values()}
    required = Parameter("", ()).default
    taken = {
        one.name: inspect.Parameter.empty if one.default is required else one.default
        for one in PROCEDURES[name].parameters
    }

    not_taken = NOT_IN_SQL | ({"name"} if owner is Catalog else set())  # of the table, which stands first
    assert taken == {name: default for name, default in wanted.items() if name not in not_taken}


def test_a_default_is_sql() -> None:
    defaults = {
        one["name"]: one["default"] for one in described_procedure(["system", "expire_snapshots"])["parameters"]
    }
    assert defaults == {
        "table": None,
        "older_than": "null",
        "retain_last": "1",
        "dry_run": "true",
        "allow_short_retention": "false",
    }


def test_fields_become_columns_of_their_types() -> None:
    schema = rows_of(Status(path="lake/orders")).schema

    assert schema.field("rows").type == pa.int64()
    assert schema.field("tail_age_seconds").type == pa.float64()
    assert schema.field("parts_by_level").type == pa.map_(pa.int64(), pa.int64())
    assert schema.field("will_do").type == pa.list_(pa.string())
    assert schema.field("findings").type.value_type.field("severity").type == pa.string()


@pytest.mark.slow
def test_a_table_is_settled_and_compacted_by_call(sql: Sql, orders: lakebed.Table) -> None:
    settled = sql("call lake.system.settle('shop.orders')")
    assert settled[0][:4] == (2, 1, 1, 3)
    assert sql("call lake.system.compact(table => 'shop.orders')")[0][:2] == (2, 0)


@pytest.mark.slow
def test_arguments_are_given_by_position_or_by_name(sql: Sql, orders: lakebed.Table) -> None:
    sql("call lake.system.settle('shop.orders')")
    by_position = sql("call lake.system.recluster('shop.orders', 'id > 1', true, true)")
    by_name = sql(
        "call lake.system.recluster(dry_run => true, where => 'id > 1', final => true, table => 'shop.orders')"
    )
    assert by_position[0][:-1] == by_name[0][:-1]
    with pytest.raises(AnalysisException, match="UNRECOGNIZED_PARAMETER_NAME"):
        sql("call lake.system.compact(tabel => 'shop.orders')")


@pytest.mark.slow
def test_a_restore_is_of_a_version_or_of_a_time(sql: Sql, orders: lakebed.Table) -> None:
    orders.delete("id = 1")
    before = sql("select now()")[0][0]
    orders.delete("id = 2")

    assert sql("call lake.system.restore('shop.orders', 1)") == [(4,)]
    assert sql("select count(*) from lake.shop.orders") == [(3,)]
    sql(f"call lake.system.restore('shop.orders', timestamp => timestamp '{before}')")
    assert sql("select id from lake.shop.orders order by id") == [(2,), (3,)]
    with pytest.raises(AnalysisException, match="say what to restore"):
        sql("call lake.system.restore('shop.orders')")


@pytest.mark.slow
def test_a_sort_key_is_a_text_or_an_array(sql: Sql, orders: lakebed.Table) -> None:
    sql("call lake.system.set_sort_key('shop.orders', 'region desc, n')")
    assert orders.properties["lakebed.sort_key"] == '["region desc","n"]'
    sql("call lake.system.set_sort_key('shop.orders', array('zorder(id, n)'))")
    assert orders.properties["lakebed.sort_key"] == '["zorder(id, n)"]'


@pytest.mark.slow
def test_an_age_is_a_text_or_an_interval(sql: Sql, orders: lakebed.Table) -> None:
    assert sql("call lake.system.vacuum('shop.orders', '7 days')") == []
    assert sql("call lake.system.vacuum('shop.orders', interval 7 days)") == []
    with pytest.raises(AnalysisException, match="60 seconds is a short retention"):
        sql("call lake.system.vacuum('shop.orders', retention => interval 1 minute)")


@pytest.mark.slow
def test_offsets_are_one_or_one_for_each_partition(sql: Sql, orders: lakebed.Table) -> None:
    for to in ("7", "map(0, 7)", "to => map(0, 7L)"):
        with pytest.raises(AnalysisException, match="the table has read no topic 'orders'"):
            sql(f"call lake.system.rewind('shop.orders', 'orders', {to})")


@pytest.mark.slow
def test_a_partition_leaves_and_comes_back(sql: Sql, tmp_path: Path) -> None:
    by_day = lakebed.create(
        tmp_path / "shop" / "days", pa.schema([("day", pa.date32()), ("n", pa.int64())]), partition_by=["day"]
    )
    sql("insert into lake.shop.days values (date '2026-01-01', 1), (date '2026-01-02', 2)")

    [(name,)] = sql("call lake.system.detach_partition('shop.days', map('day', date '2026-01-01'))")
    assert sql("select n from lake.shop.days") == [(2,)]
    assert [row[0] for row in sql("select name from lake.shop.days.detached")] == [name]
    assert sql(f"call lake.system.attach_partition('shop.days', '{name}')") == [(by_day.version,)]
    assert sql("select n from lake.shop.days order by n") == [(1,), (2,)]


@pytest.mark.slow
def test_findings_and_files_are_rows(sql: Sql, orders: lakebed.Table) -> None:
    assert sql("call lake.system.doctor('shop.orders', deep => true)") == []
    assert [row[1] for row in sql("call lake.system.purge('shop.orders', 'id = 1', dry_run => true)")] == ["table"]
    assert sql("call lake.system.status('shop.orders')")[0][0] == "ok"


@pytest.mark.slow
def test_a_table_is_named_as_in_a_query(sql: Sql, orders: lakebed.Table) -> None:
    for name in ("shop.orders", "lake.shop.orders", "`shop`.`orders`"):
        assert sql(f"call lake.system.resume('{name}')") == [(False,)]
    sql("use lake.shop")
    assert sql("call lake.system.resume('orders')") == [(False,)]
    with pytest.raises(AnalysisException, match=r"no table shop\.ordrs below .*; did you mean 'shop\.orders'"):
        sql("call lake.system.resume('shop.ordrs')")
    with pytest.raises(AnalysisException, match=r"'shop\.\.orders' names no table"):
        sql("call lake.system.resume('shop..orders')")


@pytest.mark.slow
def test_a_procedure_that_is_not_there_is_said_with_the_nearest(sql: Sql, orders: lakebed.Table) -> None:
    for name in ("system.compct", "sys.compact", "compact"):
        with pytest.raises(AnalysisException, match=rf"has no procedure {name}; did you mean 'system\.compact'"):
            sql(f"call lake.{name}('shop.orders')")


@pytest.mark.slow
def test_procedures_are_listed(spark: SparkSession, sql: Sql, catalog: str) -> None:
    if spark.version < "4.1":
        pytest.skip("SHOW PROCEDURES is of Spark 4.1")
    assert [row[-1] for row in sql("show procedures in lake.system")] == sorted(PROCEDURES)


@pytest.mark.slow
def test_explain_runs_no_procedure(sql: Sql, orders: lakebed.Table) -> None:
    sql("explain call lake.system.settle('shop.orders')")
    assert orders.version == 1


@pytest.mark.slow
def test_a_long_procedure_holds_up_no_statement(
    sql: Sql, orders: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def long() -> dict[str, bool]:
        begun.set()
        return {"ended": may_end.wait(SECONDS_MAX)}

    monkeypatch.setitem(PROCEDURES, "long", Procedure("takes long", lambda _: long()))  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(sql, "call lake.system.long('shop.orders')")
        assert begun.wait(SECONDS_MAX)
        assert sql("delete from lake.shop.orders where id = 1")[0][0] == 1
        assert sql("call lake.system.resume('shop.orders')") == [(False,)]
        may_end.set()
        assert called.result() == [(True,)]
