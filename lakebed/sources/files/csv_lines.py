"""Lines of CSV files, without what is no row: the header, which is compared with the columns, comments, and blank lines.

What a line means is for Spark's parser (``transform.rows_of_files``). Where a value may go over several lines (``multiLine``), a
line here is what belongs to one row.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from lakebed.errors import InvalidChanges
from lakebed.sources.files.codecs import Damaged
from lakebed.sources.files.lines import Lines
from lakebed.sources.files.settings import Options

LINE, FILE, AT = "_lakebed_line", "_lakebed_file", "_lakebed_at"
"""A line of CSV; the place of its file in the batch; the byte of the file at which it begins."""

ROW_BYTES_MAX = 64 << 20
_SHOWN = 500


def rows_of(
    lines: Iterable[Lines], options: Options, columns: Sequence[str], file: str, has_header: bool
) -> Iterator[Lines]:
    """The lines that are rows. ``has_header``: whether a header comes first, which has the names of the ``columns``.

    Raises InvalidChanges, which names the ``file``, for another header.
    """
    comment = options.comment.encode()
    for some in lines:
        if comment:
            is_row = [not some.text(number).startswith(comment) for number in range(len(some))]
            some = some.chosen(np.array(is_row, bool))
        if has_header and len(some):
            has_header = False
            if options.checks_header:
                _compare(some.text(0), options, columns, file)
            some = some.chosen(np.arange(1, len(some)))
        if len(some):
            yield some


def _compare(header: bytes, options: Options, columns: Sequence[str], file: str) -> None:
    names = values_of(header.decode("utf-8", "replace"), options)
    if [name.lower() for name in names] != [name.lower() for name in columns]:
        raise InvalidChanges(
            f"{file} has the header {', '.join(names)[:_SHOWN]}, and the columns of the table and extra_columns are "
            f"{', '.join(columns)[:_SHOWN]}: columns of CSV files are taken by their place, so bring them into one order, and "
            "name those that the table does not need in extra_columns and except_columns",
            path=file,
        )


def values_of(line: str, options: Options) -> list[str]:
    """The values of a line, as texts: enough for the names of a header."""
    quote = re.escape(options.quote) if options.quote.strip("\0") else "(?!)"
    value = re.compile(
        rf"\s*{quote}((?:[^{quote}]|{quote}{quote})*){quote}\s*(?={re.escape(options.separator)}|$)", re.DOTALL
    )
    values, at = [], 0
    while at <= len(line):
        found = value.match(line, at)
        end = found.end() if found else line.find(options.separator, at)
        end = len(line) if end < 0 else end
        values.append(found[1].replace(options.quote * 2, options.quote) if found else line[at:end].strip())
        at = end + len(options.separator)
    return values


def rows_over_lines(pieces: Iterable[bytes], options: Options) -> Iterator[Lines]:
    """The rows of a file in which quoted values may have line breaks. Raises Damaged for a quote without its end."""
    pattern = _row(options)
    source = iter(pieces)
    data, first, is_last = b"", 0, False
    while not is_last:
        piece = next(source, None)
        is_last = piece is None
        data += piece or b""
        starts, ends, at = [], [], len(BOM_UTF8) if not first and data.startswith(BOM_UTF8) else 0
        while at < len(data):
            found = pattern.match(data, at)
            # The last row of a piece may go on in the next one.
            if found is None or (not is_last and found.end() >= len(data) - 1):
                break
            if found[1].strip():
                starts.append(at)
                ends.append(found.end(1))
            at = found.end()
        if starts:
            yield Lines(data, first, np.array(starts, np.int64), np.array(ends, np.int64))
        data, first = data[at:], first + at
        if (data and is_last) or len(data) > ROW_BYTES_MAX:
            raise Damaged(f"the row at byte {first} does not end; is there a quote without its end?")


def _row(options: Options) -> re.Pattern[bytes]:
    """A row and the line break behind it. A quote counts where a value begins."""
    separator = re.escape(options.separator.encode())
    plain = rb"(?:(?!" + separator + rb")[^\r\n])*" if len(options.separator) > 1 else rb"[^\r\n" + separator + rb"]*"
    if options.quote.strip("\0"):
        quote, escape = re.escape(options.quote.encode()), re.escape(options.escape.encode())
        begin = (rb"[ \t]*" if options.ignores_leading_blanks else b"") + quote
        inside = rb"(?:[^" + quote + escape + rb"]++|" + escape + rb".|" + quote + quote + rb")*"
        quoted = begin + inside + quote + rb"[^\r\n]*?(?=" + separator + rb"|\r|\n|\Z)"
        value = rb"(?:" + quoted + rb"|(?!" + begin + rb")" + plain + rb")"
    else:
        value = plain
    return re.compile(rb"(" + value + rb"(?:" + separator + value + rb")*)(?:\r\n|\n|\r|\Z)", re.DOTALL)
