"""Sort keys: terms that rows are sorted by, such as ``region``, ``date(ts) desc`` or ``zorder(x, y)``, parsed and checked.

A term is a column or a function of columns, a direction and a place for nulls:

    column | function ( … )    [ asc | desc ]    [ nulls first | nulls last ]

- As in Spark, ``asc`` puts nulls first and ``desc`` nulls last by default; NaN counts as greater than any number.
- ``date(ts)``, ``year(ts)``, ``month(ts)``, ``day(ts)``, ``hour(ts)``: years, months, days or hours since 1970, in UTC, as
  Iceberg's partition transforms count them, so they grow with time; ``date`` is ``day`` as a date.
- ``substr(x, start, length)``: characters of a text, bytes of a binary; the first is 1.
- ``bucket(n, x)``: Iceberg's bucket transform, ``(murmur3(x) & 2147483647) % n``.
- ``zorder(a, b, …)``, ``hilbert(a, b, …)``: the number of the row on a space-filling curve (``order_values``); the only term of a
  key, ascending. Each column is scaled between the ends of its *frame*; see ``frame_properties``.

A column's name that is no plain word is quoted with backticks or double quotes, a quote in it written twice. A text that is
exactly a column's name is that column.
"""

from __future__ import annotations

import datetime
import decimal
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NoReturn, Protocol

import pyarrow as pa

from lakebed.errors import InvalidInput, InvalidSchema
from lakebed.quoting import quote_for_spark
from lakebed.settings import SORT_KEY_FRAME, suggest
from lakebed.sortkey.statistics import has_bounds, highest, lowest, parsed_stats

_TRUNCATIONS = ("date", "year", "month", "day", "hour")
CURVES = ("zorder", "hilbert")
_FUNCTIONS = (*_TRUNCATIONS, "substr", "bucket", *CURVES)
CURVE_BITS = 63
_CURVE_COLUMNS = range(2, 9)
_NUMBERS = range(1, 2**31)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_TOKEN = re.compile(
    r"""(?P<word>[^\W\d]\w*)|(?P<quoted>`(?:[^`]|``)+`|"(?:[^"]|"")+")|(?P<number>\d+)|(?P<sign>[(),])|(?P<other>\S)"""
)
_WORD = re.compile(r"[^\W\d]\w*")

