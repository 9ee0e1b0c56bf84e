"""The stores that a log can live in, behind one small protocol: a local disk, memory, an object store (``open_store``); and the
names of its files.

A log needs three things of a store: read one object, put one object only if its name is free, and list names from a
point on. ``put_if_absent`` is the only synchronisation between writers, so it must be atomic (invariant M1).

A put has three outcomes. It succeeded; another writer's object has the name; or nobody knows (the answer was lost), which
the store reports as ``StoreUnavailable`` and the caller resolves by reading the name back.

*On a local disk*, or on a network file system with hard links (``LocalLogStore``), these hold: an object appears whole or not at
all, under its name only after its bytes are on disk (M1); a name once taken by ``put_if_absent`` stays with the same bytes; files
that a crashed process left behind are never listed.

1. Write the bytes to a hidden file of its own in the same folder, and fsync it.
2. ``link`` it to the name. The kernel fails this if the name is taken: that is the decision between two writers.
3. Remove the hidden name and fsync the folder, so that the entry survives a power failure.

*Whether a store is atomic* is tested by a race, once, before a table relies on it (``probe``). Some servers that speak S3 ignore
``If-None-Match``, and some check it and then write, with a gap between: a second put reveals the first kind, only a race the
second. A store that passes is not proven atomic; one that fails is proven not.

1. Put a name, then put it again with other bytes: the second must be refused and the first bytes must stay.
2. In each race, ``contestants`` threads wait for each other and put one new name, each with bytes of its own and of
   its own length. Exactly one may win, and the name must hold the winner's bytes.
3. A contestant whose outcome nobody knows (the store was unavailable) is neither a winner nor a loser: the name may
   hold its bytes if there is no other winner.
4. Remove every name, also after a failure.
"""

from __future__ import annotations

import errno
import os
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from lakebed.errors import Retry, StoreUnavailable, UnsafeStore, Unsupported
from lakebed.storage.counters import RequestCounter, StoreCounters
from lakebed.storage.local_folders import fsync_folder, make_folders, raise_for, temporary_path
from lakebed.storage.object_store import open_objects
from lakebed.storage.roots import LocalRoot, parse_root

__all__ = ["LocalLogStore", "MemoryLogStore", "open_store"]


@runtime_checkable
class _QuickStore(Protocol):
    """A store that knows a cheaper way to find out whether an object is there than to read it."""

    def has(self, name: str) -> bool:
        """Whether the object is there. Raises StoreUnavailable if the store fails."""
        ...


def has_object(store: LogStore, name: str) -> bool:
    """Whether a store has an object, asked in one request. Raises StoreUnavailable."""
    if isinstance(store, _QuickStore):
        return store.has(name)
    try:
        store.read(name)
    except FileNotFoundError:
        return False
    return True


class LogStore(Protocol):
    """Named immutable objects below one root; names are relative paths with ``/``, such as ``_delta_log/0…0.json``."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create the object durably; False if the name is taken. Raises StoreUnavailable if the outcome is unknown."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Create or replace the object durably and atomically (a hint or a checkpoint, never a commit)."""
        ...

    def read(self, name: str) -> bytes:
        """The object's bytes. Raises FileNotFoundError if there is none, StoreUnavailable if the store fails."""
        ...

    def list_from(self, folder: str, start: str) -> list[str]:
        """Base names of the objects directly in ``folder``, at or after ``start``, in byte order. None: an empty list."""
        ...

    def delete(self, name: str) -> None:
        """Remove the object; removing a name that is not there is no error."""
        ...


_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


