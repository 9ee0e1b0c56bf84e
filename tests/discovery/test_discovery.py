"""Tables are found by the folders that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakebed.discovery import tables_in
from lakebed.storage.object_store import Folders


def folders(root: Path, *names: str) -> None:
    for name in names:
        (root / name / "_delta_log").mkdir(parents=True)


def below(root: Path, found: list[str]) -> list[str]:
    return [Path(each).relative_to(root).as_posix() for each in found]


def test_a_root_a_table_in_it_and_one_in_a_schema(tmp_path: Path) -> None:
    folders(
        tmp_path, "single", "public/orders", "public/orders_quarantine", "_lakebed/fleet", "public/.hidden", "a/b/c"
    )
    (tmp_path / "public" / "nothing").mkdir()
    assert below(tmp_path, tables_in(str(tmp_path))) == ["public/orders", "public/orders_quarantine", "single"]
    assert tables_in(str(tmp_path / "single")) == [str(tmp_path / "single")]
    assert tables_in(str(tmp_path / "not there")) == []


def test_known_tables_are_not_looked_into_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders(tmp_path, *(f"public/t{number}" for number in range(50)), "single")
    known = tables_in(str(tmp_path))
    folders(tmp_path, "public/new")
    asked: list[str] = []
    whole = Folders.below

    def counted(self: Folders, folder: str = "") -> list[str]:
        asked.append(folder)
        return whole(self, folder)

    monkeypatch.setattr(Folders, "below", counted)
    assert len(tables_in(str(tmp_path), frozenset(known))) == 52
    assert sorted(asked) == ["", "public", "public/new"]
