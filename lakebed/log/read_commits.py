"""Reads a long range of the log: several commits at once, since each request to an object store takes a while."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from lakebed.errors import Contention
from lakebed.log.actions import Commit
from lakebed.log.table_log import TableLog

_AT_ONCE = 1000
_READERS = 8


def commits_since(log: TableLog, after: int, last: int) -> Iterator[Commit]:
    """The commits after a version, up to ``last``, in order. Raises Contention if one is gone."""
    with ThreadPoolExecutor(_READERS) as pool:
        for start in range(after + 1, last + 1, _AT_ONCE):
            versions = range(start, min(last + 1, start + _AT_ONCE))
            for version, commit in zip(versions, pool.map(log.read_commit, versions), strict=True):
                if commit is None:
                    raise Contention(f"version {version} left the log while it was read; try it again", version=version)
                yield commit
