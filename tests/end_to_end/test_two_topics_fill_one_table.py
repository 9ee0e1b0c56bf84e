"""Two topics, two pipelines that are killed, one table: at every version the join of what was committed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import lakebed
from lakebed.positions.positions import positions_of
from lakebed.table import internals_of
from tests.end_to_end.run_process import RunProcess
from tests.infra.kafka import KafkaServer
from tests.waiting import wait_until

KEYS, RECORDS, SEED = 40, 1_500, 7
SCHEMA = {
    "id": "long not null", "status": "string", "changed": "long",
    "name": "string", "mail": "string", "named": "long",
}  # fmt: skip
STREAMS = {"owner": (("status",), "changed"), "profile": (("name", "mail"), "named")}
Record = dict[str, Any]


class Filling(RunProcess):
    """``lakebed run`` on the topic of one stream."""

    def __init__(self, kafka: KafkaServer, topic: str, stream: str, folder: Path) -> None:
        groups = {"profile": {"columns": ["name", "mail"], "sequence_by": "named"}}
        super().__init__(
            stream,
            folder,
            {
                "table": {
                    "path": str(folder / "people"),
                    "schema": SCHEMA,
                    "keys": ["id"],
                    "sequence_by": "changed",
                    "properties": {"lakebed.groups": groups},
                },
                "columns": list(STREAMS[stream][0]),
                "source": {
                    "kind": "kafka",
                    "config": {"bootstrap.servers": kafka.bootstrap},
                    "topics": [topic],
                    "max_records_per_batch": 100,
                },
                "format": {"kind": "json", "operation_field": "op"},
                "metrics": {"port": None},
                "spark": {"master": "local[1]"},
            },
        )


def records_of(stream: str, chance: random.Random) -> list[Record]:
    """Changes of which many come late, and some are deletes."""
    columns, order = STREAMS[stream]
    out = []
    for number in range(RECORDS):
        gone = chance.random() < 0.1
        record = {"op": "d" if gone else "u", "id": chance.randrange(KEYS), order: number - chance.randrange(60)}
        out.append(record | {name: f"{name} {number}" for name in columns})
    return out


def joined(records: dict[str, list[Record]]) -> list[Record]:
    """The rows of the owner, each with what is newest of its profile."""
    newest: dict[tuple[str, int], Record] = {}
    for stream, several in records.items():
        order = STREAMS[stream][1]
        for record in several:
            before = newest.get((stream, record["id"]))
            if before is None or record[order] >= before[order]:
                newest[stream, record["id"]] = record
    rows = []
    for id in range(KEYS):
        owner, profile = newest.get(("owner", id)), newest.get(("profile", id), {})
        if owner is not None and owner["op"] != "d":
            values = {name: None if profile.get("op") == "d" else profile.get(name) for name in ("name", "mail")}
            rows.append(
                {
                    "id": id,
                    "status": owner["status"],
                    "changed": owner["changed"],
                    **values,
                    "named": profile.get("named"),
                }
            )
    return rows


@pytest.mark.long
def test_a_table_of_two_topics_is_their_join_at_every_version(kafka: KafkaServer, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    records = {stream: records_of(stream, chance) for stream in STREAMS}
    topics = {stream: kafka.create_topic(f"{stream}-{SEED}-{id(records)}") for stream in STREAMS}
    processes = {stream: Filling(kafka, topics[stream], stream, tmp_path) for stream in STREAMS}
    producer = Producer({"bootstrap.servers": kafka.bootstrap})

    def send(begin: int, end: int) -> None:
        for stream, several in records.items():
            for record in several[begin:end]:
                producer.produce(topics[stream], json.dumps(record).encode(), str(record["id"]).encode())
        producer.flush()

    try:
        send(0, RECORDS // 2)
        processes["owner"].start()
        processes["profile"].start()
        processes["owner"].kill()
        send(RECORDS // 2, RECORDS)
        processes["profile"].kill()
        for process in processes.values():
            process.ready_after_seconds = 0.0
            process.start()
        ends = dict.fromkeys(topics.values(), RECORDS)
        wait_until(
            lambda: positions(tmp_path / "people") == ends, "not all records came", moving=processes["owner"].version
        )
    finally:
        for process in processes.values():
            process.kill()
    table = lakebed.open(tmp_path / "people")
    assert compared(table, topics, records) > 10
    table.settle()
    assert table.to_arrow().sort_by("id").to_pylist() == joined(records)


def positions(path: Path) -> dict[str, int]:
    """How far each topic was read."""
    log = internals_of(lakebed.open(path)).log
    return {topic: position.offsets[0] for topic, position in positions_of(log.refresh()).items()}


def compared(table: lakebed.Table, topics: dict[str, str], records: dict[str, list[Record]]) -> int:
    """At how many versions the table was the join of the records before its positions, which are all."""
    log = internals_of(table).log
    for version in range(table.version + 1):
        found = positions_of(log.at_version(version))
        read = {stream: found[topic].offsets[0] if topic in found else 0 for stream, topic in topics.items()}
        expected = joined({stream: several[: read[stream]] for stream, several in records.items()})
        assert table.to_arrow(version=version).sort_by("id").to_pylist() == expected, f"version {version}: {read}"
    return table.version + 1
