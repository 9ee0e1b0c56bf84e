"""The file names of a log: its commit files and checkpoints, and which of them belong together.

A cleanup deletes commit files one after the other, oldest first, and only below a checkpoint. So those that belong to the log
reach without a gap from its oldest checkpoint (or version 0) up to the newest commit. A writer that paused meanwhile may put
its commit under a lower name that became free. It deletes the commit once it notices (see ``table_log``). Until then, or if the
writer dies, that commit is no version of the table: no chain of commits leads from it to those that are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lakebed.errors import Unsupported

LOG_FOLDER = "_delta_log"


@dataclass(frozen=True, slots=True)
class LogFiles:
    """Versions with a commit file, ascending, and the names of the files of each whole checkpoint, by version."""

    commits: Sequence[int]
    checkpoints: Mapping[int, Sequence[str]]

    def oldest(self) -> int:
        """The oldest version that can be read. There must be a commit file."""
        if not self.checkpoints:
            return 0 if self.commits[0] == 0 else self.commits[-1]
        present = set(self.commits)
        first = max(self.checkpoints)
        while first - 1 in present:
            first -= 1
        return 0 if first == 0 else min(version for version in self.checkpoints if version >= first - 1)

    def has_commits_after(self, version: int, last: int | None) -> bool:
        """Whether there is a commit file of every version after this one, up to ``last`` (None: the newest)."""
        until = max(self.commits, default=-1) if last is None else last
        return set(self.commits).issuperset(range(version + 1, until + 1))

    def before(self, version: int) -> list[str]:
        """Names of all commits and checkpoints of older versions, oldest first."""
        present = set(self.commits)
        names: list[str] = []
        for each in sorted({older for older in (*self.commits, *self.checkpoints) if older < version}):
            names += [f"{LOG_FOLDER}/{name}" for name in self.checkpoints.get(each, ())]
            names += [commit_name(each)] if each in present else []
        return names


def log_files(names: Iterable[str]) -> LogFiles:
    """The files of a log in a listing of its folder. Raises Unsupported for a checkpoint of a kind that lakebed can't read."""
    commits: list[int] = []
    found: dict[int, list[str]] = {}
    for name in names:
        head, _, rest = name.partition(".")
        if not (head.isascii() and head.isdigit()):  # int takes digits of other scripts, too
            continue
        if rest == "json":
            commits.append(int(head))
        elif rest == "checkpoint.parquet":
            found[int(head)] = [name]
        elif rest.startswith("checkpoint.") and rest.endswith(".parquet"):
            pieces = rest.split(".")
            if len(pieces) == 4 and pieces[2].isdecimal():  # checkpoint.<i>.<n>.parquet
                found.setdefault(int(head), []).append(name)
            else:
                raise Unsupported(f"{name} is a v2 checkpoint; drop the feature v2Checkpoint first", path=name)
    whole = {version: pieces for version, pieces in found.items() if len(pieces) == _pieces(pieces[0])}
    return LogFiles(sorted(commits), whole)


def commit_name(version: int) -> str:
    """Name of a version's commit file."""
    return f"{LOG_FOLDER}/{version:020d}.json"


def checkpoint_name(version: int) -> str:
    """Name of a version's checkpoint file."""
    return f"{LOG_FOLDER}/{version:020d}.checkpoint.parquet"


def _pieces(name: str) -> int:
    pieces = name.split(".")
    return int(pieces[3]) if len(pieces) == 5 else 1
