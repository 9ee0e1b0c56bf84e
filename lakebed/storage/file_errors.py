"""What DuckDB says when a file can't be read or written, as an error of ours that names the file and what to do.

DuckDB passes on an error of our own file system as the text of a Python trace; its last line tells what it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import duckdb

from lakebed.errors import Corrupt, StoreUnavailable

_OF_FILES = (duckdb.IOException, duckdb.InvalidInputException, duckdb.SerializationException, duckdb.InternalException)
_SILENT_STORE = f"{StoreUnavailable.__name__}: "


@contextmanager
def naming_unreadable(paths: Iterable[str]) -> Iterator[None]:
    """Raises Corrupt, naming the first of the paths that a DuckDB error speaks of; StoreUnavailable if the store failed."""
    try:
        yield
    except duckdb.Error as error:
        said = _without_query(error)
        require_store(error)
        if isinstance(error, _OF_FILES) or type(error) is duckdb.Error:
            for path in paths:
                if path in said:
                    raise Corrupt(
                        f"{path} can't be read ({reason(error)}); it is missing or damaged: restore the file"
                    ) from error
        raise


def require_store(error: duckdb.Error) -> None:
    """Raises StoreUnavailable if it was the store that failed under DuckDB."""
    _, marker, cause = str(error).rpartition(_SILENT_STORE)
    if marker:
        raise StoreUnavailable(cause.splitlines()[0]) from error


@contextmanager
def naming_unwritable(place: str, temporary: str) -> Iterator[None]:
    """Raises StoreUnavailable, naming the place, if the temporary file that is to be put there can't be written."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"{place!r} could not be written ({error}); check the disk and its free space"
        ) from error
    except duckdb.Error as error:
        if temporary not in str(error):
            raise
        said = reason(error)
        raise StoreUnavailable(f"{place!r} could not be written ({said}); check the disk and its free space") from error


def reason(error: duckdb.Error) -> str:
    """The line of DuckDB's text that tells what happened: the last of a trace, else the first."""
    lines = [line.strip() for line in _without_query(error).splitlines() if line.strip()]
    return lines[-1 if "Traceback" in lines[0] else 0]


def _without_query(error: duckdb.Error) -> str:
    """The text without the excerpt of the query, which speaks of files that may be whole."""
    return str(error).split("\n\nLINE ")[0]
