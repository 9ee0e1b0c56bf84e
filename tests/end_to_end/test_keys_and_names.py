"""Primary keys that change, replica identities of all kinds, and names that share a topic, with a real connector.

Each table of lakebed is the database's afterwards, or it is parked, or records of it are in the quarantine and its log says why.
Whatever happened, it has no row that is another row's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import lakebed
from lakebed.ingest.database_member import OWN, OpenTable
from lakebed.ingest.table_batch import run_alone
from lakebed.monitoring.metrics import Metrics
from lakebed.pipeline.database.work import DatabaseWork
from lakebed.pipeline.settings import DatabasePipeline, load
from lakebed.pipeline.sources import kafka_settings
from lakebed.positions.remarks import remarks_of
from lakebed.sources.kafka.cluster import ends_of
from lakebed.sources.source import Range
from tests.end_to_end.schema_changes import INLINE_SCHEMAS
from tests.infra.connect import avro_converters
from tests.infra.debezium import DebeziumServer
from tests.infra.kafka import KafkaServer
from tests.infra.postgres import PostgresServer
from tests.infra.registry import RegistryServer
from tests.sources.memory_source import here

UNSENT, NOTHING = frozenset({"unsent_key"}), frozenset[str]()


@dataclass(frozen=True)
class Case:
    """``before``: SQL before the connector starts, with ``$t`` for the table. ``after``: while it streams, each piece after the
    one before was sent. ``expected``: what the table's log says in the end, or a part of why the table is parked. ``rules``: what
    the pipeline file says of the table.
    """

    before: str
    after: tuple[str, ...] = ()
    expected: frozenset[str] | str = frozenset()
    rules: str = ""


PAIRS = (
    "create table $t(id int primary key, code int not null, v text);"
    "insert into $t values (0, 100, 'innocent'), (1, 101, 'a'), (2, 102, 'b')"
)
NAMES = "create table $t(id int primary key, v text); insert into $t values (0, 'innocent'), (1, 'a'), (2, 'b')"
LINES = (
    "create table $t(o int, line int, sku text not null, primary key (o, line));"
    "insert into $t values (7, 0, 'a'), (7, 1, 'b'), (0, 0, 'c')"
)
MAILS = (
    "create table $t(id int primary key, email text not null, v text);"
    "insert into $t values (0, 'z', 'y'), (1, 'a', 'a'), (2, 'b', 'b')"
)
VERSIONS = (
    "create table $t(id int primary key, version int not null, v text, state text not null default 'new');"
    "insert into $t values (1, 0, 'a'), (2, 5, null), (3, 0, 'c'), (4, 1, 'd')"
)
FULL = "; alter table $t replica identity full"
BY_CODE = "alter table $t drop constraint $t_pkey, add primary key (code)"
CHANGES_BY_CODE = (
    "delete from $t where code = 102; update $t set id = 9 where code = 101; update $t set code = 1 where code = 100"
)
CHANGES_BY_NAME = "update $t set v = 'u' where nid = 1; delete from $t where nid = 2"
RENAME = "alter table $t rename column id to nid"
CASES = {
    "plain": Case(
        PAIRS,
        (
            "delete from $t where id = 2; update $t set id = id + 7; insert into $t values (0, 5, null)",
            "delete from $t where id = 0",
        ),
    ),
    "another_key": Case(PAIRS, (BY_CODE, CHANGES_BY_CODE), "the message key has code"),
    "another_key_named": Case(PAIRS, (BY_CODE, CHANGES_BY_CODE), UNSENT, "keys: [id]"),
    "another_key_full": Case(PAIRS + FULL, (BY_CODE, CHANGES_BY_CODE + "; delete from $t where id = 0"), NOTHING, "keys: [id]"),
    "wider_key": Case(
        PAIRS, ("alter table $t drop constraint $t_pkey, add primary key (id, code)", "insert into $t values (1, 7, 'x')"),
        "the message key has code, id",
    ),
    "renamed_key": Case(NAMES, (RENAME, CHANGES_BY_NAME), "the message key has nid"),
    "renamed_key_named": Case(NAMES, (RENAME, CHANGES_BY_NAME), NOTHING, "renamed_columns: {nid: id}"),
    "dropped_key": Case(
        PAIRS,
        ("alter table $t drop constraint $t_pkey, replica identity full",
         "insert into $t values (1, 7, 'x'); update $t set v = 'x' where code = 102; delete from $t where code = 101"),
        UNSENT,
    ),
    "by_index": Case(
        PAIRS + "; alter table $t add constraint $t_code unique (code); alter table $t replica identity using index $t_code",
        ("delete from $t where id = 2; update $t set code = 7 where id = 1; update $t set v = 'x' where id = 0",), UNSENT,
    ),
    "by_message_key": Case(
        MAILS + FULL,
        ("delete from $t where id = 2; update $t set email = 'n' where id = 1; update $t set id = 30 where id = 0",),
        NOTHING, "keys: [id]",
    ),
    "lines": Case(LINES, ("delete from $t where line = 0; insert into $t values (8, 0, 'd')",)),
    "lines_full": Case(
        LINES + FULL,
        ("delete from $t where o = 7 and line = 0; update $t set line = 3 where o = 7; insert into $t values (8, 0, 'd')",),
    ),
    # All of the key is zeros, and no column may be null: it might be another index's.
    "zeros_full": Case(LINES + FULL, ("delete from $t where o = 0",), UNSENT),
    "versions": Case(
        VERSIONS, ("update $t set version = 9 where id = 4; delete from $t where id < 3",), frozenset({"unordered_delete"}),
        "sequence_by: version",
    ),
    "versions_full": Case(
        VERSIONS + FULL,
        ("update $t set version = 9 where id = 4; delete from $t where id < 3; update $t set id = 33 where id = 3",),
        NOTHING, "sequence_by: version",
    ),
    "two words": Case(
        NAMES + "; create table two_words(id int primary key, more int); insert into two_words values (1, 7), (2, 8)",
        ("insert into $t values (3, 'c'); delete from two_words where id = 1; truncate two_words",), "name both",
    ),
    "日本": Case(
        NAMES + "; create table \"中国\"(id int primary key, v text); insert into \"中国\" values (2, 'x'), (5, 'x')",
        ("insert into $t values (3, 'c')",), frozenset({"source_table"}), "sources: ['.*\\.日本']",
    ),
}  # fmt: skip


def sql_of(table: str, text: str) -> str:
    """SQL for a table."""
    return re.sub(r"\$t(\w*)", lambda match: f'"{table}{match[1]}"', text)


def topic_of(table: str) -> str:
    """The name of a table's topic, without the prefix, as Debezium has it."""
    return "public." + "".join(char if char.isascii() and char.isalnum() else "_" for char in table)


