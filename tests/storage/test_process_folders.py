"""Folders of a living process: who owns one is told by a lock, which ends with the process, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakebed.storage import local_folders
from lakebed.storage.local_folders import UNUSED_DAYS, lock_folder, process_folder, remove_unused

OWNER = """
import sys
from lakebed.storage.local_folders import process_folder
(process_folder() / "spilled").write_bytes(b"rows")
print(process_folder(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@contextmanager
def owner() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process with a temporary folder; it ends by itself with the block."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


def test_the_folder_of_a_living_process_stays_and_that_of_a_killed_one_goes() -> None:
    with owner() as (_, alive), owner() as (process, dead):
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (dead / "spilled").exists()
        own = process_folder()
        assert not dead.exists()
        assert (alive / "spilled").exists()
        assert own not in (alive, dead)
        assert process_folder() == own


def test_a_process_that_ends_removes_its_folder() -> None:
    with owner() as (_, folder):
        assert folder.exists()
    assert not folder.exists()


def test_folders_that_are_no_process_s_stay(tmp_path: Path) -> None:
    others = [tmp_path / "lakebed-process-without-a-lock", tmp_path / "somebody-else-s"]
    for folder in others:
        folder.mkdir()
    (others[1] / "lock").touch()
    link = tmp_path / "lakebed-process-link"
    link.symlink_to(others[1])
    process_folder()
    assert all(folder.exists() for folder in [*others, link])


def test_nobody_waits_while_folders_of_others_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    reached, may_go_on = threading.Event(), threading.Event()

    def remove(top: Path) -> None:
        reached.set()
        assert may_go_on.wait(60)

    monkeypatch.setattr(local_folders, "_remove_abandoned", remove)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(process_folder)
        assert reached.wait(60)
        second = pool.submit(process_folder).result(60)
        assert not first.done()
        may_go_on.set()
        assert first.result(60) == second


def test_a_forked_child_has_a_folder_of_its_own_and_leaves_its_parent_s() -> None:
    folder = process_folder()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, str(process_folder()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    other = Path(os.read(read, 1000).decode())
    assert other != folder
    assert other.exists(), "nobody removed it yet"
    with owner():
        assert folder.exists()
        assert not other.exists()


def test_a_folder_is_locked_by_one_at_a_time(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path / "a" / "b")
    assert lock is not None
    assert lock_folder(tmp_path / "a" / "b") is None
    os.close(lock)
    again = lock_folder(tmp_path / "a" / "b")
    assert again is not None
    os.close(again)


def used_by_nobody(folder: Path, days: float, *locked: str) -> Path:
    """The folder of a table with files and locks, as it is when nobody has used it for so many days."""
    for place in (folder, *(folder / name for name in locked)):
        lock = lock_folder(place)
        assert lock is not None
        os.close(lock)
        (place / "keys").write_bytes(b"keys")
    for place in [*folder.rglob("*"), folder]:
        os.utime(place, (time.time() - days * 24 * 3600,) * 2)
    return folder


def test_folders_of_tables_go_when_no_process_has_used_them_for_long(tmp_path: Path) -> None:
    old = used_by_nobody(tmp_path / "old", UNUSED_DAYS + 1)
    volatile = used_by_nobody(tmp_path / "volatile", UNUSED_DAYS + 1, "replica-0", "replica-1")
    recent = used_by_nobody(tmp_path / "recent", UNUSED_DAYS - 1)
    changed = used_by_nobody(tmp_path / "changed", UNUSED_DAYS + 1, "replica-0")
    (changed / "replica-0" / "more").touch()
    without_locks = tmp_path / "java"
    without_locks.mkdir()
    os.utime(without_locks, (0, 0))
    in_use = used_by_nobody(tmp_path / "in-use", 0, "replica-0")
    lock = lock_folder(in_use / "replica-0")
    assert lock is not None
    for place in [*in_use.rglob("*"), in_use]:
        os.utime(place, (0, 0))
    remove_unused(tmp_path)
    assert [folder.exists() for folder in (old, volatile)] == [False, False]
    assert all((folder / "keys").exists() for folder in (recent, changed, in_use))
    assert without_locks.exists()
    os.close(lock)
    remove_unused(tmp_path)
    assert in_use.exists(), "it looks once a day"
    os.utime(tmp_path / "looked", (0, 0))
    remove_unused(tmp_path)
    assert not in_use.exists()
