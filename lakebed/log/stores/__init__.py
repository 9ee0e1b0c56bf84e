"""The stores a log can live in: ``open_store`` picks one by the root's scheme."""

from __future__ import annotations

import os

from lakebed.log.stores.local import LocalLogStore
from lakebed.log.stores.log_store import LogStore
from lakebed.log.stores.memory import MemoryLogStore
from lakebed.storage.object_store import open_objects
from lakebed.storage.roots import LocalRoot, parse_root

__all__ = ["LocalLogStore", "MemoryLogStore", "open_store"]


def open_store(root: str | os.PathLike[str]) -> LogStore:
    """The store of a root: a local path or ``s3://bucket/prefix``. No request is made, nothing is created."""
    place = parse_root(root)
    if isinstance(place, LocalRoot):
        return LocalLogStore(place.path)
    return open_objects(place)
