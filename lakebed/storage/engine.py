"""The DuckDB engine of a process: one database in memory for every set of limits, handed out as cursors; and its errors.

Invariants
- The memory and the threads of all cursors with the same limits are bounded together, not each.
- A result never depends on the machine: the time zone is UTC, and no extension is looked for or downloaded.
- A forked child never touches a database of its parent: DuckDB's threads do not survive a fork.
- What DuckDB keeps of every query until its database is closed is bounded, however long the process lives.
- No database finds Python's variables by their names. A database for users' SQL (`connect_sealed`) reads files in given
  folders and no others, loads nothing, and its settings stay.
- A daemon thread's call does not abort the process when the interpreter ends.

Algorithm
1. `connect` looks for a database with the same limits in this process, or makes one in memory.
2. It returns a new cursor of it: cursors may be used by different threads at once, one thread a cursor.
3. After ``CURSORS_MAX`` cursors a new database takes the place of the old one, which is closed with the last of its cursors.
   Until then both have the limits, each for itself.
4. What a database may read is fixed when it is opened, so there is one for users' SQL for each set of folders; of these the
   ``SEALED_MAX`` used last are kept.
5. After a fork the child forgets the inherited databases without closing them, and makes its own when asked.

Rows come back in the order of the files and of the rows in them (`preserve_insertion_order`): writing relies on it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import duckdb

from lakebed.errors import Corrupt, Unsupported
from lakebed.failures import decode
from lakebed.quoting import literal
from lakebed.storage.local_folders import NOT_ALLOWED, TOO_MANY_OPEN, process_folder, trouble

_CLOSE_SECONDS_MAX = 10

_MEMORY_BYTES_MAX = 1 << 30
CURSORS_MAX = 2_000
"""Cursors of one database. For each Arrow table given to a query, a few hundred bytes stay in it (DuckDB 2.0)."""
SEALED_MAX = 16
"""Databases for users' SQL. An idle one takes some 4 MB; opening one takes some 20 ms."""
WILDCARDS = str.maketrans({letter: f"[{letter}]" for letter in "*?["})


@dataclass(slots=True)
class _Database:
    connection: duckdb.DuckDBPyConnection
    cursors: int = 0  # handed out so far


_Limits = tuple[int, int, str, tuple[str, ...] | None]  # the last: what users' SQL may read
_databases: OrderedDict[_Limits, _Database] = OrderedDict()  # the one used last is last
_cursors: weakref.WeakSet[duckdb.DuckDBPyConnection] = weakref.WeakSet()
_guard = threading.Lock()
_ending = False  # the interpreter ends


def connect(
    memory_bytes_max: int = _MEMORY_BYTES_MAX,
    threads: int | None = None,
    temp_folder: Path | str | None = None,
) -> duckdb.DuckDBPyConnection:
    """Return a cursor of this process's database with these limits; close it when done.

    `memory_bytes_max` bounds DuckDB's buffers: what does not fit spills to `temp_folder` (default: a folder of this
    process in the system's temporary folder). `threads` defaults to the processors this
    process may use.
    """
    folder = process_folder() / "duckdb" if temp_folder is None else Path(temp_folder)
    return _cursor((memory_bytes_max, threads or _processors(), str(folder), None))


def connect_sealed(folders: Iterable[str] = ()) -> duckdb.DuckDBPyConnection:
    """Return a cursor on which users' SQL may run, with the limits of ``connect``: no file but those below ``folders``.

    ``folders`` as DuckDB's urls begin: local paths or ``scheme://place``.
    """
    temporary = str(process_folder() / "duckdb")
    return _cursor((_MEMORY_BYTES_MAX, _processors(), temporary, tuple(sorted(set(folders)))))


def connect_alone() -> duckdb.DuckDBPyConnection:
    """Return the connection of a database that nobody else uses, with the limits of ``connect``: for unrestricted SQL."""
    with _making():
        connection = _open(_MEMORY_BYTES_MAX, _processors(), str(process_folder() / "duckdb"), None)
        _cursors.add(connection)
        return connection


