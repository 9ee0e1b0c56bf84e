"""The locators that one process finds a table's keys with: its key index once it settles, the parts themselves until then."""

from __future__ import annotations

import threading
from pathlib import Path

from lakebed.keyindex.key_index import KeyIndex
from lakebed.parts.changes import WriteSpec
from lakebed.parts.locate import IndexLocator, KeyLocator, ReadLocator, ScanLocator, payload_types
from lakebed.storage.part_storage import PartStorage


class Locators:
    """The locators of one table. Safe to use from several threads."""

    def __init__(self, storage: PartStorage, index_folder: Path) -> None:
        """``index_folder``: where the key index of the table is, or will be."""
        self._storage = storage
        self._index_folder = index_folder
        self._index: tuple[WriteSpec, IndexLocator] | None = None
        self._opening = threading.Lock()  # one thread opens the index; only threads that settle wait for it

    def for_settling(self, spec: WriteSpec) -> KeyLocator:
        """The key index of this process, opened when it is first needed."""
        found = self._index
        if found is not None and found[0] == spec:
            return found[1]
        with self._opening:
            if self._index is None or self._index[0] != spec:
                if self._index:
                    self._index[1].close()
                keys = {name: spec.schema.field(name).type for name in spec.keys}
                index = KeyIndex(self._index_folder, keys, payload_types(spec))
                self._index = (spec, IndexLocator(index, spec, self._storage))
            return self._index[1]

    def for_reading(self, spec: WriteSpec) -> ReadLocator:
        """The key index if this process has one; a reader alone does not build one."""
        found = self._index
        if found is not None and found[0] == spec:
            return found[1]
        return ScanLocator(spec, self._storage)

    def tidy(self) -> None:
        """Tidy the key index, if this process has one."""
        found = self._index
        if found is not None:
            found[1].tidy()
