"""Truncates of a source: which records are from before a truncate, and which truncates were applied before.

Within a partition of a topic the offset orders exactly. Elsewhere the source's own position decides (``Position``):
its position in its log, which is exact as long as it is the log of the same server, and else its clock. A position counts
only together with the clock: a source that moved to another server starts its log again, at lower positions and later times.

A record is from before a truncate if
    1.  it is of the truncate's partition and has a lower offset; or
    2.  both have a position in the same log, and the record's is lower; or
    3.  they have not, the record is of another partition, and it is earlier by the source's clock.
Of a truncate of an earlier batch this holds only for records that are not later by the clock: the topic, or the server, may
be another one by now. So a record is left out only if everything that is known says that it came first. A record
that can't be ordered stays: at the same time, in another partition, of a source without positions.

A truncate was applied before if it is one that the table has seen, or from before one: a source sends again what it sent since
its last checkpoint, and a topic may be read again from its beginning. Then it removes nothing: the records between it
and now are newer, and those before it are left out anyway.

A table remembers the newest truncate of each partition that had one (``lakebed.source_truncates``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.manifest.actions import Domain
from lakebed.manifest.entries import SOURCE_TRUNCATES
from lakebed.manifest.snapshot import Snapshot

POSITION_SCHEMA = pa.schema(
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
"""The position of a record in Kafka and of its source: by its clock (microseconds since the epoch), in PostgreSQL's
log, and in MySQL's, where each server counts for itself. A record of a file has no offset."""

_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """The source emptied its table here: a row of ``POSITION_SCHEMA``."""

    topic: str
    partition: int
    offset: int | None
    time_us: int | None = None
    lsn: int | None = None
    server_id: int | None = None
    file: str | None = None
    pos: int | None = None

    @property
    def places(self) -> tuple[str, ...]:
        """The members of a record's ``source`` that say whether it is from before."""
        if self.lsn is not None:
            return ("lsn",)
        return ("server_id", "file", "pos") if None not in (self.server_id, self.file, self.pos) else ()

    def is_after(self, records: pa.Table, *, is_new: bool = False, or_same: bool = False) -> _Mask:
        """Which records (``POSITION_SCHEMA``) are from before; ``or_same``: or are this truncate.

        ``is_new``: the truncate is of the same batch, so that its partition is the same one.
        """
        not_later = _true(pc.less_equal(records["time_us"], pa.scalar(self.time_us, pa.int64())))
        same_partition = np.zeros(len(records), bool)
        in_order = same_partition
        if self.offset is not None:
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
        """Which records have a position in the same log; of those, which are before this truncate and which at its position."""
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
        # A number is at the end of a file's name, and has a digit more when it needs one.
        lengths, length = pc.utf8_length(file), len(self.file)
        earlier = _true(pc.less(lengths, length)) | (_true(pc.equal(lengths, length)) & _true(pc.less(file, self.file)))
        in_file = _true(pc.equal(file, self.file))
        return comparable, earlier | (in_file & _true(pc.less(pos, self.pos))), in_file & _true(pc.equal(pos, self.pos))


@dataclass(frozen=True, slots=True)
class Cutoff:
    """The truncates that decide which records of a batch still count: those of earlier batches, and the batch's own."""

    known: tuple[Truncate, ...] = ()
    new: tuple[Truncate, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.known or self.new)

    @property
    def places(self) -> frozenset[str]:
        """The members of a record's ``source`` that are asked for, beside its times."""
        return frozenset(name for truncate in (*self.known, *self.new) for name in truncate.places)

    def takes(self, records: pa.Table) -> _Mask:
        """Which records (``POSITION_SCHEMA``) are from before a truncate."""
        taken = np.zeros(len(records), bool)
        for truncate in self.known:
            taken |= truncate.is_after(records)
        for truncate in self.new:
            taken |= truncate.is_after(records, is_new=True)
        return taken

    def knows(self, truncate: Truncate) -> bool:
        """Whether an earlier batch did what this truncate asks for."""
        record = position_of([truncate])
        return any(bool(known.is_after(record, or_same=True)[0]) for known in self.known)

    def remembered(self) -> tuple[Truncate, ...]:
        """What later batches must know: the newest of each partition; of records without offsets, the newest of all."""
        newest: dict[tuple[str, int], Truncate] = {}
        for truncate in (*self.known, *self.new):
            place = ("", 0) if truncate.offset is None else (truncate.topic, truncate.partition)
            before = newest.get(place)
            if before is None or (truncate in self.new and _is_newer(truncate, before, self.new)):
                newest[place] = truncate
        return tuple(newest.values())


NO_CUTOFF = Cutoff()


def _is_newer(one: Truncate, other: Truncate, new: tuple[Truncate, ...]) -> bool:
    if other not in new:
        return True
    return (one.offset or 0, one.time_us or 0) >= (other.offset or 0, other.time_us or 0)


def position_of(rows: Iterable[Truncate]) -> pa.Table:
    """Truncates as records (``POSITION_SCHEMA``)."""
    return pa.Table.from_pylist([asdict(row) for row in rows], POSITION_SCHEMA)


def positions(records: pa.RecordBatch, times: pa.Array, places: Mapping[str, pa.Array]) -> pa.Table:
    """``POSITION_SCHEMA`` of records in their order, with the positions of their sources."""
    known = {name: records.column(name) for name in ("topic", "partition", "offset")} | {"time_us": times, **places}
    columns = [known.get(field.name, pa.nulls(records.num_rows, field.type)) for field in POSITION_SCHEMA]
    return pa.table(columns, schema=POSITION_SCHEMA)


def cutoff_of(snapshot: Snapshot) -> Cutoff:
    """The truncates that a table has seen."""
    text = snapshot.domains.get(SOURCE_TRUNCATES)
    return Cutoff(tuple(Truncate(**one) for one in json.loads(text).get("truncates", ()))) if text else Cutoff()


def to_domain(cutoff: Cutoff) -> Domain:
    """The entry of the log that holds them."""
    return Domain(SOURCE_TRUNCATES, json.dumps({"truncates": [to_json(one) for one in cutoff.remembered()]}))


def to_json(truncate: Truncate) -> dict[str, Any]:
    """What is known of it, by name."""
    return {name: value for name, value in asdict(truncate).items() if value is not None or name == "offset"}


def _true(mask: pa.ChunkedArray | pa.Array) -> _Mask:
    """Null is no."""
    return np.asarray(pc.fill_null(mask, False), dtype=bool)
