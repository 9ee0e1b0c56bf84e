"""The folders below a root, on a local disk or in an object store."""

from __future__ import annotations

import os

from lakebed.storage.local_files import raise_for
from lakebed.storage.object_store import open_objects
from lakebed.storage.roots import LocalRoot, parse_root


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
