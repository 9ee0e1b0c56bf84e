"""Spans and tallies, rounds over keys, and the differences that are left. Pure.

A round compares some keys once, while both sides go on:

1. The rows of the keys are read in the source, each with its checksum and a *mark* that changes whenever the row does.
2. The source's position is taken after that, and the table is waited for until it has everything up to it.
3. The rows are read in the table, and once more in the source.
4. A key whose rows in the table are those of one of the two readings is equal. If the two readings differ, the key changed
   meanwhile: a later round compares it. Otherwise it *stands*: the source has not changed, and the table has something else.

A key that stands in ``STANDS`` rounds one after the other, with the same rows on both sides, differs. For a row that is there one
round would do, as the mark shows that nothing happened between the readings. A row that the source does not have might have come
and gone; and with synchronous replication the table may have a change a moment before the source shows it.

A source without marks can't tell a row that changed and changed back between two readings. It stands falsely if both show the
same values and the table is read just between the two changes. A row with a counter, or with the time of its change, never has
the same values again. A row that flips between two states all the time, at random, stands so in an eighth of the rounds after one
that it stood in. So rows without a mark need ``STANDS_UNMARKED`` rounds one after the other: that is one run in a hundred
thousand or so for such a row, and none for all others.

Each round takes a key away (equal, or different), lowers the number of rounds that a standing key needs, or is one of
``ROUNDS_MAX``: so rounds end. Keys that changed in each of these rounds are *unsettled*: nobody knows, and the report says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lakebed.verify.canonical import Shape
from lakebed.verify.judging import looks_like, swapped

STANDS, ROUNDS_MAX = 3, 12
STANDS_UNMARKED = 6
_TEXT_SHOWN_MAX = 200

Key = tuple[str, ...]
"""The canonical texts of a row's keys."""
Kind = Literal["missing", "surplus", "doubled", "differs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The keys after ``after`` up to ``upto``, which is in it; None: without an end."""

    after: Key | None
    upto: Key | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The number of some rows, and the sum of their checksums."""

    rows: int = 0
    sum: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(rows=self.rows + other.rows, sum=self.sum + other.sum)


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A row of the source: its checksum, and a mark that is another one after each change, if the source has such marks."""

    checksum: int
    mark: str = ""


States = Mapping[Key, Sequence[Version]]
"""The rows of each key; a key without a row may be missing."""


def differing_spans(source: Mapping[Span, Tally], lake: Mapping[Span, Tally]) -> list[Span]:
    """Those whose tallies are not equal, in their order."""
    return [span for span, tally in source.items() if tally != lake.get(span, Tally())]


# -- Rounds -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """What a key's rows were in the last rounds, and in how many."""

    source: tuple[Version, ...]
    lake: tuple[int, ...]
    rounds: int


@dataclass(slots=True)
class Rounds:
    """The keys that are still compared. ``different``: those that differ."""

    pending: dict[Key, _Standing | None]
    different: dict[Key, tuple[Version, ...]] = field(default_factory=dict)  # to what the source had
    equal: int = 0
    rounds: int = 0

    @staticmethod
    def of(keys: Iterable[Key], rounds: int = 0) -> Rounds:
        """Before the first round; ``rounds``: that were spent on these keys before."""
        return Rounds(dict.fromkeys(keys), rounds=rounds)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to compare, or what is left changes all the time."""
        return not self.pending or self.rounds >= ROUNDS_MAX

    def take(self, before: States, lake: Mapping[Key, Sequence[int]], after: States) -> None:
        """Judge each pending key by what one round has read."""
        self.rounds += 1
        for key, known in list(self.pending.items()):
            first, second = (tuple(sorted(found.get(key, ()))) for found in (before, after))
            there = tuple(sorted(lake.get(key, ())))
            if there in (_checksums(first), _checksums(second)):
                self.equal += 1
                del self.pending[key]
            elif first != second:
                self.pending[key] = None
            else:
                rounds = known.rounds + 1 if known and (known.source, known.lake) == (second, there) else 1
                self.pending[key] = _Standing(source=second, lake=there, rounds=rounds)
                if rounds == (STANDS if all(one.mark for one in second) else STANDS_UNMARKED):
                    self.different[key] = second
                    del self.pending[key]


def _checksums(versions: Iterable[Version]) -> tuple[int, ...]:
    return tuple(sorted(one.checksum for one in versions))


# -- Differences ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key whose rows differ. ``looks_like``: what it may be, for people; empty if nothing is known."""

    key: Mapping[str, str]
    kind: Kind
    column: str = ""  # the first one that differs
    looks_like: str = ""
    source: Sequence[Mapping[str, str | None]] = ()  # the rows' texts for people, cut
    lake: Sequence[Mapping[str, str | None]] = ()


Row = Sequence[str | None]
"""The canonical texts of a row, in the order of the shape's columns."""


def difference_of(shape: Shape, key: Key, source: Sequence[Row], lake: Sequence[Row]) -> Difference | None:
    """How the rows of a key differ; None if they are the same values in other texts."""
    left = [row for row in lake if not any(_is_same(shape, other, row) for other in source)]
    lacking = [row for row in source if not any(_is_same(shape, row, other) for other in lake)]
    if not left and not lacking and len(source) == len(lake):
        return None
    kind: Kind = "differs"
    if not lake:
        kind = "missing"
    elif not source:
        kind = "surplus"
    elif len(lake) > len(source):
        kind = "doubled"
    column, guess = "", ""
    if lacking and left:
        column, guess = _first_difference(shape, lacking[0], left[0])
    return Difference(
        key={each.name: _cut(each.rule.shown(text)) or "" for each, text in zip(shape.keys, key, strict=True)},
        kind=kind,
        column=column,
        looks_like=guess,
        source=[_shown(shape, row) for row in source[:2]],
        lake=[_shown(shape, row) for row in lake[:2]],
    )


def _is_same(shape: Shape, source: Row, lake: Row) -> bool:
    return all(_is_same_value(shape, at, one, other) for at, (one, other) in enumerate(zip(source, lake, strict=True)))


def _is_same_value(shape: Shape, at: int, source: str | None, lake: str | None) -> bool:
    if source == lake:
        return True
    judge = shape.columns[at].rule.judge
    return source is not None and lake is not None and judge is not None and judge(source, lake)


def _first_difference(shape: Shape, source: Row, lake: Row) -> tuple[str, str]:
    differing = [at for at in range(len(source)) if not _is_same_value(shape, at, source[at], lake[at])]
    names = [each.name for each in shape.columns]
    exchanged = swapped(*({names[at]: row[at] for at in differing} for row in (source, lake)))
    first = differing[0]
    column = shape.columns[first]
    return column.name, exchanged or looks_like(column.kind, source[first], lake[first])


def _shown(shape: Shape, row: Row) -> dict[str, str | None]:
    return {
        column.name: _cut(None if text is None else column.rule.shown(text))
        for column, text in zip(shape.columns, row, strict=True)
    }


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _TEXT_SHOWN_MAX else text[: _TEXT_SHOWN_MAX - 1] + "…"
