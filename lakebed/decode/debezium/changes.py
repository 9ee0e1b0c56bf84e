"""What Debezium's change events mean for a table, of many events at once: the fast path of every format of events.

A format gives its events as columns of the table's types. Masks made from the operation select the upserts and the deletes.
Records that are neither, and are not known to be without effect, are left to ``debezium.record``, which reads one record exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.debezium.inline_schemas import zeros
from lakebed.decode.debezium.message_key import KeyReader
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.json.columns import micros_of
from lakebed.decode.json.values import ByColumn
from lakebed.decode.metadata import kafka_metadata, metadata_path
from lakebed.decode.slices import AT_COLUMN, CREATES_COLUMN, TIME_COLUMN, FastReading, from_arrays
from lakebed.decode.source_order import LOG_POSITION, MEMBERS, ORDERS, OfOneTable, all_not_before, by_table
from lakebed.parts.changes import DELETE, OP_COLUMN, SEQUENCE_COLUMN, UNAVAILABLE_COLUMN, UPSERT
from lakebed.parts.fills import unavailable_names
from lakebed.parts.quarantine import HEADERS
from lakebed.positions.truncates import Cutoff, positions
from lakebed.remarks import Counts

Mask = np.ndarray[Any, Any]
"""One element per record."""

MetadataPath = tuple[str, str]
"""(parent, name) of a member of the event's metadata; the parent of the envelope's own members is ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Events in the order of their records, one element each. A record that is not read has no operation."""

    operation: pa.Array
    has_after: Mask
    after: Mapping[str, pa.Array]
    """A column of the table's type for each of its columns; null where a value is unavailable."""
    unavailable: Mapping[str, Mask] = field(default_factory=dict)
    before: Mapping[str, pa.Array] = field(default_factory=dict)
    """Likewise, for ``ChangeRules.before_names``."""
    unlikely: ByColumn = field(default_factory=dict)
    """Which rows have numbers that were taken for times that few tables have (``json.values``)."""
    metadata: Mapping[MetadataPath, pa.Array]
    """For each of ``ChangeRules.metadata``, in its ``metadata_type`` (``source_order``)."""
    message_keys: KeyReader
    are_rows: bool = False
    """Whether they are plain rows, of which all that they have was sent."""
    defaulted: frozenset[str] = frozenset()
    """The columns that have a default, which may stand for a value that was not sent."""


def unlikely_remarks_of(rows_of: ByColumn, upsert: Mask) -> Counts:
    """The remarks on the rows of ``Events.unlikely``."""
    counts: dict[str, dict[str, int]] = {}
    for (remark, name), rows in rows_of.items():
        if count := int(np.count_nonzero(rows & upsert)):
            counts.setdefault(remark, {})[name] = count
    return counts


