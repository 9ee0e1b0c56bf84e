"""Many deletions where a store has no request for many."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lakebed.errors import LakebedError


def delete_each(delete: Callable[[str], None], paths: Iterable[str]) -> dict[str, LakebedError]:
    """Delete one after the other; returns why, for each that could not be."""
    failed: dict[str, LakebedError] = {}
    for path in paths:
        try:
            delete(path)
        except LakebedError as error:
            failed[path] = error
    return failed
