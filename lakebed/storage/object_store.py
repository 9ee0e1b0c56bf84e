"""Opens the client of an object store, which only those need who have one, and lists folders there or on a local disk."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lakebed.errors import MissingPrerequisite
from lakebed.storage.local_folders import raise_for
from lakebed.storage.roots import LocalRoot, S3Root, parse_root

if TYPE_CHECKING:
    from lakebed.storage.s3_objects import S3Objects


def open_objects(place: S3Root) -> S3Objects:
    """The objects below a root in an object store. Raises MissingPrerequisite without the store's client."""
    try:
        from lakebed.storage.s3_objects import S3Objects  # only those who use S3 need boto3
    except ModuleNotFoundError as error:
        raise MissingPrerequisite(f"{place} needs boto3: pip install 'lakebed[s3]'") from error
    return S3Objects(place)


def require_answer(path: str, patience_seconds: float) -> None:
    """Raises StoreUnavailable if the object store of a path does not answer. This process waits no longer for one from now on."""
    place = parse_root(path)
    if isinstance(place, S3Root):
        objects = open_objects(place)
        from lakebed.storage.s3_client import be_impatient

        be_impatient(patience_seconds)
        objects.require_answer()


# -- The folders below a root, on a local disk or in an object store -------------------------------------------------------


class Folders:
    """Lists folders below a root. Raises InvalidInput, StoreUnavailable."""

    def __init__(self, root: str) -> None:
        self.root = parse_root(root)
        self._objects = None if isinstance(self.root, LocalRoot) else open_objects(self.root)

    def below(self, folder: str = "") -> list[str]:
        """Names of the folders directly in ``folder``, a path relative to the root, in byte order; none if it is not there."""
        if self._objects is not None:
            return self._objects.folders(folder)
        path = os.path.join(str(self.root), folder)
        try:
            with os.scandir(path) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise_for(error, path)

    def has(self, folder: str) -> bool:
        """Whether there is a folder of this path relative to the root. It costs one request, however many files there are."""
        if self._objects is not None:
            return self._objects.has_folder(folder)
        return os.path.isdir(os.path.join(str(self.root), folder))
