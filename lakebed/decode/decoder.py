"""Decoders turn records into changes of a table. Here are the protocol, its input and its result.

Invariants
    D1  Every record becomes exactly one of: change rows, a quarantined record, a truncate, or a count in ``ignored`` or in
        ``truncated``.
    D2  Change rows are in record order; the two rows of a changed key follow each other, the delete first.
    D3  Decoding is a pure function of the records, the cutoff, the table's schema and the options: a batch that comes again gives
        the same rows. If schema or options changed since, no record is lost or doubled for it (``handover``).

``Tally`` is what is known of records besides the rows that they became, from their decoding to the commit.

**Formats with a schema**: their records are bytes of a schema that stands elsewhere, in a registry or in a file. A format
compiles the schema that records were written with, once, into a reader. The reader turns the bytes of many records into one Arrow
batch. What the rows mean for a table is decided elsewhere (``typed.records``).

Natural types: what a reader makes of a schema, before any table is known
    booleans, integers of 8 to 64 bits (unsigned ones as the next wider signed type; of 64 bits as ``decimal128(20, 0)``), floats,
    strings (also enums and UUIDs), binary (also fixed), lists, structs, maps with string keys, dates as ``date32``, timestamps
    with zone UTC or without as the schema says, times of day as int64 with a logical type, decimals of up to 38 digits as
    ``decimal128`` of their precision and scale. A union of several types is a struct with one nullable field a type.
    What these types can't say is in the logical types: a long with the name ``io.debezium.time.MicroTimestamp`` is an int64 with
    ``Kind.TIMESTAMP_US``, and a decimal of unknown or larger precision is binary with ``Kind.DECIMAL_BYTES``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.json.columns import MILLIS_MAX
from lakebed.decode.json.connect_types import LogicalType
from lakebed.decode.json.text import Mismatch
from lakebed.decode.metadata import headers_of
from lakebed.decode.source_order import NO_RULES, SourceRules, all_seen
from lakebed.errors import InvalidInput, InvalidSchema
from lakebed.lateness import Newest, Place, newest_of
from lakebed.parts.changes import OP_COLUMN, SEQUENCE_COLUMN, UNAVAILABLE_COLUMN
from lakebed.parts.fills import Fill
from lakebed.parts.quarantine import QUARANTINE_SCHEMA, WITH_HEADERS
from lakebed.positions.positions import Last, Seen, last_of
from lakebed.positions.source_columns import Met, RecordColumns, met_in
from lakebed.positions.truncates import NO_CUTOFF, Cutoff, Truncate
from lakebed.remarks import Counts, sum_of
from lakebed.schema.change import SchemaChange
from lakebed.schema.conversion import is_reserved
from lakebed.schema.fitting import FIXED, RESCUED_COLUMN, EvolvePolicy, Needed, merged, needed
from lakebed.settings import suggest

LEVELS_MAX = 64
"""Schemas and values that are nested deeper are refused."""

Message = str | tuple[int, ...] | None
"""Which message of a Protobuf schema: its full name, or its place (index in the file, then within it, …); None: the first."""


@dataclass(frozen=True, slots=True)
class ReadRecords:
    """``rows`` has one row a value, in order. A value that can't be read is a row of nulls, and its reason in ``errors``."""

    rows: pa.RecordBatch
    errors: Mapping[int, str] = field(default_factory=dict)
    unknown_fields: Mapping[str, int] = field(default_factory=dict)
    """Names of members that the schema lacks, by their path, and in how many of the records that were looked at they are."""


class RecordReader(Protocol):
    """Reads the records of one writer's schema. Readers are made in the process that uses them and are never pickled."""

    @property
    def schema(self) -> pa.Schema:
        """The natural types; a field is nullable where the writer's schema allows null or may leave the value out.

        A record that is no record of fields (an Avro schema of a string or long, as keys often are) has one field, ``value``.
        """
        ...

    @property
    def logical_types(self) -> Mapping[str, LogicalType]:
        """By the name of a field of ``schema``, where it is not ``PLAIN``.

        A logical type holds those of the elements of a list or the values of a map (``item``) and of a struct's fields.
        """
        ...

    def read(self, values: pa.BinaryArray) -> ReadRecords:
        """``values``: the records' bytes without any header; none is null.

        Never raises for what the bytes are, and never guesses: lengths are checked against what is left of the record, what is
        left at its end is an error, and memory is bounded by the size of the values.
        """
        ...


