"""What somebody may have meant: near commands, options, tables and files."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path

LISTED_MAX = 5
OTHER_WORDS = {
    "optimize": "compact", "merge": "compact", "zorder": "recluster", "cluster": "recluster", "ls": "status", "tables": "status",
    "list": "status", "history": "timeline", "log": "timeline", "commits": "timeline", "describe": "detail", "info": "detail",
    "sql": "query", "select": "query", "rollback": "restore", "check": "doctor", "fsck": "doctor", "start": "run",
    "merges": "compactions", "files": "parts", "offsets": "positions", "schema": "schemas", "new": "init",
}  # fmt: skip
"""What other systems call a command."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A ``; did you mean …?`` to append to a message, or nothing; case does not matter."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


def near_table(path: str) -> str:
    """The same for a path where no table is: a table at a path like it, or tables below it. Nothing for an object store."""
    if "://" in path:
        return ""
    below = [str(each) for each in _listed(Path(path)) if _is_table(each)]
    if below:
        more = ", …" if len(below) > LISTED_MAX else ""
        return f"; there are tables below it: {', '.join(sorted(below)[:LISTED_MAX])}{more}"
    return _near(path, _is_table)


def near_file(path: str) -> str:
    """The same for a path where no file is."""
    return _near(path, Path.is_file)


def _near(path: str, wanted: Callable[[Path], bool]) -> str:
    found = Path(Path(path).anchor)
    for name in Path(path).parts[1 if found.anchor else 0 :]:
        here = [each.name for each in _listed(found)]
        near = [name] if name in here or name == ".." else difflib.get_close_matches(name, here, n=1)
        if not near:
            return ""
        found = found / near[0]
    return f"; did you mean {found}?" if found != Path(path) and wanted(found) else ""


def _is_table(path: Path) -> bool:
    return (path / "_delta_log").is_dir()


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
