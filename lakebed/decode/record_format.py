"""Formats whose records are bytes of a schema that stands elsewhere: in a registry, or in a file.

A format compiles the schema that records were written with, once, into a reader. The reader turns the bytes of many records into
one Arrow batch. What the rows mean for a table is decided elsewhere (``typed.records``).

Natural types: what a reader makes of a schema, before any table is known
    booleans, integers of 8 to 64 bits (unsigned ones as the next wider signed type; of 64 bits as ``decimal128(20, 0)``), floats,
    strings (also enums and UUIDs), binary (also fixed), lists, structs, maps with string keys, dates as ``date32``, timestamps
    with zone UTC or without as the schema says, times of day as int64 with a logical type, decimals of up to 38 digits as
    ``decimal128`` of their precision and scale. A union of several types is a struct with one nullable field a type.
    What these types can't say is in the logical types: a long with the name ``io.debezium.time.MicroTimestamp`` is an int64 with
    ``Kind.TIMESTAMP_US``, and a decimal of unknown or larger precision is binary with ``Kind.DECIMAL_BYTES``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from lakebed.decode.json.connect_types import LogicalType

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

        One that is no zero and has no simple JSON is ``old_rows.ANY_VALUE``.
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
