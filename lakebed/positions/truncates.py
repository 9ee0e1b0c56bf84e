"""Truncates of a source: which records are from before a truncate, and which truncates were applied before.

Within a partition of a topic, the offset gives the exact order. Elsewhere the source's own position decides: its
position in its log, which is exact within the log of one server, and otherwise its clock. A log position counts only
together with the clock: a source that moved to another server starts a new log, at lower positions and later times.

A record is from before a truncate if
    1.  it is in the truncate's partition and has a lower offset, or in the same batch of files and comes before; or
    2.  both have a position in the same log, and the record's is lower; or
    3.  they have no such positions, the record is in another partition, and it is earlier by the source's clock.
In case 2, and in case 1 if the truncate is of an earlier batch, the record must also not be later by the clock, since the
server or the topic may have been replaced. So a record is left out only if all that is known of it says that it came
first. A record that can't be ordered is kept: one of the same time, in another partition, from a source without
positions.

A truncate was applied before if the table has recorded it, or a truncate after it. A source repeats what it sent since
its last checkpoint, and a topic may be read again from its beginning. Such a truncate removes nothing: the records after
it are newer, and those before it are left out anyway.

A table keeps the newest truncate of each partition that had one (``lakebed.source_truncates``).

**Restarts of the order.** From some offsets of a topic on, changes are newer than all that the table has. A source that goes on
at lower places than before (``lateness``) would lose all its changes. So a user who knows that this is so restarts the order: the
entry ``lakebed.order_restarts`` of the table's log says from which offsets on.

    {"restarts": [{"topic": "shop.public.orders", "id": "…", "offsets": {"0": 1200}, "add": 5000000002}]}

To the place of every record at or behind one of these offsets ``add`` is added, which is at least the greatest place that the
table has. So such changes are newer than all before them, and among each other they have the order of the source. If the topic
was created again since, with another ``id``, all of its records are behind.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.lateness import Newest
from lakebed.log.actions import Domain
from lakebed.log.entries import ORDER_RESTARTS, SOURCE_TRUNCATES
from lakebed.log.entry_values import checked, document_of, reading
from lakebed.log.snapshot import Snapshot
from lakebed.positions.positions import Last, newest_by_place, positions_of, sources_of

RESTARTS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """From these offsets of a topic on, ``add`` is added to each place. ``offsets``: by partition; without one, all of the
    partition is behind."""

    topic: str
    id: str | None
    offsets: Mapping[int, int]
    add: int

    def offset(self, partition: int, topic_id: str | None) -> int:
        """From where it applies. ``topic_id``: of the topic that is read now."""
        is_another = self.id is not None and topic_id is not None and self.id != topic_id
        return 0 if is_another else self.offsets.get(partition, 0)


def restarts_of(snapshot: Snapshot) -> tuple[Restart, ...]:
    """The restarts of a table's order, in the order in which they were made. Raises Corrupt."""
    text = snapshot.domains.get(ORDER_RESTARTS)
    return () if text is None else restarts_in(ORDER_RESTARTS, text)


def restarts_in(domain: str, text: str) -> tuple[Restart, ...]:
    """The restarts in an entry of the log. Raises Corrupt."""
    document = document_of(domain, text)
    with reading(domain):
        found: tuple[Restart, ...] = checked(tuple[Restart, ...], document["restarts"], "restarts")
        return found


def restarts_entry(restarts: tuple[Restart, ...]) -> Domain:
    """The entry of the log that has these restarts."""
    listed = [asdict(one) for one in restarts]
    return Domain(ORDER_RESTARTS, orjson.dumps({"restarts": listed}, option=orjson.OPT_NON_STR_KEYS).decode())


_POSITION_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("time_us", pa.int64()),
        ("lsn", pa.int64()),
        ("server_id", pa.int64()),
        ("file", pa.string()),
        ("pos", pa.int64()),
    ]
)
"""The position of a record in Kafka and in its source: by the source's clock (microseconds since the epoch), in
PostgreSQL's log (``lsn``), or in MySQL's, where each server has its own positions. Of a file the topic is its URL, the partition
its place in the batch, and the offset the byte at which a record begins: they say nothing of other batches."""

