"""Which columns of a table the records of its topics have, so that it shows where a change of the source leaves old rows wrong.

A source changes rows without an event for any of them: a column that is added with a default has the default in all rows, one
that is renamed keeps its values, and one that is dropped and added again loses them. The rows that the table has are not told.
What shows it are the schemas of the records before and after (``RecordColumns``):

    1.  A column that the schemas of a topic lack is *gone* from then on. One that was added to the table is gone as well, since
        no record had it before.
    2.  It is *back* with the first record that has it and is newer, by the source's clock, or else by its offset.
    3.  When it comes back, old rows may be wrong if the schema says that every row has a value (it may not be null, or has a
        default), if another column of its type is gone since (it may have been renamed), or if the table has values from before
        it was gone.
    4.  Records that come again, or late from another partition, change nothing that newer ones have shown.
    5.  Nothing is followed in a topic with events of several source tables, whose columns may differ.

The entry ``lakebed.source_columns`` of the table's log keeps which columns were gone, and when they were back. It is written when
one goes or comes, so seldom.

    {"added": ["coupon"], "topics": {"shop.public.orders": {"note": {"gone": [1700000000000000, 41], "back": null}}}}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import orjson
import pyarrow as pa

from lakebed.log.actions import ChangePart, Domain, Part
from lakebed.log.entries import SOURCE_COLUMNS
from lakebed.log.entry_values import decoded, readable_or_none
from lakebed.log.snapshot import Snapshot
from lakebed.positions.positions import newest_by_place, positions_of
from lakebed.positions.remarks import Remarks
from lakebed.positions.resnapshots import active
from lakebed.remarks import Counts, Remark, remarks_on

Moment = tuple[int, ...]
"""The time of a record by the source's clock, in microseconds since the epoch, and its offset."""
_LONG_AGO: Moment = ()


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """What the schema of records says of the columns of their table."""

    lacking: tuple[str, ...] = ()
    """Those for which it has no field."""
    filled: tuple[str, ...] = ()
    """Those that have a value in every row: they may not be null, or have a default."""


@dataclass(frozen=True, slots=True)
class Span:
    """The first and the last record of some."""

    first: Moment
    last: Moment

    def with_(self, other: Span | None) -> Span:
        """The span of both."""
        return self if other is None else Span(min(self.first, other.first), max(self.last, other.last))


Met = Mapping[tuple[str, RecordColumns], Span]
"""By topic and schema, the first and the last record."""