Wanted = Mapping[str, Collection[str] | None]
"""Fields of a row: whole, or some of the fields of a struct."""


@runtime_checkable
class ReaderOfDefaults(Protocol):
    """A reader that knows the defaults of fields."""

    @property
    def defaults(self) -> Mapping[str, Mapping[str, Any]]:
        """By the name of a struct of the record, those of its fields that have one other than null.

        One that is no zero and has no simple JSON is ``debezium.inline_schemas.ANY_VALUE``.
        """
        ...


@runtime_checkable
class NarrowingReader(Protocol):
    """A reader that is faster if it need not make columns of every field."""

    def narrowed(self, fields: Wanted) -> RecordReader:
        """A reader of the same records for these fields, as far as there are such. What it skips it still reads by its schema."""
        ...


class RecordFormat(Protocol):
    """Avro, Protobuf or JSON with a schema. Picklable."""

    def compile(self, schema_text: str, references: Mapping[str, str], message: Message = None) -> RecordReader:
        """Makes a reader. ``references``: the texts of the schemas that this one needs, directly or not, by the name that
        it is referred to by; a schema comes after those that it needs.

        Raises ``Unreadable`` with a reason, for a schema that is not valid or that can't be read as Arrow.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What is known of some records besides their rows."""

    truncates: tuple[Truncate, ...] = ()
    """Those that no earlier batch contained."""
    event_time_max: int | None = None
    """The time of the newest event, in microseconds since the epoch."""
    ignored: int = 0
    """Records that change nothing: tombstones, logical messages, and truncates that an earlier batch applied."""
    truncated: int = 0
    """Changes that were left out because they are from before a truncate."""
    of_snapshot: int = 0
    """Records that are rows which the source's reader has read, and no changes."""
    newest: Mapping[Place, Newest] = field(default_factory=dict)
    """How far the changes are in the order of their source, if it has one, by partition."""
    last: Mapping[Place, Last] = field(default_factory=dict)
    """The last record of each partition, where its transaction is known."""
    met: Met = field(default_factory=dict)
    """Which columns the schemas of the records have, if they have schemas."""
    remarks: Counts = field(default_factory=dict)
    """What a person should look at (``remarks``)."""
    mismatched: int = 0
    """Records of the quarantine that are what the format says and do not fit the table."""
    mismatch: str = ""
    """Why the first of them does not fit."""
    sources: Seen = field(default_factory=dict)
    """Whose events they are, of topics of which the table does not know it."""
    schema_needed: SchemaChange | None = None
    """What the table must become before these records can be decoded. Then nothing else counts."""


def together(several: Iterable[Tally]) -> dict[str, Any]:
    """The members of a ``Tally`` of all records, from those of records that follow each other."""
    all = list(several)
    needs = [one.schema_needed for one in all if one.schema_needed is not None]
    return {
        "truncates": tuple(truncate for one in all for truncate in one.truncates),
        "event_time_max": max((one.event_time_max for one in all if one.event_time_max is not None), default=None),
        "ignored": sum(one.ignored for one in all),
        "truncated": sum(one.truncated for one in all),
        "of_snapshot": sum(one.of_snapshot for one in all),
        "newest": newest_of(one.newest for one in all),
        "last": last_of(one.last for one in all),
        "met": met_in(one.met for one in all),
        "remarks": sum_of(one.remarks for one in all),
        "mismatched": sum(one.mismatched for one in all),
        "mismatch": next((one.mismatch for one in all if one.mismatch), ""),
        "sources": all_seen(one.sources for one in all),
        "schema_needed": merged(needs) if needs else None,
    }


V = TypeVar("V")
_NAMES_KEPT_MAX = 10_000

RECORD_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
    ]
)
"""The records that every source passes to a decoder. They may have one more column, their headers (``decode.metadata``)."""


