"""A file is verified before it is read, once; what was damaged since is seen, in the file system and in an object store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.errors import Corrupt
from lakebed.log.actions import Part
from lakebed.parts import intact
from lakebed.parts.changes import WriteSpec
from lakebed.parts.intact import require_intact, require_intact_keys, require_intact_pages, require_intact_reads, verify
from lakebed.parts.row_origins import row_versions
from lakebed.parts.write import write_parts
from lakebed.resolve.locate import ScanLocator, read_keys
from lakebed.settings import VerifyReads
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.part_storage import PartStorage
from tests.storage.test_another_object_store import STORED, in_another_process

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("x", pa.float64())])
ROWS = pa.table(
    {"id": range(90_000), "text": [f"text {n}" for n in range(90_000)], "x": [n / 7 for n in range(90_000)]}, SCHEMA
)
SPEC = WriteSpec(schema=SCHEMA, keys=("id",))


def written(storage: PartStorage, count: int = 1) -> list[Part]:
    return [part.base_part(False) for _ in range(count) for part in write_parts(ROWS, SPEC, storage)]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are compared, in order; none of them counts as young."""
    found: list[str] = []

    def counted(file: Any, storage: PartStorage) -> None:
        found.append(file.path)
        verify(file, storage)

    monkeypatch.setattr(intact, "verify", counted)
    monkeypatch.setattr(intact, "_YOUNG_SECONDS", -1.0)
    return found


def test_a_file_is_compared_once_and_again_when_it_was_changed(compared: list[str], tmp_path: Path) -> None:
    storage = open_part_storage(tmp_path)
    parts = written(storage, 8)
    for _ in range(3):
        require_intact(parts, storage)
    assert sorted(compared) == sorted(part.path for part in parts)
    file = tmp_path / parts[2].path
    whole = file.read_bytes()
    file.write_bytes(flipped(whole, 500))
    for _ in range(2):
        with pytest.raises(Corrupt, match=parts[2].path):
            require_intact(parts, storage)
    file.write_bytes(whole)
    require_intact(parts, storage)
    assert compared[8:] == [parts[2].path] * 3


def test_a_file_that_was_changed_just_now_is_compared_at_each_read(
    compared: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change again within the same tick of the file system's clock."""
    monkeypatch.setattr(intact, "_YOUNG_SECONDS", 1e9)
    storage = open_part_storage(tmp_path)
    parts = written(storage)
    for _ in range(3):
        require_intact(parts, storage)
    assert len(compared) == 3


@pytest.mark.parametrize(("verify_reads", "refuses"), [("local", True), ("all", True), ("off", False)])
def test_the_property_says_what_reads_compare(verify_reads: VerifyReads, refuses: bool, tmp_path: Path) -> None:
    storage = open_part_storage(tmp_path)
    [part] = written(storage)
    (tmp_path / part.path).write_bytes(flipped((tmp_path / part.path).read_bytes(), 500))
    if refuses:
        with pytest.raises(Corrupt, match=part.path):
            require_intact_reads([part], storage, verify_reads)
    else:
        require_intact_reads([part], storage, verify_reads)
    require_intact_reads([replace(part, checksum=None)], storage, verify_reads)  # of another writer: nothing to compare


def test_the_age_of_a_row_is_not_taken_from_a_damaged_file(tmp_path: Path) -> None:
    storage = open_part_storage(tmp_path)
    [part] = written(storage)
    merged = replace(part, max_block=part.min_block + 1)
    row_versions(merged, np.array([5]), storage)
    (tmp_path / part.path).write_bytes(flipped((tmp_path / part.path).read_bytes(), 500))
    with pytest.raises(Corrupt, match=part.path):
        row_versions(merged, np.array([5]), storage)


# -- in an object store ------------------------------------------------------------------------------------------------


Check = Callable[[Part, PartStorage], None]
CHECKS: dict[str, tuple[Check, set[str]]] = {
    "reads": (lambda part, storage: require_intact_reads([part], storage, "local"), set()),
    "verified reads": (
        lambda part, storage: require_intact_reads([part], storage, "all"),
        {"id", "text", "x", "footer"},
    ),
    "writers": (lambda part, storage: require_intact([part], storage, objects=True), {"id", "text", "x", "footer"}),
    "columns": (lambda part, storage: require_intact_pages(part, storage, ["id", "none"]), {"id"}),
    "looked-up keys": (lambda part, storage: require_intact_keys([part], storage, ["id", "none"]), {"id"}),
    "settling": (
        lambda part, storage: ScanLocator(SPEC, storage).lookup({part.path: part}, pa.table({"id": [5]})) and None,
        {"id"},
    ),
    "the key index": (lambda part, storage: all(read_keys(part, SPEC, storage)) and None, {"id"}),
    "rows": (lambda part, storage: require_intact_pages(part, storage, ["id", "text", "x"], [5, 7]), {"id"}),
}
"""What each compares, of the damage below: only that of ``id`` is in the first row group."""


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("where", ["id", "text", "x", "footer"])
def test_of_an_object_that_is_compared_which_is_written_again(
    check: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [part] = written(in_another_process())
    at = part.bytes - 60
    if where != "footer":
        group = pq.read_metadata(pa.BufferReader(STORED[part.path])).row_group(0 if where == "id" else 2)
        at = group.column(SCHEMA.names.index(where)).data_page_offset + 200
    run, damages = CHECKS[check]
    run(part, in_another_process())
    STORED[part.path] = flipped(STORED[part.path], at)
    monkeypatch.setattr(intact, "_seen", {})
    monkeypatch.setattr(intact, "_seen_pages", {})
    if where in damages:
        with pytest.raises(Corrupt, match=part.path):
            run(part, in_another_process())
    else:
        run(part, in_another_process())


def test_an_object_is_fetched_once_to_be_compared(compared: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    parts = written(in_another_process(), 2)
    storage = in_another_process()
    for _ in range(3):
        require_intact(parts, storage, objects=True)
    assert sorted(compared) == sorted(part.path for part in parts)
    del STORED[parts[0].path]
    monkeypatch.setattr(intact, "_seen", {})
    monkeypatch.setattr(intact, "_seen_pages", {})
    for check, _ in list(CHECKS.values())[1:]:
        with pytest.raises(Corrupt, match=parts[0].path):
            check(parts[0], in_another_process())
