"""Compares one table with its source while both go on: from buckets to keys to rows.

1. The source is read in buckets of ``BUCKET_ROWS`` keys, each by statements of its own: where it ends, and the tally of its rows.
   The pace bounds how many rows a second are read.
2. After a group of buckets the source's position is taken, and the table waited for until it has everything up to there. So what
   was read is in the table, or something newer is. The table's tallies of the same spans are made in one pass.
3. Of buckets whose tallies differ, keys and checksums are read, and compared with the table's in the same way.
4. Keys that differ are compared in rounds (``comparing``), until each is known to be equal or different.
5. The rows of those that differ are read as a whole, and the types' judges decide.

With a *scan*, another reading of the source as it was at one position (``FrozenDatabase``), steps 1 to 3 are about that position;
keys that differ may have changed since, so steps 4 and 5 read the source as it is.

Where the two sides do not order keys alike, as texts of most collations, there are no tallies: all checksums are read, kept
on local disk, and compared at the end (``_unordered``).

Memory is bounded by a bucket, by ``KEYS_AT_ONCE`` keys, and by DuckDB, which spills.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lakebed.errors import InvalidInput, LakebedError
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.positions.verified import Verifying, note_verifying, verifying_of
from lakebed.verify.canonical import Shape
from lakebed.verify.comparing import (
    Difference,
    Key,
    Kind,
    Rounds,
    Span,
    Tally,
    Version,
    difference_of,
    differing_spans,
)
from lakebed.verify.source import Lake, Pace, Source

BUCKET_ROWS, GROUP_BUCKETS = 10_000, 100
KEYS_AT_ONCE = 5_000
_ROWS_AT_ONCE = 100
DIFFERENCES_MAX, SHOWN_MAX = 10_000, 100
Progress = Callable[[str, int | None, int | None], None]
Checkpoint = Callable[[Key, "Found"], None]


def no_progress(step: str, done: int | None, of: int | None) -> None:
    """Tells nobody."""
    return None


@dataclass(slots=True, kw_only=True)
class Found:
    """What a comparison has found so far."""

    rows: Tally = field(default_factory=Tally)  # of the source, as they were read
    buckets: int = 0
    differing_buckets: int = 0
    keys: int = 0  # compared one by one
    rounds: int = 0
    differing: dict[Key, Kind] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)  # SHOWN_MAX of them
    unsettled: list[Key] = field(default_factory=list)  # changed in each round
    is_cut: bool = False  # whether it ended after DIFFERENCES_MAX differences
    first_position: int | None = None
    last_position: int | None = None

    @property
    def differing_keys(self) -> int:
        """How many keys differ."""
        return len(self.differing)


class Proof:
    """One comparison of a table. ``found`` grows while it runs."""

    def __init__(
        self,
        shape: Shape,
        source: Source,
        lake: Lake,
        pace: Pace,
        *,
        scan: Source | None = None,
        progress: Progress = no_progress,
        checkpoint: Checkpoint | None = None,
        bucket_rows: int = BUCKET_ROWS,
        group_buckets: int = GROUP_BUCKETS,
    ) -> None:
        """``scan``: the source as it was at one position; ``checkpoint``: is told up to which key all buckets are equal, after
        each group; see ``run``."""
        self._shape = shape
        self._source = source
        self._scan = scan or source
        self._lake = lake
        self._pace = pace
        self._progress = progress
        self._checkpoint = checkpoint
        self._bucket_rows = bucket_rows
        self._group_buckets = group_buckets
        self.found = Found()

    def run(self, after: Key | None = None, found: Found | None = None) -> Found:
        """Compare everything. Raises Retry, InvalidInput, Corrupt.

        ``after``, ``found``: what an earlier run has told ``checkpoint`` last; this one goes on from there.
        """
        self.found = found or Found(first_position=self._scan.position())
        if self._shape.is_ordered:
            for group in self._groups(after):
                self._group(group)
                if self.found.is_cut:
                    break
                last = list(group)[-1].upto
                is_equal = not self.found.differing and not self.found.unsettled
                if self._checkpoint is not None and last is not None and is_equal:
                    self._checkpoint(last, self.found)
        else:
            self._unordered()
        return self.found

    def again(self, keys: Sequence[Key]) -> Found:
        """Compare some keys once more, and nothing else. Raises Retry, InvalidInput, Corrupt."""
        self.found = Found(keys=len(keys), first_position=self._source.position())
        for begin in range(0, len(keys), KEYS_AT_ONCE):
            self._judge(keys[begin : begin + KEYS_AT_ONCE])
        return self.found

    def _groups(self, after: Key | None) -> Iterator[dict[Span, Tally]]:
        group: dict[Span, Tally] = {}
        for span in self._spans(after):
            group[span] = self._tallied(span)
            if len(group) == self._group_buckets or span.upto is None:
                yield group
                group = {}

    def _spans(self, after: Key | None = None) -> Iterator[Span]:
        while True:
            upto = self._scan.bound(after, self._bucket_rows)
            if upto is not None and upto == after:
                raise InvalidInput(
                    f"the source gives the key {', '.join(upto)} after itself: it orders keys in another way"
                )
            yield Span(after=after, upto=upto)
            if upto is None:
                return
            after = upto

    def _tallied(self, span: Span) -> Tally:
        tally = self._scan.tally(span)
        self._pace.took(tally.rows)
        self.found.rows += tally
        self._progress("rows", self.found.rows.rows, None)
        self.found.buckets += 1
        return tally

    def _group(self, group: dict[Span, Tally]) -> None:
        self._reach(self._scan)
        differing = differing_spans(group, self._lake.tallies(list(group)))
        self.found.differing_buckets += len(differing)
        if differing:
            for span in differing:
                self._keep(span)
            self._keys(differing)

    def _unordered(self) -> None:
        for span in self._spans():
            self.found.rows += self._keep(span)
            self.found.buckets += 1
            self._progress("rows", self.found.rows.rows, None)
        self._keys(None)

    def _keep(self, span: Span) -> Tally:
        tally = Tally()
        for rows in self._scan.checksums(span):
            self._pace.took(len(rows))
            self._lake.keep(rows)
            tally += Tally(rows=len(rows), sum=sum(rows.column("h").to_pylist()))
        return tally

    def _keys(self, spans: Sequence[Span] | None) -> None:
        """Steps 3 to 5, of what was kept."""
        self._reach(self._scan)
        count = self._lake.differing(spans)
        self.found.keys += count
        while not self.found.is_cut and (keys := self._lake.next_keys(KEYS_AT_ONCE)):
            self._judge(keys)

    def _judge(self, keys: Sequence[Key]) -> None:
        """Steps 4 and 5."""
        rounds = Rounds.of(keys)
        while True:
            self._rounds(rounds)
            changed = self._differences(rounds.different)
            self.found.unsettled += rounds.pending
            if not changed:
                break
            rounds = Rounds.of(changed, rounds.rounds)

    def _rounds(self, rounds: Rounds) -> None:
        while not rounds.is_over:
            pending = list(rounds.pending)
            self._progress("keys compared again", len(pending), None)
            before = self._source.states(pending)
            self._pace.took(len(pending))
            self._reach(self._source)
            lake = self._lake.states(pending)
            rounds.take(before, lake, self._source.states(pending))
            self._pace.took(len(pending))
            self.found.rounds += 1

    def _differences(self, different: Mapping[Key, Sequence[Version]]) -> list[Key]:
        """Step 5; returns the keys that changed since their last round, of which the rows say nothing.

        Where no type has a judge, other texts are other values, so only rows that will be shown are read.
        """
        keys, changed = list(different), list[Key]()
        needs_rows = any(each.rule.judge is not None for each in self._shape.columns)
        for begin in range(0, len(keys), _ROWS_AT_ONCE):
            some = keys[begin : begin + _ROWS_AT_ONCE]
            if not needs_rows and len(self.found.differences) >= SHOWN_MAX:
                self.found.differing |= {key: "differs" if different[key] else "surplus" for key in some}
                continue
            source, lake = self._source.rows(some), self._lake.rows(some)
            self._pace.took(len(some))
            compared = {key: difference_of(self._shape, key, source.get(key, ()), lake.get(key, ())) for key in some}
            differing = {key: one for key, one in compared.items() if one is not None}
            now = self._source.states(list(differing)) if differing else {}
            for key, found in differing.items():
                if sorted(now.get(key, ())) != sorted(different[key]):
                    changed.append(key)
                    continue
                self.found.differing[key] = found.kind
                if len(self.found.differences) < SHOWN_MAX:
                    self.found.differences.append(found)
        self.found.is_cut = self.found.differing_keys >= DIFFERENCES_MAX
        return changed

    def _reach(self, source: Source) -> None:
        position = source.position()
        self._progress("waiting for the table", None, None)
        self._lake.reach(position)
        self.found.last_position = position


# -- How far a comparison is, in the log of its table: one that was stopped goes on from there -----------------------------
#
# Each group of buckets is compared at a position of its own anyway (``proof``), so rows that were equal some days ago and rows
# that are compared now make one proof as well: of what a pipeline makes of changes, not of rows that people change in the table
# behind it. It begins again if something differed, if what is compared has changed since or is of another database, if the
# table was restored (``operations.restore``), or if it stopped more than ``DAYS_MAX`` days ago.


SAVE_SECONDS, DAYS_MAX = 60.0, 7
_DAY_MS = 86_400_000
_logger = logging.getLogger("lakebed.verify")


@dataclass(slots=True)
class GoingOn:
    """Of one comparison of one table. ``source``: the table that it is compared with, and its database; ``is_on``: False if it
    always begins at the beginning."""

    log: TableLog
    shape: Shape
    source: str
    is_on: bool = True
    clock: Callable[[], float] = time.monotonic
    _began: float = 0.0
    _earlier_seconds: float = 0.0
    _saved: float = 0.0

    def begin(self, snapshot: Snapshot) -> tuple[Key | None, Found | None]:
        """After which key the comparison goes on, and what was found up to there; None for all of it."""
        self._began = self._saved = self.clock()
        earlier = verifying_of(snapshot)
        is_old = earlier is not None and self.log.now_ms() - earlier.time_ms > DAYS_MAX * _DAY_MS
        if not self.is_on or earlier is None or is_old or earlier.shape != self._digest():
            return None, None
        self._earlier_seconds = earlier.seconds
        rows = Tally(rows=earlier.rows, sum=int(earlier.sum))
        return earlier.after, Found(rows=rows, buckets=earlier.buckets, first_position=earlier.first_position)

    @property
    def seconds(self) -> float:
        """How long it has taken so far, without the time for which it was stopped."""
        return self._earlier_seconds + self.clock() - self._began

    def take(self, after: Key, found: Found) -> None:
        """All rows up to a key are equal. It is written down, but not more often than every ``SAVE_SECONDS``."""
        if not self.is_on or self.clock() - self._saved < SAVE_SECONDS:
            return
        self._saved = self.clock()
        now = Verifying(
            time_ms=self.log.now_ms(),
            shape=self._digest(),
            after=tuple(after),
            rows=found.rows.rows,
            sum=str(found.rows.sum),
            buckets=found.buckets,
            first_position=found.first_position,
            seconds=self.seconds,
        )
        written(self.log.root, lambda: note_verifying(self.log, now))

    def _digest(self) -> str:
        """Of all that decides what is compared, and how."""
        columns = [(one.name, one.source_name, one.kind, one.rule.source, one.rule.lake) for one in self.shape.columns]
        text = repr((self.source, [one.name for one in self.shape.keys], columns, self.shape.is_ordered))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def written(root: str, write: Callable[[], None]) -> None:
    """Write into a table what a comparison has shown. It goes on without what can't be written."""
    try:
        write()
    except LakebedError as error:
        _logger.warning("what a comparison has shown can't be written into %s: %s", root, error)