class ChangeRules:
    """How the events of one table become changes. ``metadata``: what the rules need of the events beside their rows."""

    def __init__(self, decoder_schema: DecoderSchema, cutoff: Cutoff) -> None:
        self._decoder_schema = decoder_schema
        self._cutoff = cutoff
        ordering = [decoder_schema.sequence_column] if decoder_schema.sequence_column else []
        self.before_names: tuple[str, ...] = tuple(dict.fromkeys([*decoder_schema.keys, *ordering]))
        self._sequence = metadata_path(decoder_schema.sequence_metadata)
        self._known = dict(cutoff.sources)
        wanted = {("source", "ts_ms"), ("", "ts_ms"), *(("source", name) for name in MEMBERS)}
        if cutoff:
            wanted |= {("source", name) for name in ("ts_us", *cutoff.places)}
        if self._sequence and self._sequence[0] != "kafka":
            wanted.add(self._sequence)
        self._order = ORDERS.get(self._sequence) if self._sequence else None
        if self._order and self._order.beside:
            wanted.add(("source", self._order.beside))
        self.metadata: tuple[MetadataPath, ...] = tuple(sorted(wanted))

    def no_before(self, count: int) -> dict[str, pa.Array]:
        """``Events.before`` of events without such rows."""
        types = self._decoder_schema.columns
        return {name: pa.nulls(count, types.field(name).type) for name in self.before_names}

    def changes(self, events: Events, records: pa.RecordBatch, numbers: Mask) -> FastReading:
        """``numbers``: of the records. Raises ``Missed`` for times that are out of range."""
        times = self._times(events, records)
        metadata = {TIME_COLUMN: times, CREATES_COLUMN: pc.equal(events.operation, "c")}
        upsert, delete = self._masks(events)
        tables = self._tables(events, records)
        for one in tables:
            if not self._decoder_schema.source.takes(one.name, self._known.get(one.topic)):
                upsert &= ~one.rows
                delete &= ~one.rows
        if self._sequence:
            sequence = metadata[SEQUENCE_COLUMN] = self._ordering(self._sequence, events, records)
            ordered = np.asarray(sequence.is_valid())
            upsert &= ordered
            delete &= ordered
        self._leave_unclear(events, records, upsert, delete)
        message = np.asarray(pc.fill_null(pc.equal(events.operation, "m"), False))
        taken = np.zeros(len(upsert), bool)
        if self._cutoff:
            taken = (upsert | delete) & self._cutoff.takes(self._positions(events, records, times))
            upsert &= ~taken
            delete &= ~taken
        rows = self._rows(events, metadata, upsert=upsert, delete=delete, numbers=numbers)
        handled = upsert | delete | message | taken
        read = upsert & np.asarray(pc.fill_null(pc.equal(events.operation, "r"), False))
        fast = FastReading(
            rows,
            handled,
            int(message.sum()),
            int(taken.sum()),
            of_snapshot=int(read.sum()),
            sources=self._learned(tables, upsert | delete, numbers),
        )
        return fast.remarked(unlikely_remarks_of(events.unlikely, upsert))

    def _tables(self, events: Events, records: pa.RecordBatch) -> list[OfOneTable]:
        """The records by the tables of the source that they are of."""
        if events.are_rows:
            return []
        return by_table(records.column("topic"), {name: events.metadata["source", name] for name in MEMBERS})

    def _learned(self, tables: list[OfOneTable], used: Mask, numbers: Mask) -> dict[tuple[str, str], int]:
        """See ``FastReading.sources``. ``used``: the records that are changes."""
        learned = {}
        for one in tables:
            if one.name is not None and self._decoder_schema.source.learns(self._known.get(one.topic)):
                rows = np.flatnonzero(one.rows & used)
                if len(rows):
                    learned[one.topic, one.name] = int(numbers[rows[0]])
        return learned

    def _masks(self, events: Events) -> tuple[Mask, Mask]:
        """Which records are upserts and which are deletes; neither are those that have to be read one by one."""
        operation, has_after = events.operation, events.has_after
        columns, unavailable, before = events.after, events.unavailable, events.before
        keys = self._decoder_schema.keys
        upserts = pa.array(["c", "r", "u"] if keys else ["c", "r"])
        upsert = np.asarray(pc.is_in(operation, value_set=upserts)) & has_after
        for name in self._decoder_schema.required:
            if columns[name].null_count:
                valid = np.asarray(columns[name].is_valid())
                upsert &= valid if name in keys or name not in unavailable else valid | unavailable[name]
        delete = np.asarray(pc.fill_null(pc.equal(operation, "d"), False)) & ~has_after & bool(keys)
        for name in self.before_names:
            delete &= np.asarray(before[name].is_valid())
        return upsert, delete

    def _leave_unclear(self, events: Events, records: pa.RecordBatch, upsert: Mask, delete: Mask) -> None:
        """Takes records out of both masks that need a closer look to know which row they are about (``inline_schemas``)."""
        of_message = self._decoder_schema.source.keys_of_message
        if not self._decoder_schema.keys or (events.are_rows and not of_message):
            return
        keys = records.select(["key", *({HEADERS} & set(records.schema.names))])
        unclear = np.zeros(len(upsert), bool)
        update = upsert & _true(pc.equal(events.operation, "u"))
        has_old_key = update.copy()
        for name in self._decoder_schema.keys:
            has_old_key &= np.asarray(events.before[name].is_valid())
        if of_message or (update & ~has_old_key).any():
            names = events.message_keys.names(keys)
            if not events.are_rows:
                unclear = update & ~has_old_key & ~names.nameless & ~names.complete
            if of_message:
                unclear |= (upsert | delete) & ~names.exact
        if not events.are_rows:
            for mask, is_clear in ((has_old_key, self._is_clear_update), (delete, self._is_clear_delete)):
                if mask.any():
                    rows = np.flatnonzero(mask)
                    unclear[rows[~is_clear(events, keys, pa.array(rows))]] = True
        upsert &= ~unclear
        delete &= ~unclear

    def _is_clear_delete(self, events: Events, keys: pa.RecordBatch, rows: pa.Array) -> Mask:
        given = events.message_keys.columns(keys.take(rows))
        is_clear = given.named | given.nameless
        for name in self._decoder_schema.keys:
            before = events.before[name].take(rows)
            is_clear &= self._was_sent(name, before, events)
            is_clear &= _true(pc.fill_null(pc.equal(before, given.columns[name]), True))
        return is_clear & self._has_order(events, rows)

    def _is_clear_update(self, events: Events, keys: pa.RecordBatch, rows: pa.Array) -> Mask:
        """Of updates whose old row has the table's key."""
        is_clear, stays = np.ones(len(rows), bool), np.ones(len(rows), bool)
        for name in self._decoder_schema.keys:
            before, after = events.before[name].take(rows), events.after[name].take(rows)
            same = _true(pc.equal(before, after))
            is_clear &= same | self._was_sent(name, before, events)
            stays &= same
        return is_clear & (stays | self._has_order(events, rows))

    def _has_order(self, events: Events, rows: pa.Array) -> Mask:
        """Of which old rows the value that orders changes was certainly sent, if a column orders them."""
        name = self._decoder_schema.sequence_column
        if name is None or name in self._decoder_schema.keys:
            return np.ones(len(rows), bool)
        return self._was_sent(name, events.before[name].take(rows), events)

    def _was_sent(self, name: str, values: pa.Array, events: Events) -> Mask:
        """Which values of old rows were certainly sent."""
        if name in events.defaulted:
            return np.zeros(len(values), bool)
        sent: Mask = np.asarray(values.is_valid()) & ~zeros(values)
        return sent

    def _rows(
        self,
        events: Events,
        metadata: dict[str, pa.Array],
        *,
        upsert: Mask,
        delete: Mask,
        numbers: Mask,
    ) -> pa.Table:
        """The change row of each record, and for each changed key a delete of the old one; ``AT_COLUMN`` gives the order."""
        count, before, unavailable = len(numbers), events.before, events.unavailable
        moved = self._moved(events, upsert)
        deletes = pa.array(delete)
        chosen = dict(events.after)
        operations = pa.repeat(pa.scalar(UPSERT, pa.string()), count)
        if delete.any():
            for name in self.before_names:
                chosen[name] = pc.if_else(deletes, before[name], chosen[name])
            operations = pc.if_else(deletes, DELETE, UPSERT)
        if unavailable:
            metadata = {**metadata, UNAVAILABLE_COLUMN: unavailable_names(dict(unavailable), upsert)}
        at = pa.array(2 * numbers + moved)
        rows = from_arrays(self._decoder_schema, count, {**chosen, **metadata, OP_COLUMN: operations, AT_COLUMN: at})
        wanted = upsert | delete
        if not wanted.all():
            rows = rows.filter(pa.array(wanted))
        if moved.any():
            gone = {**before, **metadata, OP_COLUMN: pa.repeat(pa.scalar(DELETE, pa.string()), count)}
            gone.pop(UNAVAILABLE_COLUMN, None)
            old = from_arrays(self._decoder_schema, count, {**gone, AT_COLUMN: pa.array(2 * numbers)})
            rows = pa.concat_tables([rows, old.filter(pa.array(moved))])
        return rows

    def _moved(self, events: Events, upsert: Mask) -> Mask:
        """Updates that changed the key."""
        moved = np.zeros(len(upsert), bool)
        has_old_key = upsert & _true(pc.equal(events.operation, "u"))
        for key in self._decoder_schema.keys:
            has_old_key &= np.asarray(events.before[key].is_valid())
        if has_old_key.any():
            for key in self._decoder_schema.keys:
                moved |= has_old_key & np.asarray(
                    pc.fill_null(pc.not_equal(events.before[key], events.after[key]), False)
                )
        return moved

    def _ordering(self, path: MetadataPath, events: Events, records: pa.RecordBatch) -> pa.Array:
        if self._order:
            beside = ("source", self._order.beside) if self._order.beside else path
            places = self._order.places(events.metadata[path], events.metadata[beside])
            if self._cutoff.begin is None or path != LOG_POSITION:
                return places
            return all_not_before(self._cutoff.begin, places, events.metadata[beside])
        return kafka_metadata(records, path[1]) if path[0] == "kafka" else events.metadata[path]

    def _times(self, events: Events, records: pa.RecordBatch) -> pa.Array:
        """Microseconds: when the source changed the row, else when Debezium read the change, else the record's own time."""
        millis = pc.coalesce(
            events.metadata["source", "ts_ms"],
            events.metadata["", "ts_ms"],
            records.column("timestamp").view(pa.int64()),
        )
        return micros_of(millis)

    def _positions(self, events: Events, records: pa.RecordBatch, times: pa.Array) -> pa.Table:
        """The source's position at each event, which orders events and truncates."""
        micros = pc.coalesce(events.metadata["source", "ts_us"], times)
        return positions(records, micros, {name: events.metadata["source", name] for name in self._cutoff.places})


def _true(mask: pa.Array) -> Mask:
    """The mask as a NumPy array, with null as False."""
    return np.asarray(pc.fill_null(mask, False), dtype=bool)
