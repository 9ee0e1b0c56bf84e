"""Compares a table with another one, or with a folder of Parquet files: ``lakebed verify TABLE --against PATH``; or with a table
made from the records of its topic.

Both are read as they are now, each at one version; neither is waited for, and nothing is left to settle.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa

from lakebed.discovery import TableName
from lakebed.errors import InvalidInput, LakebedError, Retry, TableNotFound
from lakebed.ingest.table_batch import TableIngest, is_another, run_alone, run_here
from lakebed.log.actions import Domain
from lakebed.log.commit_loop import Proposal, commit_loop
from lakebed.log.entries import ORDER_RESTARTS, Operation
from lakebed.log.snapshot import Snapshot
from lakebed.pipeline.database.introducer import Introduced, ingest_of
from lakebed.pipeline.settings import DatabasePipeline
from lakebed.pipeline.sources import kafka_settings
from lakebed.positions.positions import positions_of
from lakebed.quoting import literal, quote
from lakebed.settings import creatable
from lakebed.sources.kafka.cluster import cleanup_policy_of
from lakebed.sources.kafka.database_source import KafkaDatabaseReader
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.source import Range
from lakebed.sql import Expression
from lakebed.table import Table, create, internals_of
from lakebed.table import open as open_table
from lakebed.table.internals import Internals
from lakebed.verify.canonical import Column, LeftOut, OfKey, Rule, Shape, put
from lakebed.verify.comparing import Key, Row, Span, States, Tally, Version
from lakebed.verify.databases import chosen_tables, left_out, never_equal, report_of, topic_of
from lakebed.verify.judging import day_of_number, moment_of_number, number_of_bits
from lakebed.verify.lake import ROWS, DuckRows, LakeTable, Relation, TableRelation
from lakebed.verify.proof import Progress, Proof, no_progress
from lakebed.verify.report import TableReport
from lakebed.verify.source import Pace
from lakebed.verify.types_of_postgres import BITS_OF_DOUBLE

# -- The rules of two tables: the same expression on both sides, once both have the wider type -----------------------------


_DAY = "date '1970-01-01'"


def rule_of(source: pa.DataType, lake: pa.DataType) -> Rule | LeftOut:
    """How values of a column are compared."""
    source_text, lake_text = _text(source, lake), _text(lake, source)
    if source_text is None or lake_text is None:
        return LeftOut(reason=f"no rule compares {source} with {lake}")
    shown: Callable[[str], str] = str
    if pa.types.is_floating(lake):
        shown = number_of_bits
    elif pa.types.is_date(lake):
        shown = day_of_number
    elif pa.types.is_timestamp(lake) and "ns" not in (source.unit, lake.unit):
        shown = moment_of_number
    return Rule(source=source_text, lake=lake_text, is_free=_is_free(lake), of_key=_of_key(lake), shown=shown)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_free(kind: pa.DataType) -> bool:
    return _is_text(kind) or bool(pa.types.is_nested(kind))


def _text(kind: pa.DataType, other: pa.DataType) -> str | None:
    """The canonical text of a value of a type, beside one of the other type; None if they can't be compared."""
    types = pa.types
    if types.is_integer(kind) or types.is_decimal(kind):
        if not (types.is_integer(other) or types.is_decimal(other)):
            return None
        scale = max(one.scale if types.is_decimal(one) else 0 for one in (kind, other))
        return f"{{}}::decimal(38, {scale})::varchar" if scale or types.is_decimal(kind) else "{}::varchar"
    if types.is_floating(kind) and types.is_floating(other):
        return f"lpad(lower(to_hex({BITS_OF_DOUBLE}({{}}::double))), 16, '0')"
    if types.is_boolean(kind) and types.is_boolean(other):
        return "{}::int::varchar"
    if types.is_date(kind) and types.is_date(other):
        return f"date_diff('day', {_DAY}, {{}})::varchar"
    if types.is_timestamp(kind) and types.is_timestamp(other):
        return "epoch_ns({})::varchar" if "ns" in (kind.unit, other.unit) else "epoch_us({})::varchar"
    if _is_text(kind) and _is_text(other):
        return "{}::varchar"
    if _is_bytes(kind) and _is_bytes(other):
        return "lower(hex({}))"
    return _nested(kind, other)


