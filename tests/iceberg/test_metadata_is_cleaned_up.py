"""Vacuum, expiry, purge and drop know Iceberg's metadata: what is needed stays, and no more."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.iceberg.avro import avro_records
from lakebed.iceberg.metadata import FOLDER
from lakebed.iceberg.publisher import KEPT_SECONDS, Publisher, needed_files
from lakebed.operations.purge import files as purge_files
from tests.iceberg.readers import opened, pyiceberg
from tests.internals import log_of, storage_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def table(tmp_path: Path) -> lakebed.Table:
    found = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], properties={"lakebed.iceberg": "on"})
    for first in range(4):
        put(found, {key: f"{key} at {first}" for key in range(first, 60, first + 1)})
        found.maintenance.publish_iceberg()
    return found


def put(table: lakebed.Table, names: dict[int, str]) -> None:
    table.apply([{"id": key, "name": name} for key, name in names.items()])
    table.settle()


def on_disk(table: lakebed.Table) -> set[str]:
    folder = Path(table.path)
    return {str(path.relative_to(folder)) for path in (folder / FOLDER).rglob("*") if path.is_file()}


def needed(table: lakebed.Table) -> set[str]:
    return set(needed_files(Publisher(log_of(table), storage_of(table))))


def age(table: lakebed.Table, seconds: float) -> None:
    """Let all metadata be as old as that."""
    for name in on_disk(table):
        at = storage_of(table).now() - seconds
        os.utime(Path(table.path) / name, (at, at))


def is_whole(table: lakebed.Table) -> bool:
    return sorted(pyiceberg(table)["id"].to_pylist()) == sorted(table.to_arrow()["id"].to_pylist())


def versions(table: lakebed.Table) -> set[int]:
    return {each.snapshot_id - 1 for each in opened(table).metadata.snapshots}


def test_expired_versions_are_no_snapshots(table: lakebed.Table) -> None:
    assert len(versions(table)) == 4
    table.maintenance.expire_snapshots("0 seconds", dry_run=False, allow_short_retention=True)
    assert min(versions(table)) >= log_of(table).refresh().version - 1
    assert is_whole(table)
    for version in versions(table):
        assert len(pyiceberg(table, version)) == 60


def test_old_files_that_nothing_needs_go_and_no_others(table: lakebed.Table) -> None:
    before = on_disk(table)
    assert before > needed(table), "older metadata"
    age(table, 4 * 86_400)
    reasons = table.maintenance.vacuum(dry_run=False).to_pylist()
    assert {each["path"] for each in reasons if each["reason"] == "metadata"} == before - needed(table)
    assert on_disk(table) == needed(table)
    assert is_whole(table)


def test_young_files_stay(table: lakebed.Table) -> None:
    before = on_disk(table)
    age(table, KEPT_SECONDS - 600)
    table.maintenance.remove_orphan_files("0 seconds", dry_run=False, allow_short_retention=True)
    assert on_disk(table) == before


def test_a_table_where_it_is_off_needs_none(table: lakebed.Table) -> None:
    table.set_properties({"lakebed.iceberg": "off"})
    age(table, 4 * 86_400)
    table.maintenance.vacuum(dry_run=False)
    assert on_disk(table) == set()


def test_after_a_purge_no_metadata_has_what_was_purged(table: lakebed.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge_files, "FOLLOW_SECONDS", 0.0)
    secret = f"zz{secrets.token_hex(12)}"
    put(table, {100: secret, 101: "another"})
    table.maintenance.publish_iceberg()
    assert files_with(table, secret)
    report = table.purge(f"name = '{secret}'")
    assert files_with(table, secret) == []
    assert "iceberg" in report["where"].to_pylist()
    assert min(versions(table)) >= log_of(table).oldest_version()
    assert on_disk(table) == needed(table)
    assert is_whole(table)
    assert 100 not in pyiceberg(table)["id"].to_pylist()
    assert table.doctor().findings == ()


def files_with(table: lakebed.Table, text: str) -> list[str]:
    found = []
    for name in on_disk(table):
        data = (Path(table.path) / name).read_bytes()
        said = repr(avro_records(data)) if name.endswith(".avro") else repr(data)
        if text in said:
            found.append(name)
    return found


def test_a_dropped_table_leaves_none(table: lakebed.Table) -> None:
    table.drop(purge=True)
    assert not Path(table.path).exists()


def test_an_adopted_table_leaves_none(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "d", pa.table({"id": [1, 2], "p": ["a b", "c/d"]}), partition_by=["p"])
    table = lakebed.convert(tmp_path / "d", keys=["id"])
    table.set_properties({"lakebed.iceberg": "on"})
    table.maintenance.publish_iceberg()
    assert sorted(pyiceberg(table)["p"].to_pylist()) == ["a b", "c/d"]
    assert pyiceberg(table, where="p = 'c/d'")["id"].to_pylist() == [2]
    table.apply([{"id": 2, "p": "c/d"}])
    table.settle()
    table.maintenance.publish_iceberg()
    age(table, 4 * 86_400)
    table.maintenance.vacuum(dry_run=False)
    assert on_disk(table) == needed(table)
    assert table.doctor().findings == ()
    table.drop(purge=True)
    assert not Path(table.path).exists()


def test_a_restored_version_is_published_as_a_new_one(table: lakebed.Table) -> None:
    first = min(versions(table))
    table.restore(version=first)
    found = table.maintenance.publish_iceberg()
    assert found.version == table.version and is_whole(table)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("dv-", "the file is missing"), ("manifest-", "the file is missing"), ("snap-", "the file is missing"),
    ],
)  # fmt: skip
def test_the_doctor_finds_what_is_missing(table: lakebed.Table, what: str, says: str) -> None:
    assert table.doctor().findings == ()
    name = next(name for name in sorted(needed(table)) if name.rsplit("/", 1)[-1].startswith(what))
    (Path(table.path) / name).unlink()
    found = [each for each in table.doctor().findings if each.check == "iceberg"]
    assert [(each.severity.value, each.where) for each in found] == [("critical", name)] and says in found[0].what


def test_the_doctor_finds_metadata_that_says_other_than_the_log(table: lakebed.Table) -> None:
    head = Publisher(log_of(table), storage_of(table)).head()
    assert head is not None
    path = Path(table.path) / f"{FOLDER}/metadata/v{head.number}.metadata.json"
    document = json.loads(path.read_text())
    document["snapshots"][-1]["manifest-list"] = document["snapshots"][0]["manifest-list"]
    path.write_text(json.dumps(document))
    found = [each.what for each in table.doctor().findings if each.check == "iceberg"]
    assert found == [f"Iceberg's metadata of version {head.version} does not say what the log says of its parts"]
