"""Parse JSON text into Python values without loss, and write such values back as text.

1.  A number that an ``int`` would not keep as it was written keeps its form (``Number``, ``_MinusZero``).
2.  Python's parser fails on some values that Arrow's skips in a member that no column needs (a bare ``Inf``, nesting of
    any depth). Such a document is parsed a second time with a placeholder for the value, which no column accepts. So
    the result of a record does not depend on the parser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from json.encoder import encode_basestring
from typing import Any

import orjson

from lakebed.remarks import Remark

_LEVELS_MAX = 100
"""No column takes a value nested deeper, and its text is not kept. A document may hold it in a member of no column."""
_CUT_AT = 2 * _LEVELS_MAX
_DIGITS_MAX = 1000
_SHOWN_MAX = 80
_TOO_DEEP = "a value nested too deep"

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]|-?\b(?:NaN|Inf(?:inity)?)\b', re.DOTALL)


class Unreadable(ValueError):
    """The value does not fit the column; the text is the reason that the quarantine shows."""

    remarks: tuple[tuple[Remark, str], ...] = ()
    """The remarks on the record, beside its place in the quarantine."""


class Mismatch(Unreadable):
    """The record is what its format says, but does not fit the table."""


class Number:
    """A JSON number with a fraction, an exponent or very many digits, as it was written; or NaN or an infinity."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Number({self.text!r})"

    def literal(self) -> str:
        """The text. Raises ``Unreadable`` if it is not a JSON number: those end with a digit."""
        if not self.text[-1].isdigit():
            raise Unreadable(f"{self.text} is not a JSON number")
        return self.text

    def decimal(self) -> Decimal:
        """The exact value. Raises ``Unreadable`` if it has none."""
        try:
            return Decimal(self.literal())
        except InvalidOperation:  # an exponent beyond those of Decimal
            raise Unreadable(f"{shown(self)} is out of range") from None


class _MinusZero(int):
    """``-0``: as an integer it is 0, but a floating-point number or a text keeps the sign."""

    def __repr__(self) -> str:
        return "-0"


class _Repeated(dict[str, Any]):
    """An object with a repeated member. The last one counts, but the object's text has all of them."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def loaded(text: bytes) -> Any:
    """The document, where it does not matter how its numbers are written. Raises ``Unreadable``."""
    try:
        return orjson.loads(text)
    except ValueError:
        return parse(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    return members if len(members) == len(pairs) else _Repeated(pairs)


def _whole(text: str) -> int | Number:
    if text == "-0":
        return _MinusZero()
    return int(text) if len(text) <= _DIGITS_MAX else Number(text)


def _stand_in(name: str) -> Number:
    return Number(_TOO_DEEP if name == "-Infinity" else name)


DECODER = json.JSONDecoder(parse_float=Number, parse_int=_whole, parse_constant=Number, object_pairs_hook=_object)
_SECOND_DECODER = json.JSONDecoder(
    parse_float=Number, parse_int=_whole, parse_constant=_stand_in, object_pairs_hook=_object
)


def parse(text: bytes) -> Any:
    """A JSON document: dict, list, str, bool, None, int, or ``Number``. Raises ``Unreadable``."""
    try:
        document = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"not UTF-8: byte {error.start} of {len(text)}") from error
    try:
        return DECODER.decode(document)
    except (ValueError, RecursionError) as error:
        first = error
    try:
        return _SECOND_DECODER.decode("".join(_shallow(document)))
    except (ValueError, RecursionError):
        reason = "nested too deep" if isinstance(first, RecursionError) else str(first)
        raise Unreadable(f"not JSON: {reason}") from first


def _shallow(document: str) -> Iterator[str]:
    """The document in pieces, with constants in place of values nested too deep and of NaN and infinities."""
    depth = begin = 0
    for token in _TOKEN.finditer(document):
        match token[0]:
            case "[" | "{":
                depth += 1
                if depth == _CUT_AT:
                    yield document[begin : token.start()]
                    yield "-Infinity"
            case "]" | "}":
                if depth == _CUT_AT:
                    begin = token.end()
                depth -= 1
            case "NaN" | "-NaN" | "Inf" | "-Inf" | "Infinity" | "-Infinity" if depth < _CUT_AT:
                yield document[begin : token.start()]
                yield "NaN" if "NaN" in token[0] else "Infinity"
                begin = token.end()
    if depth < _CUT_AT:
        yield document[begin:]


def written(value: Any, level: int = 0) -> str:
    """A parsed value as JSON: numbers as they were written, no white space. Raises ``Unreadable``."""
    match value:
        case str():
            return encode_basestring(value)
        case Number():
            return value.literal()
        case None | bool():
            return json.dumps(value)
        case int():
            return repr(value)
    if level == _LEVELS_MAX:
        raise Unreadable(_TOO_DEEP)
    if isinstance(value, list):
        return f"[{','.join([written(item, level + 1) for item in value])}]"
    pairs = value.pairs if isinstance(value, _Repeated) else value.items()
    return f"{{{','.join([f'{encode_basestring(key)}:{written(item, level + 1)}' for key, item in pairs])}}}"


def is_unicode(text: str) -> bool:
    """Whether the text has no half of a surrogate pair; no column accepts one."""
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return False
    return True


def shown(value: Any) -> str:
    """A parsed value for messages: short, and without halves of surrogate pairs."""
    try:
        text = value.text if isinstance(value, Number) else written(value)
    except Unreadable:
        text = _TOO_DEEP
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."
