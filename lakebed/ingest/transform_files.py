"""Rows of files that Spark has a part in: it parses lines of CSV, and evaluates what a user wrote (``apply_as_deletes``, SQL).

1. Tasks read the files and yield lines of CSV, or rows (``transform_run``).
2. Spark makes rows of them, without moving any, so their order stays.
3. Tasks write the rows. Without SQL all this is one pass: what the reading tasks say besides rows goes through Spark beside the
   rows (``WritingBesideNotes``).

**Values of CSV.** Dates, timestamps, decimals and floating-point numbers in lines of CSV, as expressions of Spark's SQL.

Spark's own parser rounds what has too many digits for a decimal column, and makes infinity of a number that is too large. So
such columns are read as texts, and the rule of the other formats applies: a number that does not fit makes its line bad.

It knows no infinite times, drops ``BC`` after a date, and takes a time of day for one of today. Such columns are read as texts,
too, and the rules of ``far_times`` apply. Spellings that only Spark knows are left to its casts, if they have a year, a month
and a day: ``2024-1-5``, ``2024-01-05 07:00:00 Europe/Berlin``.

Usual spellings are left to Spark's casts too, so only the others cost more. The session must be in UTC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from lakebed.failures import crosses_spark
from lakebed.far_times import (
    DAY_MICROS,
    INFINITY_DAY,
    INFINITY_MICROS,
    MINUS_INFINITY_DAY,
    MINUS_INFINITY_MICROS,
    infinite_days,
)
from lakebed.ingest.batch_writer import Answer, WriteTask, Written
from lakebed.ingest.changes_frame import changes_frame, unknown_columns
from lakebed.ingest.transform_query import Transform
from lakebed.parts.changes import WriteSpec
from lakebed.quoting import literal, quote_for_spark
from lakebed.schema.fitting import EvolvePolicy
from lakebed.schema.nested import nullable
from lakebed.sources.files.lines import AT, FILE, LINE
from lakebed.telemetry import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?\z"
"""As in strings of JSON: exponents of more than three digits are refused."""

_DAY = r"^([+-]?\d{4,9})-(\d\d)-(\d\d)"
_CLOCK = r"(?:[T ](\d\d)(?::?(\d\d)(?::?(\d\d)(?:\.(\d{1,9}))?)?)?)?"
_OFFSET = r"(?:Z|([+-])(\d\d)(?::?(\d\d)(?::?(\d\d))?)?)?"
_RULE = rf"{_DAY}{_CLOCK}{_OFFSET}( BC)?\z"
_PARTS = ",".join(f"${group}" for group in range(1, 13))
_DATE_OF_SPARK = r"^[+-]?\d{4,7}-\d\d?-\d\d?([T ]00?:00(:00(\.0*)?)?)?\z"
_TIMESTAMP_OF_SPARK = r"^[+-]?\d{4,6}-\d\d?-\d\d?([T ].*)?\z"
_WITHOUT_OFFSET = r"^[+-]?\d+-\d+-\d+([T ][\d:.]*)?( BC)?\z"


def time_of(text: str, kind: pa.DataType, zone: str | None) -> str:
    """The value of a date or timestamp column that a text stands for; null if it stands for none.

    ``text`` is a column, and the result an expression. ``zone``: of instants without an offset, as a literal; None for UTC.
    """
    if pa.types.is_date(kind):
        return _date(text)
    timestamp = _timestamp(text)
    if kind.tz is None:
        return f"cast({timestamp} as timestamp_ntz)"
    if zone is None:
        return timestamp
    return f"if(trim({text}) rlike r'{_WITHOUT_OFFSET}', to_utc_timestamp({timestamp}, {zone}), {timestamp})"


def _is_plain(text: str) -> str:
    """Whether a text has its hyphens where the usual spelling has them. Spark's casts take no part of it for another one."""
    return f"substr({text}, 5, 1) = '-' and substr({text}, 8, 1) = '-'"


