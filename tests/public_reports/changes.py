"""Reports of rows that were lost, kept or doubled: order, keys, deletes, snapshots, and records that come again."""

from __future__ import annotations

from typing import Any

from lakebed.decode.metadata import NEW_KEY, OLD_KEY
from tests.decode.records import event, in_log
from tests.pipeline.pipelines_in_memory import Sent
from tests.public_reports.report import Report, table

PLAIN = table("id: long not null, v: string")
TEXT_KEY = table("id: string not null, v: long")
BINLOG = table("id: long not null, v: string", order="source.pos")
FLAT = "{kind: json, operation_field: __deleted, delete_values: ['true'], upsert_values: ['false']}"


def row(id: int | str, v: Any = None) -> dict[str, Any]:
    return {"id": id, "v": v}


def put(op: str, id: int | str, v: Any, lsn: int, **headers: bytes) -> Sent:
    return {"id": id}, event(op, row(id, v), None, lsn), headers


def gone(id: int | str, lsn: int, before: Any = "key", **headers: bytes) -> Sent:
    """A delete. ``before``: the whole old row; by default only its key, as with PostgreSQL's default replica identity."""
    return {"id": id}, event("d", None, row(id) if before == "key" else before, lsn), headers


def from_key(id: int) -> dict[str, bytes]:
    return {OLD_KEY: b'{"id":%d}' % id}


def to_key(id: int) -> dict[str, bytes]:
    return {NEW_KEY: b'{"id":%d}' % id}


def binlog(op: str, id: int, v: str | None, pos: int, file: str = "binlog.000002", number: int = 0) -> Sent:
    sides = {"before": row(id, v), "after": None} if op == "d" else {"before": None, "after": row(id, v)}
    at = 1_645_532_491_000 + 1000 * int(file[-6:]) + pos
    source = {"connector": "mysql", "ts_ms": at, "file": file, "pos": pos, "row": number, "table": "t"}
    return {"id": id}, {**sides, "source": source, "op": op, "ts_ms": at}


MOVED = 1_800_000_000_000


def at(ms: int, change: dict[str, Any]) -> dict[str, Any]:
    """The change at another time of the source's clock."""
    return {**change, "source": {**change["source"], "ts_ms": ms}}


def without_lsn(change: dict[str, Any]) -> dict[str, Any]:
    return {**change, "source": {**change["source"], "lsn": None}}


def together(*records: Sent) -> list[Sent]:
    """The records as those of one transaction: its changes come after the commit at 90."""
    return [(one[0], in_log(one[1], '["90","100"]'), *one[2:]) for one in records]  # type: ignore[arg-type]


