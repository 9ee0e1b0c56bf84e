"""The stores a log can live in: ``open_store`` picks one by the root's scheme."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, cast

from lakebed.errors import MissingPrerequisite
from lakebed.manifest.log_store import LogStore
from lakebed.manifest.stores.local import LocalLogStore
from lakebed.manifest.stores.memory import MemoryLogStore
from lakebed.storage.roots import LocalRoot, parse_root

if TYPE_CHECKING:
    from lakebed.manifest.stores.s3 import S3LogStore

__all__ = ["LocalLogStore", "MemoryLogStore", "open_store"]


def open_store(root: str | os.PathLike[str]) -> LogStore:
    """The store of a root: a local path or ``s3://bucket/prefix``. No request is made, nothing is created."""
    place = parse_root(root)
    if isinstance(place, LocalRoot):
        return LocalLogStore(place.path)
    try:
        module = importlib.import_module("lakebed.manifest.stores.s3")  # boto3 is wanted only by those who use S3
    except ModuleNotFoundError as error:
        raise MissingPrerequisite(f"{place} needs boto3: pip install 'lakebed[s3]'") from error
    store: S3LogStore = module.S3LogStore(place)
    return cast(LogStore, store)