def _date(column: str) -> str:
    text = f"trim({column})"
    days = _by_rule(text, f"case when pmod(c, {DAY_MICROS}) = 0 then d + c div {DAY_MICROS} end")
    return (
        f"case when {_is_plain(column)} and length({column}) = 10 then try_cast({column} as date) "
        f"when lower({text}) in ('infinity', '+infinity') then date_from_unix_date({INFINITY_DAY}) "
        f"when lower({text}) = '-infinity' then date_from_unix_date({MINUS_INFINITY_DAY}) "
        f"when {text} rlike r'{_RULE}' then date_from_unix_date(try_cast({days} as int)) "
        f"when {text} rlike r'{_DATE_OF_SPARK}' then try_cast({text} as date) end"
    )


def _timestamp(column: str) -> str:
    text = f"trim({column})"
    micros = _by_rule(text, f"try_add(try_multiply(d, {DAY_MICROS}), c)", DAY_MICROS)
    return (
        f"coalesce(case when {_is_plain(column)} then try_cast({column} as timestamp_ltz) end, "
        f"case when lower({text}) in ('infinity', '+infinity') then timestamp_micros({INFINITY_MICROS}) "
        f"when lower({text}) = '-infinity' then timestamp_micros({MINUS_INFINITY_MICROS}) "
        f"when {text} rlike r'{_RULE}' then timestamp_micros({micros}) "
        f"when {text} rlike r'{_TIMESTAMP_OF_SPARK}' then try_cast({text} as timestamp_ltz) end)"
    )


def _by_rule(text: str, result: str, units_a_day: int = 1) -> str:
    """A number that a text stands for which ``_RULE`` matches.

    ``result``: of finite days, with ``p``, the parts of the text, ``d``, days since 1970, and ``c``, microseconds of the day.
    """
    plus, minus = (", ".join(map(str, days)) for days in infinite_days())
    first, last = MINUS_INFINITY_DAY * units_a_day, INFINITY_DAY * units_a_day
    infinite = f"case when d in ({plus}) then {last} when d in ({minus}) then {first} end"
    clock = (
        "case when n[3] <= 24 and n[4] <= 59 and n[5] <= 60 and (n[3] < 24 or n[4] + n[5] + n[6] = 0) "
        "and n[8] <= 23 and n[9] <= 59 and n[10] <= 59 then cast(rpad(substr(p[6], 1, 6), 6, '0') as bigint) "
        "+ (n[3] * 3600 + n[4] * 60 + n[5]) * 1000000 "
        "- (n[8] * 3600 + n[9] * 60 + n[10]) * if(p[7] = '-', -1000000, 1000000) end"
    )
    # The calendar repeats itself after 400 years, so Spark finds the day in those from 2000 on, whatever the year is.
    day = (
        "unix_date(try_cast(concat(2000 + pmod(y, 400), '-', p[1], '-', p[2]) as date)) "
        "+ ((y - pmod(y, 400)) div 400 - 5) * 146097"
    )
    steps = [
        ("p", f"split(regexp_replace({text}, r'{_RULE}', '{_PARTS}'), ',', -1)"),
        ("n", "transform(p, part -> coalesce(try_cast(part as bigint), 0))"),
        ("y", "case when p[11] = '' then n[0] when n[0] > 0 then 1 - n[0] end"),
        ("d", day),
        ("c", clock),
    ]
    value = f"if(c is null, null, coalesce({infinite}, {result}))"
    for name, meaning in reversed(steps):
        value = f"transform(array({meaning}), {name} -> {value})[0]"  # gives it the name
    return value


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


