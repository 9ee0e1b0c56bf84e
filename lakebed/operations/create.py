"""Version 0 of a table, and the settings that an adopted Delta table gets.

A Delta table that others wrote is adopted: its files stay, its log goes on, and from then on only lakebed writes to it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal

import duckdb
import orjson
import pyarrow as pa

from lakebed.column_groups import AGGREGATE, GROUPS, check_aggregates, check_groups
from lakebed.discovery import require_alone
from lakebed.errors import InvalidInput, InvalidSchema, StoreUnavailable, TableDropped, TableExists, Unsupported
from lakebed.far_times import finite_column
from lakebed.log.actions import Action, AddPart, CommitInfo, Part, is_native_file
from lakebed.log.commit_loop import Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import probe
from lakebed.log.table_log import GATE_FEATURE, Committed, Conflicted, Outcome, TableLog, Unknown
from lakebed.operations.columns_of_files import columns_of_files
from lakebed.operations.references import unmark
from lakebed.parts.arrow_source import damaged
from lakebed.parts.legacy_calendar import legacy_column, legacy_marks
from lakebed.planning.time_to_live import check_time_to_live
from lakebed.quoting import literal
from lakebed.schema.column_mapping import COLUMN_MAPPING, is_mapped, stored_settings, with_mapped_columns
from lakebed.schema.conversion import (
    RESERVED_PREFIX,
    SparkSchema,
    canonical_schema,
    check_columns,
    check_new_names,
    is_reserved,
    needs_column_mapping,
    schema_to_json,
    uses_timestamp_ntz,
)
from lakebed.schema.fitting import check_levels
from lakebed.schema.iceberg_columns import number_columns, require_sayable
from lakebed.schema.metadata import FORMAT, Metadata, Protocol
from lakebed.schema.widening import TYPE_WIDENING, widest_type
from lakebed.settings import (
    FORMAT_PROPERTY,
    INTERVAL_PROPERTIES,
    PREFIX,
    SORT_KEY_FRAME,
    TableSettings,
    check_creatable,
    parse_settings,
    property_value,
    read_settings,
)
from lakebed.sortkey.sort_key import frame_properties, parse_sort_key
from lakebed.sql import aliases, by_place, file_literal, registered
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect, raise_own, reason
from lakebed.storage.part_storage import PartStorage
from lakebed.storage.roots import local_file
from lakebed.version import ENGINE

_ADOPTABLE = frozenset(
    {
        "appendOnly",
        COLUMN_MAPPING,
        "deletionVectors",
        "domainMetadata",
        "inCommitTimestamp",
        "invariants",
        "timestampNtz",
        TYPE_WIDENING,
        "vacuumProtocolCheck",
    }
)
_NOT_KEPT_PROPERTIES = (
    "delta.enableChangeDataFeed",
    "delta.appendOnly",
    "delta.enableRowTracking",
)
_NOT_KEPT_COLUMN_METADATA = ("delta.generationExpression", "delta.identity.", "delta.invariants", "CURRENT_DEFAULT")


_TYPES = ("given", "wide")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """What a table is created with; see ``lakebed.create``."""

    schema: pa.Schema | SparkSchema
    keys: tuple[str, ...] = ()
    sort_key: tuple[str, ...] = ()
    sequence_by: str | None = None
    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    types: Literal["given", "wide"] = "given"

    def settings(self) -> TableSettings:
        """The settings of version 0. Raises InvalidInput for a property that can't be given."""
        check_creatable(self.properties)
        return replace(
            parse_settings(self.properties),
            keys=self.keys,
            sort_key=self.sort_key,
            sort_key_version=1,
            sequence_by=self.sequence_by,
        )