_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """The position at which the source emptied its table: a row of ``_POSITION_SCHEMA``."""

    topic: str
    partition: int
    offset: int | None
    time_us: int | None = None
    lsn: int | None = None
    server_id: int | None = None
    file: str | None = None
    pos: int | None = None

    @property
    def is_of_file(self) -> bool:
        """Whether it comes from a file, whose place in its batch is the partition. No topic has a slash in its name."""
        return self.offset is not None and "/" in self.topic

    @property
    def places(self) -> tuple[str, ...]:
        """The members of a record's ``source`` that show whether it is from before the truncate."""
        if self.lsn is not None:
            return ("lsn",)
        return ("server_id", "file", "pos") if None not in (self.server_id, self.file, self.pos) else ()

    def is_after(self, records: pa.Table, *, is_new: bool = False, or_same: bool = False) -> _Mask:
        """Which records (``_POSITION_SCHEMA``) are from before the truncate, or with ``or_same`` are the truncate itself.

        ``is_new``: the truncate is in the same batch as the records, so its partition has not been replaced in between.
        """
        not_later = _true(pc.less_equal(records["time_us"], pa.scalar(self.time_us, pa.int64())))
        same_partition = np.zeros(len(records), bool)
        in_order = same_partition
        if self.is_of_file and is_new:  # files of one batch have an order too
            same_partition = np.ones(len(records), bool)
            in_order = _true(pc.less(records["partition"], self.partition))
            in_order |= _true(pc.equal(records["partition"], self.partition)) & _true(
                pc.less(records["offset"], self.offset)
            )
        elif self.offset is not None:
            same_partition = _true(pc.equal(records["topic"], self.topic))
            same_partition &= _true(pc.equal(records["partition"], self.partition))
            in_order = same_partition & _true((pc.less_equal if or_same else pc.less)(records["offset"], self.offset))
        comparable, lower, same = self._by_place(records)
        if or_same:
            lower = lower | same
        by_time = (
            _true(pc.less(records["time_us"], pa.scalar(self.time_us, pa.int64()))) & ~comparable & ~same_partition
        )
        return (in_order & (not_later | is_new)) | (comparable & lower & not_later) | by_time

    def _by_place(self, records: pa.Table) -> tuple[_Mask, _Mask, _Mask]:
        """Three masks: records with a position in the same log; those before this truncate; those at its position."""
        nothing = np.zeros(len(records), bool)
        if self.places == ("lsn",):
            lsn = records["lsn"]
            return np.asarray(lsn.is_valid()), _true(pc.less(lsn, self.lsn)), _true(pc.equal(lsn, self.lsn))
        if not self.places:
            return nothing, nothing, nothing
        assert self.file is not None
        file, pos = records["file"], records["pos"]
        comparable = _true(pc.equal(records["server_id"], self.server_id))
        comparable &= np.asarray(file.is_valid()) & np.asarray(pos.is_valid())
        # A file's name ends with a number of fixed width, which gets one more digit when it overflows.
        lengths, length = pc.utf8_length(file), len(self.file)
        earlier = _true(pc.less(lengths, length)) | (_true(pc.equal(lengths, length)) & _true(pc.less(file, self.file)))
        in_file = _true(pc.equal(file, self.file))
        return comparable, earlier | (in_file & _true(pc.less(pos, self.pos))), in_file & _true(pc.equal(pos, self.pos))


@dataclass(frozen=True, slots=True)
class Cutoff:
    """What a table says of its source: the truncates that decide which records of a batch count, and where records are in the
    source's order.
    """

    known: tuple[Truncate, ...] = ()  # truncates of earlier batches
    new: tuple[Truncate, ...] = ()  # truncates of this batch
    begin: int | None = None  # see ``source_order.not_before``
    # how far the changes were that it has (``lateness``); what is kept for a cutoff does not depend on this
    newest: Mapping[tuple[str, int], Newest] = field(default_factory=dict, compare=False)
    last: Mapping[tuple[str, int], Last] = field(default_factory=dict, compare=False)
    """The last record that was read of each partition of the topics that are read."""
    # of the order (``positions.truncates``); what is kept for a cutoff does not depend on these
    restarts: tuple[Restart, ...] = field(default=(), compare=False)
    topic_ids: Mapping[str, str | None] = field(default_factory=dict, compare=False)
    """Of the topics that are read."""
    sources: tuple[tuple[str, str], ...] = ()
    """Topics with the table of the source that their events are of (``decode.source_order``)."""

    def __bool__(self) -> bool:
        return bool(self.known or self.new)

    def of_sources(self, sources: Mapping[str, str], *, without: Collection[str] = ()) -> Cutoff:
        """The same for events of these tables too, by topic. ``without``: topics whose table is not known any more."""
        known = {topic: name for topic, name in self.sources if topic not in without}
        return replace(self, sources=tuple(sorted({**known, **sources}.items())))

    @property
    def places(self) -> frozenset[str]:
        """The members of a record's ``source`` that are needed, besides its times."""
        return frozenset(name for truncate in (*self.known, *self.new) for name in truncate.places)

    def takes(self, records: pa.Table) -> _Mask:
        """Which records (``_POSITION_SCHEMA``) are from before a truncate."""
        taken = np.zeros(len(records), bool)
        for truncate in self.known:
            taken |= truncate.is_after(records)
        for truncate in self.new:
            taken |= truncate.is_after(records, is_new=True)
        return taken

    def knows(self, truncate: Truncate) -> bool:
        """Whether an earlier batch has applied this truncate, or a later one."""
        record = position_of([truncate])
        return any(bool(known.is_after(record, or_same=True)[0]) for known in self.known)

    def remembered(self) -> tuple[Truncate, ...]:
        """The truncates that others need: the newest per partition; of files and records without offsets, the newest of all."""
        newest: dict[tuple[str, int], Truncate] = {}
        for truncate in (*self.known, *self.new):
            is_of_all = truncate.offset is None or truncate.is_of_file
            place = ("", 0) if is_of_all else (truncate.topic, truncate.partition)
            before = newest.get(place)
            if before is None or (truncate in self.new and _is_newer(truncate, before, self.new)):
                newest[place] = truncate
        return tuple(newest.values())


