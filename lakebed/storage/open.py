"""The storage of a root, by its scheme."""

from __future__ import annotations

import importlib
import os

from lakebed.errors import MissingPrerequisite
from lakebed.storage.local_part_storage import LocalPartStorage
from lakebed.storage.part_storage import PartStorage
from lakebed.storage.roots import LocalRoot, parse_root


def open_part_storage(root: str | os.PathLike[str]) -> PartStorage:
    """The storage of a root: a local path or ``s3://bucket/prefix``. No request is made, nothing is created."""
    place = parse_root(root)
    if isinstance(place, LocalRoot):
        return LocalPartStorage(place.path)
    try:
        module = importlib.import_module("lakebed.storage.s3_part_storage")  # boto3 is wanted only by those who use S3
    except ModuleNotFoundError as error:
        raise MissingPrerequisite(f"{place} needs boto3: pip install 'lakebed[s3]'") from error
    storage: PartStorage = module.S3PartStorage(place)
    return storage