def create(path: str, log: TableLog, table: NewTable) -> None:
    """Create a table at ``path``, where ``log`` is.

    Raises TableExists, TableDropped (its files are still there), InvalidSchema, InvalidInput, UnsafeStore, StoreUnavailable.
    """
    settings = table.settings()
    if path.startswith("s3"):
        probe(log.store)
    require_alone(log.root)
    if table.types not in _TYPES:
        raise InvalidInput(f"types is {table.types!r}; it must be one of {', '.join(_TYPES)}")
    schema = canonical_schema(table.schema)
    if table.types == "wide":
        schema = pa.schema([each.with_type(widest_type(each.type)) for each in schema])
    try:
        outcome = create_log(log, schema, settings, table.partition_by, table.properties, ENGINE)
    except TableDropped as error:
        raise error.with_text(
            f"{error}; another table can't be made in its place before: lakebed.undrop({path!r}).drop(purge=True) deletes them "
            "now"
        ) from None
    match outcome:
        case Committed():
            unmark(open_part_storage(log.root))  # one that was here before may have left its mark
        case Conflicted():
            raise TableExists(f"there is already a table at {path}; open it, or choose another path", table=path)
        case Unknown(_, _, cause):
            raise StoreUnavailable(f"whether the table at {path} was created is unknown: {cause}", table=path)


def create_log(
    log: TableLog,
    schema: pa.Schema,
    settings: TableSettings,
    partition_by: Sequence[str],
    properties: Mapping[str, str],
    engine: str,
) -> Outcome:
    """Write version 0. ``schema`` is canonical; ``properties`` are those that are not lakebed's.

    Raises InvalidSchema, InvalidInput naming the column.
    """
    check_layout(schema, settings, partition_by)
    # A key has a value in every row, so the table says so to every reader.
    schema = pa.schema([each.with_nullable(each.nullable and each.name not in settings.keys) for each in schema])
    others = {name: value for name, value in properties.items() if not name.startswith(PREFIX)}
    configuration = _required_properties() | others | settings.to_properties()
    document, features = schema_to_json(schema), set[str]()
    if needs_column_mapping(schema):
        document, features = with_mapped_columns(document, configuration), {COLUMN_MAPPING}
    metadata = Metadata(
        id=str(uuid.uuid4()),
        schema_string=document,
        partition_columns=tuple(partition_by),
        configuration=configuration,
        created_ms=int(time.time() * 1000),
    )
    protocol = protocol_for(schema, features)
    metadata = numbered_for_iceberg(metadata, protocol)
    return log.create([protocol, metadata], CommitInfo(operation=Operation.CREATE, commit_id="", engine=engine))


def numbered_for_iceberg(metadata: Metadata, protocol: Protocol) -> Metadata:
    """The metadata of a table with a number for each column, if ``lakebed.iceberg`` is on.

    Raises InvalidSchema naming a column that Iceberg can't say.
    """
    if not read_settings(metadata.configuration).iceberg:
        return metadata
    document, configuration = orjson.loads(metadata.schema_string), dict(metadata.configuration)
    require_sayable(document["fields"])
    if not number_columns(document["fields"], configuration, is_mapped=is_mapped(metadata, protocol)):
        return metadata
    return replace(metadata, schema_string=orjson.dumps(document).decode(), configuration=configuration)


def check_layout(schema: pa.Schema, settings: TableSettings, partition_by: Sequence[str]) -> None:
    """Raises InvalidSchema, InvalidInput for what no table can be created with; ``schema`` is canonical."""
    check_new_names(schema)
    check_levels(schema)
    check_settings(settings, schema, partition_by)
    check_sequence_names(settings, schema)
    check_columns(partition_by, schema, "partition_by")
    _check_partitioning(partition_by, schema)


def protocol_for(schema: pa.Schema, also: Collection[str] = ()) -> Protocol:
    """Features of a table: readers need deletion vectors, and writers the gate that only lakebed knows; both need ``also``."""
    reader = {"deletionVectors", *also}
    writer = {"deletionVectors", "domainMetadata", "appendOnly", "invariants", "inCommitTimestamp", GATE_FEATURE, *also}
    if uses_timestamp_ntz(schema):
        reader.add("timestampNtz")
        writer.add("timestampNtz")
    return Protocol(3, 7, frozenset(reader), frozenset(writer))


def _required_properties() -> dict[str, str]:
    """The properties that every table of lakebed has: Delta's, and the format."""
    return {
        "delta.enableDeletionVectors": "true",
        "delta.enableInCommitTimestamps": "true",
        FORMAT_PROPERTY: str(FORMAT),
    }