Edges = tuple[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SortTerm:
    """One term of a sort key. ``function`` is "" for the column itself; ``numbers`` are its arguments that are no columns.

    ``kinds``: the columns' types. ``frame``: of a curve, each column's ends (whole numbers, floats or bytes), None where unknown.
    """

    columns: tuple[str, ...]
    kinds: tuple[pa.DataType, ...]
    function: str = ""
    numbers: tuple[int, ...] = ()
    is_descending: bool = False
    nulls_last: bool = False
    frame: tuple[Edges | None, ...] = ()

    @property
    def name(self) -> str:
        """The term as text, the same for equal terms; a column that is sorted ascending, nulls first, is its plain name."""
        if self.is_plain and not self.is_descending and not self.nulls_last:
            return self.columns[0]
        return self._expression() + self._direction()

    @property
    def type(self) -> pa.DataType:
        """The type of the values that rows are sorted by."""
        if self.function == "date":
            return pa.date32()
        return self.kinds[0] if self.is_plain or self.function == "substr" else pa.int64()

    @property
    def is_plain(self) -> bool:
        """Whether the term is a column itself."""
        return not self.function

    @property
    def is_curve(self) -> bool:
        return self.function in CURVES

    @property
    def is_monotone(self) -> bool:
        """Whether its values grow with each column's, so that its bounds follow from the columns' bounds."""
        if self.function == "substr":
            return self.numbers[0] == 1
        return self.function not in ("bucket", "hilbert")

    def _expression(self) -> str:
        columns = [name if _WORD.fullmatch(name) else quote_for_spark(name) for name in self.columns]
        if self.is_plain:
            return columns[0]
        numbers = [str(number) for number in self.numbers]
        arguments = [*numbers, *columns] if self.function == "bucket" else [*columns, *numbers]
        frame = f" in frame {zlib.crc32(repr(self.frame).encode()):08x}" if self.frame else ""
        return f"{self.function}({', '.join(arguments)}){frame}"

    def _direction(self) -> str:
        out = " desc" if self.is_descending else ""
        if self.nulls_last != self.is_descending:
            out += " nulls last" if self.nulls_last else " nulls first"
        return out


def parse_sort_key(texts: Sequence[str], schema: pa.Schema, frame: str = "") -> tuple[SortTerm, ...]:
    """The terms of a sort key. ``frame``: the table's property ``lakebed.sort_key_frame``.

    Raises InvalidInput (InvalidSchema for a column) that names the text, the character and what is allowed.
    """
    return _parsed(tuple(texts), schema, frame)


def renamed_sort_key(texts: Sequence[str], schema: pa.Schema, names: Mapping[str, str]) -> tuple[str, ...]:
    """The texts of the same sort key of a table whose columns have other names. ``schema``: with the names that the texts use."""
    if not texts or all(name == other for name, other in names.items()):
        return tuple(texts)
    terms = parse_sort_key(texts, schema)
    return tuple(replace(term, columns=tuple(names.get(name, name) for name in term.columns)).name for term in terms)


@lru_cache(maxsize=4_096)
def _parsed(texts: tuple[str, ...], schema: pa.Schema, frame: str) -> tuple[SortTerm, ...]:
    terms = [_Parser(text, schema).term() for text in texts]
    seen: set[tuple[object, ...]] = set()
    for text, term in zip(texts, terms, strict=True):
        if term.is_curve and len(terms) > 1:
            raise InvalidInput(f"sort_key {text!r}: {term.function} must be the only term of a sort key")
        what = (term.columns, term.function, term.numbers)
        if what in seen:
            named = f"the column {term.columns[0]!r}" if term.is_plain else repr(text)
            raise InvalidSchema(f"sort_key names {named} twice; the second has no effect: leave it out")
        seen.add(what)
    if frame and terms and terms[0].is_curve:
        curve = terms[0]
        ends = _frame(frame, curve)
        return (SortTerm(columns=curve.columns, kinds=curve.kinds, function=curve.function, frame=ends),)
    return tuple(terms)


class _Parser:
    """One text, token by token."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text = text
        self._schema = schema
        self._tokens = list(_TOKEN.finditer(text))
        self._next = 0

    def term(self) -> SortTerm:
        if self._text in self._schema.names:
            return SortTerm(columns=(self._text,), kinds=(self._kind(self._text, 0),))
        token = self._take()
        if token is None:
            self._fail("it is empty; write a column's name", 0)
        word = token[0].lower()
        if token.lastgroup == "word" and self._peek() == "(":
            if word not in _FUNCTIONS:
                self._fail(
                    f"there is no function {token[0]!r}{suggest(word, _FUNCTIONS)}; there are {', '.join(_FUNCTIONS)}",
                    token.start(),
                )
            self._next += 1
            term = self._call(word)
        else:
            name = self._name(token)
            term = SortTerm(columns=(name,), kinds=(self._kind(name, token.start()),))
        return self._directed(term)

    def _call(self, function: str) -> SortTerm:
        numbers: tuple[int, ...] = ()
        if function == "bucket":
            numbers = (self._number("bucket(n, column): n"),)
            self._expect(",")
        columns = [self._column(function)]
        if function == "substr":
            self._expect(",")
            start = self._number("substr(column, start, length): start")
            self._expect(",")
            numbers = (start, self._number("substr(column, start, length): length"))
        while function in CURVES and self._peek() == ",":
            self._next += 1
            columns.append(self._column(function))
        closed = self._expect(")")
        names, kinds = tuple(name for name, _ in columns), tuple(kind for _, kind in columns)
        if function in CURVES and len(names) not in _CURVE_COLUMNS:
            self._fail(
                f"{function} takes {_CURVE_COLUMNS.start} to {_CURVE_COLUMNS.stop - 1} columns, not {len(names)}",
                closed.start(),
            )
        if len(set(names)) < len(names):
            self._fail(f"{function} names a column twice", closed.start())
        return SortTerm(columns=names, kinds=kinds, function=function, numbers=numbers)

    def _directed(self, term: SortTerm) -> SortTerm:
        is_descending = False
        nulls_last: bool | None = None
        start = self._tokens[self._next].start() if self._next < len(self._tokens) else -1
        if (self._peek() or "").lower() in ("asc", "desc"):
            is_descending = self._tokens[self._next][0].lower() == "desc"
            self._next += 1
        if (self._peek() or "").lower() == "nulls":
            self._next += 1
            token = self._take()
            if token is None or token[0].lower() not in ("first", "last"):
                self._fail("after 'nulls' comes 'first' or 'last'", len(self._text) if token is None else token.start())
            nulls_last = token[0].lower() == "last"
        if self._next < len(self._tokens):
            token = self._tokens[self._next]
            self._fail(
                f"{token[0]!r} is not understood; a term is a column or one of {', '.join(_FUNCTIONS)} with its arguments, "
                "then asc or desc, then nulls first or nulls last; a name that is no plain word is quoted with backticks",
                token.start(),
            )
        if term.is_curve and start >= 0:
            self._fail(f"{term.function} takes neither a direction nor a place for nulls", start)
        last = is_descending if nulls_last is None else nulls_last
        return SortTerm(
            columns=term.columns,
            kinds=term.kinds,
            function=term.function,
            numbers=term.numbers,
            is_descending=is_descending,
            nulls_last=last,
        )

    def _column(self, function: str) -> tuple[str, pa.DataType]:
        token = self._take()
        if token is None:
            self._fail(f"{function} lacks a column", len(self._text))
        name = self._name(token)
        kind = self._kind(name, token.start())
        allowed = _unfit(function, kind)
        if allowed:
            self._fail(f"{function} takes {allowed}, and the column {name!r} is {kind}", token.start())
        return name, kind

    def _name(self, token: re.Match[str]) -> str:
        if token.lastgroup == "quoted":
            quote = token[0][0]
            return token[0][1:-1].replace(quote * 2, quote)
        if token.lastgroup != "word":
            self._fail(
                f"{token[0]!r} is no column's name; one that is no plain word is quoted with backticks", token.start()
            )
        return token[0]

    def _kind(self, name: str, at: int) -> pa.DataType:
        where = "" if self._text == name else f" (in {self._text!r}, character {at + 1})"
        index = self._schema.get_field_index(name)
        if index < 0:
            known = suggest(name, self._schema.names)
            raise InvalidSchema(f"sort_key names the column {name!r}, which the schema lacks{known}{where}")
        kind = self._schema.field(index).type
        if pa.types.is_nested(kind):
            raise InvalidSchema(
                f"sort_key names the column {name!r}, which is {kind}; nested columns can't be used there{where}"
            )
        return kind

    def _number(self, what: str) -> int:
        token = self._take()
        if token is None or token.lastgroup != "number" or int(token[0]) not in _NUMBERS:
            at = len(self._text) if token is None else token.start()
            self._fail(f"{what} must be a whole number from 1 to {_NUMBERS.stop - 1}", at)
        return int(token[0])

    def _expect(self, sign: str) -> re.Match[str]:
        token = self._take()
        if token is None or token[0] != sign:
            self._fail(f"a {sign!r} is missing", len(self._text) if token is None else token.start())
        return token

    def _peek(self) -> str | None:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else None

    def _take(self) -> re.Match[str] | None:
        token = self._tokens[self._next] if self._next < len(self._tokens) else None
        self._next += 1
        return token

    def _fail(self, message: str, at: int) -> NoReturn:
        raise InvalidInput(f"sort_key {self._text!r}, character {at + 1}: {message}")


def _unfit(function: str, kind: pa.DataType) -> str:
    """The types that a function takes, as text; "" if this type is one of them."""
    is_text = pa.types.is_string(kind) or pa.types.is_binary(kind)
    if function == "hour":
        return "" if pa.types.is_timestamp(kind) else "a timestamp"
    if function in _TRUNCATIONS:
        return "" if pa.types.is_timestamp(kind) or pa.types.is_date(kind) else "a date or a timestamp"
    if function == "substr":
        return "" if is_text else "a string or a binary"
    if function == "bucket":
        fits = is_text or pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_temporal(kind)
        return "" if fits else "a whole number, a decimal, a date, a timestamp, a string or a binary"
    return ""


# -- frames ----------------------------------------------------------------------------------------------------------


class _HasStats(Protocol):
    @property
    def stats(self) -> str | None: ...


class _HasParts(Protocol):
    """The part of a snapshot that a frame is made from: the parts of the base."""

    @property
    def parts(self) -> Mapping[str, _HasStats]: ...


def frame_properties(terms: Sequence[SortTerm], snapshot: _HasParts) -> dict[str, str]:
    """The table property that goes with a sort key of these terms: ``lakebed.sort_key_frame``, or none if it needs none.

    For each column of a curve, in JSON, the least and the greatest value in the statistics of the base, or null.
    """
    if not terms or not terms[0].is_curve:
        return {}
    stats = [parsed_stats(part.stats) for part in snapshot.parts.values() if part.stats]
    frame = [_seen(stats, name, kind) for name, kind in zip(terms[0].columns, terms[0].kinds, strict=True)]
    return {SORT_KEY_FRAME: json.dumps(frame, default=str)} if any(frame) else {}


def _seen(stats: Sequence[Mapping[str, Any]], name: str, kind: pa.DataType) -> list[Any] | None:
    """The least and the greatest bound of a column, as in the statistics."""
    if not has_bounds(kind):
        return None
    lows = [low for values in stats if (low := (values.get("minValues") or {}).get(name)) is not None]
    highs = [high for values in stats if (high := (values.get("maxValues") or {}).get(name)) is not None]
    try:
        return [min(lows, key=lambda low: lowest(low, kind)), max(highs, key=lambda high: highest(high, kind))]
    except (ValueError, TypeError, AttributeError):  # none, or another writer's way to write it
        return None


def _frame(text: str, term: SortTerm) -> tuple[Edges | None, ...]:
    try:
        values = json.loads(text, parse_float=decimal.Decimal)
        edges: list[Edges | None] = []
        for pair, kind in zip(values, term.kinds, strict=True):
            if pair is None:
                edges.append(None)
                continue
            low, high = (_edge(bound, kind) for bound in pair)
            if not low <= high:
                raise ValueError
            edges.append((low, high))
    except (ValueError, TypeError, AttributeError, ArithmeticError):
        raise InvalidInput(
            f"{SORT_KEY_FRAME} is {text!r}; it must be a JSON list with the least and the greatest value of each of "
            f"{', '.join(term.columns)}, or null; set the sort key again"
        ) from None
    return tuple(edges)


def _edge(value: Any, kind: pa.DataType) -> Any:
    """An end of a frame as the number or the bytes that values are compared by."""
    if pa.types.is_decimal(kind):
        return int(decimal.Decimal(value).scaleb(kind.scale, decimal.Context(prec=80)))
    bound = lowest(value, kind)
    if pa.types.is_timestamp(kind):
        return (bound - _EPOCH) // datetime.timedelta(microseconds=1)
    if pa.types.is_date(kind):
        return (bound - _EPOCH.date()).days
    return int(bound) if pa.types.is_integer(kind) else bound
