"""The locators that one process finds a table's keys with: its key index once it settles, the parts themselves until then.

Keys of parts that no version has yet are found in these parts (``JoiningKeys``).
"""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from lakebed.keyindex.key_index import KeyIndex
from lakebed.keyindex.key_runs import SUFFIX
from lakebed.log.actions import Part
from lakebed.parts.changes import WriteSpec
from lakebed.resolve.locate import (
    IndexLocator,
    IndexRebuild,
    KeyLocator,
    ReadLocator,
    ScanLocator,
    index_key_types,
    lookup_schema,
    payload_types,
)
from lakebed.storage.local_folders import files_below, lock_folder, process_folder, remove_unused
from lakebed.storage.part_storage import PartStorage

_SCANS_MAX = 5
"""How often parts that join are read to find keys among them; after that their keys are in an index."""


@dataclass(frozen=True, slots=True)
class _Open:
    """The key index that this process has, and what it was opened for."""

    shape: tuple[object, ...]
    index: KeyIndex
    rebuild: IndexRebuild | None


class Locators:
    """The locators of one table. Safe to use from several threads."""

    def __init__(self, storage: PartStorage, index_folder: Path) -> None:
        """``index_folder``: where the key index of the table is, or will be."""
        self._storage = storage
        self._index_folder = index_folder
        self._open: _Open | None = None
        self._opening = threading.Lock()  # one thread opens the index; only threads that settle wait for it

    def for_settling(self, spec: WriteSpec) -> KeyLocator:
        """The key index of this process, opened when it is first needed."""
        found = self._open
        if found is None or found.shape != _shape(spec):
            with self._opening:
                found = self._open
                if found is None or found.shape != _shape(spec):
                    found = self._open = self._opened(spec, found)
        return IndexLocator(found.index, spec, self._storage, found.rebuild)

    def for_reading(self, spec: WriteSpec) -> ReadLocator:
        """The key index if this process has one; a reader alone does not build one."""
        found = self._open
        if found is not None and found.shape == _shape(spec):
            return IndexLocator(found.index, spec, self._storage, found.rebuild)
        return ScanLocator(spec, self._storage, verifies_objects=False)

    def tidy(self) -> None:
        """Merge small runs of the key index, if this process has one; for when there is nothing else to do."""
        found = self._open
        if found is not None and not found.index.abandoned and not (found.rebuild and found.rebuild.is_running):
            found.index.merge_runs()

    def release(self, bytes_max: int | None = None) -> None:
        """Let go of the key index, its lock and its files, unless it has more bytes. It is opened again when needed."""
        found = self._open
        if found is None or (found.rebuild and found.rebuild.is_running):
            return
        if bytes_max is not None and found.index.bytes > bytes_max:
            return
        with self._opening:
            if self._open is found:
                self._open = None
                found.index.close()

    @property
    def folder(self) -> Path:
        """Where the key index is, or will be."""
        return self._index_folder

    def rewrite_open(self, parts: Collection[str]) -> bool:
        """Let the index of this process have no key of a part other than these; returns whether there is one."""
        found = self._open
        if found is None:
            return False
        if found.rebuild is not None:
            found.rebuild.stop()  # it may have read a part that is gone
        found.index.remove(found.index.parts - frozenset(parts))
        found.index.rewrite_removed()
        return True

    def forget_removed(self, parts: Collection[str]) -> dict[str, int] | None:
        """Let no key of a part other than these stay on disk; returns the files that went, with their bytes.

        None if another process has the index: it does the same when it sees the purge.
        """
        before = _files_in(self._index_folder)
        if not self.rewrite_open(parts) and before:
            lock = lock_folder(self._index_folder)
            if lock is None:
                return None
            shutil.rmtree(self._index_folder, ignore_errors=True)
            os.close(lock)
        after = _files_in(self._index_folder)
        return {path: size for path, size in before.items() if path not in after}

    def _opened(self, spec: WriteSpec, before: _Open | None) -> _Open:
        if before is not None:
            if before.rebuild is not None:
                before.rebuild.stop()
            before.index.close()
        index = KeyIndex(self._index_folder, index_key_types(spec), payload_types(spec))
        remove_unused(self._index_folder.parent)
        is_rebuilt = before is not None or index.is_outdated
        return _Open(_shape(spec), index, IndexRebuild(index, self._storage.root) if is_rebuilt else None)


class JoiningKeys:
    """Finds keys in parts that are about to join the base.

    It reads their keys a few times. Then it has an index of them, so that a look-up costs what it asks for, however many rows
    join. For one thread.
    """

    def __init__(self, parts: Mapping[str, Part], storage: PartStorage) -> None:
        self._parts = parts
        self._storage = storage
        self._scans = 0
        self._index: KeyIndex | None = None

    def lookup(self, spec: WriteSpec, keys: pa.Table) -> pa.Table:
        """The rows with these keys, as a locator returns them."""
        if not self._parts or not len(keys):
            return lookup_schema(spec).empty_table()
        if self._scans < _SCANS_MAX:
            self._scans += 1
            return ScanLocator(spec, self._storage).lookup(self._parts, keys)
        if self._index is None:
            folder = process_folder() / f"joining-{uuid.uuid4().hex}"
            self._index = KeyIndex(folder, index_key_types(spec), payload_types(spec))
        return IndexLocator(self._index, spec, self._storage).lookup(self._parts, keys)

    def close(self) -> None:
        """Delete the index, if there is one."""
        if self._index is not None:
            folder = self._index.folder
            self._index.close()
            shutil.rmtree(folder, ignore_errors=True)


def _files_in(folder: Path) -> dict[str, int]:
    """The runs of an index in a folder, with their bytes."""
    return {path: size for path, size in files_below(folder) if path.endswith(SUFFIX)}


def _shape(spec: WriteSpec) -> tuple[object, ...]:
    """What of a table its key index depends on; other changes of the table leave it as it is."""
    return tuple(index_key_types(spec).items()), spec.sequence_column, tuple(payload_types(spec).items())
