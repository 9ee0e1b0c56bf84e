"""Drops a table: its data files first, then its log. What is not the table's stays, such as other tables below its folder.

A table of lakebed's own has its files below ``_lakebed``; one that was adopted has files anywhere in its folder, but for those of
other tables.

1. A checkpoint of the newest version is written, so that the log can do without older files.
2. Files of data are deleted, then the older files of the log, oldest first.
3. The newest commit and its checkpoint go last. Until then the log can be read, and says whatever it said, such as which job
   drops the table: if the process is killed, another process goes on.

Readers and writers of the table get an error from step 2 on. A table that is made at the same place afterwards is another one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice

from lakebed.log.files.names import LOG_FOLDER, checkpoint_name, commit_name
from lakebed.log.log_reader import LAST_CHECKPOINT
from lakebed.log.table_log import TableLog
from lakebed.operations.references import LAKEBED_FOLDER, folders_above, is_adopted, other_table
from lakebed.storage.part_storage import PartStorage
from lakebed.storage.roots import LocalRoot, parse_root

_BATCH = 1_000


def drop(log: TableLog, storage: PartStorage) -> int:
    """Delete everything that the table has below its root; returns how many files that were. Raises StoreUnavailable."""
    newest = log.refresh()
    log.write_checkpoint(newest)
    last = [commit_name(newest.version), checkpoint_name(newest.version), LAST_CHECKPOINT]
    data = _data_files(storage, is_adopted(newest))
    files = 0
    while batch := list(islice(data, _BATCH)):
        files += len(batch)
        for error in storage.delete_many(batch).values():
            raise error
    for name in _of_log(log):
        if name < last[0] and name not in last:
            files += 1
            log.store.delete(name)
    while names := _of_log(log):  # also of commits that came meanwhile
        for name in sorted(names, key=lambda each: (last.index(each) if each in last else -1, each)):
            files += 1
            log.store.delete(name)
    _remove_folders(storage.root)
    return files


def _data_files(storage: PartStorage, everywhere: bool) -> Iterator[str]:
    if not everywhere:
        yield from (path for path, _, _ in storage.list(f"{LAKEBED_FOLDER}/"))
        return
    others = set(chain.from_iterable(other_table(path) for path, _, _ in storage.list()))
    for path, _, _ in storage.list():
        if not path.startswith(f"{LOG_FOLDER}/") and others.isdisjoint(folders_above(path)):
            yield path


def _of_log(log: TableLog) -> list[str]:
    return [f"{LOG_FOLDER}/{name}" for name in log.store.list_from(LOG_FOLDER, "")]


def _remove_folders(root: str) -> None:
    """On a local disk folders stay behind their files."""
    if isinstance(parse_root(root), LocalRoot):
        for folder, _, _ in os.walk(root, topdown=False):
            with suppress(OSError):  # a process has written to it meanwhile
                os.rmdir(folder)
