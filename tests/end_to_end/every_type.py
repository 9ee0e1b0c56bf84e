"""Every type of a database, through Debezium, Kafka and a pipeline of the whole database: has the lake what the database has?

Each type is a table of its own. Its rows are snapshotted, inserted, updated in another column, deleted, and moved to another key;
then they are compared with the database. A row that differs is a failure, unless it is in the quarantine *and* a finding says so.

``python -m tests.end_to_end.every_type postgres|mariadb`` prints the table that docs/types.md has, and ends with 1 if a
row differs. It takes a minute.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import lakebed
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.discovery import NoTable
from lakebed.far_times import python_rows
from lakebed.health.status import Observer
from lakebed.ingest.batch_writer import in_this_process
from lakebed.ingest.table_batch import TableIngest, run_alone
from lakebed.pipeline.database.introducer import Introduced, Introducer
from lakebed.pipeline.settings import DatabasePipeline, Pipeline, decoder_options, parse_any
from lakebed.pipeline.sources import bootstrap_rows, kafka_settings
from lakebed.pipeline.transforming import Shape
from lakebed.sources.kafka.database_source import KafkaDatabaseReader
from lakebed.sources.source import Range
from lakebed.table import internals_of
from tests.end_to_end.typed_values import Case, plain, text_of
from tests.end_to_end.types_of_mariadb import MARIADB
from tests.end_to_end.types_of_postgres import POSTGRES
from tests.infra.connect import ConnectWorker
from tests.infra.kafka import KafkaServer, end_offsets, messages_before

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS = ("snapshot", "insert", "update", "delete", "key change")
BOOTSTRAP = "bootstrap"
_FIRST = dict(zip(STEPS, (100, 200, 300, 400, 500), strict=True))
_MOVED = 1000
LARGE = "a large value that was not sent, or a column that is none"


class Database(Protocol):
    """What the two servers of the tests have in common."""

    def sql(self, statements: str, database: str = "") -> list[list[str]]: ...


@dataclass(frozen=True)
class Dialect:
    """What differs between the databases."""

    name: str
    cases: Sequence[Case]
    begin: str
    """Statements before the tables are made."""
    schema: str
    """The schema, or database, of the tables."""
    row_as_json: Callable[[str, str], str]
    """A query of (id, text of the value) as one JSON object a line, from a table and an expression of the text."""


def _postgres_rows(table: str, expression: str) -> str:
    return f"select json_build_object('id', id, 'v', {expression}, 'other', other)::text from {table}"


def _mariadb_rows(table: str, expression: str) -> str:
    return f"select json_object('id', id, 'v', {expression}, 'other', other) from {table}"


DIALECTS = {
    "postgres": Dialect(
        "postgres",
        POSTGRES,
        "create extension citext; create extension hstore; create extension ltree; "
        "create type mood as enum ('sad', 'happy'); create domain positive as int check (value > 0); "
        "create type pair as (a int, b text);",
        "public",
        _postgres_rows,
    ),
    "mariadb": Dialect("mariadb", MARIADB, "", "types", _mariadb_rows),
}


@dataclass
class Outcome:
    """What became of the rows of one type, by step: "", or how they differ."""

    case: Case
    column: str = ""
    steps: dict[str, str] = field(default_factory=dict)

    @property
    def differs(self) -> bool:
        return any(text.startswith("differs") for text in self.steps.values())


@dataclass(frozen=True)
class Jdbc:
    """How Spark reaches the database."""

    spark: SparkSession
    url: str
    user: str


def run(
    dialect: Dialect,
    database: Database,
    connect: ConnectWorker,
    kafka: KafkaServer,
    folder: Path,
    jdbc: Jdbc | None = None,
) -> list[Outcome]:
    """Runs all types of a database."""
    name = dialect.schema if dialect.name == "mariadb" else "types"
    tables = [f"t{number}" for number in range(len(dialect.cases))]
    database.sql(dialect.begin, name)
    for table, case in zip(tables, dialect.cases, strict=True):
        database.sql("\n".join(_made(table, case, dialect)), name)
    connector = connect.capture(
        name,
        [f"{dialect.schema}.{table}" for table in tables],
        f"{dialect.name}types",
        {"value.converter.schemas.enable": "true", "key.converter.schemas.enable": "true", **dict(_JSON)},
    )
    for table, case in zip(tables, dialect.cases, strict=True):
        database.sql("\n".join(_changed(table, case)), name)
    connect.wait_until_sent(connector)  # type: ignore[attr-defined]
    outcomes = []
    reading = Reading(f"{dialect.name}types", kafka, folder)
    for table, case in zip(tables, dialect.cases, strict=True):
        lines = database.sql(dialect.row_as_json(table, case.expected.format("v")), name)
        rows = {row["id"]: row for row in (json.loads("\t".join(line)) for line in lines)}
        place = f"{dialect.schema}.{table}"
        found = reading.table(place)
        outcome = _compared(case, found, rows, reading.sent(place))
        if jdbc is not None:
            outcome.steps[BOOTSTRAP] = _bootstrapped(jdbc, case, place, found, rows)
        outcomes.append(outcome)
    connect.release(connector)
    return outcomes


def _bootstrapped(
    jdbc: Jdbc, case: Case, name: str, table: lakebed.Table | str, expected: Mapping[int, Mapping[str, Any]]
) -> str:
    """The rows of the database, read by Spark through JDBC, in a table like the one that the topic became."""
    if isinstance(table, str) or "v" not in table.schema.names:
        return "no column"
    path = f"{table.path}_bootstrap"
    made = lakebed.create(path, table.schema, keys=["id"])
    pipeline = parse_any(
        f"table: {{path: '{path}', keys: [id]}}\nsource: {{kind: kafka, topics: [t], config: {{bootstrap.servers: 'x:1'}}}}\n"
        f"format: debezium-json\nbootstrap:\n  kind: jdbc\n  url: '{jdbc.url}'\n  table: {name}\n"
        f"  options: {{user: {jdbc.user}, password: ''}}\n  position: {{t: {{'0': 0}}}}\n",
        "bootstrap.yml",
        {},
    )
    assert isinstance(pipeline, Pipeline) and pipeline.bootstrap is not None
    shape = Shape(columns=made.schema, keys=("id",), sequence_by=None)
    try:
        internals_of(made).bootstrap(lambda: bootstrap_rows(pipeline, shape, jdbc.spark), pipeline.bootstrap.offsets)
    except Exception as error:  # also Spark's own, of values that it has no type for
        print(f"{case.type}: {str(error)[:300]}", file=sys.stderr)
        return "refused"
    rows = {row["id"]: row for row in python_rows(made.to_arrow())}
    wrong = [
        f"{at}: {_cut(rows.get(at), case, True)} is not {_cut(expected[at], None, True)}"
        for at in expected
        if _shown(rows.get(at), case, True) != _shown(expected[at], None, True)
    ]
    if wrong and _quarantined(made) and _findings(made):
        return "quarantine"
    return f"differs: {'; '.join(wrong)[:300]}" if wrong else ""


_JSON = {
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
}


def _values(case: Case) -> list[str]:
    return [*case.values, "null", *([case.large] if case.large else [])]


def _made(table: str, case: Case, dialect: Dialect) -> Iterator[str]:
    yield f"create table {table} (id int primary key, v {case.type}, other int not null default 0);"
    if case.large and dialect.name == "postgres":
        yield f"alter table {table} alter column v set storage external;"
    for step in ("snapshot", "update", "delete", "key change"):
        for number, value in enumerate(_values(case)):
            yield f"insert into {table} (id, v) values ({_FIRST[step] + number}, {value});"


def _changed(table: str, case: Case) -> Iterator[str]:
    for number, value in enumerate(_values(case)):
        yield f"insert into {table} (id, v) values ({_FIRST['insert'] + number}, {value});"
        yield f"update {table} set other = 1 where id = {_FIRST['update'] + number};"
        yield f"delete from {table} where id = {_FIRST['delete'] + number};"
        at = _FIRST["key change"] + number
        yield f"update {table} set id = {at + _MOVED} where id = {at};"


class Reading:
    """Brings topics into tables as ``lakebed run`` does, in this process and without Spark."""

    def __init__(self, prefix: str, kafka: KafkaServer, folder: Path, format: str = "debezium-json") -> None:
        """``format``: as a pipeline file has it."""
        self._prefix, self._kafka = prefix, kafka
        text = (
            f"database: {{path: '{folder}'}}\nsource: {{kind: kafka, topic_pattern: '{prefix}\\..*', config: "
            f"{{bootstrap.servers: '{kafka.bootstrap}'}}}}\nformat: {format}\n"
        )
        found = parse_any(text, "types.yml", {})
        assert isinstance(found, DatabasePipeline)
        self._pipeline = found
        self._reader = KafkaDatabaseReader(kafka_settings(found.source))
        self._introducer = Introducer(found, self._reader)

    def sent(self, name: str) -> dict[int, Any]:
        """The value in the newest event of each row."""
        topic = f"{self._prefix}.{name}"
        ends = end_offsets(self._kafka.bootstrap, topic, self._reader.partitions([topic])[topic])
        newest: dict[int, Any] = {}
        for message in messages_before(self._kafka.bootstrap, topic, ends):
            after = json.loads(message.value())["payload"]["after"] if message.value() else None
            if after is not None:
                newest[after["id"]] = after.get("v", LARGE)
        return newest

    def table(self, name: str) -> lakebed.Table | str:
        """The table of a topic with all its records; why there is none."""
        topic = f"{self._prefix}.{name}"
        places = [(topic, number) for number in range(self._reader.partitions([topic])[topic])]
        ranges = [
            Range(*place, 0, found.end or 0, is_first=True) for place, found in self._reader.bounds(places).items()
        ]
        try:
            found = self._introducer.table_for(topic, ranges)
        except lakebed.errors.LakebedError as error:
            return f"no table: {error}"
        if not isinstance(found, Introduced):
            assert isinstance(found, NoTable), found
            return f"no table: {found.reason}"
        internals = internals_of(found.table)
        [detail] = found.table.inspect.detail().to_pylist()
        shape = DecoderSchema.of_table(
            found.table.schema, tuple(detail["keys"]), detail["sequence_by"], self._pipeline.policy_of(found.wishes)
        )
        ingest = TableIngest(
            found.table.path,
            internals.log,
            self._reader,
            decoder(self._pipeline.format_kind, shape, decoder_options(self._pipeline)),
            evolution=internals.evolution("its records need it"),
            quarantine_log=internals.quarantine_log,
        )
        run_alone(ingest.batch(ranges), lambda work: in_this_process(work.task, work.ranges))
        return found.table


def _compared(
    case: Case, table: lakebed.Table | str, expected: Mapping[int, Mapping[str, Any]], sent: Mapping[int, Any]
) -> Outcome:
    if isinstance(table, str):
        return Outcome(case, table, dict.fromkeys(STEPS, f"differs: {table}"))
    rows = {row["id"]: row for row in python_rows(table.to_arrow())}
    has_column = "v" in table.schema.names
    outcome = Outcome(case, str(table.schema.field("v").type) if has_column else "left out")
    aside, told = _quarantined(table), _findings(table)
    for step in STEPS:
        first = _FIRST[step] + (_MOVED if step == "key change" else 0)
        ids = range(first, first + len(_values(case)))
        gone = [at - _MOVED for at in ids if step == "key change" and at - _MOVED in rows]
        differing = [
            at for at in ids if _shown(rows.get(at), case, has_column) != _shown(expected.get(at), None, has_column)
        ]
        wrong = [f"{at} is still there" for at in gone] + [
            f"{at}: {_cut(rows.get(at), case, has_column)} is not {_cut(expected.get(at), None, has_column)}"
            for at in differing
        ]
        if not has_column and case.is_unsent:
            outcome.steps[step] = "not sent"
        elif not has_column:
            outcome.steps[step] = "left out, and said" if told else "differs: left out, and no finding says so"
        elif wrong and aside and told:
            outcome.steps[step] = "quarantine"
        elif differing and not gone and all(at in rows and sent.get(at, LARGE) is None for at in differing):
            outcome.steps[step] = "Debezium sends null"
        elif differing and not gone and all(at in rows and sent.get(at) == rows[at].get("v") for at in differing):
            outcome.steps[step] = "Debezium sends another value"
        else:
            outcome.steps[step] = f"differs: {'; '.join(wrong)[:300]}" if wrong else ""
    return outcome


def _shown(row: Mapping[str, Any] | None, case: Case | None, has_column: bool) -> Any:
    if row is None:
        return None
    value = row["v"] if has_column else None
    if value is not None and case is None and str(value).startswith("[") and str(value).endswith("]"):
        value = plain(json.loads(value, parse_float=Decimal))
    return row["other"], None if value is None else text_of(case, value) if case else str(value)


def _cut(row: Mapping[str, Any] | None, case: Case | None, has_column: bool) -> str:
    text = str(_shown(row, case, has_column))
    return text if len(text) < 60 else f"{text[:59]}…"


def _quarantined(table: lakebed.Table) -> int:
    path = Path(f"{table.path}_quarantine", "_delta_log")
    return lakebed.open(path.parent).to_arrow().num_rows if path.exists() else 0


def _findings(table: lakebed.Table) -> set[str]:
    """What ``lakebed status`` finds."""
    return {finding.check for finding in Observer(table.path).look().findings}


def printed(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a table in Markdown."""
    steps = list(outcomes[0].steps)
    lines = ["| type | column | " + " | ".join(steps) + " |", "| --- " * (2 + len(steps)) + "|"]
    for one in outcomes:
        cells = [one.steps[step] or "equal" for step in steps]
        lines.append(f"| `{one.case.type}` | {one.column} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(name: str) -> int:
    from tests.end_to_end.servers_of_types import jdbc_of, servers

    with tempfile.TemporaryDirectory() as folder, servers(name) as (database, connect, kafka):
        outcomes = run(DIALECTS[name], database, connect, kafka, Path(folder), jdbc_of(name, database))
    print(printed(outcomes))
    return int(any(one.differs for one in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