def _nested(kind: pa.DataType, other: pa.DataType) -> str | None:
    if pa.types.is_list(kind) and pa.types.is_list(other):
        inner = _text(kind.value_type, other.value_type)
        return (
            None
            if inner is None
            else f"array_to_string(list_transform({{}}, lambda one: {_counted(inner, 'one')}), '')"
        )
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        if sorted(field.name for field in kind) != sorted(field.name for field in other):
            return None
        parts = []
        for field in sorted(kind, key=lambda field: str(field.name)):
            inner = _text(field.type, other.field(field.name).type)
            if inner is None:
                return None
            parts.append(_counted(inner, f"({{}}).{quote(field.name)}"))
        return f"(case when {{}} is null then null else {' || '.join(parts)} end)"
    if pa.types.is_map(kind) and pa.types.is_map(other):
        key, value = _text(kind.key_type, other.key_type), _text(kind.item_type, other.item_type)
        if key is None or value is None:
            return None
        pair = f"{_counted(key, 'one.key')} || {_counted(value, 'one.value')}"
        return f"array_to_string(list_sort(list_transform(map_entries({{}}), lambda one: {pair})), '')"
    return None


def _counted(inner: str, value: str) -> str:
    text = put(inner, value)
    return f"coalesce(strlen({text})::varchar || ':' || {text}, '-')"


def _of_key(kind: pa.DataType) -> OfKey | None:
    """Keys are looked up by their values; the order does not matter, since two tables are read as a whole."""
    types = pa.types
    if types.is_integer(kind) or types.is_decimal(kind) or _is_text(kind) or types.is_boolean(kind):
        name = "varchar" if _is_text(kind) else "boolean" if types.is_boolean(kind) else "decimal(38, 0)"
        if types.is_decimal(kind):
            name = f"decimal({kind.precision}, {kind.scale})"
        elif types.is_integer(kind):
            name = "bigint" if kind.bit_width < 64 or types.is_signed_integer(kind) else "ubigint"
        cast = "{}::int::boolean" if types.is_boolean(kind) else f"{{}}::{name}"
        return OfKey(source=cast, lake=cast)
    if types.is_date(kind):
        day = f"({_DAY} + {{}}::int)"
        return OfKey(source=day, lake=day)
    if types.is_timestamp(kind):
        moment = "make_timestamptz({}::bigint)" if kind.tz else "make_timestamp({}::bigint)"
        return OfKey(source=moment, lake=moment) if kind.unit != "ns" else None
    return None


_PIECE_ROWS = 100_000
_AT_REST = "at rest"
"""The mark of all rows, since nothing changes them."""


class _ParquetRelation:
    """The rows of all Parquet files below a folder, or of one file."""

    def __init__(self, path: str) -> None:
        """Raises InvalidInput if there are none."""
        place = Path(path)
        if "://" in path or not (place.is_file() or any(place.rglob("*.parquet"))):
            raise InvalidInput(f"there is neither a table nor a Parquet file at {path}")
        self._pattern = str(place if place.is_file() else place / "**" / "*.parquet")

    def make(self, connection: duckdb.DuckDBPyConnection, where: Expression | None, is_joined: bool) -> None:
        """See ``Relation``."""
        connection.execute(
            f"create or replace temp view {ROWS} as from read_parquet({literal(self._pattern)}, union_by_name = true)"
        )

    def schema(self) -> pa.Schema:
        """The columns. Raises InvalidInput if the files can't be read together."""
        with duckdb.connect() as connection:
            try:
                self.make(connection, None, False)
                return connection.sql(f"from {ROWS} limit 0").to_arrow_table().schema
            except duckdb.Error as error:
                raise InvalidInput(f"the files at {self._pattern} can't be read: {error}") from None


class _TableSource:
    """Rows that DuckDB reads, as a source. See ``Source``."""

    def __init__(self, relation: Relation, shape: Shape) -> None:
        self._side = DuckRows(relation, shape, of_source=True)

    def close(self) -> None:
        """Let go of DuckDB."""
        self._side.close()

    def position(self) -> int:
        """See ``Source``: it stays as it is."""
        return 0

    def bound(self, after: Key | None, rows: int) -> Key | None:
        """See ``Source``: it is read as a whole."""
        return None

    def tally(self, span: Span) -> Tally:
        """See ``Source``."""
        self._side.make()
        query = f"select count(*), coalesce(sum({self._side.checksum}), 0)::varchar from {ROWS}"
        [(rows, total)] = self._side.connection.execute(query).fetchall()
        return Tally(rows=rows, sum=int(total))

    def checksums(self, span: Span) -> Iterator[pa.Table]:
        """See ``Source``."""
        self._side.make()
        query = f"select {self._side.named_keys}, {self._side.checksum} as h from {ROWS}"
        reader = self._side.connection.sql(query).to_arrow_reader(_PIECE_ROWS)
        for batch in reader:
            yield pa.Table.from_batches([batch])

    def states(self, keys: Sequence[Key]) -> States:
        """See ``Source``."""
        return {key: [Version(one, _AT_REST) for one in found] for key, found in self._side.checksums_of(keys).items()}

    def rows(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Row]]:
        """See ``Source``."""
        return self._side.rows(keys)