NO_CUTOFF = Cutoff()


def _is_newer(one: Truncate, other: Truncate, new: tuple[Truncate, ...]) -> bool:
    if other not in new:
        return True
    if one.is_of_file and other.is_of_file:
        return (one.partition, one.offset or 0) >= (other.partition, other.offset or 0)
    return (one.offset or 0, one.time_us or 0) >= (other.offset or 0, other.time_us or 0)


def position_of(rows: Iterable[Truncate]) -> pa.Table:
    """Truncates as records (``_POSITION_SCHEMA``)."""
    return pa.Table.from_pylist([asdict(row) for row in rows], _POSITION_SCHEMA)


def positions(records: pa.RecordBatch, times: pa.Array, places: Mapping[str, pa.Array]) -> pa.Table:
    """``_POSITION_SCHEMA`` of records in their order, with the positions of their sources."""
    given = {name: records.column(name) for name in ("topic", "partition", "offset")} | {"time_us": times, **places}
    columns = [given.get(field.name, pa.nulls(records.num_rows, field.type)) for field in _POSITION_SCHEMA]
    return pa.table(columns, schema=_POSITION_SCHEMA)


def cutoff_of(snapshot: Snapshot, topic_ids: Mapping[str, str | None] | None = None) -> Cutoff:
    """What a table says of its source. ``topic_ids``: of topics that are about to be read. Raises Corrupt."""
    text = snapshot.domains.get(SOURCE_TRUNCATES)
    known = truncates_in(SOURCE_TRUNCATES, text) if text is not None else ()
    positions, restarts = positions_of(snapshot), restarts_of(snapshot)
    read = {topic: id for topic, id in (topic_ids or {}).items() if id is not None}
    return Cutoff(
        known,
        begin=None if restarts else snapshot.settings.source_begin,  # it is a place of the order that ended
        newest=newest_by_place(positions),
        last={
            (topic, partition): last
            for topic, position in positions.items()
            if topic in read and read[topic] == position.topic_id
            for partition, last in position.last.items()
        },
        restarts=restarts,
        sources=tuple(sorted(sources_of(snapshot.settings, positions).items())),
        topic_ids={topic: position.topic_id for topic, position in positions.items()} | dict(topic_ids or {}),
    )


def truncates_in(domain: str, text: str) -> tuple[Truncate, ...]:
    """The truncates in an entry of the log. Raises Corrupt."""
    document = document_of(domain, text)
    with reading(domain):
        found: tuple[Truncate, ...] = checked(tuple[Truncate, ...], document["truncates"], "truncates")
        return found


def to_domain(cutoff: Cutoff) -> Domain:
    """The entry of the log that records the truncates, without what says nothing of other batches."""
    kept = [replace(one, offset=None) if one.is_of_file else one for one in cutoff.remembered()]
    return Domain(SOURCE_TRUNCATES, json.dumps({"truncates": list(map(to_json, kept))}))


def to_json(truncate: Truncate) -> dict[str, Any]:
    """The fields that have a value, by name, and always the offset."""
    return {name: value for name, value in asdict(truncate).items() if value is not None or name == "offset"}


def _true(mask: pa.ChunkedArray | pa.Array) -> _Mask:
    """The mask as a NumPy array, with null as False."""
    return np.asarray(pc.fill_null(mask, False), dtype=bool)
