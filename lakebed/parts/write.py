"""Writes parts: sorted Parquet files with their statistics.

1. The rows are split by partition, because a part belongs to one partition.
2. Each piece is sorted by the sort key, or by the keys without one. The first and the last sort key go into its statistics.
   Deletes don't count there unless the order is one of keys: they have no values in other columns, so they would all be null.
3. Arrow writes it (``write_arrow``) under a new uuid name. No name is ever written twice, so a failed attempt leaves an orphan
   and never a wrong row. A sample of the values decides which columns get dictionaries.
"""

from __future__ import annotations

import datetime
import decimal
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.errors import InvalidChanges
from lakebed.lateness import Lateness
from lakebed.log.actions import ChangePart, Part
from lakebed.parts.changes import (
    DELETE,
    HIDDEN_TYPES,
    MOVES_COLUMN,
    NEEDS_ROW_COLUMN,
    OP_COLUMN,
    UNAVAILABLE_COLUMN,
    WriteSpec,
)
from lakebed.parts.key_moves import are_strong
from lakebed.parts.order import sort_order
from lakebed.parts.write_arrow import write_tables
from lakebed.quoting import quote
from lakebed.schema.nested import nullable
from lakebed.sortkey.order_values import key_at
from lakebed.sortkey.ranges import ORDER_BOUNDS, order_columns
from lakebed.sortkey.sort_key import SortTerm
from lakebed.storage.part_storage import PartStorage

ROW_GROUP_ROWS = 40_960
PART_ROWS_MAX = 1_000_000
_SAMPLE_ROWS = 2048
_STRING_BOUND_CHARACTERS = 32
_STRING_ORDER_BOUND_CHARACTERS = 256  # of a sort key: so long may be what all texts begin with, as URLs do
_HIGHEST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPart:
    """A file that no commit lists yet."""

    path: str
    rows: int
    bytes: int
    deletes: int
    incomplete: int
    partition_values: Mapping[str, str | None]
    stats: str
    modified_ms: int
    sort_key_version: int | None = None  # what its rows are sorted by
    checksum: int | None = None  # of the file (``parts.intact``)
    has_more_columns: bool = False  # than the shape of the table
    moves: int = 0  # changes that are counted (``parts.key_moves``)

    def change_part(self, ordinal: int, *, mutation: bool = False, late: Lateness = Lateness.NONE) -> ChangePart:
        """The file as a part of the tail; its version is set by the commit. ``mutation``, ``late``: see ``ChangePart``."""
        return ChangePart(
            path=self.path,
            version=-1,
            ordinal=ordinal,
            rows=self.rows,
            bytes=self.bytes,
            deletes=self.deletes,
            incomplete=self.incomplete,
            moves=self.moves,
            sort_key_version=self.sort_key_version,
            partition_values=self.partition_values,
            stats=self.stats,
            modified_ms=self.modified_ms,
            checksum=self.checksum,
            mutation=mutation,
            late=late,
        )

    def base_part(self, has_op_column: bool) -> Part:
        """The file as a level-0 part of the base; its block range is set by the commit."""
        return Part(
            path=self.path,
            rows=self.rows,
            bytes=self.bytes,
            level=0,
            min_block=-1,
            max_block=-1,
            sort_key_version=self.sort_key_version,
            has_op_column=has_op_column,
            partition_values=self.partition_values,
            stats=self.stats,
            modified_ms=self.modified_ms,
            checksum=self.checksum,
        )

    def to_json(self) -> str:
        return orjson.dumps({name: getattr(self, name) for name in self.__slots__}).decode()

    @classmethod
    def from_json(cls, text: str) -> WrittenPart:
        return cls(**orjson.loads(text))


