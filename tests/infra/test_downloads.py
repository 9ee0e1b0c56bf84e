"""A fetched folder is complete or absent, and fetched once however many ask for it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.infra import downloads


@pytest.fixture
def build_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(downloads, "BUILD_FOLDER", tmp_path / "build")
    return tmp_path / "build"


def test_racing_fetches_do_the_work_once(build_folder: Path) -> None:
    fetched: list[str] = []

    def fetch(staging: Path) -> None:
        time.sleep(0.1)
        (staging / "jar").write_text("whole")
        fetched.append(staging.name)

    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: downloads.fetch_once("thing", b"v1", fetch), range(4)))
    assert len(fetched) == len(folders) == 1
    assert (folders.pop() / "jar").read_text() == "whole"


def test_a_new_version_is_a_new_folder(build_folder: Path) -> None:
    first = downloads.fetch_once("thing", b"v1", lambda staging: None)
    assert downloads.fetch_once("thing", b"v2", lambda staging: None) != first


def test_a_fetch_that_failed_leaves_nothing_that_looks_fetched(build_folder: Path) -> None:
    def fail(staging: Path) -> None:
        (staging / "half").write_text("half")
        raise downloads.MissingPrerequisite("no registry")

    with pytest.raises(downloads.MissingPrerequisite):
        downloads.fetch_once("thing", b"v1", fail)
    assert [path.name for path in build_folder.iterdir() if path.is_dir()] == []


def test_a_missing_program_is_named_with_its_remedy() -> None:
    with pytest.raises(downloads.MissingPrerequisite, match=r"no-such-program.*install it"):
        downloads.program("no-such-program", "install it")