NOTE = "_lakebed_note"
"""What a task says besides rows (``Answer``), pickled; null beside a row."""
_DROPPED = b"dropped"
"""A note beside a line that is no row, and that the settings allow to leave out."""
_BAD = "_lakebed_bad"
_CORRUPT = "_corrupt_record"
"""The column in which Spark keeps a line that does not fit, if there is such a column."""
BAD_LINE = "MALFORMED_RECORD_IN_PARSING"
"""A part of Spark's error for a line that does not fit: an error condition of Spark's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Csv:
    """How Spark reads a line. ``options``: of its parser; ``mode``: what becomes of a line that does not fit."""

    mode: str = "FAILFAST"
    options: Mapping[str, str] = field(default_factory=dict)

    def parsed(self, lines: DataFrame, columns: pa.Schema, *, with_bad: bool = False) -> DataFrame:
        """Lines with the columns of their rows beside them. ``with_bad``: with one more, the line if it does not fit."""
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.types import from_arrow_schema

        texts = [one for one in columns if self._has_own_rules(one.type)]
        types = {one.name: one.dataType.simpleString() for one in from_arrow_schema(columns)}
        types |= {one.name: "string" for one in texts} | ({_BAD: "string"} if with_bad else {})
        options = {**self.options, "mode": "PERMISSIVE" if with_bad else self.mode}
        if with_bad:
            options["columnNameOfCorruptRecord"] = _BAD
        ddl = ", ".join(f"{quote_for_spark(name)} {kind}" for name, kind in types.items())
        rows = lines.withColumn("_lakebed_row", F.from_csv(lines[LINE], ddl, options))
        rows = rows.select("*", "_lakebed_row.*").drop("_lakebed_row")
        return self._with_values(rows, texts, options) if texts else rows

    def _has_own_rules(self, kind: pa.DataType) -> bool:
        """Whether a column has numbers that may not fit, or times that no option has a format for."""
        if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            return "locale" not in self.options or pa.types.is_floating(kind)
        if pa.types.is_date(kind):
            return "dateFormat" not in self.options
        return bool(
            pa.types.is_timestamp(kind)
            and ("timestampFormat" if kind.tz is not None else "timestampNTZFormat") not in self.options
        )

    def _with_values(self, rows: DataFrame, texts: Sequence[pa.Field], options: Mapping[str, str]) -> DataFrame:
        """Times and numbers in place of their texts. A text that stands for none makes its line bad."""
        columns = {name: quote_for_spark(name) for name in rows.columns}
        bad = []
        zone = options.get("timeZone")
        for one in texts:
            text = quote_for_spark(one.name)
            if pa.types.is_temporal(one.type):
                value = time_of(text, one.type, None if zone is None else literal(zone))
            else:
                value = number_of(text, one.type, options)
            nothing = f"{text} is null" if options.get("nullValue") else f"{text} is null or {text} = ''"
            if options["mode"] == "FAILFAST":
                value = f"coalesce({value}, if({nothing}, null, raise_error('{BAD_LINE}')))"
            else:
                bad.append(f"(not ({nothing}) and {value} is null)")
            columns[one.name] = f"{value} as {text}"
        place = options.get("columnNameOfCorruptRecord", _CORRUPT)
        if bad and place in columns:
            name = quote_for_spark(place)
            columns[place] = f"coalesce({name}, if({' or '.join(bad)}, {LINE}, null)) as {name}"
        return rows.selectExpr(*columns.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOfFiles:
    """``columns``: those of the files. ``csv``: for lines; None for rows. ``transform``: the SQL of a pipeline.

    ``of_folders``: columns of which not the lines but the folders of the files have the values.
    """

    columns: pa.Schema
    csv: Csv | None = None
    apply_as_deletes: str | None = None
    except_columns: tuple[str, ...] = ()
    transform: Transform | None = None
    of_folders: tuple[str, ...] = ()
    with_places: bool = False
    """Whether lines come with their places, which costs a tenth more."""

    @property
    def view(self) -> pa.Schema:
        """What tasks yield."""
        plain = [pa.field(one.name, nullable(one.type)) for one in self.columns]
        if self.csv is None:
            return pa.schema(plain)
        given = [one for one in plain if one.name in self.of_folders]
        places = [(FILE, pa.int32()), (AT, pa.int64())] if self.with_places else []
        return pa.schema([(LINE, pa.string()), *places, *given])

    def for_folders(self, names: Sequence[str]) -> RowsOfFiles:
        """The same for files whose folders have the values of these columns."""
        return replace(self, of_folders=tuple(names))

    # With SQL: see ``run.transformed`` -----------------------------------------------------------------------------------

    def over(self, decoded: DataFrame) -> DataFrame:
        """The result of the SQL for what tasks yielded."""
        assert self.transform is not None
        rows = decoded
        if self.csv is not None:
            parsed, given = self._parsed(decoded), [quote_for_spark(name) for name in self.of_folders]
            rows = parsed.where(f"{_BAD} is null") if self.csv.mode == "DROPMALFORMED" else parsed
            rows = rows.select(
                *(quote_for_spark(one.name) for one in self.columns if one.name not in self.of_folders), *given
            )
        changes = self.transform.changes_in_rows(rows, self.apply_as_deletes, self.except_columns)
        return self.transform.over(changes)

    def rows_for(self, result: DataFrame, spec: WriteSpec) -> tuple[DataFrame, tuple[str, ...]]:
        """The rows for the write tasks, and the columns that the table lacks."""
        assert self.transform is not None
        return self.transform.rows_for(result, spec)

    # In one pass ---------------------------------------------------------------------------------------------------------

    def beside_notes(self, decoded: DataFrame, spec: WriteSpec) -> tuple[DataFrame, tuple[str, ...]]:
        """The rows for ``WritingBesideNotes``, and the columns that the table lacks. ``decoded``: as tasks yield it."""
        from pyspark.sql import functions as F

        flat = decoded.select(NOTE, "row.*")
        if self.csv is not None:
            flat = self._parsed(flat).drop(LINE)
            if self.csv.mode == "DROPMALFORMED":
                dropped = f"cast('{_DROPPED.decode()}' as binary)"
                flat = flat.withColumn(NOTE, F.expr(f"if({_BAD} is null, {NOTE}, {dropped})")).drop(_BAD)
        policy, incoming = _names_of(spec), spec.incoming
        deletes, left_out = self.apply_as_deletes, self.except_columns
        lacking = incoming.schema.names  # what the table got since the files' columns were looked up
        frame = changes_frame(flat, incoming, deletes, left_out, policy=policy, may_lack=lacking, beside=(NOTE,))
        return frame, unknown_columns(self.columns.names, incoming, deletes, left_out, policy)

    def _parsed(self, lines: DataFrame, with_bad: bool | None = None) -> DataFrame:
        """Lines with the columns of their rows beside them; ``with_bad``: as in ``Csv.parsed``, by the mode if it is None."""
        assert self.csv is not None
        in_lines = pa.schema([one for one in self.columns if one.name not in self.of_folders])
        drops = self.csv.mode == "DROPMALFORMED"
        return self.csv.parsed(lines, in_lines, with_bad=drops if with_bad is None else with_bad)

    def first_bad(self, lines: DataFrame) -> tuple[int, int, str] | None:
        """The first line found that does not fit: the place of its file, its byte, and the line."""
        found = self._parsed(lines, with_bad=True).where(f"{_BAD} is not null").select(FILE, AT, LINE).first()
        return None if found is None else tuple(found)


def _names_of(spec: WriteSpec) -> EvolvePolicy:
    """Columns that were renamed in the table come under their first names too."""
    names = spec.incoming.schema.names
    both = zip(names, spec.schema.names, strict=True)
    renamed = {name: stored for name, stored in both if name != stored and stored not in names}
    return EvolvePolicy(renamed=renamed)


@dataclass(frozen=True, slots=True)
class WritingBesideNotes:
    """Writes the rows of a DataFrame, and passes on what the reading tasks said besides rows."""

    task: WriteTask

    @crosses_spark
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        notes: list[bytes] = []
        dropped = 0

        def rows() -> Iterator[pa.RecordBatch]:
            nonlocal dropped
            for batch in batches:
                beside = batch.column(NOTE)
                for note in beside.drop_null().to_pylist():
                    if note == _DROPPED:
                        dropped += 1
                    else:
                        notes.append(note)
                yield batch if beside.null_count == len(batch) else batch.filter(beside.is_null())

        with counted() as requests:
            written = self.task.write(self.task.stream(rows()))
            written = Written.of([written, Written(ignored=dropped)])
        yield Answer.of(written, requests).batch()
        yield pa.RecordBatch.from_arrays([pa.array(notes, pa.binary())], names=["answer"])
