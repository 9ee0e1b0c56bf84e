"""Adopting a Delta table that others wrote: its files stay, its log goes on, and from then on only lakebed writes to it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from lakebed.errors import Contention, InvalidInput, StoreUnavailable, TableExists
from lakebed.manifest.actions import Action, AddPart, CommitInfo, Part
from lakebed.manifest.conflicts import Touch
from lakebed.manifest.creation import check_adoptable, check_settings, protocol_for, required_properties
from lakebed.manifest.snapshot import Snapshot
from lakebed.manifest.table_log import GATE_FEATURE, Committed, Unknown
from lakebed.parts.engine import connect
from lakebed.parts.sql import aliases, by_place, parquet, registered
from lakebed.parts.storage import PartStorage, open_part_storage
from lakebed.settings import PREFIX, SORT_KEY_FRAME, TableSettings
from lakebed.sortkey.sort_key import frame_properties, parse_sort_key
from lakebed.table import Table, column_names, open
from lakebed.version import ENGINE

_ATTEMPTS_MAX = 10


def convert(
    path: str | os.PathLike[str], keys: Sequence[str] = (), sort_key: Sequence[str] = (), sequence_by: str | None = None
) -> Table:
    """Adopt an existing Delta table without rewriting its files; from then on only lakebed writes to it.

    The keys are declared, and checked: no null, no value twice. Raises TableNotFound, InvalidInput naming a duplicate
    key, Unsupported naming a feature or property that lakebed lacks, Contention if others keep committing.
    """
    settings = TableSettings(
        keys=column_names(keys, "keys"), sort_key=column_names(sort_key, "sort_key"), sequence_by=sequence_by
    )  # fmt: skip
    for _ in range(_ATTEMPTS_MAX):
        # Opened anew each time: a log that lost a race remembers the protocol of a commit that never was.
        table = open(path)
        log, storage = table._log, open_part_storage(table.path)
        snapshot = log.refresh()
        if GATE_FEATURE in snapshot.protocol.writer_features:
            raise TableExists(f"the table at {table.path} is lakebed's already; open it with lakebed.open")
        check_adoptable(snapshot)
        check_settings(settings, snapshot.schema)
        frame = frame_properties(parse_sort_key(settings.sort_key, snapshot.schema), snapshot)
        settings = replace(settings, sort_key_frame=frame.get(SORT_KEY_FRAME, ""))
        if settings.keys:
            _check_unique(table.to_arrow(list(settings.keys), version=snapshot.version), settings.keys)
        protocol = protocol_for(snapshot.schema)
        # The commit is held against the table as it makes it: its own protocol, not the plain one before.
        read = replace(snapshot, protocol=protocol)
        actions = _adopting(snapshot, settings, _counted(snapshot, storage))
        info = CommitInfo("CONVERT", "", parameters={"keys": list(settings.keys)}, engine=ENGINE)
        outcome = log.commit(read, [protocol, *actions], info, Touch(whole_table=True, looked_up_keys=True))
        if isinstance(outcome, Committed):
            return open(path)
        if isinstance(outcome, Unknown):
            raise StoreUnavailable(f"whether the table at {table.path} was adopted is unknown: {outcome.cause}")
    raise Contention(f"the table at {path} kept changing while it was adopted; stop its writers and try again")


def _adopting(snapshot: Snapshot, settings: TableSettings, counted: Sequence[Part]) -> list[Action]:
    now_ms = int(time.time() * 1000)
    enablement = {
        "delta.inCommitTimestampEnablementVersion": str(snapshot.version + 1),
        "delta.inCommitTimestampEnablementTimestamp": str(max(now_ms, snapshot.timestamp_ms + 1)),
    }
    kept = {name: value for name, value in snapshot.metadata.configuration.items() if not name.startswith(PREFIX)}
    configuration = enablement | kept | required_properties() | settings.to_properties()
    actions: list[Action] = [replace(snapshot.metadata, configuration=configuration)]
    # Added again without being removed: a reader that meets both for one file in one version takes it for gone.
    actions += [AddPart(part, False) for part in counted]
    return actions


def _counted(snapshot: Snapshot, storage: PartStorage) -> list[Part]:
    """Parts whose log entry lacks the number of rows, with it: deletion vectors need it."""
    connection = connect()
    storage.attach(connection)
    out = []
    for part in snapshot.parts.values():
        if part.rows < 0:
            url = parquet(storage.duckdb_url(part.path))
            [(rows,)] = connection.execute(f"select count(*) from {url}").fetchall()
            out.append(replace(part, rows=rows, stats=f'{{"numRecords":{rows}}}'))
    return out


def _check_unique(rows: pa.Table, keys: Sequence[str]) -> None:
    for name in keys:
        if rows[name].null_count:
            raise InvalidInput(f"the column {name!r} can't be a key: it is null in {rows[name].null_count} rows")
    listed = ", ".join(aliases(keys).values())
    connection = connect()
    with registered(connection, "lakebed_rows", by_place(rows, keys)) as name:
        query = f"select {listed}, count(*) as times from {name} group by {listed} having times > 1 limit 1"
        found = connection.execute(query).fetchall()
    if found:
        *twice, times = found[0]
        value = dict(zip(keys, twice, strict=True))
        raise InvalidInput(f"{list(keys)} can't be the keys: {value} is in the table {times} times")