def check_settings(settings: TableSettings, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raises InvalidSchema, InvalidInput if keys, sort key, sequence or groups do not fit the schema."""
    check_columns(settings.keys, schema, "keys")
    check_time_to_live(settings.ttl, schema)
    check_groups(settings, schema, partition_by)
    check_aggregates(settings, schema, partition_by)
    parse_sort_key(settings.sort_key, schema, settings.sort_key_frame)
    check_keep(settings)
    if settings.sequence_by is None:
        return
    if not settings.keys:
        raise InvalidInput("sequence_by orders the changes of a key; it needs keys")
    if settings.sequence_by in schema.names:
        check_columns([settings.sequence_by], schema, "sequence_by")


def check_keep(settings: TableSettings) -> None:
    """Raises InvalidInput for a table that keeps first rows and can't."""
    if settings.keep == "first" and not settings.keys:
        raise InvalidInput("lakebed.keep is 'first', and a table without keys keeps all rows; give it keys")
    if settings.keep == "first" and (settings.groups or settings.aggregates):
        raise InvalidInput(
            f"lakebed.keep is 'first', and the table has {GROUPS} or {AGGREGATE}…, which are about rows that change"
        )


def check_sequence_names(settings: TableSettings, schema: pa.Schema) -> None:
    """Raises InvalidInput for a ``sequence_by`` of the table or a group that is no column and looks like a misspelled one.

    Names of fewer than six characters are too often alike. One with a dot is metadata of an event, and rows of changes have
    underscores before a name that is a column's already.
    """
    names = frozenset(schema.names)
    for name in (settings.sequence_by, *(group.sequence_by for group in settings.groups)):
        if name is None or name in names or "." in name or name.startswith("_"):
            continue
        near = [each for each in schema.names if min(len(name), len(each)) > 5 and _is_slip(name.lower(), each.lower())]
        if near:
            raise InvalidInput(
                f"sequence_by {name!r} is no column; did you mean {' or '.join(map(repr, near))}? A sequence that only the "
                "changes have needs a name that is less like a column's"
            )


def _is_slip(one: str, other: str) -> bool:
    """Whether one character differs, is missing, is too many, or changed places with the next one; or none does."""
    start = next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )
    one, other = one[start:], other[start:]
    return one[1:] in (other, other[1:]) or other[1:] == one or (one[1:2] + one[:1] + one[2:] == other)


def _check_adoptable(snapshot: Snapshot) -> None:
    """Raises Unsupported naming what of a Delta table lakebed would not keep; InvalidInput for a property that it can't read,
    InvalidSchema for a column that must be renamed.
    """
    check_new_names(snapshot.logical_schema)
    check_new_names(snapshot.schema)
    check_levels(snapshot.logical_schema)
    beyond = snapshot.protocol.writer_features - _ADOPTABLE
    if beyond:
        raise Unsupported(
            f"the table uses {', '.join(sorted(beyond))}, which lakebed does not keep; drop the feature first"
        )
    for name, value in snapshot.metadata.configuration.items():
        kept = name not in _NOT_KEPT_PROPERTIES and not name.startswith("delta.constraints.")
        if not kept and value.lower() not in ("false", "none"):
            raise Unsupported(f"the table has the property {name}, which lakebed does not keep; unset it first")
    for name in INTERVAL_PROPERTIES & snapshot.metadata.configuration.keys():
        try:
            property_value(name, snapshot.metadata.configuration[name])
        except InvalidInput as error:
            raise InvalidInput(f"the table's property {error}; set it so first") from None
    for marker in _NOT_KEPT_COLUMN_METADATA:
        if marker in snapshot.metadata.schema_string:
            raise Unsupported(f"a column of the table has {marker}, which lakebed does not keep; drop it first")


def _check_adoptable_partitions(snapshot: Snapshot) -> None:
    """Raises Unsupported naming a partition column whose values text can't hold exactly."""
    for name in snapshot.metadata.partition_columns:
        if pa.types.is_binary(snapshot.logical_schema.field(name).type):
            raise Unsupported(
                f"the table is partitioned by {name!r}, which is binary: writers differ in how the log spells such a value, and "
                "some values can't be spelled; write the table again without that partition column first"
            )


