"""ALTER TABLE … RECLUSTER [FINAL] [WHERE …], a statement that Spark's parser does not know."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession

import lakebed
from lakebed.compaction.recluster_job import ReclusterJob
from tests.names.conftest import Sql

pytestmark = pytest.mark.slow


@pytest.fixture
def settled(orders: lakebed.Table) -> lakebed.Table:
    """``orders``, settled, and to be sorted by another key than it is."""
    orders.settle()
    orders.set_sort_key(["region"])
    return orders


def waiting(table: lakebed.Table) -> int:
    """Parts that wait to be sorted by the newest sort key."""
    return table.status().waiting_parts


def test_recluster_final_sorts_all_parts(sql: Sql, settled: lakebed.Table) -> None:
    assert waiting(settled) == 1
    [(version, *_)] = sql("alter table lake.shop.orders recluster final")
    assert waiting(settled) == 0 and version == settled.version


def test_a_condition_says_which_parts(sql: Sql, settled: lakebed.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[tuple[str | None, bool]]()

    def noted(job: ReclusterJob, *args: object, where: str | None, final: bool, **others: object) -> None:
        given.append((where, final))
        begin(job, *args, where=where, final=final, **others)  # type: ignore[arg-type]

    begin = ReclusterJob.__init__
    monkeypatch.setattr(ReclusterJob, "__init__", noted)
    where = r"region = 'it''s' or region = '\' or region = '" "'"
    sql(f"Alter Table lake.shop.orders Recluster Where {where} ;")
    sql("/* all */ alter table lake . shop . orders -- of them\n recluster\nfinal where id > 1".replace(" . ", "."))
    assert given == [(where, False), ("id > 1", True)]


def test_a_condition_is_checked(sql: Sql, settled: lakebed.Table) -> None:
    with pytest.raises(AnalysisException, match='Referenced column "nix" not found'):
        sql("alter table lake.shop.orders recluster where nix = 1")


def test_a_table_that_is_not_there_is_said(sql: Sql, settled: lakebed.Table) -> None:
    with pytest.raises(AnalysisException, match=r"no table shop\.ordrs below .*; did you mean 'shop\.orders'"):
        sql("alter table lake.shop.ordrs recluster")
    assert sql("alter table if exists lake.shop.ordrs recluster") == []
    assert len(sql("alter table if exists lake.shop.orders recluster")) == 1


def test_a_name_may_be_quoted_or_short(sql: Sql, settled: lakebed.Table) -> None:
    sql("use lake.shop")
    assert len(sql("alter table `lake`.shop.`orders` recluster")) == 1
    assert len(sql("alter table orders recluster final")) == 1
    assert waiting(settled) == 0


@pytest.mark.parametrize(
    "text",
    [
        "alter table spark_catalog.default.orders recluster",
        "alter table orders recluster final",
        "alter table lake.shop.orders recluster where",
        "alter table lake.shop.orders recluster finally",
        "alter table lake.shop.orders recluster final zorder by (id)",
        "alter table lake.shop. recluster",
    ],
)
def test_all_else_is_left_to_the_parser_of_spark(sql: Sql, settled: lakebed.Table, text: str) -> None:
    with pytest.raises(ParseException, match="recluster"):
        sql(text)


def test_a_text_that_goes_on_and_on_is_no_trouble(spark: SparkSession) -> None:
    spark.sql(f"select 1 {'-- a line' * 20_000}\n{' ' * 100_000}/*{'*' * 100_000}*/").collect()
    with pytest.raises(ParseException):
        spark.sql(f"{' ' * 100_000}/*{'* ' * 50_000}*/ alter table `{'a' * 100_000} recluster")