def cursor_of(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Return another cursor of a connection's database, with temporary tables of its own; close it when done.

    ``connection.cursor()`` would not be known here: neither ``interrupt_all`` nor the end of the process would reach its call.
    """
    with _making():
        cursor = connection.cursor()
        _cursors.add(cursor)
        return cursor


def interrupt_all() -> None:
    """Interrupt what all connections of this process are executing; from any thread."""
    with suppress(RuntimeError):  # another thread just made one: the caller asks again
        for cursor in list(_cursors):
            with suppress(duckdb.Error):  # it is closed
                cursor.interrupt()


@contextmanager
def _making() -> Iterator[None]:
    """Guard the making of a connection. While the interpreter ends, a daemon thread waits here and is never woken."""
    with _guard:
        if not _ending or threading.current_thread() is threading.main_thread():
            yield
            return
    threading.Event().wait()


def _cursor(limits: _Limits) -> duckdb.DuckDBPyConnection:
    with _making():
        database = _databases.get(limits)
        if database is None or database.cursors >= CURSORS_MAX:
            database = _databases[limits] = _Database(_open(*limits))
        _databases.move_to_end(limits)
        sealed = [each for each in _databases if each[-1] is not None]
        for abandoned in sealed[:-SEALED_MAX]:
            del _databases[abandoned]
        database.cursors += 1
        cursor = database.connection.cursor()
        _cursors.add(cursor)
        return cursor


def _open(
    memory_bytes_max: int, threads: int, temp_folder: str, folders: tuple[str, ...] | None
) -> duckdb.DuckDBPyConnection:
    database = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": f"{memory_bytes_max}B",
            "threads": threads,
            "temp_directory": temp_folder,
            "preserve_insertion_order": True,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "enable_external_file_cache": False,  # never forgets a file; for objects there is ``range_files``
            "python_enable_replacements": False,
        },
    )
    # Options of built-in extensions are known only once those are loaded, so they can't be in the config above.
    database.execute("SET GLOBAL TimeZone = 'UTC'")
    if folders is not None:
        # A url is compared as it is written, and in ours what DuckDB takes for a wildcard is escaped.
        spelled = sorted({spelling for folder in folders for spelling in (folder, folder.translate(WILDCARDS))})
        listed = ", ".join(map(literal, spelled))
        database.execute(f"SET GLOBAL allowed_directories = [{listed}]")
        database.execute("SET GLOBAL enable_external_access = false")
        database.execute("SET GLOBAL lock_configuration = true")
    # No parquet_metadata_cache: parts come and go, and it keeps each footer as long as the process lives.
    return database


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _forget_inherited() -> None:
    global _guard
    for connection in (*(database.connection for database in _databases.values()), *_cursors):
        # Closing the last one would join threads that the fork did not copy, so they must never be collected in this process.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _databases.clear()
    _cursors.clear()
    _guard = threading.Lock()  # another thread of the parent may have held the old one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)


def _close_all() -> None:
    """Close all connections: DuckDB complains of those still open when the interpreter ends.

    A daemon thread may be in a call still. DuckDB refuses to close its connection, and aborts the process if the thread ends in
    the call, so the call is interrupted and has ten seconds to return.
    """
    global _ending
    with _guard:
        _ending = True
        connections = [*_cursors, *(database.connection for database in _databases.values())]
        _databases.clear()
    give_up_at = time.monotonic() + _CLOSE_SECONDS_MAX
    while connections := [each for each in connections if not _closes(each)]:
        if time.monotonic() > give_up_at:
            break
        time.sleep(0.01)


def _closes(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether ``connection`` is closed now. If it is in a call, that is interrupted."""
    try:
        connection.close()
    except duckdb.Error:
        with suppress(duckdb.Error):  # its call has just ended
            connection.interrupt()
        return False
    return True


atexit.register(_close_all)


# -- Errors of a file that can't be read or written: they name the file and what to do -------------------------------------
#
# An error of lakebed that passed through DuckDB is read back (``failures``). Others are recognised by DuckDB's classes.
# Where one class has several causes, its text decides: these texts are DuckDB's own, and all of them are in this module.


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
