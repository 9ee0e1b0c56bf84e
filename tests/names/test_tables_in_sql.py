"""CREATE TABLE, ALTER TABLE, SHOW and DESCRIBE: columns at any depth, comments, properties."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import lakebed
from lakebed.errors import InvalidInput
from lakebed.names.definitions import alteration_of, listed
from tests.names.conftest import Sql

CREATE = """create table lake.shop.places (
    id bigint not null comment 'the key',
    address struct<street: string comment "it's long", `zip.code`: string> comment 'of the place',
    `na.me` string comment 'has a dot',
    tags array<struct<v: int>>,
    n int not null,
    ratio float
) using lakebed comment 'where things are'
tblproperties ('lakebed.keys' = 'id', 'lakebed.sort_key' = 'n desc, id', 'mine' = 'x')"""


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("region, n desc", ["region", "n desc"]),
        ("zorder(a, b)", ["zorder(a, b)"]),
        ("`a,b`, bucket(4, c) desc, d", ["`a,b`", "bucket(4, c) desc", "d"]),
        ('["a,b", "c"]', ["a,b", "c"]),
        (" ", []),
        (None, []),
    ],
)
def test_a_list_is_cut_at_its_own_commas(text: str | None, terms: list[str]) -> None:
    assert listed(text) == terms


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "UpdateColumnPosition", "column": "n"}, "column n: columns keep their places"),
        ({"kind": "UpdateColumnDefaultValue", "column": "n"}, "column n: columns have no defaults"),
        ({"kind": "AddConstraint"}, "no constraints but its keys and NOT NULL"),
        ({"kind": "ClusterBy"}, "set the property lakebed.sort_key"),
        ({"kind": "SetProperty", "property": "location", "value": "x"}, "location can't be set"),
        ({"kind": "RemoveProperty", "property": "mine"}, "property 'mine': set it to the value"),
        ({"kind": "SomethingNew", "column": "n"}, "can't be altered so: SomethingNew"),
    ],
)
def test_what_no_table_takes_is_said(change: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        alteration_of([change], {"mine"})


@pytest.fixture
def places(sql: Sql, orders: lakebed.Table) -> lakebed.Table:
    """The table of ``CREATE``, beside ``orders``."""
    sql(CREATE)
    return lakebed.open(orders.path.replace("orders", "places"))


def described(sql: Sql) -> dict[str, tuple[str, str | None]]:
    return {name: (kind, comment) for name, kind, comment in sql("describe lake.shop.places")}


@pytest.mark.slow
def test_a_table_is_created_with_comments_keys_and_properties(sql: Sql, places: lakebed.Table) -> None:
    assert described(sql) == {
        "id": ("bigint", "the key"),
        "address": ("struct<street:string,zip.code:string>", "of the place"),
        "na.me": ("string", "has a dot"),
        "tags": ("array<struct<v:int>>", None),
        "n": ("int", None),
        "ratio": ("float", None),
    }
    extended = {row[0]: row[1] for row in sql("describe extended lake.shop.places")}
    assert extended["Comment"] == "where things are" and extended["Provider"] == "lakebed"
    assert places.properties["lakebed.keys"] == '["id"]' and places.properties["mine"] == "x"
    assert places.properties["lakebed.sort_key"] == '["n desc","id"]'


@pytest.mark.slow
def test_what_show_create_table_shows_can_be_run(sql: Sql, places: lakebed.Table) -> None:
    sql("alter table lake.shop.places drop column ratio")  # turns on column mapping
    [(shown,)] = sql("show create table lake.shop.places")
    assert "LOCATION" not in shown and r"COMMENT 'it\'s long'" in shown
    sql(shown.replace("shop.places", "shop.copy"))

    [(copy,)] = sql("show create table lake.shop.copy")
    mapping = [line for line in shown.splitlines() if "columnMapping" in line]
    ours = [line for line in shown.splitlines() if line not in mapping and "lakebed.version" not in line]
    assert [
        line for line in copy.replace("shop.copy", "shop.places").splitlines() if "lakebed.version" not in line
    ] == ours


@pytest.mark.slow
def test_columns_at_any_depth_are_added_renamed_and_dropped(sql: Sql, places: lakebed.Table) -> None:
    sql(
        "alter table lake.shop.places add columns (p struct<i: int comment 'inside'> comment 'p', `q.r` string comment 'q')"
    )
    sql("alter table lake.shop.places add column address.city string comment 'c'")
    sql("alter table lake.shop.places add column tags.element.w bigint")
    sql("alter table lake.shop.places rename column address.`zip.code` to zip")
    sql("alter table lake.shop.places rename column `q.r` to `q.s`")
    sql("alter table lake.shop.places drop columns (ratio, address.zip)")
    sql("alter table lake.shop.places drop column if exists nothing")
    found = described(sql)
    assert found["address"] == ("struct<street:string,city:string>", "of the place")
    assert found["tags"] == ("array<struct<v:int,w:bigint>>", None)
    assert found["p"] == ("struct<i:int>", "p") and found["q.s"] == ("string", "q") and "ratio" not in found
    [(shown,)] = sql("show create table lake.shop.places")
    assert "i: INT COMMENT 'inside'" in shown and "COMMENT 'c'" in shown


@pytest.mark.slow
def test_comments_change(sql: Sql, places: lakebed.Table) -> None:
    sql("alter table lake.shop.places alter column n comment 'a number'")
    sql("alter table lake.shop.places alter column `na.me` comment 'a name'")
    sql("alter table lake.shop.places alter column address.`zip.code` comment 'its code'")
    sql("alter table lake.shop.places alter column id comment ''")
    sql("comment on table lake.shop.places is 'all of them'")
    found = described(sql)
    assert (found["n"][1], found["na.me"][1], found["id"][1]) == ("a number", "a name", None)
    [(shown,)] = sql("show create table lake.shop.places")
    assert "COMMENT 'its code'" in shown and "COMMENT 'all of them'" in shown


@pytest.mark.slow
def test_types_widen_and_columns_may_become_null(sql: Sql, places: lakebed.Table) -> None:
    sql("insert into lake.shop.places values (1, null, null, null, 7, 0.5)")
    sql("alter table lake.shop.places alter column n type bigint")
    sql("alter table lake.shop.places alter column ratio type double")
    sql("alter table lake.shop.places alter column n drop not null")
    sql("insert into lake.shop.places values (2, null, null, null, null, 0.25)")
    assert sql("select id, n, ratio from lake.shop.places order by id") == [(1, 7, 0.5), (2, None, 0.25)]
    assert described(sql)["n"][0] == "bigint"


@pytest.mark.few(9)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("drop column id", "'id' can't be dropped: it is a key"),
        ("drop column address.street", "it is the first field of its struct"),
        ("drop column nothing", "UNRESOLVED_COLUMN.*`nothing`"),
        ("rename column n to id", "`id` already exists"),
        ("add column n int", "`n` already exists"),
        ("add column z int not null", "column z: columns are added at the end"),
        ("add column z int after id", "column z: columns are added at the end"),
        ("add column `z.z` int first", "column `z.z`: columns are added at the end"),
        ("alter column n first", "column n: columns keep their places"),
        ("alter column n type string", "'n' is integer and can't be widened to string"),
        ("alter column address.street type int", "`address`.`street`"),
        ("replace columns (n int, x int)", "column n: to replace columns by others of the same names would empty them"),
        ("set location '/tmp/elsewhere'", "location can't be set"),
        ("set tblproperties ('lakebed.keys' = 'n')", "lakebed.keys is fixed when the table is created"),
        ("set tblproperties ('lakebed.fresness' = '1 minute')", "did you mean 'lakebed.freshness'"),
        ("set tblproperties ('lakebed.sort_key' = 'nothing')", "nothing"),
        ("unset tblproperties ('mine')", "property 'mine': set it to the value"),
        ("rename to lake.shop.others", r"lakebed moves no folder: .*shop\.places can't be renamed"),
    ],
)
def test_what_can_not_be_altered_is_said_with_its_name(sql: Sql, places: lakebed.Table, text: str, said: str) -> None:
    before = places.version
    with pytest.raises(AnalysisException, match=said):
        sql(f"alter table lake.shop.places {text}")
    assert places.version == before


@pytest.mark.slow
def test_properties_are_set_and_shown(sql: Sql, places: lakebed.Table) -> None:
    sql(
        "alter table lake.shop.places set tblproperties ('lakebed.sort_key' = 'zorder(id, n)', 'lakebed.freshness' = '5 minutes')"
    )
    sql("alter table lake.shop.places unset tblproperties ('nothing')")
    shown = dict(sql("show tblproperties lake.shop.places"))
    assert shown["lakebed.sort_key"] == '["zorder(id, n)"]' and shown["lakebed.freshness"] == "5 minutes"
    assert shown["lakebed.version"] == str(places.version) and shown["lakebed.reads"] == "fresh"
    assert sql("show tblproperties lake.shop.places ('mine')") == [("mine", "x")]


@pytest.mark.slow
def test_a_name_may_have_a_dot(sql: Sql, places: lakebed.Table) -> None:
    sql("create table lake.shop.`we.ird` (id int, `a.b` int) using lakebed partitioned by (`a.b`)")
    sql("insert into lake.shop.`we.ird` values (1, 2)")
    sql("alter table lake.shop.`we.ird` add column x int")
    assert sql("select id, `a.b`, x from lake.shop.`we.ird`") == [(1, 2, None)]
    assert sql("call lake.system.resume('shop.`we.ird`')") == [(False,)]
    assert [row[1] for row in sql("show tables in lake.shop")] == ["orders", "places", "we.ird"]
    sql("drop table lake.shop.`we.ird`")
    with pytest.raises(AnalysisException, match=r"CALL lake\d+\.system\.undrop\('shop\.`we\.ird`'\)"):
        sql("select * from lake.shop.`we.ird`")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(a int) using parquet", "write USING lakebed in place of USING parquet"),
        ("using parquet as select 1 as a", "write USING lakebed in place of USING parquet"),
        ("(a int) using lakebed location '/tmp/x'", "leave LOCATION out"),
        ("(d date) using lakebed partitioned by (years(d))", r"partitioned by columns, not by years\(d\)"),
        ("(d date) using lakebed cluster by (d)", "set the property lakebed.sort_key in place of CLUSTER BY"),
        ("(a int) using lakebed tblproperties ('lakebed.keys' = 'b')", "b"),
        ("(a int default 5) using lakebed", "does not support column default value"),
    ],
)
def test_what_no_table_is_created_with_is_said(sql: Sql, orders: lakebed.Table, text: str, said: str) -> None:
    with pytest.raises(AnalysisException, match=said):
        sql(f"create table lake.shop.other {text}")
    assert [row[1] for row in sql("show tables in lake.shop")] == ["orders"]


@pytest.mark.slow
def test_create_if_not_exists_leaves_a_table_alone(spark: SparkSession, sql: Sql, places: lakebed.Table) -> None:
    sql("create table if not exists lake.shop.places (x int) using lakebed")
    assert described(sql)["id"] == ("bigint", "the key")
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        sql("create table lake.shop.places (x int) using lakebed")
