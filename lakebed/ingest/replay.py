"""Replays the quarantine: its records are decoded again, with the settings of now, and those that are fine are applied once.

The table and its quarantine have a log each, and no commit is in both. So:

1. The commit that adds the changes to the table also sets an *entry*: of which rows of which parts of the quarantine they were
   made.
2. These rows are marked dead in the quarantine.
3. The entry is removed from the table.

After a crash before 1 the quarantine still has every record. After a crash between 1 and 3 the entry tells what is left to do,
and every replay begins with that. To mark rows that are dead already changes nothing. If a merge of the quarantine has moved the
rows, they are found by their content, which the file has from which they were moved.

Two replays at once: each reads the table, then the quarantine, and its commit conflicts with every commit since then that sets or
removes the entry (``ReadWriteSet.domains``). So a replay that did not see what another one had applied starts again. The entry is
set only where none is, so no entry is lost. A truncate of the source that comes between is a conflict too: it may be newer than
the records.

Records are applied in the order of their source. That is not the order of the parts, because a merge may have joined early and
late ones.

A record is decoded like any other, with the schema that the table has now, or gets for it (``evolving``), after the truncates
that the table has seen. It stays in the quarantine if it is still not a
change, and if it is a truncate, which would empty the table of what came later. Changes that were decoded before they failed
(they have no topic) stay too: their records are not known. So does a change that moved a row to a key, or from it, if the table
has newer changes of the key: rows of a key are counted in their order (``parts.key_moves``), and what was counted since is not
known any more once it is settled.
"""

from __future__ import annotations

import base64
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from lakebed import events
from lakebed.decode.decoder import RECORD_SCHEMA, Decoded, Decoder
from lakebed.decode.metadata import HEADERS_FIELD, mappings_of
from lakebed.errors import InvalidChanges
from lakebed.ingest.batch_writer import Written, appended
from lakebed.ingest.evolving import ROUNDS_MAX, Evolution
from lakebed.lateness import Lateness
from lakebed.log.actions import Action, AddPart, Domain, Part, Transaction
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import REPLAY, SOURCE_TRUNCATES, Operation
from lakebed.log.entry_values import checked, document_of, reading
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog, require_writable
from lakebed.parts.changes import MOVES_COLUMN, WriteSpec, prepare, stored_rows, write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.key_moves import are_strong, without_places
from lakebed.parts.quarantine import HEADERS, WITH_HEADERS
from lakebed.parts.row_origins import ROW, numbered
from lakebed.parts.write import write_parts
from lakebed.positions.positions import topics_of_several
from lakebed.positions.remarks import remarks_of
from lakebed.positions.source_columns import Met, followed
from lakebed.positions.truncates import cutoff_of
from lakebed.quoting import quote
from lakebed.resolve.batches import newest_in_layers
from lakebed.resolve.locate import KeyLocator
from lakebed.resolve.resolve import are_late
from lakebed.schema.change import SchemaChange
from lakebed.sql import (
    Expression,
    check_condition,
    condition,
    connection_for,
    expression,
    mistakes,
    registered,
)
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect, naming_unreadable

RECORDS_MAX = 20_000  # of one commit
BYTES_MAX = 64 << 20
ALREADY_DECODED = "its record is not known: it was decoded before it was refused"
LATE_MOVE = (
    "it moved a row to another key, and the table has newer changes of that key: whether the row is still there can't be told "
    "any more. Have the rows of the key sent again (lakebed source resnapshot)"
)
TRUNCATE = "it is a truncate, which would take away what came after it"

_Place = tuple[str, int]  # a part of the quarantine, and a row of it
_NONE = pa.nulls(0, pa.int64())  # pa.array would import pandas
_CONTENT = ("key", "value", "topic", "partition", "offset")
_IN_ORDER = 'case when "offset" is null then "time" end nulls first, topic, "partition", "offset"'
"""Of rows of files, which have no offsets, the time is that of their file."""


@dataclass(slots=True)
class ReplayResult:
    """What a replay did. ``version``: of the table; ``rows``: changes that were applied; ``left``: why others stay, counted."""

    version: int
    records: int = 0
    rows: int = 0
    left: Counter[str] = field(default_factory=Counter)