class Copies:
    """The tables of a pipeline of a database, each of which reads what there is, as a run has it."""

    def __init__(self, file: Path) -> None:
        pipeline = load(file)
        assert isinstance(pipeline, DatabasePipeline)
        self._work = DatabaseWork(pipeline, Metrics(), None)
        self._settings = kafka_settings(pipeline.source)
        self._columns: dict[str, list[str]] = {}

    def read(self, topic: str) -> tuple[str, frozenset[str], set[tuple[str, ...]]]:
        """Read a topic to its end; returns why its table is parked, if it is, what its log says, and its rows as texts."""
        ends = {number: offset for (_, number), offset in ends_of(self._settings, topic).items()}
        ranges = [Range(topic, number, 0, end, is_first=True) for number, end in sorted(ends.items())]
        found = self._work.open_table(topic, ranges)
        assert isinstance(found, OpenTable)
        parked, table = "", lakebed.open(found.root)
        columns = self._columns.setdefault(topic, table.schema.names)
        try:
            while run_alone(found.ingest.batch(ranges), here).left:
                pass
        except OWN as error:
            parked = str(error)
        told = frozenset(remarks_of(found.log.refresh()).counts)
        rows = table.to_arrow(columns).to_pylist()
        return parked, told, {tuple("" if one is None else str(one) for one in row.values()) for row in rows}

    def close(self) -> None:
        """End what reads."""
        self._work.end_ingest()


@pytest.mark.long
@pytest.mark.parametrize("format", ["debezium-json", pytest.param("debezium-avro", marks=pytest.mark.long)])
def test_every_row_is_the_databases_or_somebody_is_told(
    kafka: KafkaServer,
    postgres: PostgresServer,
    debezium: DebeziumServer,
    registry: RegistryServer,
    tmp_path: Path,
    format: str,
) -> None:
    name = f"keys_{format[-4:]}"
    file, settings = pipeline_file(tmp_path, kafka, registry, name, format)
    postgres.create_database(name)
    for table, case in CASES.items():
        postgres.sql(sql_of(table, case.before), name)
    initial = {table: rows_of(postgres, name, table) for table in CASES}
    kafka.create_topic(f"{name}.public.by_message_key")  # of one partition: a row may have several message keys
    slot = debezium.capture(name, ["public\\..*"], name, settings)
    copies = Copies(file)
    try:
        debezium.wait_until_sent(slot)
        for table in CASES:
            copies.read(f"{name}.{topic_of(table)}")
        for step in range(max(len(case.after) for case in CASES.values())):
            for table, case in CASES.items():
                postgres.sql(sql_of(table, "".join(case.after[step : step + 1])), name)
            debezium.wait_until_sent(slot)
        for table, case in CASES.items():
            parked, told, ours = copies.read(f"{name}.{topic_of(table)}")
            theirs = rows_of(postgres, name, table)
            print(
                f"{table}: {parked or sorted(told) or 'the same'}; {len(ours - theirs)} surplus, {len(theirs - ours)} missing"
            )
            if isinstance(case.expected, str):
                assert case.expected in parked, table
                assert ours <= initial[table] | theirs, table
            else:
                assert (parked, told) == ("", case.expected), table
                assert initial[table] & theirs <= ours, f"{table} has lost rows that nobody has changed"
                assert ours == theirs or told, table
    finally:
        copies.close()
        debezium.release(slot)


def pipeline_file(
    folder: Path, kafka: KafkaServer, registry: RegistryServer, name: str, format: str
) -> tuple[Path, dict[str, Any]]:
    """The file of the pipeline, and the settings of the connector."""
    rules = {topic_of(table): yaml.safe_load(f"{{{case.rules}}}") for table, case in CASES.items() if case.rules}
    content: dict[str, Any] = {
        "database": {"path": str(folder / "lake"), "tables": rules},
        "source": {"kind": "kafka", "topic_pattern": f"{name}\\..*", "config": {"bootstrap.servers": kafka.bootstrap}},
        "format": format,
    }
    settings: dict[str, Any] = dict(INLINE_SCHEMAS)
    if format == "debezium-avro":
        content["registry"], settings = {"url": registry.url}, dict(avro_converters(registry))
    file = folder / "pipeline.yml"
    file.write_text(yaml.safe_dump(content, allow_unicode=True))
    more = {"message.key.columns": "public.by_message_key:email", "skipped.operations": "none"}
    return file, {**settings, **more}


def rows_of(postgres: PostgresServer, database: str, table: str) -> set[tuple[str, ...]]:
    return {tuple(row) for row in postgres.sql(f'select * from "{table}"', database)}
