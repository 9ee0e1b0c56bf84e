"""Folders on the local disk are read while other processes of the host remove and make some of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakebed.merge.materialized import LocalParts, bytes_below, clear_ended
from lakebed.storage.local_folders import entries_of, files_below

LOOKS, SECONDS_MAX = 3_000, 10.0


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Path]:
    """A folder with ``coming/claim/part``, of which each level in turn leaves and comes back; ``lasting/claim/part`` stays."""
    top = tmp_path / "top"
    for place in ("coming", "lasting"):
        (top / place / "claim").mkdir(parents=True)
        (top / place / "claim" / "part").write_bytes(b"12345")
    leaving = [top / "coming", top / "coming" / "claim", top / "coming" / "claim" / "part"]
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            for each in leaving:
                os.rename(each, tmp_path / "away")
                os.rename(tmp_path / "away", each)

    thread = threading.Thread(target=change)
    thread.start()
    yield top
    over.set()
    thread.join()


def again_and_again(look: Callable[[], object]) -> list[object]:
    end = time.monotonic() + SECONDS_MAX
    seen = []
    while len(seen) < LOOKS and time.monotonic() < end:
        seen.append(look())
    return seen


def test_files_are_listed_with_those_that_stay(changing: Path) -> None:
    stays = (str(changing / "lasting" / "claim" / "part"), 5)
    seen = again_and_again(lambda: list(files_below(changing)))
    assert all(stays in files for files in seen)  # type: ignore[operator]
    assert {len(files) for files in seen} <= {1, 2}  # type: ignore[arg-type]


def test_the_bytes_of_a_disk_are_counted(changing: Path) -> None:
    assert set(again_and_again(lambda: bytes_below(changing))) <= {5, 10}


def test_a_reader_looks_for_local_parts(changing: Path) -> None:
    parts = LocalParts(changing)
    assert again_and_again(parts.load)[-1] == []


def test_a_purge_leaves_the_parts_of_claims_alone_that_are_not_ended(changing: Path) -> None:
    assert again_and_again(lambda: clear_ended(changing, ["claim"]))[-1] == {}
    assert bytes_below(changing / "lasting") == 5


def test_the_entries_of_a_folder_that_leaves_are_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert entries_of(tmp_path / "nothing") == entries_of(tmp_path / "file") == []
    assert entries_of(tmp_path) == [tmp_path / "file"]