class _Refused(Exception):
    """Some of several records can't be applied beside the others; of a single one the text is why."""


@dataclass(frozen=True, slots=True)
class _Decoded:
    layers: Sequence[pa.Table]
    good: Sequence[bool]
    reasons: Sequence[str]
    newest_event_us: int | None
    met: Met


class Replay:
    """Replays the quarantine of one table. Raises Retry (to replay again is safe)."""

    def __init__(
        self,
        log: TableLog,
        quarantine_log: TableLog,
        decoder: Decoder,
        evolution: Evolution,
        locator: Callable[[WriteSpec], KeyLocator],
    ) -> None:
        """``evolution``: changes the table where records need it; ``locator``: of the table's keys."""
        self._log = log
        self._evolution = evolution
        self._locator = locator
        self._table_storage = open_part_storage(log.root)
        self._table_vectors = DeletionVectorCache(self._table_storage)
        self._quarantine = quarantine_log
        self._decoder = decoder
        self._storage = open_part_storage(quarantine_log.root)
        self._vectors = DeletionVectorCache(self._storage)
        self._entry = REPLAY + quarantine_log.refresh().metadata.id

    def run(self, where: str = "true") -> ReplayResult:
        """Replay the records for which ``where``, an expression over the quarantine's columns, is true. Raises InvalidInput."""
        snapshot = self._log.refresh()
        require_writable(snapshot.protocol)
        self._finish(snapshot)
        wanted = expression(where, "where")
        check_condition(wanted, WITH_HEADERS)
        result = ReplayResult(version=snapshot.version)
        for chunk in self._chunks(self._quarantine.refresh(), wanted):
            self._apply_all(chunk, result)
        return result

    def _apply_all(self, chunk: list[_Place], result: ReplayResult) -> None:
        """Apply these rows together if that is possible, else in halves, and so on."""
        waiting = deque([chunk])
        while waiting:
            places = waiting.popleft()
            try:
                self._apply(places, result)
            except _Refused as refused:
                if len(places) == 1:
                    result.left[str(refused)] += 1
                else:
                    half = len(places) // 2
                    waiting.extendleft([places[half:], places[:half]])

    # -- what is in the quarantine -------------------------------------------------------------------------------------

    def _chunks(self, snapshot: Snapshot, where: Expression) -> Iterator[list[_Place]]:
        """The live rows that match, in the order of their source, in pieces that fit in memory."""
        parts = sorted(snapshot.parts.values(), key=lambda part: (part.max_block, part.path))
        if not parts:
            return
        paths = [part.path for part in parts]
        dead = [self._vectors.of(part) for part in parts]
        bytes_of = "coalesce(octet_length(value), 0) + coalesce(octet_length(key), 0)"
        of_parts = " union all ".join(
            f"select {at} as lakebed_part, * from ({numbered(part, WITH_HEADERS, self._storage)})"
            for at, part in enumerate(parts)
        )
        with mistakes(f"where={where.text!r}", paths):
            found = (
                connection_for(self._storage, paths)
                .sql(
                    f"select lakebed_part, {ROW}, {bytes_of} as bytes from ({of_parts}) where {condition(where)} "
                    f"order by {_IN_ORDER}, lakebed_part, {ROW}"
                )
                .fetchnumpy()
            )
        chunk: list[_Place] = []
        size = 0
        for at, row, length in zip(*(found[name].tolist() for name in ("lakebed_part", ROW, "bytes")), strict=True):
            if row in dead[at]:
                continue
            if chunk and (len(chunk) >= RECORDS_MAX or size + length > BYTES_MAX):
                yield chunk
                chunk, size = [], 0
            chunk.append((paths[at], row))
            size += length
        if chunk:
            yield chunk

    def _records(self, snapshot: Snapshot, places: Iterable[_Place]) -> tuple[list[_Place], pa.Table]:
        """Those of the rows that are still live, and their records (WITH_HEADERS), in the order of ``places``."""
        places, live = list(places), list[_Place]()
        tables = [WITH_HEADERS.empty_table()]
        for path, rows in _by_part(places).items():
            part = snapshot.parts.get(path)
            chosen = rows - self._vectors.of(part) if part else BitMap64()
            if part is None or not chosen:
                continue
            connection = connection_for(self._storage, [path])
            query = numbered(part, WITH_HEADERS, self._storage)
            with registered(connection, "lakebed_rows", _rows_table(chosen)):
                found = connection.sql(
                    f"select * from ({query}) where {ROW} in (select row from lakebed_rows) order by {ROW}"
                ).to_arrow_table()
            live += [(path, row) for row in found[ROW].to_pylist()]
            tables.append(found.drop_columns([ROW]).cast(WITH_HEADERS))
        rank = {place: at for at, place in enumerate(places)}
        order = sorted(range(len(live)), key=lambda at: rank[live[at]])
        return [live[at] for at in order], pa.concat_tables(tables).take(pa.array(order, pa.int64()))

    # -- applying ------------------------------------------------------------------------------------------------------

    def _apply(self, places: list[_Place], result: ReplayResult) -> None:
        """Steps 1 to 3 for these rows, again and again until no other replay came between. Raises _Refused."""
        rounds = 0
        while True:
            snapshot = self._log.refresh()
            if self._finish(snapshot):
                continue
            self._decoder = self._evolution.bound(self._decoder, snapshot)
            quarantine = self._quarantine.refresh()
            live, records = self._records(quarantine, places)
            if not live:
                return
            decoded = self._decoded(records, snapshot)
            if isinstance(decoded, SchemaChange):
                rounds += 1
                if rounds == ROUNDS_MAX:
                    raise self._evolution.gave_up()
                self._evolution.evolve(snapshot, decoded)
                continue
            chosen = [place for place, good in zip(live, decoded.good, strict=True) if good]
            entry = Domain(self._entry, _to_json(_by_part(chosen), quarantine))
            if chosen and not self._commit(snapshot, decoded, entry, result):
                continue
            result.records += len(chosen)
            result.left.update(decoded.reasons)
            self._finish(self._log.refresh())
            return

    def _decoded(self, records: pa.Table, snapshot: Snapshot) -> _Decoded | SchemaChange:
        """The changes of the records that are fine now, or what the table must become for them first.

        Raises _Refused if that can't be decided for each record by itself.
        """
        known = records["topic"].is_valid()
        raw = records.filter(known)
        millis = raw["time"].cast(pa.timestamp("ms", "UTC"), safe=False)
        columns = [*(raw[name] for name in _CONTENT), millis]
        raw_records = pa.table([*columns, raw[HEADERS]], schema=RECORD_SCHEMA.append(HEADERS_FIELD))
        decoded = self._decoder.decode(raw_records, cutoff_of(snapshot))
        if decoded.schema_needed is not None:
            return decoded.schema_needed
        if decoded.truncates:
            raise _Refused(TRUNCATE)
        # What becomes of a record depends on its content (D4): equal ones are all refused, or none.
        refused, contents = set(_contents(decoded.quarantined)), _contents(records)
        good = [is_raw and content not in refused for is_raw, content in zip(known.to_pylist(), contents, strict=True)]
        reasons = decoded.quarantined["reason"].to_pylist() + [ALREADY_DECODED] * (len(records) - len(raw))
        return _Decoded(self._layers(decoded, snapshot), good, reasons, decoded.event_time_max, decoded.met)

    def _layers(self, decoded: Decoded, snapshot: Snapshot) -> Sequence[pa.Table]:
        if not len(decoded.changes):
            return ()
        connection, changes, stored = connect(), decoded.changes, write_spec_of(snapshot)
        spec = stored.incoming
        if spec.sequence_column is None:
            changes = without_places(changes)
        try:
            checked = prepare(changes, spec, connection, fill=self._decoder.decoder_schema.fill)
        except InvalidChanges as error:
            raise _Refused(str(error)) from None
        if self._has_late_moves(stored_rows(checked, stored), stored, snapshot):
            raise _Refused(LATE_MOVE)
        layers, incomplete = newest_in_layers(checked, spec, connection)
        if len(incomplete):
            raise _Refused(incomplete["reason"][0].as_py())
        return list(layers)

    def _has_late_moves(self, changes: pa.Table, spec: WriteSpec, snapshot: Snapshot) -> bool:
        """Whether a change that moved a row is older than what the table has of its key."""
        moves = (
            changes.filter(pa.array(are_strong(changes[MOVES_COLUMN]))) if MOVES_COLUMN in changes.column_names else ()
        )
        if not len(moves):
            return False
        late = are_late(
            moves,
            snapshot.parts,
            snapshot.tail_in_order(),
            spec,
            self._table_storage,
            deletion_vectors=self._table_vectors,
            locator=self._locator(spec),
        )
        return bool(late.any())

    def _commit(self, snapshot: Snapshot, decoded: _Decoded, entry: Domain, result: ReplayResult) -> bool:
        """Step 1; returns False if another commit came between, and nothing was committed."""
        spec, started = write_spec_of(snapshot), time.perf_counter()
        parts = [
            part
            for layer in decoded.layers
            for part in write_parts(stored_rows(layer, spec), spec, self._table_storage)
        ]
        batch = Transaction(self._entry, snapshot.transaction_version(self._entry) + 1)

        def build(newest: Snapshot) -> Proposal[Snapshot | None] | Finished[Snapshot | None]:
            if newest.version != snapshot.version or self._entry in newest.domains:
                return Finished(None)  # what was decoded may be applied already
            mixed = topics_of_several(newest)
            columns = followed(newest, {key: span for key, span in decoded.met.items() if key[0] not in mixed})
            before = remarks_of(newest)
            after = columns.remarks(before, self._log.now_ms())
            changed = [columns.entry, None if after == before else after.to_entry()]
            entries = [entry, *(one for one in changed if one is not None)]
            return Proposal(
                actions=[*appended(parts, spec, Lateness.AGAIN), *entries],
                access=ReadWriteSet(domains=frozenset([SOURCE_TRUNCATES, *(one.domain for one in entries)])),
                result=lambda committed: committed.snapshot,
                metrics={"rows": sum(part.rows for part in parts)},
                batch=batch,
            )

        committed = commit_loop(self._log, Operation.REPLAY, build, first=snapshot)
        if committed is None:
            return False
        result.version = committed.version
        result.rows += sum(part.rows for part in parts)
        written = Written(parts=tuple(parts), event_time_max=decoded.newest_event_us)
        events.emit(written.event(self._log.root, committed.version, time.perf_counter() - started))
        self._log.checkpoint_if_due(committed, slack=2)
        return True

    # -- after the commit ----------------------------------------------------------------------------------------------

    def _finish(self, snapshot: Snapshot) -> bool:
        """Steps 2 and 3 of the replay whose entry the table has; returns whether there was one."""
        text = snapshot.domains.get(self._entry)
        if text is None:
            return False
        applied = applied_in(self._entry, text)

        def mark(quarantine: Snapshot) -> Proposal[None] | Finished[None]:
            dead = self._dead(quarantine, applied)
            if not dead:
                return Finished(None)
            access = ReadWriteSet(parts={path: quarantine.parts[path].partition_key for path in dead})
            return Proposal(actions=self._marked(quarantine, dead), access=access, result=lambda committed: None)

        def forget(newest: Snapshot) -> Proposal[None] | Finished[None]:
            if newest.domains.get(self._entry) != text:
                return Finished(None)
            return Proposal(
                actions=[Domain(self._entry, text, removed=True)],
                result=lambda committed: None,
            )

        commit_loop(self._quarantine, Operation.REPLAY, mark)
        commit_loop(self._log, Operation.REPLAY, forget)
        return True

    def _dead(self, quarantine: Snapshot, applied: Mapping[str, tuple[int, BitMap64]]) -> dict[str, BitMap64]:
        """The parts that still have applied rows, with all that are dead then.

        Raises Corrupt if a merge moved them and the file where they were is gone.
        """
        wanted = {path: rows for path, (_, rows) in applied.items() if path in quarantine.parts}
        for path, (block, rows) in applied.items():
            if path not in quarantine.parts:
                for merged, found in self._moved(quarantine, path, block, rows).items():
                    wanted[merged] = wanted.get(merged, BitMap64()) | found
        dead = {path: self._vectors.of(quarantine.parts[path]) | rows for path, rows in wanted.items()}
        return {path: rows for path, rows in dead.items() if len(rows) > quarantine.parts[path].dead_rows}

    def _marked(self, quarantine: Snapshot, dead: Mapping[str, BitMap64]) -> list[Action]:
        now_ms = int(time.time() * 1000)
        some_live = {path: rows for path, rows in dead.items() if len(rows) < quarantine.parts[path].rows}
        vectors = self._vectors.write(some_live)
        actions: list[Action] = [quarantine.parts[path].removed(now_ms) for path in dead]
        return actions + [AddPart(quarantine.parts[path].marked(vector)) for path, vector in vectors.items()]

    def _moved(self, quarantine: Snapshot, path: str, block: int, rows: BitMap64) -> dict[str, BitMap64]:
        """Where merges have moved these rows; those that have left the quarantine are nowhere. Of equal rows any will do."""
        merged = [p for p in quarantine.parts.values() if p.level > 0 and p.min_block <= block <= p.max_block]
        if not merged:
            return {}
        names = ", ".join(quote(name) for name in WITH_HEADERS.names)
        connection = connection_for(self._storage, [path, *(part.path for part in merged)])
        dead = [(at, row) for at, part in enumerate(merged) for row in self._vectors.of(part)]
        known = pa.table(list(map(pa.array, zip(*dead, strict=True))) or [_NONE, _NONE], names=["part", "row"])
        now = " union all ".join(
            f"select {at} as lakebed_part, * from ({numbered(part, WITH_HEADERS, self._storage)})"
            for at, part in enumerate(merged)
        )
        before = numbered(Part(path=path, rows=0, bytes=0), WITH_HEADERS, self._storage)
        same = " and ".join(f"n.{quote(name)} is not distinct from b.{quote(name)}" for name in WITH_HEADERS.names)
        query = (
            f"with n as (select *, row_number() over (partition by {names}) as lakebed_copy from ({now}) "
            f"where (lakebed_part, {ROW}) not in (select (part, row) from lakebed_dead)), "
            f"b as (select {names}, count(*) as lakebed_copies from ({before}) "
            f"where {ROW} in (select row from lakebed_rows) group by {names}) "
            f"select n.lakebed_part, n.{ROW} from n join b on {same} where n.lakebed_copy <= b.lakebed_copies"
        )
        with (
            naming_unreadable([path, *(part.path for part in merged)]),
            registered(connection, "lakebed_rows", _rows_table(rows)),
            registered(connection, "lakebed_dead", known),
        ):
            found = connection.sql(query).fetchall()
        return {merged[at].path: BitMap64(row for one, row in found if one == at) for at in {at for at, _ in found}}