def write_parts(rows: pa.Table, spec: WriteSpec, storage: PartStorage, names: str = "") -> Iterator[WrittenPart]:
    """Write rows with stored names as parts, one a partition value, none above ``PART_ROWS_MAX`` rows. Empty input: no part.

    ``names``: what the names of the files begin with, before a uuid.
    """
    if UNAVAILABLE_COLUMN in rows.column_names and not _incomplete(rows):
        rows = rows.drop_columns([UNAVAILABLE_COLUMN])
    of_moves = {MOVES_COLUMN, NEEDS_ROW_COLUMN}.intersection(rows.column_names)
    rows = rows.drop_columns([name for name in of_moves if rows[name].null_count == len(rows)])
    for values, piece in _by_partition(rows, spec):
        for start in range(0, len(piece), PART_ROWS_MAX):
            yield _write_one(piece.slice(start, PART_ROWS_MAX).combine_chunks(), values, spec, storage, names)


def _write_one(
    rows: pa.Table, values: Mapping[str, str | None], spec: WriteSpec, storage: PartStorage, names: str
) -> WrittenPart:
    # A delete has nulls where the table allows none, and so has a struct that is null.
    rows = rows.cast(pa.schema([pa.field(field.name, nullable(field.type)) for field in rows.schema]))
    dictionary = _repetitive(rows)
    terms = spec.terms
    order = sort_order(rows, terms) if terms else np.arange(len(rows))
    groups = (order[start : start + ROW_GROUP_ROWS] for start in range(0, len(rows), ROW_GROUP_ROWS))
    path, count, size, checksum, column_stats = write_tables(
        (rows.take(pa.array(group)) for group in groups),
        rows.schema,
        dictionary,
        ROW_GROUP_ROWS,
        storage,
        order=terms,
        field_ids=spec.field_ids,
        names=names,
    )
    stats = delta_stats(count, column_stats, spec.schema)
    is_delete = np.zeros(count, dtype=bool)
    if OP_COLUMN in rows.column_names:
        is_delete = pc.fill_null(pc.equal(rows[OP_COLUMN], DELETE), False).to_numpy()
    bounded = order_bound_terms(spec)
    counted = order if bounds_count_deletes(spec) else order[~is_delete[order]]
    if bounded and len(counted):
        stats = with_needed_order_bounds(
            stats, bounded, key_at(rows, int(counted[0]), bounded), key_at(rows, int(counted[-1]), bounded)
        )
    incomplete = 0
    if UNAVAILABLE_COLUMN in rows.column_names:
        incomplete = _incomplete(rows)
    if NEEDS_ROW_COLUMN in rows.column_names:
        incomplete += pc.sum(rows[NEEDS_ROW_COLUMN]).as_py() or 0
    moves = int(np.count_nonzero(are_strong(rows[MOVES_COLUMN]))) if MOVES_COLUMN in rows.column_names else 0
    return WrittenPart(
        path=path,
        rows=count,
        bytes=size,
        deletes=int(np.count_nonzero(is_delete)),
        incomplete=incomplete,
        moves=moves,
        partition_values=dict(values),
        stats=stats,
        modified_ms=int(time.time() * 1000),
        sort_key_version=spec.order_version,
        checksum=checksum,
        has_more_columns=not {*spec.schema.names, *HIDDEN_TYPES, *spec.hidden_orders}.issuperset(rows.column_names),
    )


def _incomplete(rows: pa.Table) -> int:
    """How many rows lack values."""
    return pc.sum(pc.greater(pc.list_value_length(rows[UNAVAILABLE_COLUMN]), 0)).as_py() or 0


def _repetitive(rows: pa.Table) -> list[str]:
    """The columns whose values are worth a dictionary: in a sample from all over the rows, most appear again."""
    sample = rows
    if len(rows) > _SAMPLE_ROWS:
        sample = rows.take(pa.array(np.linspace(0, len(rows) - 1, _SAMPLE_ROWS).astype(np.int64)))
    flat = [field.name for field in rows.schema if not pa.types.is_nested(field.type)]
    return [name for name in flat if 2 * pc.count_distinct(sample[name], mode="all").as_py() <= len(sample)]


