"""Which tables there are below a path, by the folders that are there: the list is no state of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from lakebed.discovery.folders import tables_in
from lakebed.discovery.naming import TableName
from lakebed.log.files.names import LOG_FOLDER
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.storage.folders import Folders
from lakebed.storage.roots import parse_root

_THREADS = 16
_CUT = "!!"  # in the folder of a name that was cut (``naming``)


def tables_below(path: str) -> dict[str, str]:
    """The roots of the tables of a database, by name (``schema.table``), in the order of the names; none is no error.

    A name that is too long for a folder is given as the folder says it. Raises InvalidInput, StoreUnavailable.
    """
    folders = Folders(path)
    root = str(folders.root)

    def tables_in(schema: str) -> list[str]:
        found = [f"{schema}/{name}" for name in folders.below(schema)]
        return [folder for folder in found if _CUT in folder or TableName.of_folder(folder) is not None]

    def is_table(folder: str) -> bool:
        return LOG_FOLDER in folders.below(folder)

    with ThreadPoolExecutor(_THREADS) as pool:
        candidates = list(chain.from_iterable(pool.map(tables_in, folders.below())))
        tables = [folder for folder, is_one in zip(candidates, pool.map(is_table, candidates), strict=True) if is_one]
    named = {str(TableName.of_folder(folder) or folder.replace("/", ".")): f"{root}/{folder}" for folder in tables}
    return dict(sorted(named.items()))


def all_tables_below(path: str) -> dict[str, str]:
    """The same, with all other tables below the path (``discovery.tables_in``) but quarantines."""
    found, place = tables_below(path), f"{parse_root(path)}/"
    others = {root for root in tables_in(path) if not root.endswith(QUARANTINE_SUFFIX)} - set(found.values())
    return found | {root.removeprefix(place).replace("/", "."): root for root in sorted(others)}


def database_of(root: str) -> tuple[str, str] | None:
    """The folder of the database that a table is in, if it is in one, and its name there; None if its root can't be such."""
    head, _, table = root.rpartition("/")
    database, _, schema = head.rpartition("/")
    folder = f"{schema}/{table}"
    name = TableName.of_folder(folder)
    if (name is None and _CUT not in folder) or not database or database.endswith(("/", ":")):
        return None
    return database, str(name or folder.replace("/", "."))
