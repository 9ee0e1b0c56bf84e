"""How often rows were merged with rows of the same commits alone: the component of a merge's measure that a part records.

The rows of a part come from the commits of its block range. A merge of parts of several block ranges brings rows of more commits
together. One of a single block range sorts the same rows once more, as each pass of an external merge sort does, and a number
of passes is enough. A part counts them in ``passes``; a merge that changed anything else begins at 0. ``planning.measure``
explains why.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakebed.log.actions import Part


def is_one_block_range(parts: Sequence[Part]) -> bool:
    """Whether the parts' rows are from the same commits, as far as lakebed knows."""
    first = parts[0]
    return all(part.min_block == first.min_block and part.max_block == first.max_block for part in parts)


def passes_after(sources: Sequence[Part], rows: int, sort_key_version: int | None) -> int:
    """The passes of a merge's output from these parts: ``rows`` physical rows in all, sorted by this version of the sort key."""
    rows_before = [part.rows for part in sources]
    if (
        not is_one_block_range(sources)
        or min(rows_before) <= 0
        or rows < sum(rows_before)
        or any(part.sort_key_version != sort_key_version for part in sources)
    ):
        return 0
    return 1 + max(part.passes for part in sources)
