"""A database whose table is altered in every way, under load, through Debezium and Kafka into lakebed: is it the same table?

1.  Capture the table, start ``lakebed run``, start the clients.
2.  Take the steps one after the other. Most are taken while the pipeline runs, and it must go on. In the middle of them the
    pipeline is killed with -9, and a few steps are taken while it is down; Debezium is killed meanwhile too.
3.  End the clients, wait until all has arrived, and compare: rows as they are, and settled, with those of the database.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

import lakebed
from tests.end_to_end.changing_database import COLUMNS, NEW_NAMES, ChangingDatabase
from tests.end_to_end.progress import ingested_ends
from tests.end_to_end.run_process import RunProcess, wait_until_ingested
from tests.foreign.readers import comparable
from tests.infra.connect import JSON_CONVERTER, avro_converters
from tests.infra.kafka import KafkaServer, end_offsets
from tests.infra.registry import RegistryServer
from tests.waiting import length_of, wait_until

PARTITIONS = 2
GONE = frozenset({"legacy"})
INLINE_SCHEMAS = {
    f"{part}.converter{option}": value
    for part in ("key", "value")
    # Else a null of a column that has a default is sent as that default.
    for option, value in (("", JSON_CONVERTER), (".schemas.enable", "true"), (".replace.null.with.default", "false"))
}
Format = Literal["debezium-avro", "debezium-json"]


@dataclass(frozen=True)
class Outcome:
    """What happened, for whoever reads the output of a long run."""

    steps: int
    steps_while_down: int
    kills: int
    records: int
    rows: int
    versions: int
    schemas: list[str]
    seconds: float


class Followed:
    """The table, and the pipeline that keeps it."""

    def __init__(
        self, kafka: KafkaServer, database: ChangingDatabase, folder: Path, section: Mapping[str, Any], sequence_by: str
    ) -> None:
        self._kafka = kafka
        self.topic = kafka.create_topic(f"{database.name}.{database.table}", PARTITIONS)
        self.process = RunProcess(
            "orders",
            folder,
            {
                "table": {
                    "path": str(folder / "orders"), "schema": COLUMNS, "keys": ["id"], "sequence_by": sequence_by,
                },
                "source": {
                    "kind": "kafka", "config": {"bootstrap.servers": kafka.bootstrap}, "topics": [self.topic],
                    "max_records_per_batch": 20_000,
                },
                **section,
                "evolve": ["add", "widen", "relax"],
                "renamed_columns": NEW_NAMES,
                "metrics": {"port": None},
                "page": {"port": None},
                "spark": {"master": "local[2]"},
            },
        )  # fmt: skip

    def ends(self) -> dict[tuple[str, int], int]:
        ends = end_offsets(self._kafka.bootstrap, self.topic, PARTITIONS)
        return {(self.topic, partition): end for partition, end in ends.items()}

    def wait_for_a_batch(self) -> None:
        """Returns when the pipeline has ingested more than now, or has ended."""
        before = ingested_ends(self.process.table)
        wait_until(
            lambda: ingested_ends(self.process.table) != before or not self.process.is_running,
            lambda: f"no batch came:\n{self.process.log_tail()}",
            moving=length_of(self.process.log_path),
        )


def section_of(kind: Format, registry: RegistryServer | None) -> tuple[dict[str, str], dict[str, Any]]:
    """The connector's settings and the pipeline file's part for a format."""
    if registry is None:
        return INLINE_SCHEMAS, {"format": {"kind": kind}}
    return avro_converters(registry), {"format": {"kind": kind}, "registry": {"url": registry.url}}


def change_and_compare(
    kafka: KafkaServer,
    database: ChangingDatabase,
    folder: Path,
    *,
    registry: RegistryServer | None,
    sequence_by: str,
    seed: int,
    rounds_down: int = 1,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Runs the whole; without a registry records are JSON with their schema. Raises AssertionError naming what differs.

    ``rounds_down``: how often the pipeline is killed, and steps are taken while it is down.
    """
    chance, started = random.Random(seed), time.monotonic()
    settings, section = section_of("debezium-json" if registry is None else "debezium-avro", registry)
    followed = Followed(kafka, database, folder, section, sequence_by)
    down = _steps_while_down(len(database.steps), rounds_down, chance)
    kills = 0
    database.capture(settings)
    try:
        followed.process.start()
        with ExitStack() as load:
            for client in database.clients(folder):
                load.enter_context(client)
            for number, step in enumerate(database.steps):
                say(f"{time.monotonic() - started:3.0f} s: {step.what}{', while down' * (number in down)}")
                if number in down and followed.process.is_running:
                    followed.process.kill()
                    kills += 1
                database.take(step)
                if number in down and number + 1 not in down:
                    database.debezium.kill()
                    database.debezium.start()
                    followed.process.start()
                elif number not in down:
                    if chance.random() < 0.5:  # else two changes may come in one batch
                        followed.wait_for_a_batch()
                    assert followed.process.is_running, followed.process.log_tail()
        database.wait_until_idle()
        database.wait_until_sent()
        ends = followed.ends()
        wait_until_ingested(followed.process, ends)
    finally:
        followed.process.kill()
    table = lakebed.open(followed.process.table)
    rows = assert_same(table, database)
    database.release()
    return Outcome(
        steps=len(database.steps),
        steps_while_down=len(down),
        kills=kills,
        records=sum(ends.values()),
        rows=rows,
        versions=table.version,
        schemas=changes_of(table),
        seconds=time.monotonic() - started,
    )


def _steps_while_down(steps: int, rounds: int, chance: random.Random) -> frozenset[int]:
    """In each round a few steps that follow each other, somewhere in its share of all steps."""
    share = steps // max(1, rounds)
    found: set[int] = set()
    for first in range(0, rounds * share, share):
        length = min(share - 1, chance.randint(2, 4))
        begin = first + chance.randint(1, max(1, share - length))
        found |= set(range(begin, min(begin + length, steps)))
    return frozenset(found)


def assert_same(table: lakebed.Table, database: ChangingDatabase) -> int:
    """As it is, with its tail, and after a settle. Returns the number of rows."""
    quarantine = Path(f"{table.path}_quarantine")
    assert not quarantine.exists(), lakebed.open(quarantine).to_arrow().slice(0, 3).to_pylist()
    schema = pa.schema([field for field in table.schema if field.name not in GONE])
    database_names = {old: new for new, old in NEW_NAMES.items()}
    expected = comparable(database.rows(schema, database_names), schema)
    for when in ("with a tail", "settled"):
        rows = comparable(table.to_arrow(schema.names), schema)
        missing, surplus = Counter(expected) - Counter(rows), Counter(rows) - Counter(expected)
        assert not missing and not surplus, (
            f"{when}: {missing.total()} rows of the database are missing, e.g. {sorted(missing)[:2]}; "
            f"{surplus.total()} are not the database's, e.g. {sorted(surplus)[:2]}"
        )
        table.settle()
    return len(expected)


def changes_of(table: lakebed.Table) -> list[str]:
    """What was done to the schema, oldest first."""
    return [json.dumps(json.loads(text)) for text in table.inspect.schemas()["change"].to_pylist() if text]
