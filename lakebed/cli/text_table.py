"""Lays out texts as a table, or as records downwards, within the width of a terminal.

1. A table gets the widths that its cells need. If that is too wide, columns that may be left out go, the last one first, and then
   the widest of those that may be cut get narrower, all to the same width.
2. If that is still too wide, the last columns go, as long as more than half of them stay; who prints the table says which ones.
3. A table that still does not fit is printed as records: each value on a line of its own, folded where it is long.

A width counts terminal cells: a Chinese character or an emoji takes two, a combining accent none. Without a width (stdout is no
terminal) nothing is cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len, chop_cells, set_cell_size

_GAP = "   "
_RECORD_LINES_MAX = 20
_INDENT = "    "


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of texts, each in one line and safe for a terminal.

    ``least``: it may be cut to so many cells, None: it is never cut; ``optional``: it may be left out.
    """

    name: str
    cells: Sequence[str]
    right: bool = False
    least: int | None = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Laid:
    """The lines of a table, and whether they leave something out: columns, or the ends of values."""

    lines: Iterator[str]
    is_whole: bool
    left_out: tuple[str, ...] = ()
    """The names of columns that are left out."""


def lay_out(columns: Sequence[Column], width: int | None, below: Sequence[str] = (), downwards: bool = False) -> Laid:
    """A table that fits into ``width`` cells, or records if none does, or if ``downwards`` asks for them.

    ``below``: a text for each row, which is folded below it; an empty one takes no line.
    """
    fitted = None if downwards else _fitted(columns, width) or _most_that_fit(columns, width)
    if fitted is None:
        return Laid(_records(columns, below, width), all(_fits_a_record(columns, width)))
    kept, widths = fitted
    whole = len(kept) == len(columns) and all(
        _natural(column) <= most for column, most in zip(kept, widths, strict=True)
    )
    left_out = tuple(each.name for each in columns if not any(each is one for one in kept))
    return Laid(_table(kept, widths, below, width), whole, left_out)


def _most_that_fit(columns: Sequence[Column], width: int | None) -> tuple[list[Column], list[int]] | None:
    """The first columns, if more than half of them fit beside each other; None if fewer do: then records are easier to read."""
    fitted = _fitted([replace(column, optional=True) for column in columns], width)
    if fitted is None or 2 * len(fitted[0]) <= len(columns):
        return None
    count = len(fitted[0])
    return list(columns[:count]), fitted[1]


def first_that_fit(columns: Sequence[Column], width: int | None) -> list[Column]:
    """The first columns that fit beside each other: one at least, which may be cut."""
    kept = [replace(column, optional=at > 0) for at, column in enumerate(columns)]
    fitted = _fitted(kept, width)
    return fitted[0] if fitted else [replace(kept[0], least=1)]


def _fitted(columns: Sequence[Column], width: int | None) -> tuple[list[Column], list[int]] | None:
    """The columns that are kept, and the width of each; None if they do not fit."""
    kept = list(columns)
    natural = {id(column): _natural(column) for column in kept}
    least = {id(column): _least(column, natural[id(column)]) for column in kept}

    def total(most: int) -> int:
        cells = (min(natural[id(column)], max(least[id(column)], most)) for column in kept)
        return sum(cells) + len(_GAP) * (len(kept) - 1)

    if width is None:
        return kept, [natural[id(column)] for column in kept]
    while total(0) > width:
        last = next((column for column in reversed(kept) if column.optional), None)
        if last is None:
            return None
        kept = [column for column in kept if column is not last]
    low, high = 0, max(natural.values(), default=0)
    while low < high:  # the greatest width of cut columns with which all fit
        middle = (low + high + 1) // 2
        low, high = (middle, high) if total(middle) <= width else (low, middle - 1)
    return kept, [min(natural[id(column)], max(least[id(column)], low)) for column in kept]


def _natural(column: Column) -> int:
    return max([cell_len(column.name), *map(cell_len, column.cells)])


def _least(column: Column, natural: int) -> int:
    return natural if column.least is None else min(natural, max(column.least, cell_len(column.name)))


def _table(columns: Sequence[Column], widths: Sequence[int], below: Sequence[str], width: int | None) -> Iterator[str]:
    def line(cells: Sequence[str]) -> str:
        placed = (_placed(cell, most, column.right) for cell, most, column in zip(cells, widths, columns, strict=True))
        return _GAP.join(placed).rstrip()

    yield line([column.name for column in columns])
    yield "─" * (sum(widths) + len(_GAP) * (len(widths) - 1))
    for at, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        yield line(cells)
        if below and below[at]:
            yield from (_INDENT + piece for piece in fold(below[at], None if width is None else width - len(_INDENT)))


def _records(columns: Sequence[Column], below: Sequence[str], width: int | None) -> Iterator[str]:
    names = max((cell_len(column.name) for column in columns), default=0)
    if width is not None:
        names = min(names, max(1, width // 2))
    rows = len(columns[0].cells) if columns else 0
    for at in range(rows):
        if rows > 1:
            title = f"── {at + 1} "
            yield title + "─" * (max(0, (width or 40) - len(title)))
        for column in columns:
            pieces = fold(column.cells[at], _room(names, width))
            if width is not None and len(pieces) > _RECORD_LINES_MAX:
                pieces = [*pieces[: _RECORD_LINES_MAX - 1], "…"]
            for number, piece in enumerate(pieces):
                yield f"{_placed(column.name if number == 0 else '', names, False)}{_GAP}{piece}".rstrip()
        if below and below[at]:
            yield from (_INDENT + piece for piece in fold(below[at], None if width is None else width - len(_INDENT)))


def _fits_a_record(columns: Sequence[Column], width: int | None) -> Iterator[bool]:
    if width is None:
        return
    names = min(max((cell_len(column.name) for column in columns), default=0), max(1, width // 2))
    room = max(2, width - names - len(_GAP))
    for column in columns:
        yield cell_len(column.name) <= names
        yield all(len(fold(cell, room)) <= _RECORD_LINES_MAX for cell in column.cells)


def _room(names: int, width: int | None) -> int | None:
    return None if width is None else max(2, width - names - len(_GAP))


def fold(text: str, width: int | None) -> list[str]:
    """The text in lines of at most ``width`` cells, at spaces where there are some; one line at least."""
    if width is None or cell_len(text) <= width:
        return [text]
    lines, words, line = [], text.split(" "), ""
    for word in words:
        if line and cell_len(line) + 1 + cell_len(word) <= width:
            line = f"{line} {word}"
            continue
        if line:
            lines.append(line)
        *whole, line = chop_cells(word, width) or [""]
        lines += whole
    return [*lines, line]


def _placed(text: str, width: int, right: bool) -> str:
    """The text in exactly so many cells."""
    size = cell_len(text)
    if size > width:
        items = set_cell_size(text[: 4 * width], max(0, width - 2)).rpartition(", ")[0]
        if 2 * cell_len(items) > width:  # a list ends with a whole item
            text = f"{items}, …"
            return text + " " * (width - cell_len(text))
        return set_cell_size(text[: 4 * width], max(0, width - 1)) + "…"  # an emoji of several characters stays whole
    return " " * (width - size) + text if right else text + " " * (width - size)
