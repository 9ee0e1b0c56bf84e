"""Reports of tables that stayed out or got other columns: names, topics, keys, and schemas that change under way."""

from __future__ import annotations

from typing import Any

from tests.decode.records import event, with_schema
from tests.pipeline.pipelines_in_memory import Sent
from tests.public_reports.report import Report, database, key, of, table, typed


def put(lsn: int, *fields: dict[str, Any], op: str = "c", id: int = 1, **values: Any) -> Sent:
    """A change of a row with these fields, whose values are given by name."""
    return typed(event(op, {"id": id} | values, None, lsn), *fields)


def _named(record: Sent) -> Sent:
    """The record, whose event names the table as SQL Server has it."""
    value: Any = record[1]
    source = value["payload"]["source"] | {"db": "BaseLibrary$Test", "schema": "dbo", "table": "toot"}
    return record[0], {**value, "payload": {**value["payload"], "source": source}}


TEXT, NUMBER = of("string", "name"), of("int64", "n")
PAIR = [of("int64", "a", optional=False), of("int64", "b", optional=False), TEXT]
DATA_ROW: dict[str, Any] = {"$data": "bar"}
ODD = ["Order Date", 'say "hi"', "a.b", "unit,price", "select"]
ODD_ROW: dict[str, Any] = dict(zip(ODD, "abcde", strict=True))

REPORTS = [
    Report(
        where="risingwavelabs/risingwave#21526",
        saw="columns whose names have quotes or spaces fail",
        pipeline=database(),
        records=[put(1, *(of("string", name) for name in ODD), **ODD_ROW)],
        rows=[(1, *"abcde")],
        columns=["id", *ODD],
    ),
    Report(
        where="ClickHouse/ClickHouse#73829",
        saw="the column $data is null everywhere",
        pipeline=database(),
        records=[put(1, of("string", "$data"), **DATA_ROW)],
        rows=[(1, "bar")],
        columns=["id", "$data"],
    ),
    Report(
        where="risingwavelabs/risingwave#24212",
        saw="changes of databases with $ in their name are dropped",
        pipeline=database(),
        topic="shop.BaseLibrary_Test.dbo.toot",
        records=[_named(put(1, TEXT, name="a")), _named(put(2, TEXT, op="u", name="b"))],
        rows=[(1, "b")],
    ),
    Report(
        where="risingwavelabs/risingwave#26867",
        saw="columns in another case are new columns",
        pipeline=database(),
        records=[put(1, of("int64", "userId"), userId=7), put(2, of("int64", "USERID"), NUMBER, op="u", USERID=8, n=9)],
        rows=[(1, 8, 9)],
        columns=["id", "userId", "n"],
    ),
    Report(
        where="redpanda-data/connect#4365",
        saw="fields in upper case do not find their columns",
        pipeline=table("id: long not null, name: string"),
        records=[({"ID": 1}, event("c", {"ID": 1, "NAME": "a"}, None, 1))],
        rows=[(1, "a")],
    ),
    Report(
        where="memiiso/debezium-server-iceberg#370",
        saw="a dropped column keeps values in new rows",
        pipeline=database(),
        records=[put(1, TEXT, NUMBER, name="a", n=1), put(2, TEXT, id=2, name="b"), put(3, TEXT, op="u", name="c")],
        rows=[(1, "c", None), (2, "b", None)],
    ),
    Report(
        where="databricks/iceberg-kafka-connect#261",
        saw="after a list is dropped every record fails",
        pipeline=database(),
        records=[
            put(1, of("array", "l", items={"type": "int32"}), TEXT, l=[1], name="a"),
            put(2, TEXT, id=2, name="b"),
        ],
        rows=[(1, [1], "a"), (2, None, "b")],
    ),
    Report(
        where="risingwavelabs/risingwave#25911",
        saw="a new column fails for ever beside one of bytes",
        pipeline=database(),
        records=[
            put(1, of("bytes", "b"), b="AQI="),
            put(2, of("bytes", "b"), NUMBER, id=2, b="AQI=", n=5),
            put(3, of("bytes", "b"), id=3, b=None),
        ],
        rows=[(1, b"\1\2", None), (2, b"\1\2", 5), (3, None, None)],
    ),
    Report(
        where="sidequery/dlt-iceberg#15",
        saw="rows that lack columns fail after wider ones",
        pipeline=table("id: long not null, name: string, n: long", order=None, format="json"),
        records=[(None, {"id": 1, "name": "a", "n": 1}), (None, {"id": 2}), (None, {"id": 3, "n": 3, "name": "c"})],
        rows=[(1, "a", 1), (2, None, None), (3, "c", 3)],
    ),
    Report(
        where="apache/flink-cdc#4372",
        saw="a dropped column stays not null, and new rows fail",
        pipeline=table("id: long not null, name: string not null, n: long") + "evolve: [add, relax]\n",
        records=[put(1, {**TEXT, "optional": False}, NUMBER, name="a", n=1), put(2, NUMBER, id=2, n=2)],
        rows=[(1, "a", 1), (2, None, 2)],
    ),
    Report(
        where="memiiso/debezium-server-bigquery#288",
        saw="heartbeats end the job",
        pipeline=database(),
        topic="__debezium-heartbeat.shop",
        records=[({"serverName": "shop"}, {"ts_ms": 1_700_000_000_000})],
        no_table="heartbeats",
    ),
    Report(
        where="risingwavelabs/risingwave#26846",
        saw="columns of a key take the order of the table",
        pipeline=database(),
        records=[
            (key(b=1, a=2), with_schema(event("c", {"a": 2, "b": 1, "name": "x"}, None, 1), PAIR)),
            (key(b=2, a=1), with_schema(event("c", {"a": 1, "b": 2, "name": "y"}, None, 2), PAIR)),
            (key(a=1, b=2), with_schema(event("d", None, {"a": 1, "b": 2, "name": None}, 3), PAIR)),
        ],
        rows=[(2, 1, "x")],
    ),
    Report(
        where="risingwavelabs/risingwave#10731",
        saw="a column that is no key is taken for one",
        pipeline=table("id: long not null, name: string", keys="name"),
        records=[
            ({"id": 1}, event("c", {"id": 1, "name": "a"}, None, 1)),
            ({"id": 1}, event("d", None, {"id": 1, "name": None}, 2)),
        ],
        rows=[(1, "a")],
        quarantine={1: "key"},
        findings=frozenset({"unsent_key"}),
    ),
]
