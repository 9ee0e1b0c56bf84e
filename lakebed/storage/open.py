"""The storage of a root's data files."""

from __future__ import annotations

import os

from lakebed.storage.local_part_storage import LocalPartStorage
from lakebed.storage.object_store import open_objects
from lakebed.storage.part_storage import PartStorage
from lakebed.storage.remote_part_storage import RemotePartStorage
from lakebed.storage.roots import LocalRoot, parse_root


def open_part_storage(root: str | os.PathLike[str]) -> PartStorage:
    """The storage of a root: a local path or ``s3://bucket/prefix``. No request is made, nothing is created."""
    place = parse_root(root)
    if isinstance(place, LocalRoot):
        return LocalPartStorage(place.path)
    open_objects(place)  # so that a missing client is reported here
    return RemotePartStorage(place, open_objects)