def _check_partitioning(partition_by: Sequence[str], schema: pa.Schema) -> None:
    if len(partition_by) == len(schema):
        raise InvalidSchema("partition_by lists every column; at least one must be left in the files")
    for name in partition_by:
        kind = schema.field(name).type
        if pa.types.is_floating(kind) or pa.types.is_binary(kind):
            raise InvalidSchema(
                f"partition_by lists the column {name!r}, which is {kind}; a partition needs a value that text can hold exactly"
            )


_FOOTERS_AT_ONCE = 8
_READERS = 8
_NANOS = "'TimestampType%NANOS=Nano%'"


_ReadColumns = Callable[[TableLog, Snapshot, list[str]], pa.Table]
"""Some columns of all rows of a version."""


def convert(
    path: str,
    log: TableLog,
    storage: PartStorage,
    settings: TableSettings,
    read_columns: _ReadColumns,
) -> None:
    """Make the Delta table at ``path`` one of lakebed's. See ``lakebed.convert``, whose errors it raises."""
    require_alone(log.root)

    def build(snapshot: Snapshot) -> Proposal[None]:
        if GATE_FEATURE in snapshot.protocol.writer_features:
            raise TableExists(f"the table at {path} is lakebed's already; open it", table=path)
        _check_adoptable(snapshot)
        _check_adoptable_partitions(snapshot)
        check_settings(settings, snapshot.logical_schema, snapshot.metadata.partition_columns)
        check_sequence_names(settings, snapshot.logical_schema)
        stored = stored_settings(settings, snapshot.columns)
        frame = frame_properties(parse_sort_key(stored.sort_key, snapshot.schema), snapshot)
        framed = replace(settings, sort_key_frame=frame.get(SORT_KEY_FRAME, ""))
        counted = _checked(snapshot, storage)
        if settings.keys:
            check_unique(read_columns(log, snapshot, list(settings.keys)), settings.keys)
        # Delta forbids some names without column mapping, which not all of its writers obey.
        is_mapped_now = not snapshot.columns.field_ids and needs_column_mapping(snapshot.schema)
        features = _kept_features(snapshot) | ({COLUMN_MAPPING} if is_mapped_now else set())
        protocol = protocol_for(snapshot.schema, features)
        actions = [protocol, *_adopting(snapshot, protocol, framed, counted, maps=is_mapped_now)]
        if (beside := columns_of_files(snapshot, storage)) is not None:
            actions.append(beside)
        return Proposal(
            actions=actions,
            access=ReadWriteSet(whole_table=True, looked_up_keys=True),
            result=lambda committed: None,
            parameters={"keys": list(settings.keys)},
        )

    commit_loop(log, Operation.CONVERT, build)


def _kept_features(snapshot: Snapshot) -> set[str]:
    """What the table's files and schema need readers to know, and lakebed knows too."""
    features = {COLUMN_MAPPING, TYPE_WIDENING} & snapshot.protocol.reader_features
    return features | {COLUMN_MAPPING} if snapshot.columns.field_ids else features


def _adopting(
    snapshot: Snapshot, protocol: Protocol, settings: TableSettings, counted: Sequence[Part], *, maps: bool
) -> list[Action]:
    now_ms = int(time.time() * 1000)
    enablement = {
        "delta.inCommitTimestampEnablementVersion": str(snapshot.version + 1),
        "delta.inCommitTimestampEnablementTimestamp": str(max(now_ms, snapshot.timestamp_ms + 1)),
    }
    kept = {name: value for name, value in snapshot.metadata.configuration.items() if not name.startswith(PREFIX)}
    configuration = enablement | kept | _required_properties() | settings.to_properties()
    document = snapshot.metadata.schema_string
    if maps:
        document = with_mapped_columns(document, configuration, has_files=True)
    metadata = replace(snapshot.metadata, schema_string=document, configuration=configuration)
    actions: list[Action] = [numbered_for_iceberg(metadata, protocol)]
    # Added again without being removed: a reader that meets both for one file in one version treats the file as removed.
    actions += [AddPart(part, False) for part in counted]
    return actions


