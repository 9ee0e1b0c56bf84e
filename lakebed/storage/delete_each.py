"""Deletes many files in a store that has no request for many."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lakebed.errors import LakebedError


def delete_each(delete: Callable[[str], None], paths: Iterable[str]) -> dict[str, LakebedError]:
    """Delete one after the other; returns the error of each that could not be deleted."""
    failed: dict[str, LakebedError] = {}
    for path in paths:
        try:
            delete(path)
        except LakebedError as error:
            failed[path] = error
    return failed
