"""What one commit of a settle takes from the tail."""

from __future__ import annotations

import pytest

from lakebed.compaction.settle import _oldest
from lakebed.log.actions import ChangePart


@pytest.mark.parametrize(
    ("tail", "changes_max", "taken"),
    [
        ([(1, 5), (2, 5), (2, 5), (3, 5)], 100, 4),
        ([(1, 5), (2, 5), (2, 5), (3, 5)], 15, 3),
        ([(1, 5), (2, 5), (2, 5), (3, 5)], 10, 1),  # all of a commit or nothing of it
        ([(1, 5), (1, 5), (1, 5)], 10, 2),  # unless a commit alone is too large for one step
        ([(1, 50), (2, 5)], 10, 1),
    ],
)
def test_a_step_takes_the_oldest_changes_up_to_its_bound_and_whole_commits_where_it_can(
    tail: list[tuple[int, int]], changes_max: int, taken: int
) -> None:
    parts = [
        ChangePart(path=f"_lakebed/{n}.parquet", version=version, ordinal=n, rows=rows, bytes=1)
        for n, (version, rows) in enumerate(tail)
    ]
    assert _oldest(parts, changes_max) == parts[:taken]
