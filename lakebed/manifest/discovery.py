"""Which tables there are below a root, by the folders that are there: the root itself, ``<table>`` and ``<schema>/<table>``.

A folder that holds a log is a table, and so is the quarantine beside one. Folders whose names begin with ``_`` or ``.`` are
somebody's own. A table that is known already is not looked into again, so to find nothing new in 10,000 tables of a schema takes
some ten requests. That a table is gone is noticed by who looks at its log.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from lakebed.manifest.log_files import LOG_FOLDER
from lakebed.storage.folders import Folders

_THREADS = 8


def may_be_found(place: str, root: str) -> bool:
    """Whether ``tables_in(place)`` may find a table at this root."""
    if root == place:
        return True
    names = root.removeprefix(f"{place.rstrip('/')}/").split("/")
    is_below = root.startswith(f"{place.rstrip('/')}/")
    return is_below and len(names) <= 2 and all(names) and names == _visible(names)


def tables_in(root: str, known: Collection[str] = ()) -> list[str]:
    """The roots of the tables below a root, those that are ``known`` already among them if their schema is still there.

    Raises InvalidInput, StoreUnavailable.
    """
    folders = Folders(root)
    place = str(folders.root)
    top = folders.below()
    if LOG_FOLDER in top:
        return [place]

    def looked_into(folder: str) -> list[str]:
        """The folder if it is a table, else those below it that may be one."""
        if f"{place}/{folder}" in known:
            return [folder]
        names = folders.below(folder)
        return [folder] if LOG_FOLDER in names else [f"{folder}/{name}" for name in _visible(names)]

    def is_table(folder: str) -> bool:
        return "/" not in folder or f"{place}/{folder}" in known or LOG_FOLDER in folders.below(folder)

    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(chain.from_iterable(pool.map(looked_into, _visible(top))))
        return sorted(
            f"{place}/{folder}" for folder, is_one in zip(found, pool.map(is_table, found), strict=True) if is_one
        )


def _visible(names: Collection[str]) -> list[str]:
    return [name for name in names if not name.startswith(("_", "."))]
