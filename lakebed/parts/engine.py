"""The DuckDB engine of a process: one database in memory for every set of limits, handed out as cursors.

Invariants
- The memory and the threads of all cursors with the same limits are bounded together, not each.
- A result never depends on the machine: the time zone is UTC, and no extension is looked for or downloaded.
- A forked child never touches a database of its parent: DuckDB's threads do not survive a fork.
- What DuckDB keeps of every query until its database is closed is bounded, however long the process lives.

Algorithm
1. `connect` looks for a database with the same limits in this process, or makes one in memory.
2. It returns a new cursor of it: cursors may be used by different threads at once, one thread a cursor.
3. After ``CURSORS_MAX`` cursors a new database takes the place of the old one, which is closed with the last of its cursors.
   Until then both have the limits, each for itself.
4. After a fork the child forgets the inherited databases without closing them, and makes its own when asked.

Rows come back in the order of the files and of the rows in them (`preserve_insertion_order`): writing relies on it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

import duckdb

from lakebed.parts.own_folders import temporary_folder

MEMORY_BYTES_MAX = 1 << 30
CURSORS_MAX = 2_000
"""Of one database. For each Arrow table that a query is given, a few hundred bytes stay in it (DuckDB 2.0)."""


@dataclass(slots=True)
class _Database:
    connection: duckdb.DuckDBPyConnection
    cursors: int = 0  # handed out so far


_Limits = tuple[int, int, str]
_databases: dict[_Limits, _Database] = {}
_cursors: weakref.WeakSet[duckdb.DuckDBPyConnection] = weakref.WeakSet()
_guard = threading.Lock()


def connect(
    memory_bytes_max: int = MEMORY_BYTES_MAX,
    threads: int | None = None,
    temp_folder: Path | str | None = None,
) -> duckdb.DuckDBPyConnection:
    """Return a cursor of this process's database with these limits; close it when done.

    `memory_bytes_max` bounds DuckDB's buffers: what does not fit spills to `temp_folder` (default: a folder of this
    process in the system's temporary folder). `threads` defaults to the processors this
    process may use.
    """
    folder = temporary_folder() / "duckdb" if temp_folder is None else Path(temp_folder)
    limits = (memory_bytes_max, threads or _processors(), str(folder))
    with _guard:
        database = _databases.get(limits)
        if database is None or database.cursors >= CURSORS_MAX:
            database = _databases[limits] = _Database(_open(*limits))
        database.cursors += 1
        cursor = database.connection.cursor()
        _cursors.add(cursor)
        return cursor


def _open(memory_bytes_max: int, threads: int, temp_folder: str) -> duckdb.DuckDBPyConnection:
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
            "enable_external_file_cache": False,  # never forgets a file; for objects there is ``range_cache``
        },
    )
    # Options of built-in extensions are known only once those are loaded, so they can't stand in the config above.
    database.execute("SET GLOBAL TimeZone = 'UTC'")
    # No parquet_metadata_cache: parts come and go, and it forgets no footer as long as the process lives.
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
    _guard = threading.Lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)


def _close_all() -> None:
    """DuckDB complains of what is still open when the interpreter is gone."""
    for database in _databases.values():
        database.connection.close()
    _databases.clear()


atexit.register(_close_all)