def met_in(several: Iterable[Met]) -> dict[tuple[str, RecordColumns], Span]:
    """Several as one."""
    found: dict[tuple[str, RecordColumns], Span] = {}
    for one in several:
        for key, span in one.items():
            found[key] = span.with_(found.get(key))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Since when records of a topic lack a column, and since when they have it again."""

    gone: tuple[int, ...]
    back: tuple[int, ...] | None = None

    @property
    def is_gone(self) -> bool:
        return self.back is None or self.back < self.gone


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceColumns:
    """The columns that were gone at some time. ``added``: to the table, when it had rows."""

    added: tuple[str, ...] = ()
    topics: Mapping[str, Mapping[str, Column]]

    def column(self, topic: str, name: str) -> Column | None:
        """What is known of a column; None if records have always had it."""
        known = self.topics.get(topic, {}).get(name)
        return Column(gone=_LONG_AGO) if known is None and name in self.added else known

    def with_added(self, names: Iterable[str]) -> _SourceColumns:
        """After these columns were added to the table."""
        new = tuple(names)
        topics = {topic: _without(columns, new) for topic, columns in self.topics.items()}
        return _SourceColumns(added=tuple(dict.fromkeys([*self.added, *new])), topics=topics)

    def among(self, names: Sequence[str]) -> _SourceColumns:
        """Without columns that the table does not have any more."""
        kept = {topic: {name: one for name, one in of.items() if name in names} for topic, of in self.topics.items()}
        return _SourceColumns(added=tuple(name for name in self.added if name in names), topics=kept)

    def to_entry(self) -> Domain:
        """The entry of the log."""
        return Domain(SOURCE_COLUMNS, orjson.dumps(asdict(self)).decode())


_NO_COLUMNS = _SourceColumns(topics={})


@dataclass(frozen=True, slots=True)
class Followed:
    """What a batch shows. ``entry``: None if it changes nothing."""

    entry: Domain | None = None
    doubtful: tuple[str, ...] = ()
    """Columns in which older rows may be wrong."""
    since_ms: int | None = None
    """When a resnapshot was asked for whose rows will be right in these columns, in epoch milliseconds; None: there is none."""

    @property
    def counts(self) -> Counts:
        """The remarks on the columns, without those that were made before."""
        return remarks_on(Remark.RESNAPSHOT_ADVISED, dict.fromkeys(self.doubtful, 1))

    def remarks(self, before: Remarks, now_ms: int) -> Remarks:
        """The remarks of a table after those on the columns. They end with the resnapshot, if its rows will be right."""
        if not self.doubtful:
            return before
        return before.plus(self.counts, now_ms if self.since_ms is None else self.since_ms - 1)


def source_columns_of(snapshot: Snapshot) -> _SourceColumns:
    """What a table's log keeps; nothing if that can't be read."""
    found = readable_or_none(SOURCE_COLUMNS, snapshot.domains.get(SOURCE_COLUMNS), source_columns_in)
    return found or _NO_COLUMNS


def source_columns_in(domain: str, text: str) -> _SourceColumns:
    """The value of the entry. Raises Corrupt."""
    return decoded(_SourceColumns, domain, text)


def followed(snapshot: Snapshot, met: Met, *, is_emptied: bool = False) -> Followed:
    """What a batch shows that met these schemas.

    ``snapshot``: the table before the batch. ``is_emptied``: whether the batch has a truncate of the source, so that only its own
    rows stay.
    """
    known = source_columns_of(snapshot)
    if not any(columns.lacking for _, columns in met) and known == _NO_COLUMNS:
        return Followed()
    topics, doubtful = dict(known.topics), dict[str, None]()
    for topic in dict.fromkeys(topic for topic, _ in met):
        spans = {columns: span for (name, columns), span in met.items() if name == topic}
        of_topic = _OfTopic(
            snapshot, known, topic, spans, has_rows=bool(snapshot.parts or snapshot.tail) and not is_emptied
        )
        topics[topic] = {**topics.get(topic, {}), **dict(of_topic.columns())}
        doubtful |= dict.fromkeys(of_topic.doubtful)
    now = replace(known, topics={topic: of for topic, of in topics.items() if of}).among(snapshot.logical_schema.names)
    return Followed(None if now == known else now.to_entry(), tuple(doubtful), _covering(snapshot, met, doubtful))


def _covering(snapshot: Snapshot, met: Met, doubtful: Iterable[str]) -> int | None:
    """When the resnapshot was asked for of which no row came before the columns were back."""
    asked = active(snapshot)
    if asked is None or asked.came or asked.is_partial:
        return None
    return None if any(name in columns.lacking for _, columns in met for name in doubtful) else asked.asked_ms


class _OfTopic:
    """What the records of one topic in a batch show."""

    def __init__(
        self,
        snapshot: Snapshot,
        known: _SourceColumns,
        topic: str,
        spans: Mapping[RecordColumns, Span],
        *,
        has_rows: bool,
    ) -> None:
        """``has_rows``: whether rows stay that came before the batch."""
        self._snapshot = snapshot
        self._has_rows = has_rows
        self._types = {one.name: one.type for one in snapshot.logical_schema}
        self._known = known
        self._topic = topic
        self._spans = spans
        before = (one.time_us for (name, _), one in newest_by_place(positions_of(snapshot)).items() if name == topic)
        self._read_to = max(before, default=0)
        """The latest time of what was read before: what is older comes late."""
        self.doubtful: list[str] = []

    def columns(self) -> Iterator[tuple[str, Column]]:
        """What is known of the columns after the batch; those of which nothing is new need not be among them."""
        lacked = {name for columns in self._spans for name in columns.lacking}
        seen = {*lacked, *self._known.added, *self._known.topics.get(self._topic, {})}
        for name in sorted(seen & self._types.keys()):
            column = self._column(name)
            if column is not None and column != self._known.column(self._topic, name):
                yield name, column

    def _column(self, name: str) -> Column | None:
        before = self._known.column(self._topic, name)
        lacking = [span for columns, span in self._spans.items() if name in columns.lacking]
        having = {columns: span for columns, span in self._spans.items() if name not in columns.lacking}
        lacked = max((span.last for span in lacking), default=None)
        gone = before
        if lacked is not None and before is None:
            gone = Column(gone=lacked if lacked >= (self._read_to,) else _LONG_AGO)
        elif lacked is not None and before is not None and before.back is not None and before.back < lacked:
            gone = Column(gone=lacked)
        if gone is None or not gone.is_gone or not having:
            return gone
        missed = max(gone.gone, lacked or _LONG_AGO)
        back = max(span.last for span in having.values())
        if back <= missed:
            return Column(gone=missed) if back > gone.gone else gone
        since = {columns: max(span.first, missed) for columns, span in having.items() if span.last > missed}
        columns = min(since, key=lambda one: since[one])
        if lacked is not None or self._has_rows:
            first = min(span.first for span in having.values())
            if (
                name in columns.filled
                or any(self._is_renamed(other, name) for other in columns.lacking)
                or (gone.gone != _LONG_AGO and (first < gone.gone or self._may_have_values(name)))
                or (lacked is not None and first[:1] < lacked[:1])  # offsets of different partitions can't be compared
            ):
                self.doubtful.append(name)
        return replace(gone, back=back)

    def _is_renamed(self, old: str, new: str) -> bool:
        """Whether a column that is gone may be called otherwise now: no record between lacks both."""
        known = self._known.column(self._topic, old)
        had = max((span.last for columns, span in self._spans.items() if old not in columns.lacking), default=_LONG_AGO)
        has = min(span.first for columns, span in self._spans.items() if new not in columns.lacking)
        between = any(
            {old, new}.issubset(columns.lacking) and span.last > had and span.first < has
            for columns, span in self._spans.items()
        )
        was_there = known is None or not known.is_gone or had > known.gone
        if not was_there or between or self._types.get(old) != self._types[new]:
            return False
        return had != _LONG_AGO or self._may_have_values(old)

    def _may_have_values(self, column: str) -> bool:
        return self._has_rows and _may_have_values(self._snapshot, column)


def _may_have_values(snapshot: Snapshot, column: str) -> bool:
    """Whether a row of the table may have a value in a column other than null."""
    names = dict(zip(snapshot.logical_schema.names, snapshot.schema.names, strict=True))
    stored = names[column]
    if pa.types.is_nested(snapshot.logical_schema.field(column).type):
        return True
    parts: list[Part | ChangePart] = [*snapshot.parts.values(), *snapshot.tail.values()]
    for part in parts:
        stats = orjson.loads(part.stats) if part.stats else {}
        if stored in part.partition_values or stats.get("nullCount", {}).get(stored) != stats.get("numRecords"):
            return True
    return False


def _without(columns: Mapping[str, Column], names: Iterable[str]) -> dict[str, Column]:
    return {name: column for name, column in columns.items() if name not in set(names)}
