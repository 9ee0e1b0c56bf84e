"""Whether merges of a process stay on its local disk, and what is said of it."""

from __future__ import annotations

import shutil
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction.volatile import ROOM_PLANS, volatile_choice
from lakebed.settings import TableSettings, Volatile

S3 = "s3://bucket/orders"
ROOM = ROOM_PLANS * TableSettings().plan_bytes_max
Usage = namedtuple("Usage", "total used free")


@dataclass(frozen=True)
class Given:
    setting: Volatile
    root: str
    free: int
    on_cluster: bool = False


@pytest.mark.parametrize(
    ("given", "is_on", "says"),
    [
        (Given("auto", S3, ROOM), True, "is in an object store"),
        (Given("auto", S3, ROOM - 1), False, "only"),
        (Given("auto", "/lake/orders", ROOM), False, "is on a file system"),
        (Given("auto", S3, ROOM, on_cluster=True), False, "many local disks"),
        (Given("on", S3, 0), True, "is on"),
        (Given("on", "/lake/orders", 0), True, "is on"),
        (Given("on", S3, ROOM, on_cluster=True), False, "many local disks"),
        (Given("off", S3, ROOM), False, "is off"),
    ],
)
def test_the_choice_and_why(
    given: Given, is_on: bool, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(2 * ROOM, 0, given.free))
    settings = TableSettings(volatile=given.setting)
    choice = volatile_choice(settings, given.root, tmp_path / "not made yet", given.on_cluster)
    assert choice.is_on is is_on and says in choice.why


def test_a_folder_that_can_not_be_made_is_no_room(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    choice = volatile_choice(TableSettings(), S3, tmp_path / "file" / "below")
    assert not choice.is_on and f"{tmp_path / 'file'} is no folder that can be written" in choice.why


def test_the_detail_says_what_was_chosen(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "orders", pa.schema([("id", pa.int64())]), keys=["id"])
    assert table.inspect.detail()["volatile"].to_pylist() == [
        "off: lakebed.volatile is auto, the table is on a file system"
    ]
    assert table.status().volatile == table.inspect.detail()["volatile"][0].as_py()
