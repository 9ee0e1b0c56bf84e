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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lakebed.errors import InvalidInput
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
ROWS_AT_ONCE = 100
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
        for begin in range(0, len(keys), ROWS_AT_ONCE):
            some = keys[begin : begin + ROWS_AT_ONCE]
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