def verify_tables(path: str, against: str, keys: Sequence[str] = (), progress: Progress = no_progress) -> TableReport:
    """Compare a table with what is at another path.

    Args:
        path: The table.
        against: A table of lakebed or of Delta, or a folder of Parquet files.
        keys: What identifies a row; by default the table's keys.
        progress: Is told how far it is.

    Raises:
        TableNotFound: There is no table at ``path``.
        InvalidInput: There is nothing at ``against``, or it lacks a key.
    """
    internals = internals_of(open_table(path))
    snapshot = internals.log.refresh()
    relation, columns = _other(against)
    report = compared(path, internals, snapshot, relation, columns, keys=keys, progress=progress)
    return replace(report, source=against)


def compared(
    path: str,
    internals: Internals,
    snapshot: Snapshot,
    relation: Relation,
    columns: pa.Schema,
    *,
    keys: Sequence[str] = (),
    progress: Progress = no_progress,
) -> TableReport:
    """Compare a version of a table with other rows, which stay as they are. Raises InvalidInput if no key can be compared."""
    shape = shape_of(columns, snapshot, keys)
    if isinstance(shape, LeftOut):
        raise InvalidInput(f"{path} can't be compared: {shape.reason}")
    began = time.monotonic()
    with (
        closing(_TableSource(relation, shape)) as source,
        closing(LakeTable(internals, shape, lambda _: snapshot)) as lake,
    ):
        found = Proof(shape, source, lake, Pace(float("inf")), progress=progress).run()
        found.first_position = found.last_position = None
        return report_of(path, shape, found, lake.version, internals, time.monotonic() - began)


def _other(path: str) -> tuple[Relation, pa.Schema]:
    try:
        if Path(path).is_file():
            raise TableNotFound
        internals = internals_of(open_table(path))
    except TableNotFound:
        files = _ParquetRelation(path)
        return files, files.schema()
    snapshot = internals.log.refresh()
    return TableRelation(internals, snapshot), snapshot.logical_schema


def shape_of(source: pa.Schema, snapshot: Snapshot, keys: Sequence[str] = ()) -> Shape | LeftOut:
    """What of two tables is compared, or why nothing is. Pure."""
    keys = tuple(keys) or snapshot.logical_settings.keys
    if not keys:
        return LeftOut(reason="the table has no keys; name columns that identify a row with --key")
    there = {field.name.lower(): field for field in source}
    columns: dict[str, Column] = {}
    left_out: dict[str, str] = {}
    for field in snapshot.logical_schema:
        other = there.pop(field.name.lower(), None)
        rule = LeftOut(reason="the source does not have it") if other is None else rule_of(other.type, field.type)
        if isinstance(rule, LeftOut) or other is None:
            left_out[field.name] = rule.reason if isinstance(rule, LeftOut) else ""
        else:
            columns[field.name] = Column(name=field.name, source_name=other.name, kind=str(other.type), rule=rule)
    left_out |= {field.name: "the table does not have it" for field in there.values()}
    for key in keys:
        if key not in columns or columns[key].rule.of_key is None:
            why = left_out.get(key) or "a column of its type can't be a key here"
            return LeftOut(reason=f"its key {key} can't be compared: {why}")
    return Shape(
        keys=tuple(columns[key] for key in keys), columns=tuple(columns.values()), left_out=left_out, is_ordered=False
    )


# -- A table and the records of its topic: lakebed verify SHOP.yml --topics. No database is asked --------------------------
#
# 1. The table is taken at one version, whose log says up to which offset of each partition it has read its topic.
# 2. All records up to there are read once more, from the beginning, into a table in a temporary folder of this host: as a
#    pipeline does it, in this process.
# 3. The two tables are compared (``tables``). Both have read the same records, so nothing is waited for.
#
# The topic must have at least the newest record of each key: all records, or it is compacted. What was changed in the table by
# hand differs, and so does what a pipeline with other settings has made of the records.


_BATCH_RECORDS = 500_000