def _checked(snapshot: Snapshot, storage: PartStorage) -> list[Part]:
    """Parts whose number of rows is missing or wrong in the log, with the right one: deletion vectors need it.

    Every footer is read. Raises Corrupt naming a file that is missing, damaged or not as long as the log says; Unsupported.
    """
    parts = list(snapshot.parts.values())
    for part in parts:
        if "://" in part.path and local_file(part.path) is None:
            raise Unsupported(
                f"the table has a file outside its folder, {part.path}: it is a shallow clone; copy its files first (deep clone)",
                path=part.path,
            )
    for path in {part.deletion_vector.file_path() for part in parts if part.deletion_vector} - {None}:
        if not storage.exists(str(path)):
            raise damaged(str(path), "there is no such file of deletion vectors")
    groups = [parts[start : start + _FOOTERS_AT_ONCE] for start in range(0, len(parts), _FOOTERS_AT_ONCE)]
    with ThreadPoolExecutor(_READERS) as pool:
        counted = [
            rows for group in pool.map(lambda group: _rows_of(group, snapshot, storage), groups) for rows in group
        ]
    return [
        replace(part, rows=rows, stats=f'{{"numRecords":{rows}}}').marked(part.deletion_vector)
        for part, rows in zip(parts, counted, strict=True)
        if part.rows != rows
    ]


def _rows_of(parts: Sequence[Part], snapshot: Snapshot, storage: PartStorage) -> list[int]:
    """How many rows each file has, by its footer."""
    connection = connect()
    storage.attach(connection)
    urls = [storage.duckdb_url(part.path) for part in parts]
    files = f"[{', '.join(map(file_literal, urls))}]"
    try:
        footers = f"select file_name, num_rows, file_size_bytes from parquet_file_metadata({files})"
        found = {url: (rows, size) for url, rows, size in connection.execute(footers).fetchall()}
        odd = connection.execute(
            f"select file_name, name, type = 'INT64' from parquet_schema({files}) "
            f"where type = 'INT64' and logical_type like {_NANOS} or starts_with(lower(name), {literal(RESERVED_PREFIX)})"
        ).fetchall()
        in_files = pa.schema([field for field in snapshot.schema if field.name not in snapshot.partition_columns])
        marks = legacy_marks(urls, connection)
        legacy = [legacy_column(url, part, in_files, marks, connection) for part, url in zip(parts, urls, strict=True)]
    except duckdb.Error as error:
        raise_own(error)
        if len(parts) > 1:  # one after the other, to find the one that fails
            return [rows for part in parts for rows in _rows_of([part], snapshot, storage)]
        raise damaged(parts[0].path, reason(error)) from error
    for part, url in zip(parts, urls, strict=True):
        if found[url][1] != part.bytes:
            raise damaged(part.path, f"it has {found[url][1]:,} bytes and the log says {part.bytes:,}")
    for url, column, is_nanos in odd:
        where = f"the column {column!r} of {storage.path_of_url(url)}"
        if is_reserved(column):
            if not is_native_file(storage.path_of_url(url)):
                raise Unsupported(
                    f"{where} has a name that is reserved for lakebed; write the file again without it first"
                )
        elif is_nanos:
            raise Unsupported(
                f"{where} is in nanoseconds, which Spark does not read and a table can't hold; write the file again in "
                "microseconds first"
            )
    for part, column in zip(parts, legacy, strict=True):
        if column is not None:
            raise Unsupported(f"{column.what}: {column.remedy}", path=part.path)
    return [found[url][0] for url in urls]


def check_unique(rows: pa.Table, keys: Sequence[str]) -> None:
    """Raises InvalidInput naming a key that is null, infinite, or there twice."""
    for name in keys:
        if rows[name].null_count:
            raise InvalidInput(f"the column {name!r} can't be a key: it is null in {rows[name].null_count} rows")
        column = rows[name]
        if finite_column(column) is not column:
            what = f"the column {name!r} can't be a key: it has DuckDB's or another program's infinity, which no change can name"
            raise InvalidInput(
                f"{what}, for in changes an infinity is 9999-12-31 or 0001-01-03; write these in its place first"
            )
    listed = ", ".join(aliases(keys).values())
    connection = connect()
    with registered(connection, "lakebed_rows", by_place(rows, keys)) as name:
        query = f"select {listed}, count(*) as times from {name} group by {listed} having times > 1 limit 1"
        found = connection.execute(query).fetchall()
    if found:
        *twice, times = found[0]
        value = dict(zip(keys, twice, strict=True))
        raise InvalidInput(f"{list(keys)} can't be the keys: {value} is in the table {times} times")
