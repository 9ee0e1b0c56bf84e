"""The canonical text of a value and of a row, and the checksum of a row, in the SQL of a source and of DuckDB. Pure.

1. A rule has for a pair of types, of the source and of the table, two expressions that give the same text for the same value.
   They keep all that a value is: the bits of a floating point number, microseconds since 1970, all digits of a decimal.
2. The text of a row is its values' texts in the order of the columns. A text that may hold any character has its length in bytes
   before it, and null is a minus sign, so no two rows have the same text.
3. The checksum of a row is the first 60 bits of the MD5 of its text: a positive number in every database. Rows are tallied by
   their count and the sum of their checksums, so their order does not matter, and a row that is there twice shows.

Equal tallies mean equal rows. Rows whose texts differ may still be the same value, as a JSON document with other blanks is: then
the ``judge`` of the rule decides, on the two texts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lakebed.quoting import quote, quote_for_spark

Judge = Callable[[str, str], bool]
_Quote = Callable[[str], str]
VALUE = "{}"
"""Where an expression of a rule has its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How values of two types are compared."""

    source: str  # an expression in the SQL of the source, with VALUE in it, that gives a text
    lake: str  # the same in DuckDB's SQL, of a value of the table
    is_free: bool = False  # whether the text may have any character
    judge: Judge | None = None  # whether two texts that differ are the same value
    of_key: OfKey | None = None  # None: such a column can't be a key
    shown: Callable[[str], str] = str  # the text for people


@dataclass(frozen=True, slots=True, kw_only=True)
class OfKey:
    """How a key's canonical text becomes its value again: expressions with VALUE for the text."""

    source: str
    lake: str
    source_too: str = ""  # a second value of the source that has the same text; empty if there is none
    # a value of DuckDB that is ordered as the source orders the keys, of the table's value and of the text; None if there is none
    order: str | None = None
    order_of_text: str = ""
    is_literal: bool = False  # whether the text itself, or in quotes, is a constant by which parts can be left out
    is_number: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Why a column is not compared."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column that is compared."""

    name: str  # in the table
    source_name: str
    kind: str  # its type in the source, for people
    rule: Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What of a table is compared, and how."""

    keys: tuple[Column, ...]
    columns: tuple[Column, ...]  # all, keys too
    left_out: Mapping[str, str] = field(default_factory=dict)  # a column to the reason
    is_ordered: bool = True  # whether both sides order the keys alike

    @property
    def of_keys(self) -> tuple[OfKey, ...]:
        """How each key's text becomes its value."""
        found = tuple(each.rule.of_key for each in self.keys)
        assert all(one is not None for one in found)
        return tuple(one for one in found if one is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What differs between databases in the text and the checksum of a row."""

    joined: Callable[[Sequence[str]], str]  # one text of several, with commas between them and a minus sign for null
    with_length: str  # the text with its bytes and a colon before it; null for null
    hashed: str  # the checksum of a text
    quote: _Quote


def _by_call(texts: Sequence[str]) -> str:
    """As deep as one call, however many texts there are: DuckDB refuses expressions of more than a thousand levels."""
    cells = [f"coalesce({text}, '-')" for text in texts]
    return "concat(" + ", ',', ".join(cells) + ")"


DUCKDB = Dialect(
    joined=_by_call,
    with_length="(strlen({})::varchar || ':' || {})",
    hashed="('0x' || substr(md5({}), 1, 15))::bigint",
    quote=quote,
)
POSTGRES = Dialect(
    joined=lambda texts: f"array_to_string(array[{', '.join(texts)}], ',', '-')",
    with_length="(octet_length({})::text || ':' || {})",
    hashed="('x' || substr(md5({}), 1, 15))::bit(60)::bigint",
    quote=quote,
)
MARIADB = Dialect(
    joined=_by_call,
    with_length="concat(octet_length({}), ':', {})",
    hashed="cast(conv(left(md5({}), 15), 16, 10) as unsigned)",
    quote=quote_for_spark,  # backticks
)


def put(expression: str, value: str) -> str:
    """An expression of a rule, of this value."""
    return expression.replace(VALUE, value)


def texts(shape: Shape, dialect: Dialect, *, of_source: bool) -> list[str]:
    """An expression for each column that gives its canonical text, null for null."""
    return [_text(each, dialect, of_source) for each in shape.columns]


def key_texts(shape: Shape, dialect: Dialect, *, of_source: bool) -> list[str]:
    """The same for the keys alone."""
    return [_text(each, dialect, of_source) for each in shape.keys]


def row_checksum(shape: Shape, dialect: Dialect, texts: Sequence[str]) -> str:
    """An expression for the checksum of a row, of whose columns these are the canonical texts."""
    cells = [
        put(dialect.with_length, text) if each.rule.is_free else text
        for each, text in zip(shape.columns, texts, strict=True)
    ]
    return put(dialect.hashed, dialect.joined(cells))


def _text(column: Column, dialect: Dialect, of_source: bool) -> str:
    if of_source:
        return put(column.rule.source, dialect.quote(column.source_name))
    return put(column.rule.lake, dialect.quote(column.name))