class LocalLogStore:
    """``LogStore`` over a folder. ``root`` is its absolute path; folders are made on demand."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._counter = RequestCounter()

    def __repr__(self) -> str:
        return f"LocalLogStore({self.root!r})"

    def counters(self) -> StoreCounters:
        """Operations on the disk so far, by kind."""
        return self._counter.value()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create the object durably; False if the name is taken. Raises StoreUnavailable if the outcome is unknown."""
        path = os.path.join(self.root, name)
        self._counter.count("put_if_absent", bytes_written=len(data))
        temporary = _write_temporary(path, data)
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno == errno.EEXIST:
                # A network file system may lose the answer of a link that was made and fail its own second try.
                return os.stat(temporary).st_nlink > 1
            if error.errno in _NO_LINKS:
                raise Unsupported(
                    f"{os.path.dirname(path)!r} is on a file system without hard links, so two writers could both take"
                    " one version; put the table on a disk that has them (ext4, xfs, APFS, NFS) or on S3",
                    path=path,
                ) from error
            raise_for(error, path)
        finally:
            _remove_temporary(temporary)
        fsync_folder(os.path.dirname(path))
        return True

    def put(self, name: str, data: bytes) -> None:
        """Create or replace the object durably and atomically."""
        path = os.path.join(self.root, name)
        self._counter.count("put", bytes_written=len(data))
        temporary = _write_temporary(path, data)
        try:
            os.replace(temporary, path)
        except OSError as error:
            _remove_temporary(temporary)
            raise_for(error, path)
        fsync_folder(os.path.dirname(path))

    def read(self, name: str) -> bytes:
        """The object's bytes. Raises FileNotFoundError if there is none, StoreUnavailable if the disk fails."""
        path = os.path.join(self.root, name)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            self._counter.count("read", failures=1)
            raise_for(error, path)
        self._counter.count("read", bytes_read=len(data))
        return data

    def list_from(self, folder: str, start: str) -> list[str]:
        """Base names of the objects directly in ``folder``, at or after ``start``, in byte order; none is no error."""
        path = os.path.join(self.root, folder)
        self._counter.count("list_from")
        try:
            with os.scandir(path) as entries:
                names = [e.name for e in entries if e.name >= start and not e.name.startswith(".") and e.is_file()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise_for(error, path)
        return sorted(names)

    def delete(self, name: str) -> None:
        """Remove the object; removing a name that is not there is no error."""
        path = os.path.join(self.root, name)
        self._counter.count("delete")
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise_for(error, path)


def _write_temporary(path: str, data: bytes) -> str:
    temporary = temporary_path(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        try:
            descriptor = os.open(temporary, flags, 0o666)
        except FileNotFoundError:
            make_folders(os.path.dirname(path))
            descriptor = os.open(temporary, flags, 0o666)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        _remove_temporary(temporary)
        raise_for(error, path)
    return temporary


def _remove_temporary(temporary: str) -> None:
    try:
        os.unlink(temporary)
    except OSError:
        return  # a hidden file that stays is never listed, and a vacuum removes it


class MemoryLogStore:
    """``LogStore`` over a dictionary, atomic under one lock. It can't be sent to another process."""

    def __init__(self, root: str = "memory") -> None:
        self.root = root
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._counter = RequestCounter()

    def __repr__(self) -> str:
        return f"MemoryLogStore({self.root!r})"

    def counters(self) -> StoreCounters:
        """Operations so far, by kind."""
        return self._counter.value()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create the object; False if the name is taken."""
        self._counter.count("put_if_absent", bytes_written=len(data))
        with self._lock:
            if name in self._objects:
                return False
            self._objects[name] = bytes(data)
            return True

    def put(self, name: str, data: bytes) -> None:
        """Create or replace the object."""
        self._counter.count("put", bytes_written=len(data))
        with self._lock:
            self._objects[name] = bytes(data)

    def read(self, name: str) -> bytes:
        """The object's bytes. Raises FileNotFoundError if there is none."""
        with self._lock:
            data = self._objects.get(name)
        self._counter.count("read", failures=data is None, bytes_read=len(data or b""))
        if data is None:
            raise FileNotFoundError(f"{self.root}/{name}")
        return data

    def list_from(self, folder: str, start: str) -> list[str]:
        """Base names of the objects directly in ``folder``, at or after ``start``, in byte order; none is no error."""
        self._counter.count("list_from")
        prefix = folder + "/"
        with self._lock:
            below = [name[len(prefix) :] for name in self._objects if name.startswith(prefix)]
        return sorted(name for name in below if "/" not in name and name >= start)

    def delete(self, name: str) -> None:
        """Remove the object; removing a name that is not there is no error."""
        self._counter.count("delete")
        with self._lock:
            self._objects.pop(name, None)


PROBE_FOLDER = "_lakebed/probe"
_RACE_TIMEOUT_SECONDS = 60


def probe(store: LogStore, contestants: int = 8, rounds: int = 4) -> None:
    """Race the store's ``put_if_absent``. Raises UnsafeStore if it is not atomic, StoreUnavailable if it is silent."""
    folder = f"{PROBE_FOLDER}/{uuid.uuid4().hex}"
    names = [f"{folder}-{number}" for number in range(rounds + 1)]
    try:
        _refuses_a_second_put(store, names[0])
        with ThreadPoolExecutor(contestants) as pool:
            for name in names[1:]:
                _one_winner(store, name, contestants, pool)
    finally:
        for name in names:
            try:
                store.delete(name)
            except Retry:
                break  # a leftover of a few bytes under _lakebed/ is harmless


def _refuses_a_second_put(store: LogStore, name: str) -> None:
    first, second = _body(1), _body(2)
    if not store.put_if_absent(name, first):
        raise UnsafeStore(
            f"{_root(store)}: a name that nobody uses, {name}, was refused as taken; use another store",
            table=_root(store),
        )
    if store.put_if_absent(name, second) or store.read(name) != first:
        raise UnsafeStore(
            f"{_root(store)} let a second put-if-absent replace an object (it ignores If-None-Match): two writers would"
            " overwrite each other's commits; use a store with conditional writes",
            table=_root(store),
        )


def _one_winner(store: LogStore, name: str, contestants: int, pool: ThreadPoolExecutor) -> None:
    start = threading.Barrier(contestants, timeout=_RACE_TIMEOUT_SECONDS)

    def run(number: int) -> bool | None:
        body = _body(number)
        start.wait()
        try:
            return store.put_if_absent(name, body)
        except StoreUnavailable:
            return None

    outcomes = list(pool.map(run, range(contestants)))
    winners = [number for number, won in enumerate(outcomes) if won]
    unknown = [number for number, won in enumerate(outcomes) if won is None]
    if len(winners) > 1:
        raise UnsafeStore(
            f"{_root(store)}: {len(winners)} of {contestants} writers that put one name at once were all answered that"
            " they won (its put-if-absent checks first and writes later); use a store with atomic conditional writes",
            table=_root(store),
        )
    if not winners and not unknown:
        raise UnsafeStore(
            f"{_root(store)}: {contestants} writers put one new name at once and all were refused; use another store",
            table=_root(store),
        )
    if len(unknown) == contestants:
        raise StoreUnavailable(
            f"{_root(store)} did not answer any of {contestants} puts; try again", table=_root(store)
        )
    try:
        held = store.read(name)
    except FileNotFoundError:
        if not winners:
            raise StoreUnavailable(
                f"{_root(store)} did not take any of {contestants} puts; try again", table=_root(store)
            ) from None
        held = b""
    allowed = winners or unknown
    if held not in [_body(number) for number in allowed]:
        raise UnsafeStore(
            f"{_root(store)}: after a race the object does not hold the bytes of the writer that won; use"
            " another store",
            table=_root(store),
        )


def _body(number: int) -> bytes:
    return b"%d " % number * (600 + 37 * number)


def _root(store: LogStore) -> str:
    return str(getattr(store, "root", store))


def open_store(root: str | os.PathLike[str]) -> LogStore:
    """The store of a root: a local path or ``s3://bucket/prefix``. No request is made, nothing is created."""
    place = parse_root(root)
    if isinstance(place, LocalRoot):
        return LocalLogStore(place.path)
    return open_objects(place)


# -- The file names of a log: its commit files and checkpoints, and which of them belong together --------------------------
#
# A cleanup deletes commit files one after the other, oldest first, and only below a checkpoint. So those that belong to the log
# reach without a gap from its oldest checkpoint (or version 0) up to the newest commit. A writer that paused meanwhile may put
# its commit under a lower name that became free. It deletes the commit once it notices (see ``table_log``). Until then, or if
# the writer dies, that commit is no version of the table: no chain of commits leads from it to those that are kept.


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