def _contents(records: pa.Table) -> Iterator[tuple[object, ...]]:
    """What a record is, of each."""
    headers = (tuple(sorted(one.items())) for one in mappings_of(records))
    return zip(*(records[name].to_pylist() for name in _CONTENT), headers, strict=True)


def _by_part(places: Iterable[_Place]) -> dict[str, BitMap64]:
    out: dict[str, BitMap64] = {}
    for path, row in places:
        out.setdefault(path, BitMap64()).add(row)
    return out


def _rows_table(rows: BitMap64) -> pa.Table:
    return pa.table({"row": pa.array(np.frombuffer(rows.to_array(), np.uint64).astype(np.int64))})


def _to_json(applied: Mapping[str, BitMap64], quarantine: Snapshot) -> str:
    """The entry: by part, the version that brought it and the rows."""
    return json.dumps(
        {
            path: {"block": quarantine.parts[path].max_block, "rows": base64.b64encode(rows.serialize()).decode()}
            for path, rows in applied.items()
        }
    )


def applied_in(domain: str, text: str) -> dict[str, tuple[int, BitMap64]]:
    """The inverse of ``_to_json``. Raises Corrupt."""
    document = document_of(domain, text)
    with reading(domain):
        return {
            path: (
                checked(int, each["block"], "block"),
                BitMap64.deserialize(base64.b64decode(checked(str, each["rows"], "rows"), validate=True)),
            )
            for path, each in document.items()
        }
