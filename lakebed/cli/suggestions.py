"""What the user may have meant: near commands, options, tables and files."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path

LISTED_MAX = 5
OTHER_WORDS = {
    "vacuum": "clean --only vacuum", "expire-snapshots": "clean --only expire-snapshots",
    "remove-orphan-files": "clean --only remove-orphan-files", "expire-rows": "clean --only expire-rows",
    "settle": "compact --only settle", "merge": "compact --only merge", "optimize": "compact", "compaction": "compact",
    "zorder": "recluster", "cluster": "recluster", "set-sort-key": "alter --sort-key", "sort-key": "alter --sort-key",
    "truncate": "delete --all", "rollback": "restore", "sql": "query", "select": "query", "shell": "query",
    "ls": "status", "list": "status", "tables": "status", "get": "show", "inspect": "show", "plan": "show plan",
    "parts": "show parts", "files": "show parts", "commits": "show commits", "timeline": "show commits",
    "history": "show commits", "log": "show commits", "figures": "show figures", "detail": "show figures",
    "describe": "show figures", "info": "show figures", "stats": "show figures", "merges": "show merges",
    "compactions": "show merges", "clustering": "show clustering", "claims": "show claims", "schema": "show schemas",
    "schemas": "show schemas", "detached": "show detached", "partitions": "show detached",
    "detach-partition": "partition detach", "detach": "partition detach", "attach-partition": "partition attach",
    "attach": "partition attach", "drop-detached": "partition drop", "drop": "partition drop",
    "positions": "source positions", "offsets": "source positions", "rewind": "source rewind", "seek": "source rewind",
    "resnapshot": "source resnapshot", "snapshot": "source resnapshot", "restart-order": "source restart-order",
    "replay": "quarantine replay", "listen": "events listen", "listeners": "events list", "deliver": "events deliver",
    "exporter": "serve metrics", "metrics": "serve metrics", "ui": "serve page", "page": "serve page", "api": "serve api",
    "token": "serve token", "report": "fleet report", "example": "docs examples", "examples": "docs examples",
    "man": "docs", "check": "doctor", "fsck": "doctor", "debug": "doctor", "start": "run", "new": "init",
    "import": "convert", "adopt": "convert",
}  # fmt: skip
"""What a command is for a word that other systems, or earlier versions, have for it."""


def right_command(word: str, prog: str, known: Iterable[str]) -> str:
    """The complaint about a word that is none of the commands: it names the right one, a near one, or all of a family.

    Args:
        word: What was typed.
        prog: The command before it, such as ``lakebed`` or ``lakebed show``.
        known: The words that may stand there.
    """
    if (meant := OTHER_WORDS.get(word.lower())) is not None:
        return f"`{prog} {word}` is `lakebed {meant}`"
    listed = list(known)
    near = did_you_mean(word, listed)
    if prog == "lakebed":
        return f"there is no command {word!r}{near}"
    return f"{word!r} is none of {', '.join(listed)}{near}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A ``; did you mean …?`` to append to a message, or nothing; case does not matter."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


def near_table(path: str) -> str:
    """The same for a path where no table is: a table at a path like it, or tables below it. Nothing for an object store."""
    if "://" in path:
        return ""
    from lakebed.parts.quarantine import QUARANTINE_SUFFIX

    folders = _listed(Path(path))
    folders += [each for folder in folders for each in _listed(folder)]  # as a database has them: <schema>/<table>
    below = [str(each) for each in folders if _is_table(each) and not each.name.endswith(QUARANTINE_SUFFIX)]
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
