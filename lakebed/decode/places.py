"""Where decoded changes are in the order of their source, and whether that order begins again (``lateness``).

One change after the other is compared with all before it in its partition, also with those that were read before. One that is
lower, and later by the source's clock, shows that the order has begun again; so does one that is far lower, and not earlier. What
a connector sends again is earlier by the clock. Where neither is certain, the settle sees whether changes lose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.metadata import metadata_path
from lakebed.decode.source_order import ORDERS
from lakebed.lateness import CLOCK_STEP_US, FAR, Newest, Place
from lakebed.parts.changes import SEQUENCE_COLUMN
from lakebed.positions.source_columns import Met, RecordColumns, Span, met_in
from lakebed.positions.truncates import Cutoff

_ORDERS = frozenset(ORDERS) | {("source", "commit_ts"), ("kafka", "offset")}
"""Metadata that grow from record to record of a partition, as the clock does."""
_INT64 = np.iinfo(np.int64)
_Numbers = npt.NDArray[np.int64]
_Partitions = Mapping[Place, npt.NDArray[np.bool_] | None]
"""The partitions of some records, and which records each has; None: all of them."""


def restarted(rows: pa.Table, records: pa.Table, numbers: _Numbers, cutoff: Cutoff) -> pa.Table:
    """The rows with the places that they have since the order was restarted. ``numbers``: of their records."""
    if not cutoff.restarts or SEQUENCE_COLUMN not in rows.column_names:
        return rows
    topics, offsets = records["topic"], np.asarray(pc.fill_null(records["offset"], -1))
    partitions = np.asarray(pc.fill_null(records["partition"], -1))
    add = np.zeros(len(records), dtype=np.int64)
    for one in cutoff.restarts:
        of_topic = np.asarray(pc.fill_null(pc.equal(topics, one.topic), False))
        for partition in np.unique(partitions[of_topic]).tolist():
            start = one.offset(partition, cutoff.topic_ids.get(one.topic))
            add[of_topic & (partitions == partition) & (offsets >= start)] = one.add
    more = add[numbers]
    places = np.asarray(rows[SEQUENCE_COLUMN])
    at = rows.column_names.index(SEQUENCE_COLUMN)
    moved = np.minimum(places, _INT64.max - more) + more  # the greatest number stands for all beyond it
    return rows.set_column(at, rows.schema.field(at), pa.chunked_array([pa.array(moved)]))


def compared(
    rows: pa.Table,
    partitions: _Partitions,
    numbers: _Numbers,
    times: pa.ChunkedArray,
    schema: DecoderSchema,
    cutoff: Cutoff,
) -> tuple[dict[Place, Newest], int]:
    """How far the rows are in the order of their source, by partition, if it has one; and how many show that it began again.

    ``numbers``: of their records; ``times``: of the rows.
    """
    if metadata_path(schema.sequence_metadata) not in _ORDERS or not len(rows):
        return {}, 0
    known = np.asarray(times.is_valid())
    places, micros, numbers = np.asarray(rows[SEQUENCE_COLUMN])[known], np.asarray(times.drop_null()), numbers[known]
    found: dict[Place, Newest] = {}
    again = 0
    for place, is_there in partitions.items():
        mine = slice(None) if is_there is None else is_there[numbers]
        if not len(places[mine]):
            continue
        found[place] = Newest(int(places[mine].max()), int(micros[mine].max()))
        again += _begun_again(places[mine], micros[mine], cutoff.newest.get(place))
    return found, again


def regions_of(records: pa.Table) -> list[tuple[int, int]]:
    """The records of one partition that follow each other, as the numbers of the first and behind the last."""
    if not len(records):
        return []
    changes = np.zeros(len(records) - 1, bool)
    for name in ("topic", "partition"):
        column = records.column(name)
        changes |= np.asarray(pc.fill_null(pc.not_equal(column.slice(1), column.slice(0, len(changes))), True))
    ends = [*(np.flatnonzero(changes) + 1).tolist(), len(records)]
    return list(zip([0, *ends], ends, strict=False))


def partitions_of(records: pa.Table, regions: Sequence[tuple[int, int]]) -> _Partitions:
    """The partitions of some records, in ``regions_of`` them."""
    firsts = records.select(["topic", "partition"]).take(pa.array([begin for begin, _ in regions], pa.int64()))
    found: dict[Place, npt.NDArray[np.bool_]] = {}
    for (begin, end), place in zip(regions, zip(*(each.to_pylist() for each in firsts), strict=True), strict=True):
        found.setdefault(place, np.zeros(len(records), bool))[begin:end] = True
    return found if len(found) > 1 else dict.fromkeys(found)


def met_by(
    records: pa.Table,
    partitions: _Partitions,
    numbers: _Numbers,
    times: pa.ChunkedArray,
    schemas: Mapping[RecordColumns, Sequence[_Numbers]],
) -> Met:
    """The first and the last record of each schema that has rows. ``numbers``: of their records; ``times``: of the rows."""
    if not schemas or not len(numbers):
        return {}
    of_record = np.full(len(records), -1)
    for at, places in enumerate(schemas.values()):
        of_record[np.concatenate(places)] = at
    of_row = of_record[numbers]
    found = []
    for (topic, _), is_there in partitions.items():
        for at, columns in enumerate(schemas):
            mine = np.flatnonzero((of_row == at) & (True if is_there is None else is_there[numbers]))
            if len(mine):
                first, last = (
                    (times[row].as_py() or 0, _offset(records, numbers[row])) for row in mine[[0, -1]].tolist()
                )
                found.append({(str(topic), columns): Span(first, last)})
    return met_in(found)


def _offset(records: pa.Table, number: int) -> int:
    offset = records["offset"][int(number)].as_py()
    return -1 if offset is None else int(offset)


def _begun_again(places: _Numbers, micros: _Numbers, before: Newest | None) -> int:
    """How many changes of one partition show that the order began again."""
    highest = _highest_before(places, before.place if before else _INT64.min)
    lower = places < highest
    if not lower.any():
        return 0
    latest = _highest_before(micros, before.time_us if before else _INT64.min)[lower]
    places, micros, highest = places[lower], micros[lower], highest[lower]
    is_later = micros > latest + CLOCK_STEP_US
    is_far = (places < highest - FAR) & (micros >= latest)
    return int(np.count_nonzero(is_later | is_far))


def _highest_before(values: _Numbers, first: int) -> _Numbers:
    """For each value, the highest one before it."""
    return np.maximum.accumulate(np.concatenate(([first], values[:-1])))