REPORTS = [
    Report(
        where="risingwavelabs/risingwave#12026",
        saw="update set id = id + 1 loses half of the rows",
        pipeline=PLAIN,
        records=[
            put("c", 1, "a", 10),
            put("c", 2, "b", 20),
            *together(
                gone(1, 100, **to_key(2)),
                put("c", 2, "a", 100, **from_key(1)),
                gone(2, 101, **to_key(3)),
                put("c", 3, "b", 101, **from_key(2)),
            ),
        ],
        rows=[(2, "a"), (3, "b")],
    ),
    Report(
        where="MaterializeInc/materialize#6553",
        saw="updating the primary key deletes the record",
        pipeline=PLAIN,
        records=[
            put("r", 1, "a", 23547008),
            gone(1, 23547048, **to_key(2)),
            ({"id": 1}, None),
            put("c", 2, "a", 23547048, **from_key(1)),
        ],
        rows=[(2, "a")],
    ),
    Report(
        where="estuary/connectors#2185",
        saw="an update of the key leaves the old row behind",
        pipeline=PLAIN,
        records=[put("c", 1, "a", 1), ({"id": 2}, event("u", row(2, "a"), row(1, "a"), 2))],
        rows=[(2, "a")],
    ),
    Report(
        where="MaterializeInc/materialize#10816",
        saw="an update of the key in MySQL deletes the row",
        pipeline=BINLOG,
        records=[
            binlog("c", 456, "a", 1000),
            binlog("d", 456, "a", 2031, number=3),
            ({"id": 456}, None),
            binlog("c", 45600, "a", 2031, number=3),
        ],
        rows=[(45600, "a")],
    ),
    Report(
        where="itinycheng/flink-connector-clickhouse#88",
        saw="delete and insert of a key in one flush leave nothing",
        pipeline=PLAIN,
        records=[put("c", 1001, "a", 1), gone(1001, 2), put("c", 1001, "b", 3)],
        rows=[(1001, "b")],
    ),
    Report(
        where="lance-format/lance-flink#74",
        saw="a delete is lost if its insert is in the same checkpoint",
        pipeline=PLAIN,
        records=[put("c", 1, "a", 1), gone(1, 2), put("c", 2, "b", 3)],
        rows=[(2, "b")],
    ),
    Report(
        where="Altinity/clickhouse-sink-connector#1346",
        saw="delete all, insert all again: every row is lost",
        pipeline=PLAIN,
        records=[
            *(put("c", id, "old", id) for id in range(5)),
            *together(*(gone(id, 100) for id in range(5)), *(put("c", id, "new", 100) for id in range(5))),
        ],
        rows=[(id, "new") for id in range(5)],
    ),
    Report(
        where="apache/hudi#9475",
        saw="binlog position 123 is older than 23, so updates are lost",
        pipeline=BINLOG,
        records=[
            binlog("c", 1, "a", 23, "mysql-bin.000009"),
            binlog("u", 1, "b", 123, "mysql-bin.000009"),
            binlog("u", 1, "c", 4, "mysql-bin.000010"),
            binlog("u", 1, "late", 999, "mysql-bin.000009"),
        ],
        rows=[(1, "c")],
    ),
    Report(
        where="apache/hudi#7687",
        saw="a delete without an old row ends the job",
        pipeline=PLAIN,
        records=[put("c", 1, "a", 1), put("c", 2, "b", 2), gone(1, 3, before=None)],
        rows=[(2, "b")],
    ),
    Report(
        where="apache/paimon#3113",
        saw="the tombstone after a delete ends the job",
        pipeline=PLAIN,
        records=[put("c", 1, "a", 1), put("c", 2, "b", 2), gone(1, 3), ({"id": 1}, None), put("u", 2, "c", 4)],
        rows=[(2, "c")],
    ),
    Report(
        where="MaterializeInc/materialize#14211",
        saw="a second snapshot within the stream doubles the rows",
        pipeline=TEXT_KEY,
        records=[put("r", "A", 1, 100), put("r", "A", 2, 200), put("r", "B", 3, 200)],
        rows=[("A", 2), ("B", 3)],
    ),
    Report(
        where="confluentinc/kafka-connect-jdbc#1502",
        saw="after a failover to lower positions old rows stay",
        pipeline=PLAIN,
        records=[
            put("c", 1, "old", 5_000_000_000),
            ({"id": 1}, at(MOVED, event("r", row(1, "new"), None, 20_000_000))),
        ],
        rows=[(1, "old")],
        findings=frozenset({"order_began_again"}),
    ),
    Report(
        where="MaterializeInc/materialize#6596",
        saw="a truncated table keeps its rows",
        pipeline=PLAIN,
        records=[put("c", 1, "a", 1), put("c", 2, "b", 2), (None, event("t", None, None, 3)), put("c", 3, "c", 4)],
        rows=[(3, "c")],
    ),
    Report(
        where="databricks/iceberg-kafka-connect#341",
        saw="a key twice in a batch is in the table twice",
        pipeline=PLAIN,
        records=[put("c", 3000, "10000", 1), put("c", 3000, "10000", 1)],
        rows=[(3000, "10000")],
    ),
    Report(
        where="databricks/iceberg-kafka-connect#318",
        saw="a delete with only the key misses the row's partition",
        pipeline=table("id: long not null, v: string", rest=", partition_by: [v]"),
        records=[put("r", 1, "monday", 1), put("u", 1, "tuesday", 2), put("r", 2, "monday", 3), gone(2, 4)],
        rows=[(1, "tuesday")],
    ),
    Report(
        where="memiiso/debezium-server-iceberg#661",
        saw="delete and insert of a key in a batch lose the row",
        pipeline=table("id: long not null, v: string", order=None, format=FLAT),
        records=[
            ({"id": 1}, row(1, "a") | {"__deleted": "false"}),
            ({"id": 1}, row(1, "a") | {"__deleted": "true"}),
            ({"id": 1}, row(1, "b") | {"__deleted": "false"}),
            ({"id": 2}, row(2, "a") | {"__deleted": "false"}),
            ({"id": 2}, row(2) | {"__deleted": "true"}),
        ],
        rows=[(1, "b")],
    ),
    Report(
        where="MaterializeInc/materialize#5709",
        saw="records that come twice or late break the counts",
        pipeline=PLAIN,
        records=[
            put("c", 1, "a", 1),
            put("u", 1, "c", 3),
            put("u", 1, "b", 2),
            put("c", 1, "a", 1),
            put("u", 1, "c", 3),
            gone(2, 9),
            put("c", 2, "late", 5),
        ],
        rows=[(1, "c")],
    ),
    Report(
        where="MaterializeInc/materialize#2203",
        saw="deletes negate rows of nulls, which were never there",
        pipeline=PLAIN,
        records=[put("c", 1, "a", 1), put("c", 2, "b", 2), gone(1, 3, before=row(1))],
        rows=[(2, "b")],
    ),
    Report(
        where="MaterializeInc/materialize#7277",
        saw="of two changes with one lsn the second is dropped",
        pipeline=PLAIN,
        records=[put("c", 1, "a", 7), put("u", 1, "b", 7), put("c", 2, "a", 7), gone(2, 7)],
        rows=[(1, "b")],
    ),
    Report(
        where="apache/hudi#7193",
        saw="rows of a bootstrap have no lsn, and changes of them fail",
        pipeline=PLAIN,
        records=[
            ({"id": 1}, without_lsn(event("r", row(1, "a")))),
            put("u", 1, "b", 5),
            ({"id": 2}, in_log(without_lsn(event("r", row(2, "a"))), '[null,"6"]')),
            put("u", 2, "b", 7),
        ],
        rows=[(1, "b"), (2, "b")],
        quarantine={0: "'source.lsn' is null"},
    ),
]
