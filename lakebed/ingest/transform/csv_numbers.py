"""Decimals and floating-point numbers in lines of CSV, as expressions of Spark's SQL.

Spark's own parser rounds what has too many digits for a decimal column, and makes infinity of a number that is too large. So such
columns are read as texts, and the rule of the other formats applies: a number that does not fit makes its line bad.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from lakebed.quoting import literal

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?\z"
"""As in strings of JSON: exponents of more than three digits are refused."""


def number_of(text: str, kind: pa.DataType, options: Mapping[str, str]) -> str:
    """The value of a decimal, float or double column that a text stands for; null if it stands for none, or does not fit.

    ``text`` is a column, and the result an expression. ``options``: of Spark's parser.
    """
    return _decimal(text, kind) if pa.types.is_decimal(kind) else _floating(text, kind, options)


def _decimal(text: str, kind: pa.DataType) -> str:
    value = f"try_cast({text} as decimal({kind.precision}, {kind.scale}))"
    digits = f"regexp_replace(regexp_replace({text}, '[eE].*', ''), '[^0-9]', '')"
    significant = f"rtrim('0', {digits})"
    fraction = rf"length(regexp_extract({text}, r'\.(\d*)', 1))"
    exponent = f"coalesce(try_cast(regexp_extract({text}, '[eE](.*)', 1) as int), 0)"
    scale = f"{fraction} - length({digits}) + length({significant}) - {exponent}"
    return (
        rf"case when {text} rlike r'^[+-]?\d+(\.\d{{0,{kind.scale}}}0*)?\z' then {value} "
        f"when {text} rlike r'{_NUMBER}' and ({significant} = '' or {scale} <= {kind.scale}) then {value} end"
    )


def _floating(text: str, kind: pa.DataType, options: Mapping[str, str]) -> str:
    name = "float" if pa.types.is_float32(kind) else "double"
    trimmed = f"trim({text})"
    value = f"try_cast({trimmed} as {name})"
    infinity = f"cast('Infinity' as {name})"

    def one_of(option: str, default: str, *spellings: str) -> str:
        return ", ".join(literal(each) for each in (options.get(option, default), *spellings))

    return (
        f"case when {trimmed} rlike r'{_NUMBER}' then nullif(nullif({value}, {infinity}), -{infinity}) "
        f"when {text} in ({one_of('nanValue', 'NaN', 'NaN')}) then cast('NaN' as {name}) "
        f"when {text} in ({one_of('positiveInf', 'Inf', 'Infinity', '+Infinity')}) then {infinity} "
        f"when {text} in ({one_of('negativeInf', '-Inf', '-Infinity')}) then -{infinity} end"
    )