def _by_partition(rows: pa.Table, spec: WriteSpec) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    if not len(rows):
        return
    if not spec.partition_by:
        yield {}, rows
        return
    names = list(spec.partition_by)
    numbered = rows.select(names).append_column("_lakebed_row", pa.array(np.arange(len(rows))))
    groups = numbered.group_by(names, use_threads=False).aggregate([("_lakebed_row", "list")])
    for group, places in zip(groups.select(names).to_pylist(), groups["_lakebed_row_list"], strict=True):
        yield {name: partition_text(value) for name, value in group.items()}, rows.take(places.values)


def partition_text(value: Any) -> str | None:
    """A partition value as it is in the log (Delta PROTOCOL.md, "Partition Value Serialization")."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
            return str(value.isoformat(timespec="microseconds")) + "Z"
        return str(value.isoformat(" ", timespec="microseconds"))  # strftime would write the year 1 in one digit
    if isinstance(value, decimal.Decimal):
        return format(value, "f")  # str would write small ones with an exponent
    if isinstance(value, bytes):
        return _partition_of_bytes(value)
    return str(value)


def _partition_of_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidChanges(
            f"a partition has the value {value!r}; only bytes that are UTF-8 can be in the log"
        ) from None


def delta_stats(rows: int, column_stats: Mapping[str, Mapping[str, str]], schema: pa.Schema) -> str:
    """Delta's statistics JSON from what the writer returns, for the top-level columns."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in schema:
        found = column_stats.get(quote(field.name))
        if found is None or pa.types.is_struct(field.type):  # of a struct, Delta counts the nulls of its leaves
            continue
        if "null_count" in found:
            nulls[field.name] = int(found["null_count"])
        if "min" in found and "max" in found and found.get("has_nan") != "true":
            bounds = _bound(found["min"], field.type, False), _bound(found["max"], field.type, True)
            if bounds[0] is not None and bounds[1] is not None:
                low[field.name], high[field.name] = bounds
    return orjson.dumps({"numRecords": rows, "minValues": low, "maxValues": high, "nullCount": nulls}).decode()


def order_bound_terms(spec: WriteSpec) -> tuple[SortTerm, ...]:
    """The terms whose first and last values a part records, if they are needed (``with_needed_order_bounds``)."""
    return order_columns(spec.schema, spec.order_by, spec.partition_by, spec.sort_key_frame)


def bounds_count_deletes(spec: WriteSpec) -> bool:
    """Whether deletes have values in all columns of the order, because all are keys."""
    return all(name in spec.keys for term in spec.terms for name in term.columns)


def _is_one_column(terms: Sequence[SortTerm]) -> bool:
    """Whether the order is that of one column, ascending with nulls first."""
    return [term.name for term in terms] == [name for term in terms[:1] for name in term.columns]


def with_needed_order_bounds(
    stats: str, terms: Sequence[SortTerm], first: Sequence[pa.Scalar], last: Sequence[pa.Scalar]
) -> str:
    """Statistics that also record the first and the last sort key of a sorted part, unless its column's bounds say as much.

    They do for one column, ascending with nulls first, whose bounds are exact: of whole numbers, decimals, dates and short texts.
    Those of floating-point columns are not: with NaN or an infinity among the values there are none. Those of timestamps lie on
    milliseconds, those of texts are cut. And if only deletes are null in the column, they say too little.
    """
    if _is_one_column(terms) and all(map(_is_whole_in_bounds, (*first, *last))):
        nulls = orjson.loads(stats)["nullCount"].get(terms[0].name)
        if nulls == 0 or not first[0].is_valid:
            return stats
    return with_order_bounds(stats, terms, first, last)


def _is_whole_in_bounds(value: pa.Scalar) -> bool:
    """Whether the bounds of a column keep such a value exactly."""
    if pa.types.is_integer(value.type) or pa.types.is_decimal(value.type):
        return True
    if pa.types.is_string(value.type):
        return not value.is_valid or len(value.as_py()) <= _STRING_BOUND_CHARACTERS
    return bool(pa.types.is_date(value.type)) and _is_of_known_years(value)