@dataclass(frozen=True, slots=True)
class DecoderSchema:
    """The columns of a table with their nullability, its keys, and what orders the changes of a key.

    ``sequence_by`` is a column of the table or metadata of the event (``source.lsn``, ``ts_ms``, ``kafka.offset``). ``policy``:
    what happens where records and table differ. If it rescues, ``RESCUED_COLUMN`` is none of ``columns``, since records do not
    bring it; ``has_rescued`` says whether the table has it. Such a schema is made by ``of_table``.
    """

    columns: pa.Schema
    keys: tuple[str, ...] = ()
    sequence_by: str | None = None
    policy: EvolvePolicy = FIXED
    has_rescued: bool = False
    first_names: Mapping[str, str] = field(default_factory=dict)
    """The columns that were renamed in the table, by their first names, under which the source may still send them."""
    source: SourceRules = NO_RULES
    """What is demanded of events beside their rows."""
    spellings: Mapping[str, str] = field(default_factory=dict)
    """The column by each name of a field that differs from the column's by case alone, as far as they are known (``reading``)."""
    kept: frozenset[str] = frozenset()
    """Columns of the table that records do not fill; their fields of these names are left out."""
    twins: frozenset[str] = frozenset()
    """Names of fields that differ from a column's by case alone, where another field has the column."""
    counts_rows: bool = True
    """Whether the table counts the rows of a key while a transaction moves some (``parts.key_moves``); one whose rows come of
    several changes each does not."""
    column_of: Mapping[str, str] = field(init=False, compare=False, default_factory=dict)
    """The column by each other name under which records may have its values."""
    _names: frozenset[str] = field(init=False, compare=False, default=frozenset())
    _in_lower_case: Mapping[str, str] = field(init=False, compare=False, default_factory=dict)
    _found: dict[str, str | None] = field(init=False, compare=False, default_factory=dict)
    """What ``column_for`` said, of ``_NAMES_KEPT_MAX`` names at most."""

    @staticmethod
    def of_table(
        columns: pa.Schema,
        keys: tuple[str, ...],
        sequence_by: str | None,
        policy: EvolvePolicy = FIXED,
        first_names: Mapping[str, str] | None = None,
    ) -> DecoderSchema:
        """``columns``: all of the table. Raises InvalidSchema, or InvalidInput for a policy that does not fit the table."""
        if policy.fills:
            return _filling(columns, keys, sequence_by, policy, first_names or {})
        at = columns.get_field_index(RESCUED_COLUMN) if policy.rescues else -1
        if at < 0:
            return DecoderSchema(columns, keys, sequence_by, policy, first_names=first_names or {})
        if columns.field(at).type != pa.string() or RESCUED_COLUMN in (*keys, sequence_by):
            raise InvalidSchema(
                f"column {RESCUED_COLUMN!r}: on_mismatch: rescue keeps values in it as JSON, so it must be a string, and "
                "neither a key nor what orders the changes; rename it"
            )
        return DecoderSchema(columns.remove(at), keys, sequence_by, policy, True, first_names or {})

    def __post_init__(self) -> None:
        names = self.columns.names
        others = self.policy.other_names(names)
        column_of = {one: column for one, column in self.first_names.items() if column in names and one not in names}
        column_of |= {one: column for column, several in others.items() for one in several}
        lower = {name.lower(): column for name, column in column_of.items()} | {name.lower(): name for name in names}
        object.__setattr__(self, "column_of", {**self.spellings, **column_of})
        object.__setattr__(self, "_names", frozenset(names))
        object.__setattr__(self, "_in_lower_case", lower)
        for name in names:
            if is_reserved(name):
                raise InvalidSchema(f"column {name!r}: names that begin with '_lakebed_' are reserved; rename it")
        for key in self.keys:
            if key not in names:
                raise InvalidSchema(f"key {key!r} is not a column of the table; its columns are {', '.join(names)}")

    def reading(self, names: Collection[str], *, declared: bool) -> DecoderSchema:
        """For records with fields of these names, some of which may differ from a column's by case alone.

        ``declared``: their schema has all of these fields, and no others. Then a field that has the column's own name is the
        column's, and one that differs by case is another field. Of records without a schema nobody knows that.
        """
        odd = [name for name in names if name not in self.column_of and self.column_for(name) not in (None, name)]
        if not odd:
            return self
        given = {self.column_of.get(name, name) for name in names} if declared else set()
        spellings, twins = dict(self.spellings), set(self.twins)
        for name in odd:
            column = str(self.column_for(name))
            if column in given:
                twins.add(name)
                continue
            spellings[name] = column
            if declared:
                given.add(column)
        return replace(self, spellings=spellings, twins=frozenset(twins))

    def without_field(self, name: str | None) -> DecoderSchema:
        """For records in which the field of this name says something else than a column's value, unless it is a column too."""
        if name is None or name in self._names:
            return self
        return replace(self, twins=self.twins | {name})

    def column_for(self, name: str) -> str | None:
        """The column that takes a field of this name; None if there is none."""
        if name in self._names:
            return name
        if name not in self._found:
            if len(self._found) >= _NAMES_KEPT_MAX:
                self._found.clear()
            column = self.column_of.get(name)
            if column is None and name not in self.twins and not self.policy.says(name):
                column = self._in_lower_case.get(name.lower())
            self._found[name] = column
        return self._found[name]

    def by_column(self, members: Mapping[str, V]) -> Mapping[str, V]:
        """Members of a row under the names of the columns that they go to. Raises ``Mismatch`` if two go to one."""
        if members.keys() <= self._names:
            return members
        renamed: dict[str, V] = {}
        names: dict[str, str] = {}
        for name, value in members.items():
            column = self.column_for(name) or name
            if renamed.get(column) is None:
                renamed[column], names[column] = value, name
            elif value is not None:
                why = self._why_one(names[column], name)
                raise Mismatch(f"two fields, one of them {name!r}, are of the column {column!r} ({why})")
        return renamed

    def _why_one(self, name: str, other: str) -> str:
        """Why two fields are of one column."""
        if self.policy.says(name) or self.policy.says(other):
            return "renamed_columns"
        if name.lower() == other.lower():
            return f"{name!r} and {other!r} differ by case alone; name another column for one of them: renamed_columns"
        return "it was renamed in the table"

    def types_by_column(self, types: Mapping[str, V]) -> dict[str, V]:
        """What is said of fields by name, under the names of their columns."""
        return {self.column_for(name) or name: one for name, one in types.items()}

    def needed(self, record: pa.Schema) -> Needed:
        """What rows of this schema need of the table (``schema_evolution.needed``)."""
        column_of = self.reading(record.names, declared=True).column_of
        fields = [one for one in record if one.name not in self.kept]
        renamed = pa.schema([one.with_name(column_of.get(one.name, one.name)) for one in fields])
        return needed(self.columns, renamed, self.policy, self.never_null, self.sequence_metadata)

    def columns_in(self, names: Collection[str], filled: Collection[str]) -> RecordColumns | None:
        """What a schema of rows says of the columns; None if the rows may be of several source tables.

        ``names``: of the columns that its fields go to; ``filled``: of those that have a value in every row.
        """
        if self.source.names_several:
            return None
        columns = [name for name in self.columns.names if name not in self.never_null]
        return RecordColumns(
            tuple(name for name in columns if name not in names), tuple(name for name in columns if name in filled)
        )

    def names_of(self, column: str) -> tuple[str, ...]:
        """All names under which records may have a column's values, its own first."""
        return (column, *(other for other, name in self.column_of.items() if name == column))

    @property
    def key_has_twin(self) -> bool:
        """Whether a field that is no key differs from a key's by case alone: then a message key may be of that one."""
        return bool({name.lower() for name in self.twins} & {name.lower() for name in self.keys})

    @property
    def sequence_column(self) -> str | None:
        """The table's own column that orders changes, if it is one."""
        return self.sequence_by if self.sequence_by in self.columns.names else None

    @property
    def sequence_metadata(self) -> str | None:
        """The path into the event's metadata that orders changes, if it is not a column of the table."""
        return None if self.sequence_column else self.sequence_by

    @property
    def fill(self) -> Fill | None:
        """Which columns of its row a change fills; None for all."""
        return Fill(rescues=self.policy.rescues, order=self.sequence_metadata) if self.kept else None

    @property
    def never_null(self) -> frozenset[str]:
        """Columns that must have a value in every change, whatever the source says."""
        return frozenset([*self.keys, *([self.sequence_column] if self.sequence_column else [])])

    @property
    def required(self) -> frozenset[str]:
        """Columns that must have a value in every upsert."""
        return frozenset(self.keys) | {field.name for field in self.columns if not field.nullable}

    def change_schema(self, *, with_unavailable: bool = False) -> pa.Schema:
        """The schema of decoded changes. All fields are nullable: a delete carries its key and nothing else."""
        fields = [pa.field(field.name, field.type) for field in self.columns]
        fields.append(pa.field(OP_COLUMN, pa.string()))
        if self.sequence_metadata:
            fields.append(pa.field(SEQUENCE_COLUMN, pa.int64()))
        if self.policy.rescues:
            fields.append(pa.field(RESCUED_COLUMN, pa.string()))
        if with_unavailable:
            fields.append(pa.field(UNAVAILABLE_COLUMN, pa.list_(pa.string())))
        return pa.schema(fields)


