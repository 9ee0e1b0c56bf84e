"""Rows of files that Spark has a part in: it parses lines of CSV, and evaluates what a user wrote (``apply_as_deletes``, SQL).

1. Tasks read the files and yield lines of CSV, or rows (``transform.decode``).
2. Spark makes rows of them, without moving any, so their order stays.
3. Tasks write the rows. Without SQL all this is one pass: what the reading tasks say besides rows goes through Spark beside the
   rows (``WritingBesideNotes``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from lakebed.error_transport import crosses_spark
from lakebed.ingest.batch_writer import Answer, WriteTask, Written
from lakebed.ingest.changes_frame import changes_frame, unknown_columns
from lakebed.ingest.transform.csv_values import number_of, time_of
from lakebed.ingest.transform.query import Transform
from lakebed.parts.changes import WriteSpec
from lakebed.quoting import literal, quote_for_spark
from lakebed.schema.fitting import EvolvePolicy
from lakebed.schema.nested import nullable
from lakebed.sources.files.csv_lines import AT, FILE, LINE
from lakebed.telemetry import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
            written = self.task.run(rows())
            written = Written.of([written, Written(ignored=dropped)])
        yield Answer.of(written, requests).batch()
        yield pa.RecordBatch.from_arrays([pa.array(notes, pa.binary())], names=["answer"])
