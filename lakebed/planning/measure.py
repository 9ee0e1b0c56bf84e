"""The measure that every merge lowers, whatever statistics say: why planning comes to an end. Pure.

Which merge pays is judged by where statistics say that rows lie, and these may say little: texts are cut, values have no bounds,
another writer gives none. Two parts that statistics can't separate overlap however often they are merged. So depth does not
prove that merges come to an end. This measure does, because nothing in it rests on statistics. Over all parts of a table it
is a list of numbers, where the first that differs decides:

1. the number of parts that have no rows, or of which the number of rows is not known;
2. the number of physical rows, dead ones included;
3. the number of rows in parts without the version of the sort key that merges now sort by (none without an order);
4. minus the sum over rows of how many versions their part's block range spans;
5. minus the sum over rows of their part's passes (``log.actions``).

``is_lowered_by`` allows a merge of these parts, one or more of one partition, only if

- one of them has no rows, or their number is not known: no such part is written, so 1 falls;
- or one has dead rows that are not kept as deletes: they are left out, so 2 falls;
- or one does not have that version: what is written has it, so 3 falls;
- or their block ranges differ: what is written spans all of them, which is more for the rows of one part at least, so 4 falls;
- or none of them has made twice as many passes as the number of parts of their block range has binary digits. If nothing else
  changes, what is written has one pass more than the one that had most, so 5 falls.

None of the earlier ones rises then: what is written has rows, none but those of the inputs, sorted as the table says, in parts
that span the blocks of all inputs. All are whole numbers, and bounded: 1 to 3 by 0. No block range reaches beyond those that
there are, so 4 is at least minus the rows times the versions. There are never more parts than there are rows and, at the start,
parts without; so 5 is at least minus the rows times twice the binary digits of that sum. So without other commits there is a last
merge, under any policy, budget or threshold, and also where these change from one hour to the next. A settle makes the tail
shorter, which no merge makes longer. Plans of one round share no part, and the measure is a sum over parts: each of the merges at
work at once lowers it. How many parts a merge writes, and where they say that they lie, makes no difference.

Passes that each double what is sorted together sort all parts of one block range in as many passes as their number has binary
digits. Merges are chosen by size and place and do not go in even passes, so twice as many are allowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from lakebed.log.actions import Part, PartitionKey, is_one_block_range
from lakebed.log.snapshot import Snapshot

_PASSES = 2


class Measure:
    """The measure at one snapshot and time (epoch milliseconds; it decides which deletes are still kept)."""

    def __init__(self, snapshot: Snapshot, now_ms: int) -> None:
        self._snapshot = snapshot
        self._now_ms = now_ms
        settings = snapshot.settings
        self._order_version = settings.sort_key_version if settings.order_by else None

    def is_lowered_by(self, parts: Sequence[Part]) -> bool:
        """Whether a merge of these parts lowers it."""
        if not is_one_block_range(parts) or any(map(self._is_changed, parts)):
            return True
        first = parts[0]
        alike = self._parts_by_blocks[first.partition_key, first.min_block, first.max_block]
        return max(part.passes for part in parts) < _PASSES * alike.bit_length()

    def _is_changed(self, part: Part) -> bool:
        """Whether a merge of this part alone changes it."""
        if part.rows <= 0 or part.sort_key_version != self._order_version:
            return True
        return part.dead_rows > (part.deletes if self._snapshot.keeps_deletes(part, self._now_ms) else 0)

    @cached_property
    def _parts_by_blocks(self) -> Counter[tuple[PartitionKey, int, int]]:
        parts = self._snapshot.parts.values()
        return Counter((part.partition_key, part.min_block, part.max_block) for part in parts)