def _filling(
    columns: pa.Schema,
    keys: tuple[str, ...],
    sequence_by: str | None,
    policy: EvolvePolicy,
    first_names: Mapping[str, str],
) -> DecoderSchema:
    """For records that fill some columns of a table. Raises InvalidInput for columns that it lacks."""
    if not keys:
        raise InvalidInput("columns has no effect in a table without keys: records fill columns of rows by their keys")
    names = frozenset(columns.names)
    for name in policy.fills:
        if name not in names:
            raise InvalidInput(f"columns has {name!r}, which is no column of the table{suggest(name, names)}")
    filled = {*policy.fills, *keys, sequence_by}
    kept = names - filled
    rescued = RESCUED_COLUMN in kept and policy.rescues
    some = pa.schema([one for one in columns if one.name in filled])
    return DecoderSchema(some, keys, sequence_by, policy, rescued, first_names, kept=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded(Tally):
    """The result of decoding a batch of records."""

    changes: pa.Table
    quarantined: pa.Table
    """``QUARANTINE_SCHEMA``, and headers if a record has some."""

    @staticmethod
    def concat(parts: Iterable[Decoded]) -> Decoded:
        """Joins the results of consecutive batches of one range."""
        decoded = list(parts)
        return Decoded(
            **together(decoded),
            changes=pa.concat_tables([part.changes for part in decoded], promote_options="default"),
            quarantined=pa.concat_tables([part.quarantined for part in decoded], promote_options="default"),
        )

    @staticmethod
    def needing(change: SchemaChange, decoder_schema: DecoderSchema) -> Decoded:
        """For records that can't be decoded before the table was changed."""
        changes = decoder_schema.change_schema().empty_table()
        return Decoded(changes=changes, quarantined=QUARANTINE_SCHEMA.empty_table(), schema_needed=change)


class Decoder(Protocol):
    """Turns records (``RECORD_SCHEMA``, and headers) into changes of one table. Implementations are picklable."""

    @property
    def decoder_schema(self) -> DecoderSchema:
        """The columns that it decodes to."""

    def bound_to(self, decoder_schema: DecoderSchema) -> Self:
        """The same decoder for a table whose schema changed."""

    def schema_needed(self, records: pa.Table) -> SchemaChange | None:
        """What the table must become before these records can be decoded, as far as their schemas alone say that."""

    def decode(self, records: pa.Table, cutoff: Cutoff = NO_CUTOFF) -> Decoded:
        """``cutoff``: changes from before its truncates are left out."""


def quarantine(records: pa.Table, bad: list[tuple[int, str]]) -> pa.Table:
    """The bad records, each with its reason; ``bad`` holds (number of the record, reason)."""
    if not bad:
        return QUARANTINE_SCHEMA.empty_table()
    bad = sorted(bad)
    some = records.take(pa.array([number for number, _ in bad], pa.int64()))
    columns = [some.column(name) for name in ("key", "value", "topic", "partition", "offset")]
    texts = [reason.encode("utf-8", "backslashreplace").decode() for _, reason in bad]
    reasons = pa.chunked_array([pa.array(texts, pa.string())])
    millis = some.column("timestamp").cast(pa.int64())
    fits = pc.and_(pc.greater(millis, -MILLIS_MAX), pc.less(millis, MILLIS_MAX))
    micros = pc.multiply(pc.if_else(fits, millis, pa.scalar(None, pa.int64())), 1000)
    times = micros.cast(pa.timestamp("us", "UTC"))
    headers = headers_of(some)
    if headers is not None:
        return pa.table([*columns, reasons, times, headers], schema=WITH_HEADERS)
    return pa.table([*columns, reasons, times], schema=QUARANTINE_SCHEMA)
