"""What a pipeline file of a database may say, what it means for one table, and what is said about one that is wrong."""

from __future__ import annotations

import pytest

from lakebed.discovery import Naming
from lakebed.errors import InvalidInput
from lakebed.pipeline.settings import DatabasePipeline, Pipeline, parse_any, parse_pipeline

SHOP = r"""
database:
  path: lake/shop
  include: ["public\\..*"]
  exclude: ["public\\.tmp_.*"]
  properties: {lakebed.tombstone_retention: 3 days}
  tables:
    "public\\..*": {types: wide, max_age_seconds: 5}
    public.orders: {sort_key: ["date(created_at) desc"], max_age_seconds: 1}
    "public\\.audit_.*": {keys: [], properties: {lakebed.tombstone_retention: 1 day}}
    public.secret_tokens: {renamed_columns: {password: passwd}}
source:
  kind: kafka
  topic_pattern: "shop\\.public\\..*"
  config: {bootstrap.servers: broker:9092}
format: debezium-avro
registry: {url: "http://registry:8081"}
"""


def read(text: str = SHOP) -> DatabasePipeline:
    pipeline = parse_any(text, "shop.yml", {})
    assert isinstance(pipeline, DatabasePipeline)
    return pipeline


def complaint(old: str, new: str, text: str = SHOP) -> str:
    assert old in text
    with pytest.raises(InvalidInput) as raised:
        parse_any(text.replace(old, new), "shop.yml", {})
    return str(raised.value)


def test_a_file_describes_a_database() -> None:
    pipeline = read()
    assert pipeline.path == pipeline.database.path == "lake/shop"
    assert pipeline.evolve == ("add", "relax")
    assert (pipeline.database.max_age_seconds, pipeline.database.max_tables) == (10, 1000)
    assert pipeline.database.prices.puts == 0.005
    assert pipeline.naming == Naming(prefix="shop", include=(r"public\..*",), exclude=(r"public\.tmp_.*",))


def test_all_rules_that_match_apply_and_those_of_the_own_name_come_last() -> None:
    database = read().database
    orders = database.wishes_for("public.orders")
    assert (orders.types, orders.max_age_seconds, orders.keys) == ("wide", 1, None)
    assert orders.sort_key == ("date(created_at) desc",)
    assert orders.properties == {"lakebed.tombstone_retention": "3 days"}
    audit = database.wishes_for("public.audit_log")
    assert (audit.keys, audit.max_age_seconds) == ((), 5)
    assert audit.properties == {"lakebed.tombstone_retention": "1 day"}
    assert database.wishes_for("other.x").types == "given"


def test_the_names_of_tables_and_columns_are_no_secrets() -> None:
    pipeline = read()
    assert pipeline.document.secrets == frozenset()
    assert pipeline.document.redact("passwd") == "passwd"


def test_a_command_for_one_table_refuses_the_file_of_a_database() -> None:
    with pytest.raises(
        InvalidInput, match=r"line 3: database: this needs a file of one table; give the path of a table"
    ):
        parse_pipeline(SHOP, "shop.yml", {})
    assert isinstance(parse_any("table: {path: t}\nsource: {kind: generator}\n", "p.yml", {}), Pipeline)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("database:", "table: {path: t}\ndatabase:", "line 2: table: the file has database too"),
        ("registry:", "renamed_columns: {a: b}\nregistry:", "set renamed_columns below database.tables"),
        ("format: debezium-avro", "format: json", "records of json carry no schema, so no table can be made from them"),
        ("kind: kafka", "kind: files", "line 13: source.kind: is 'files'; it must be one of kafka"),
        (r"public\\.tmp_.*", "public(", "line 5: database.exclude[0]: 'public(' is not a regular expression"),
        (r'"public\\..*": {types', '"[": {types', "line 8: database.tables.[: '[' is not a regular expression"),
        ("3 days", "soon", "line 6: database.properties.lakebed.tombstone_retention"),
        ("1 day}", "no}", "line 10: database.tables.public\\.audit_.*.properties.lakebed.tombstone_retention"),
        ("max_age_seconds: 5", "max_age_seconds: -5", "line 8: database.tables.public\\..*.max_age_seconds: it must be"),
        ("max_age_seconds: 5", "sources: [a, '(']", "line 8: database.tables.public\\..*.sources[1]: '(' is not a regular"),
        ("max_age_seconds: 5", "max_age: 5", "there is no such key here; did you mean 'max_age_seconds'?"),
        ("  exclude", "  max_tables: 0\n  exclude", "database.max_tables: it must be at least 1"),
        ("  exclude", "  max_age_seconds: -1\n  exclude", "database.max_age_seconds: it must be at least 0"),
        ("  exclude", "  points: {transaction_topic: ''}\n  exclude", "it must name Debezium's topic of transactions"),
        ("  exclude", "  points: {interval_seconds: 1}\n  exclude", "the key 'transaction_topic' is missing"),
        ("  exclude", "  signal_topic: ''\n  exclude", "database.signal_topic: it must name a topic"),
        ("  exclude", "  notification_topic: ''\n  exclude", "database.notification_topic: it must name a topic"),
        ("  exclude", "  prices: {puts: -1}\n  exclude", "database.prices.puts: a price must be at least 0"),
        ("  exclude", "  verify: {url: x, rows_per_second: -1}\n  exclude", "rows_per_second: it must be at least 0"),
        ("  exclude", "  verify: {url: x, snapshot_minutes: 0}\n  exclude", "snapshot_minutes: it must be above 0"),
        ("  exclude", "  verify: {url: x, between: noon}\n  exclude", "between: it must be two times of day in UTC"),
        ("{password: passwd}", "{a: a}", "line 11: database.tables.public.secret_tokens.renamed_columns: "),
        (r'topic_pattern: "shop\\.', r'topic_pattern: "(shop|store)\\.', "set database.topic_prefix"),
        (r'topic_pattern: "shop\\.public\\..*"', "topics: [a.b.c, d.e.f]", "set database.topic_prefix"),
        ("debezium-avro", "{kind: debezium-avro, schema_file: x.avsc}", "one schema can't fit every table"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line_and_a_way_out(old: str, new: str, said: str) -> None:
    assert said in complaint(old, new)


def test_points_are_for_events_alone() -> None:
    rows = SHOP.replace("debezium-avro", "avro").replace(
        "  exclude", "  points: {transaction_topic: shop.tx}\n  exclude"
    )
    with pytest.raises(InvalidInput, match=r"line 5: database\.points: points need Debezium's events"):
        read(rows)


def test_a_prefix_that_is_given_needs_not_be_found() -> None:
    text = SHOP.replace("  include", "  topic_prefix: my.shop\n  include").replace(r"shop\\.public\\..*", "(a|b).*")
    assert read(text).naming.prefix == "my.shop"
    rows = SHOP.replace("debezium-avro", "avro").replace(r"shop\\.public\\..*", "(a|b).*")
    assert read(rows).naming.prefix == ""
