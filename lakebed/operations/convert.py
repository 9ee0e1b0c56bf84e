"""Adopts a Delta table that others wrote: its files stay, its log goes on, and from then on only lakebed writes to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import duckdb
import pyarrow as pa

from lakebed.discovery import require_alone
from lakebed.errors import InvalidInput, TableExists, Unsupported
from lakebed.far_times import finite_column
from lakebed.log.actions import Action, AddPart, Part, is_native_file
from lakebed.log.commit_loop import Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import GATE_FEATURE, TableLog
from lakebed.operations.create import (
    check_adoptable,
    check_adoptable_partitions,
    check_sequence_name,
    check_settings,
    protocol_for,
    required_properties,
)
from lakebed.operations.legacy_files import legacy_column, legacy_marks
from lakebed.parts.arrow_source import damaged
from lakebed.quoting import literal
from lakebed.schema.column_mapping import COLUMN_MAPPING, stored_settings, with_mapped_columns
from lakebed.schema.conversion import RESERVED_PREFIX, is_reserved, needs_column_mapping
from lakebed.schema.widening import TYPE_WIDENING
from lakebed.settings import PREFIX, SORT_KEY_FRAME, TableSettings
from lakebed.sortkey.sort_key import frame_properties, parse_sort_key
from lakebed.sql.pieces import aliases, by_place, file_literal, registered
from lakebed.storage.engine import connect
from lakebed.storage.file_errors import raise_own, reason
from lakebed.storage.part_storage import PartStorage
from lakebed.storage.roots import local_file

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
        check_adoptable(snapshot)
        check_adoptable_partitions(snapshot)
        check_settings(settings, snapshot.logical_schema, snapshot.metadata.partition_columns)
        check_sequence_name(settings.sequence_by, snapshot.logical_schema)
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
        actions = [protocol, *_adopting(snapshot, framed, counted, maps=is_mapped_now)]
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


def _adopting(snapshot: Snapshot, settings: TableSettings, counted: Sequence[Part], *, maps: bool) -> list[Action]:
    now_ms = int(time.time() * 1000)
    enablement = {
        "delta.inCommitTimestampEnablementVersion": str(snapshot.version + 1),
        "delta.inCommitTimestampEnablementTimestamp": str(max(now_ms, snapshot.timestamp_ms + 1)),
    }
    kept = {name: value for name, value in snapshot.metadata.configuration.items() if not name.startswith(PREFIX)}
    configuration = enablement | kept | required_properties() | settings.to_properties()
    document = snapshot.metadata.schema_string
    if maps:
        document = with_mapped_columns(document, configuration, has_files=True)
    actions: list[Action] = [replace(snapshot.metadata, schema_string=document, configuration=configuration)]
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
