"""Folders of files as a source: a stream of files, not of what is in them. ``planner`` plans them.

json, debezium-json     one document a line, decoded like the records of Kafka
csv                     lines of values, with a header line that has the names of the columns, in their order
parquet                 rows, by the names of their columns

What is in files is read as lines, which are records, or as rows. A range is a range of the bytes of a file
(``planner.ranges_of``).

A file that is gone, that is damaged, or that changes while it is read, is an error that names it. Then nothing of its batch is
committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa

from lakebed.decode.decoder import RECORD_SCHEMA
from lakebed.errors import DataLoss, InvalidChanges, Retry
from lakebed.far_times import days_of_text, micros_of_text
from lakebed.remarks import Counts, Remark, RemarkCounts
from lakebed.sources.files import lines, parquet_rows
from lakebed.sources.files.folder import Looker, State
from lakebed.sources.files.lines import (
    AT,
    FILE,
    LINE,
    Damaged,
    Lines,
    as_utf8,
    decompressed,
    ending_of,
    lines_of,
    pieces_of,
)
from lakebed.sources.files.planner import PlannedFiles, file_of, ranges_of
from lakebed.sources.files.settings import FilesSettings, Options, partition_values, shown, unquoted
from lakebed.sources.rows import ROW, TIME
from lakebed.sources.source import Bounds, Place, Range
from lakebed.storage.local_folders import trouble

SPLIT_BYTES = 64 << 20
"""A file of more is read in ranges of about so many bytes, which tasks share, if lines can be found from any place in it."""
RECORD_BYTES, COMPRESSED_RECORD_BYTES = 100, 15
_SHOWN = 200


@dataclass(slots=True)
class FilesReader:
    """Fetches a range of a file inside a task.

    ``columns``: of files that have columns; ``left_out``: names that a file of Parquet may lack, or have without being asked for.
    """

    settings: FilesSettings
    columns: pa.Schema | None = None
    left_out: tuple[str, ...] = ()
    records_lost: int = 0
    _remarks: RemarkCounts = field(default_factory=RemarkCounts, init=False)
    _looker: Looker | None = field(default=None, init=False)
    _options: Options | None = field(default=None, init=False)

    def __reduce__(self) -> tuple[type[FilesReader], tuple[FilesSettings, pa.Schema | None, tuple[str, ...]]]:
        """A copy has nothing to say yet."""
        return FilesReader, (self.settings, self.columns, self.left_out)

    @property
    def looker(self) -> Looker:
        if self._looker is None:
            self._looker = Looker(self.settings)
        return self._looker

    @property
    def options(self) -> Options:
        if self._options is None:
            self._options = Options.of(self.settings)
        return self._options

    # What the driver asks ----------------------------------------------------------------------------------------------

    @property
    def skips_losses(self) -> bool:
        return self.options.skips_missing

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
        """Of each file of the batch one range or several, in order; an empty one of a file that is not read (``planner``)."""
        if start == end:
            return []
        planned, out = PlannedFiles.of(end), list[Range]()
        for ordinal, found in enumerate(planned.files):
            state = self._now(found.path, found.state)
            cuts, each = self._cuts(found.path, state.size), self._record_bytes(found.path)
            out += ranges_of(self.looker.url(found.path), ordinal, state, cuts, each)
        for found in planned.changed:
            out += ranges_of(self.looker.url(found.path), 0, found.state, [(0, 0)])
        return out

    def _now(self, path: str, planned: State) -> State:
        """The state of a file now. In a store only that of a large one, whose parts are read one by one."""
        if not self.looker.folder.is_quick and planned.size <= SPLIT_BYTES:
            return planned
        try:
            return self.looker.folder.state(path)
        except FileNotFoundError:
            return planned  # reading it will tell

    def _cuts(self, path: str, size: int) -> Sequence[tuple[int, int]]:
        """The ranges of bytes that a file is read in."""
        options = self.options
        can_be_split = not self.settings.has_lines or (
            ending_of(path) is None
            and not options.multi_line
            and options.encoding == "utf-8"
            and len(options.line_separator or b"\n") == 1
        )
        pieces = max(1, size // SPLIT_BYTES) if can_be_split else 1
        size = max(1, size)
        edges = [size * piece // pieces for piece in range(pieces + 1)]
        return list(pairwise(edges))

    def _record_bytes(self, path: str) -> int:
        """About how many bytes of a file a record takes."""
        return RECORD_BYTES if self.settings.has_lines and ending_of(path) is None else COMPRESSED_RECORD_BYTES

    def of_folders(self, ranges: Sequence[Range]) -> tuple[str, ...]:
        """The columns of which the folders of all files have the values. Raises InvalidChanges if some files lack one of them."""
        assert self.columns is not None
        found: dict[tuple[str, ...], str] = {}
        for url in {one.topic for one in ranges}:
            found.setdefault(tuple(sorted(_folder_columns(self._path(url), self.columns, self.options))), url)
        if len(found) > 1:
            (names, one), (others, another), *_ = found.items()
            raise InvalidChanges(
                f"the folders of {shown(one)} have the columns {', '.join(names) or 'none'}, and those of {shown(another)} "
                f"{', '.join(others) or 'none'}: lines of CSV can't be read together then. Put files into folders of one kind"
            )
        return next(iter(found), ())

    def bounds(self, places: Sequence[Place]) -> dict[Place, Bounds]:
        """Nothing: files have no positions."""
        return {}

    def impatient(self) -> FilesReader:
        return self

    # What a task does --------------------------------------------------------------------------------------------------

    def read(self, chosen: Range) -> Iterator[pa.Table]:
        """Records, or rows with their place (``ROW`` is a struct of the columns), in the order of the file.

        Raises DataLoss for a file that is gone, InvalidChanges for one that is damaged or of other columns, Retry for one that
        changes meanwhile.
        """
        path, file = self._path(chosen.topic), shown(chosen.topic)
        try:
            with self.looker.folder.open(path, file_of(chosen).size) as opened:
                yield from (
                    self._lines(opened, path, chosen) if self.settings.has_lines else self._rows(opened, path, chosen)
                )
            self._require_unchanged(path, chosen)
        except FileNotFoundError:
            if not self.options.skips_missing:
                raise DataLoss(
                    f"the file {file} is gone, and was not read yet; bring it back, or set the option ignoreMissingFiles to "
                    "'true' to go on without such files",
                    topic=chosen.topic,
                ) from None
            self._remarks.add(Remark.FILE_SKIPPED, path)
        except Damaged as error:
            self._require_unchanged(path, chosen)
            if not self.options.skips_damaged:
                raise InvalidChanges(
                    f"the file {file} can't be read: {str(error).rstrip('.')}. Put a whole one in its place, or set the option "
                    "ignoreCorruptFiles to 'true' to go on with what can be read of such files",
                    path=file,
                ) from error
            self._remarks.add(Remark.FILE_SKIPPED, path)
        except InvalidChanges as error:
            if error.path is not None:
                raise
            raise InvalidChanges(f"the file {file} can't be read: {error}", path=file) from None
        except OSError as error:
            raise trouble(error.errno, f"the file {file} can't be read ({error.strerror or error})", file) from error

    def remarks(self) -> Counts:
        """What there is to say of the files that were read."""
        return self._remarks.counts

    def _path(self, url: str) -> str:
        return unquoted(url.removeprefix(self.looker.folder.url + "/"))

    def _require_unchanged(self, path: str, chosen: Range) -> None:
        """Raises Retry if a file was written while it was read."""
        planned = file_of(chosen)
        if not self.looker.folder.is_quick:
            return
        try:
            now = self.looker.folder.state(path)
        except FileNotFoundError:
            return  # it was removed, after it was read
        if (now.size, now.modified_ns) != (planned.size, planned.modified_ns):
            raise Retry(
                f"the file {shown(chosen.topic)} was written while it was read: files must appear complete. Write them "
                "elsewhere, or under a name that begins with '.', and rename them then"
            )

    def _lines(self, opened: Any, path: str, chosen: Range) -> Iterator[pa.Table]:
        options, ending = self.options, ending_of(path)
        end: int | None = chosen.end
        if ending is not None:
            pieces, end = decompressed(opened, ending), None
        else:
            pieces = pieces_of(opened, max(0, chosen.start - 1))
        if options.encoding != "utf-8":
            pieces, end = as_utf8(pieces, options.encoding), None
        if self.settings.format != "csv":
            yield from (_records(some, chosen) for some in lines_of(pieces, chosen.start, end, options.line_separator))
            return
        assert self.columns is not None
        if options.multi_line:
            found = lines.rows_over_lines(pieces, options)
        else:
            found = lines_of(pieces, chosen.start, end, options.line_separator)
        given = _folder_columns(path, self.columns, options)
        names = [name for name in self.columns.names if name not in given]
        has_header = options.has_header and not chosen.start
        for some in lines.rows_of(found, options, names, shown(chosen.topic), has_header):
            columns = {
                LINE: _texts(some.values()),
                FILE: _repeated(chosen.partition, pa.int32(), len(some)),
                AT: some.offsets,
            }
            yield pa.table(columns | {name: pa.repeat(value, len(some)) for name, value in given.items()})

    def _rows(self, opened: Any, path: str, chosen: Range) -> Iterator[pa.Table]:
        assert self.columns is not None
        given = _folder_columns(path, self.columns, self.options)
        in_file = pa.schema([one for one in self.columns if one.name not in given])
        parquet = parquet_rows.open_parquet(opened)
        for rows in parquet_rows.rows_of(parquet, chosen.start, chosen.end, in_file, self.left_out):
            count, table = len(rows.table), rows.table
            for name in set(rows.unknown).difference(self.left_out):
                self._remarks.add(Remark.UNKNOWN_FIELD, name, count)
            for name, value in given.items():
                table = table.append_column(name, pa.repeat(value, count))
            columns = [table[one.name].combine_chunks() for one in self.columns]
            fields = [pa.field(one.name, column.type) for one, column in zip(self.columns, columns, strict=True)]
            yield pa.table(
                {
                    "topic": _repeated(chosen.topic, pa.string(), count),
                    "partition": _repeated(chosen.partition, pa.int32(), count),
                    "offset": pa.array(range(rows.first, rows.first + count), pa.int64()),
                    TIME: _repeated(chosen.clock_micros, pa.int64(), count).view(pa.timestamp("us", "UTC")),
                    ROW: pa.StructArray.from_arrays(columns, fields=fields),
                }
            )


def bad_line(url: str, at: int, line: str) -> InvalidChanges:
    """The error for a line of CSV that does not fit its columns."""
    return InvalidChanges(
        f"the file {shown(url)} can't be read: the line at byte {at} does not fit the columns: {line[:_SHOWN]!r}. It needs as "
        "many values as there are columns, and each of them of its type. Mend the file, or set the option mode to PERMISSIVE, "
        "which takes null for what can't be read, or to DROPMALFORMED, which leaves such lines out",
        path=shown(url),
    )


def _folder_columns(path: str, columns: pa.Schema, options: Options) -> dict[str, pa.Scalar]:
    """The values that folders named like partitions give for columns. Raises InvalidChanges for one that does not fit."""
    by_small = {one.name.lower(): one for one in columns}
    values = {}
    for name, text in {} if options.recursive else partition_values(path).items():
        field = by_small.get(name.lower())
        if field is not None:
            try:
                values[field.name] = _value_of_folder(text, field.type)
            except (pa.ArrowException, ValueError, OverflowError) as error:
                why = str(error).splitlines()[0]
                raise InvalidChanges(
                    f"its folder {name}={text} has no value for the column {field.name!r}: {why}"
                ) from None
    return values


def _value_of_folder(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Raises ValueError, OverflowError, ArrowException."""
    is_date = pa.types.is_date(kind)
    if text is None or not (is_date or pa.types.is_timestamp(kind)):
        return pa.scalar(text, pa.string()).cast(kind)
    found = days_of_text(text) if is_date else micros_of_text(text)
    if found is None:
        raise ValueError(f"it is no {'date' if is_date else 'timestamp'}")
    return pa.array([found], pa.int32() if is_date else pa.int64()).view(kind)[0]


def _records(lines: Lines, chosen: Range) -> pa.Table:
    count, millis = len(lines), (chosen.clock_micros or 0) // 1000
    columns = [
        pa.nulls(count, pa.binary()),
        lines.values(),
        _repeated(chosen.topic, pa.string(), count),
        _repeated(chosen.partition, pa.int32(), count),
        lines.offsets,
        _repeated(millis, pa.int64(), count).view(pa.timestamp("ms", "UTC")),
    ]
    return pa.Table.from_arrays(columns, schema=RECORD_SCHEMA)


def _repeated(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _texts(values: pa.Array) -> pa.Array:
    """Bytes as texts; what is no UTF-8 is replaced, as Spark does."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in values.to_pylist()], pa.string())