def _is_of_known_years(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except (ValueError, OverflowError):  # beyond the years that Python knows
        return False
    return True


def with_order_bounds(
    stats: str, order: Sequence[SortTerm], first: Sequence[pa.Scalar], last: Sequence[pa.Scalar]
) -> str:
    """Statistics that also record the first and the last sort key of a sorted part, as ``sortkey.ranges`` reads them.

    Bounds of each column by itself say too little of a part that begins in one value of the first column and ends in another.
    """
    lower, upper = _tuple_bound(order, first, False), _tuple_bound(order, last, True)
    bounds = {"columns": [term.name for term in order], "lower": lower, "upper": upper}
    return f'{stats[:-1]},"{ORDER_BOUNDS}":{orjson.dumps(bounds).decode()}}}'


def _tuple_bound(order: Sequence[SortTerm], row: Sequence[pa.Scalar], is_upper: bool) -> list[Any]:
    """The row's values as far as JSON can hold them; one that is cut is the last."""
    out: list[Any] = []
    for term, scalar in zip(order, row, strict=True):
        is_max = is_upper != term.is_descending
        if not _is_of_known_years(scalar):
            out += [] if (scalar.value > 0) == is_max else [_nearest_known(scalar)]
            break
        value = scalar.as_py()
        if value is None or isinstance(value, int):
            out.append(value)
        elif isinstance(value, str):
            bound = _string_bound(value, is_max, _STRING_ORDER_BOUND_CHARACTERS)
            out += [] if bound is None else [bound]
            if bound != value:
                break
        elif isinstance(value, datetime.date):
            out.append(value.isoformat())
        elif isinstance(value, decimal.Decimal):
            out.append(orjson.Fragment(format(value, "f")))
        elif isinstance(value, float):
            out.append(value if math.isfinite(value) else str(value))  # JSON has no number for these
        else:
            break
    return out


def _nearest_known(scalar: pa.Scalar) -> str:
    """The nearest moment or day that Python can represent, for one that it can't."""
    of: type[datetime.date] = datetime.date if pa.types.is_date(scalar.type) else datetime.datetime
    return (of.max if scalar.value > 0 else of.min).isoformat()


def _bound(text: str, kind: pa.DataType, is_max: bool) -> Any:
    """A bound that holds for every value: strings cut (a maximum raised), timestamps to the millisecond outward."""
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_floating(kind):
        number = float(text)
        return number if math.isfinite(number) else None
    if pa.types.is_decimal(kind):
        return orjson.Fragment(format(decimal.Decimal(text), "f"))
    if pa.types.is_date(kind):
        return text if len(text) == 10 else None
    if pa.types.is_string(kind):
        return _string_bound(text, is_max)
    if pa.types.is_timestamp(kind):
        return _timestamp_bound(text, kind, is_max)
    return None


def _string_bound(text: str, is_max: bool, characters: int = _STRING_BOUND_CHARACTERS) -> str | None:
    """The text cut to so many characters.

    A maximum is cut before a character that is not the highest one, so that the highest one there is above it; None if there is
    no such place within as many characters again.
    """
    cut = characters
    while is_max and text[cut : cut + 1] == _HIGHEST_CHARACTER:
        cut += 1
    if cut > 2 * characters:
        return None
    if len(text) <= cut:
        return text
    return text[:cut] + _HIGHEST_CHARACTER if is_max else text[:cut]


def _timestamp_bound(text: str, kind: pa.DataType, is_max: bool) -> str | None:
    try:
        moment = datetime.datetime.fromisoformat(text + ":00" if text[-3:-2] in "+-" else text)
    except ValueError:  # beyond the years that Python knows
        return None
    if moment.tzinfo:
        moment = moment.astimezone(datetime.UTC)
    if moment.microsecond % 1000:
        moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
        if is_max:
            try:
                moment += datetime.timedelta(milliseconds=1)
            except OverflowError:  # the last millisecond of the year 9999 has none after it
                moment = datetime.datetime.max
    is_last = moment.microsecond % 1000
    out = moment.replace(tzinfo=None).isoformat(timespec="microseconds" if is_last else "milliseconds")
    return out + "Z" if kind.tz else out
