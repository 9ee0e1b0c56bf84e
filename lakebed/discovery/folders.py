"""Which tables there are below a root, by the folders that are there: the root itself, ``<table>`` and ``<schema>/<table>``.

A folder that holds a log is a table, and so is the quarantine beside one. Folders whose names begin with ``_`` or ``.`` are
private. A table that is known already is not looked into again, so to find nothing new in 10,000 tables of a schema takes
some ten requests. That a table is gone is noticed by who looks at its log.

A folder is one table's: no table lies inside another's folder (``require_alone``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, combinations
from pathlib import Path

from lakebed.errors import InvalidInput, LakebedError, StoreUnavailable
from lakebed.log.files.names import LOG_FOLDER
from lakebed.storage.folders import Folders
from lakebed.storage.roots import LocalRoot, S3Root, parse_root

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


def require_alone(root: str) -> None:
    """Refuse a place for a table that lies inside another table's folder, or that has a table inside: a folder is one table's.

    Raises InvalidInput that names the other table; StoreUnavailable.
    """
    place = parse_root(root)
    for above in _above(place):
        if _has_log(str(above)):
            raise InvalidInput(
                f"{place} lies inside the table {above}; a table can't be inside another one: choose a path beside it",
                table=str(place),
            )
    below = _log_below(Folders(root), "")
    if below is not None:
        raise InvalidInput(
            f"the table {place}/{below} lies inside {place}; a table can't be inside another one: choose a path beside it",
            table=str(place),
        )


def require_apart(roots: Sequence[str]) -> None:
    """Refuse roots of which one lies inside another: tables below both would be served twice. Raises InvalidInput."""
    for outer, inner in combinations(sorted(map(str, map(parse_root, roots))), 2):
        if inner.startswith(f"{outer.rstrip('/')}/"):
            raise InvalidInput(f"the root {inner} lies inside the root {outer}; leave one of them out")


def _above(place: LocalRoot | S3Root) -> Iterator[LocalRoot | S3Root]:
    """The folders above a place, from its own folder up."""
    if isinstance(place, S3Root):
        steps = place.prefix.split("/") if place.prefix else []
        yield from (S3Root(place.bucket, "/".join(steps[:count])) for count in reversed(range(len(steps))))
    else:
        yield from (LocalRoot(str(parent)) for parent in Path(place.path).parents)


def _has_log(root: str) -> bool:
    try:
        return Folders(root).has(LOG_FOLDER)
    except StoreUnavailable:
        raise
    except LakebedError:
        return False  # whoever may not look there has no table of theirs there


def _log_below(folders: Folders, folder: str) -> str | None:
    """A folder with a log below one, which may have a log itself."""
    for name in _visible(folders.below(folder)):
        inside = f"{folder}/{name}" if folder else name
        if folders.has(f"{inside}/{LOG_FOLDER}"):
            return inside
        found = _log_below(folders, inside)
        if found is not None:
            return found
    return None


def _visible(names: Collection[str]) -> list[str]:
    return [name for name in names if not name.startswith(("_", "."))]
