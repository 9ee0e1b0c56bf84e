"""Errors of DuckDB and Arrow when a file can't be read or written, as errors of lakebed that name the file and what to do.

An error of lakebed that passed through DuckDB is read back (``error_transport``). Others are recognised by DuckDB's classes.
Where one class has several causes, its text decides: these texts are DuckDB's own, and all of them are in this module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

import duckdb

from lakebed.error_transport import decode
from lakebed.errors import Corrupt, Unsupported
from lakebed.storage.local_folders import NOT_ALLOWED, TOO_MANY_OPEN, trouble

_OF_FILES = (duckdb.IOException, duckdb.InvalidInputException, duckdb.SerializationException, duckdb.InternalException)
_NO_SUCH_FILE = "No files found"
_DISK_FULL = ("No space left", "max_temp_directory_size")
"""The latter: of what DuckDB moves out of memory; its bound is the room of the disk."""
_OTHER_STRUCT = "STRUCT cast must have at least one matching member"
_OF_DECODER = re.compile(r"Parquet|Failed to read file|[Dd]ecompress|Out of buffer|[Cc]orrupt")
_FAILED_IN_STREAM = re.compile(r"^(Conversion|Out of Range|Invalid Input) Error")


@contextmanager
def naming_unreadable(paths: Iterable[str]) -> Iterator[None]:
    """Raises Corrupt for the first of the paths that a DuckDB error names; InvalidInput or StoreUnavailable if the system
    refused it (``trouble``); the store's own error if the store failed.
    """
    try:
        yield
    except duckdb.Error as error:
        text = _without_query(error)
        raise_own(error)
        if isinstance(error, _OF_FILES) or type(error) is duckdb.Error:
            for path in paths:
                if path in text:
                    why = reason(error)
                    if (code := refusal_in(why)) is not None:
                        raise trouble(code, f"{path} can't be read ({why})", path) from error
                    raise Corrupt(
                        f"{path} can't be read ({why}); it is missing or damaged: restore the file",
                        path=path,
                    ) from error
        raise


def raise_own(error: duckdb.Error) -> None:
    """Raises the error of lakebed that made DuckDB fail, such as StoreUnavailable; returns if there is none.

    Raises Unsupported if a file has a struct with other fields alone, which another program dropped: see ``evolve``.
    """
    own = decode(str(error))
    if own is not None:
        raise own from error
    if _OTHER_STRUCT in str(error):
        raise Unsupported(
            f"DuckDB can't read a struct as one with other fields alone ({str(error).split(', inputs are ')[-1]}). If it stands "
            "so in a file that is older than the table's schema: read the table with Spark, leave the column out, or let the "
            "program that dropped the fields write its older files again"
        ) from error


@contextmanager
def naming_unwritable(place: str, temporary: str) -> Iterator[None]:
    """Raises an error (``trouble``) that names the place, if the temporary file that is to be put there can't be written."""
    try:
        yield
    except OSError as error:
        raise trouble(error.errno, f"{place!r} could not be written ({error})", place) from error
    except duckdb.Error as error:
        if temporary not in str(error):
            raise
        why = reason(error)
        raise trouble(refusal_in(why), f"{place!r} could not be written ({why})", place) from error


def refusal_in(text: str) -> int | None:
    """The ``errno`` of a text which says that the system refused a file, though it may be whole; None if it says nothing such."""
    return next((code for code in sorted(NOT_ALLOWED | TOO_MANY_OPEN) if _of_errno(code).search(text)), None)


@cache
def _of_errno(code: int) -> re.Pattern[str]:
    return re.compile(rf"\b{re.escape(os.strerror(code))}\b")


def may_be_damage(error: Exception) -> bool:
    """Whether damage of a Parquet file may be why a query failed: DuckDB then raises errors of its own decoders.

    Of those of the class of users' mistakes, the text says whether a file was read.
    """
    if type(error) is duckdb.Error or isinstance(error, duckdb.IOException | duckdb.SerializationException):
        return True
    return isinstance(error, duckdb.InternalException) or _OF_DECODER.search(str(error)) is not None


def is_missing_file(error: Exception) -> bool:
    """Whether a query failed because a file that it reads is missing."""
    return isinstance(error, FileNotFoundError) or (isinstance(error, duckdb.Error) and _NO_SUCH_FILE in str(error))


def is_out_of_room(error: duckdb.Error) -> bool:
    """Whether a query failed because a disk is full."""
    return any(text in str(error) for text in _DISK_FULL)


def is_out_of_memory(error: duckdb.Error) -> bool:
    """Whether a query failed because it needs more memory than it may have."""
    return isinstance(error, duckdb.OutOfMemoryException) and not is_out_of_room(error)


def is_failed_stream(error: OSError) -> bool:
    """Whether a value in a row made a query fail after its first batch: Arrow's reader then raises DuckDB's text as OSError."""
    return _FAILED_IN_STREAM.match(str(error)) is not None


def reason(error: duckdb.Error) -> str:
    """The line of DuckDB's text that says what happened: the last one of a trace, else the first one."""
    lines = [line.strip() for line in _without_query(error).splitlines() if line.strip()]
    return lines[-1 if "Traceback" in lines[0] else 0]


def _without_query(error: duckdb.Error) -> str:
    """The text without the excerpt of the query, which names files that may be whole."""
    return str(error).split("\n\nLINE ")[0]