def verified_by_topics(
    pipeline: DatabasePipeline,
    names: Sequence[str] = (),
    progress: Progress = no_progress,
    failed: Callable[[str, LakebedError], None] | None = None,
) -> Iterator[TableReport]:
    """Compare tables, by default all, with the records of their topics; each report comes as soon as it is known.

    ``failed``: is told of a table that can't be compared, and the others are; without it the error is raised.
    """
    for name, root in chosen_tables(pipeline, names).items():
        try:
            yield _verify(pipeline, name, root, progress)
        except LakebedError as error:
            if failed is None:
                raise
            failed(name, error)


def _verify(pipeline: DatabasePipeline, name: str, root: str, progress: Progress) -> TableReport:
    table = open_table(root)
    snapshot = internals_of(table).log.refresh()
    topic = topic_of(snapshot)
    if topic is None:
        return left_out(name, "it has not read one topic, so which records it has to have is not known")
    if snapshot.settings.ttl is not None:
        return left_out(name, never_equal(snapshot.settings) or "")
    if not snapshot.settings.keys:
        return left_out(name, "it has no keys, so its rows can't be told apart")
    began = time.monotonic()
    settings = replace(kafka_settings(pipeline.source), topics=(topic,), topic_pattern=None)
    ranges = _ranges(settings, topic, snapshot)
    with tempfile.TemporaryDirectory(prefix="lakebed-verify-") as folder:
        copied = _copy(f"{folder}/copy", snapshot)
        wishes = pipeline.database.wishes_for(name)
        introduced = Introduced(TableName(name), copied, wishes)
        ingest = ingest_of(pipeline, topic, introduced, KafkaDatabaseReader(settings))
        _read(ingest, ranges, progress)
        copy = internals_of(copied)
        newest = copy.log.refresh()
        relation = TableRelation(copy, newest)
        report = compared(name, internals_of(table), snapshot, relation, newest.logical_schema, progress=progress)
    return replace(report, source=f"the records of {topic}", seconds=time.monotonic() - began)


def _ranges(settings: KafkaSettings, topic: str, snapshot: Snapshot) -> list[Range]:
    """All records that the table has read. Raises InvalidInput if the topic does not have the newest one of each key."""
    position = positions_of(snapshot)[topic]
    places = [(topic, number) for number in position.offsets]
    bounds = KafkaDatabaseReader(settings).bounds(places)
    out = []
    for place in places:
        found, end = bounds.get(place), position.offsets[place[1]]
        if found is None or (found.end or 0) < end or is_another(position.topic_id, found.topic_id):
            raise InvalidInput(f"the topic {topic} is not the one any more that the table was read from")
        out.append(Range(*place, min(found.earliest, end), end, topic_id=found.topic_id, is_first=True))
    if any(one.start for one in out) and "compact" not in (policy := cleanup_policy_of(settings, topic)):
        raise InvalidInput(
            f"the oldest records of {topic} are gone, and it is not compacted (its cleanup.policy is {policy}): it does not have "
            "the newest record of each key"
        )
    return out


def _copy(path: str, snapshot: Snapshot) -> Table:
    """An empty table which makes of the same records the same rows.

    Columns that were renamed in the table are so in the copy, since records have their first names.
    """
    settings = snapshot.settings
    properties = creatable(snapshot.metadata.configuration)
    names = dict(zip(snapshot.schema.names, snapshot.logical_schema.names, strict=True))
    schema = pa.schema([field.with_name(first) for first, field in zip(names, snapshot.logical_schema, strict=True)])
    table = create(path, schema, settings.keys, sequence_by=settings.sequence_by, properties=properties)
    if renamed := {first: name for first, name in names.items() if first != name}:
        table.alter(rename=renamed)
    if (restarts := snapshot.domains.get(ORDER_RESTARTS)) is not None:
        entry = Domain(ORDER_RESTARTS, restarts)
        commit_loop(
            internals_of(table).log,
            Operation.RESTART_ORDER,
            lambda _: Proposal(actions=[entry], result=lambda _: None),
        )
    return table


def _read(ingest: TableIngest, ranges: Sequence[Range], progress: Progress) -> None:
    """Read all of the ranges, in batches. Raises Retry if the source gives no more."""
    whole = sum(one.size for one in ranges)
    left = whole
    while left:
        progress("offsets read", whole - left, whole)
        done = run_alone(ingest.batch(ranges, records_max=_BATCH_RECORDS), run_here)
        if done.left >= left or done.gone:
            raise Retry(f"kafka gives no more records of {ranges[0].topic}")
        left = done.left
