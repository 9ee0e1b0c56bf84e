"""Truncate, detach, attach, drop and replace: what leaves, what comes back, and who wins in between."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction.compaction import LocalKernel
from lakebed.compaction.merge import Merger
from lakebed.compaction.merge_values import MergeOutcome, Progress
from lakebed.errors import InvalidInput
from lakebed.log.actions import CommitInfo
from lakebed.log.claims import Claim, claims_of
from lakebed.log.conflicts import BLIND
from lakebed.log.entry_values import MS_MAX
from lakebed.log.holds import expired_before
from lakebed.log.table_log import Committed
from lakebed.merge.kernel import MergedPart, MergeSource, merge_parts
from lakebed.operations.region import detached_of
from lakebed.parts.change_rows import read_version, versions_with_changes
from lakebed.parts.changes import WriteSpec
from lakebed.resolve.locate import IndexLocator
from lakebed.schema.conversion import schema_to_json
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage
from tests.foreign.readers import delta_rs, own
from tests.internals import deletion_vectors_of, log_of, storage_of
from tests.operations.interrupted import before_its_commits
from tests.operations.overwriting import overwrite_by_tasks
from tests.operations.test_mutations import SCHEMA, batch, make, row, values
from tests.oracle import Oracle, Row, in_order
from tests.worlds import seeds

EU, US = {"region": "eu"}, {"region": "us"}


pytestmark = pytest.mark.usefixtures("own_cache")


def two_partitions(folder: Path, keyed: bool = True, **options: Any) -> lakebed.Table:
    rows = [row(1, 1, "eu"), row(2, 2, "eu"), row(3, 3, "us"), row(4, 4, None)]
    return make(folder, rows, keyed, partition_by=["region"], **options)


def claim_everything(table: lakebed.Table) -> None:
    snapshot = log_of(table).refresh()
    claim = Claim(id="c", replica="replica", sources=tuple(snapshot.parts), level=1, lease_ms=MS_MAX)
    assert isinstance(
        log_of(table).commit(snapshot, [claim.to_action()], CommitInfo(operation="CLAIM", commit_id=""), BLIND),
        Committed,
    )


# -- truncate ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [True, False])
def test_a_truncate_takes_base_and_tail_and_older_versions_stay(tmp_path: Path, keyed: bool) -> None:
    table = two_partitions(tmp_path, keyed)
    table.settle()
    table.apply(batch([row(9, 9)], keyed))
    before = table.version
    assert table.truncate() == before + 1
    assert values(table) == {}
    assert table.to_arrow(version=before).num_rows == 5
    assert "lakebed.source_truncates" not in log_of(table).refresh().domains
    assert table.truncate() == before + 1, "there is nothing to take out of an empty table"
    table.apply(batch([row(1, 5)], keyed))
    assert values(table) == {1: 5}


def test_a_truncate_takes_what_came_in_between(tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: other.apply(batch([row(9, 9)])), other.settle):
        table.truncate()
    assert values(table) == {}


# -- detach, attach, drop ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [True, False])
def test_a_detached_partition_comes_back_with_its_dead_rows(tmp_path: Path, keyed: bool) -> None:
    table = two_partitions(tmp_path, keyed)
    table.delete("id = 2")
    name = table.detach_partition(EU)
    assert values(table) == {3: 3, 4: 4}
    (listed,) = table.inspect.detached().to_pylist()
    assert (listed["name"], dict(listed["partition"]), listed["parts"], listed["rows"]) == (name, EU, 1, 1)
    log_of(table).write_checkpoint(log_of(table).refresh())
    again = lakebed.open(table.path)
    again.attach_partition(name)
    assert values(again) == {1: 1, 3: 3, 4: 4}
    assert again.inspect.detached().num_rows == 0
    again.settle()
    if keyed:
        again.apply(batch([row(1, 100, "us")]))
        again.settle()
        assert values(again) == {1: 100, 3: 3, 4: 4}


def test_versions_around_a_detach_stay_readable(tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    before = table.settle().version
    name = table.detach_partition(EU)
    detached = table.version
    table.attach_partition(name)
    assert [table.to_arrow(version=version).num_rows for version in (before, detached, table.version)] == [4, 2, 4]


@pytest.mark.parametrize("settled", [True, False])
def test_attaching_is_refused_while_a_key_is_live(tmp_path: Path, settled: bool) -> None:
    table = two_partitions(tmp_path)
    name = table.detach_partition(EU)
    table.apply(batch([row(2, 22, "us")]))
    if settled:
        table.settle()
    with pytest.raises(InvalidInput, match=r"has the key \{'id': 2\}, which is live"):
        table.attach_partition(name)
    assert values(table) == {2: 22, 3: 3, 4: 4}
    table.delete("id = 2")
    table.attach_partition(name)
    assert values(table) == {1: 1, 2: 2, 3: 3, 4: 4}


def test_a_key_that_comes_while_its_partition_is_attached_is_live_once(tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    name = table.detach_partition(EU)
    other = lakebed.open(table.path)
    come = lambda: other.apply(batch([row(1, 50, "us")]))  # noqa: E731
    with before_its_commits(table, come), pytest.raises(InvalidInput, match=r"\{'id': 1\}"):
        table.attach_partition(name)
    assert values(table) == {1: 50, 3: 3, 4: 4}


def test_a_change_that_comes_before_a_detach_commits_is_settled_first(tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    table.settle()
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: other.apply(batch([row(1, 50, "us"), row(7, 7, "eu")]))):
        name = table.detach_partition(EU)
    assert values(table) == {1: 50, 3: 3, 4: 4}
    table.attach_partition(name)
    assert values(table) == {1: 50, 2: 2, 3: 3, 4: 4, 7: 7}


def test_claims_on_parts_that_leave_end_with_them(tmp_path: Path) -> None:
    leave: list[Callable[[lakebed.Table], Any]] = [
        lambda table: table.detach_partition(EU),
        lambda table: table.truncate(),
        lambda table: table.replace_partition(EU, batch([], keyed=False)),
    ]
    for number, action in enumerate(leave):
        table = two_partitions(tmp_path / str(number))
        table.settle()
        claim_everything(table)
        action(table)
        assert not claims_of(log_of(table).refresh().domains)


@pytest.mark.parametrize("leave", ["truncate", "detach"])
def test_a_merge_of_parts_that_leave_meanwhile_brings_nothing_back(tmp_path: Path, leave: str) -> None:
    table = two_partitions(tmp_path)
    table.settle()
    table.apply(batch([row(5, 5)]))
    table.settle()

    class LeaveMeanwhile:
        def merge(
            self, sources: Sequence[MergeSource], spec: WriteSpec, output: PartStorage, progress: Progress
        ) -> list[MergedPart]:
            merged = merge_parts(sources, spec, output, connect())
            table.truncate() if leave == "truncate" else table.detach_partition(EU)
            return merged

    snapshot = log_of(table).refresh()
    paths = sorted(part.path for part in snapshot.parts.values() if part.partition_values == EU)
    merger = Merger(log_of(table), storage_of(table), deletion_vectors_of(table), "replica")
    assert merger.run(paths, 1, LeaveMeanwhile()).outcome is MergeOutcome.OVERTAKEN
    assert values(table) == ({} if leave == "truncate" else {3: 3, 4: 4})


def test_the_null_partition_is_one_like_others(tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    table.attach_partition(table.detach_partition({"region": None}))
    table.detach_partition({"region": ""})
    assert values(table) == {1: 1, 2: 2, 3: 3}


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.date32(), datetime.date(2026, 1, 2), "2026-01-02"),
        (pa.int32(), 7, "7"),
        (pa.bool_(), True, "true"),
        (pa.timestamp("us", "UTC"), datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "2026-01-02 00:00:00"),
        (pa.timestamp("us"), datetime.datetime(2026, 1, 2, 3), "2026-01-02T03:00"),
        (pa.decimal128(18, 6), Decimal("1.5"), "1.5"),
    ],
)
def test_a_partition_is_named_by_a_value_or_a_text(tmp_path: Path, kind: pa.DataType, value: Any, text: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("p", kind)])
    table = lakebed.create(tmp_path / "table", schema, keys=["id"], partition_by=["p"])
    table.apply(pa.table([[1], [value]], schema=schema))
    for spelled in (value, text):
        table.attach_partition(table.detach_partition({"p": spelled}))


def test_what_is_no_partition_is_refused(tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    with pytest.raises(InvalidInput, match="no partition region=ap; there are: region=; region=eu; region=us"):
        table.detach_partition({"region": "ap"})
    with pytest.raises(InvalidInput, match=r"given by \['region'\], not \['value'\]"):
        table.detach_partition({"value": 1})
    with pytest.raises(InvalidInput, match="no detached partition 'x'"):
        table.attach_partition("x")
    with pytest.raises(InvalidInput, match="no detached partition 'x'"):
        table.drop_detached("x")
    flat = make(tmp_path / "flat", [row(1, 1)])
    with pytest.raises(InvalidInput, match="has no partitions"):
        flat.detach_partition(EU)


def test_attaching_is_refused_when_a_column_is_another_one_by_now(tmp_path: Path) -> None:
    table = two_partitions(tmp_path, keyed=False)
    name = table.detach_partition(EU)
    table.truncate()  # else the parts that stay forbid it
    snapshot = log_of(table).refresh()
    other = SCHEMA.set(2, pa.field("value", pa.string()))
    changed = replace(snapshot.metadata, schema_string=schema_to_json(other))
    assert isinstance(
        log_of(table).commit(snapshot, [changed], CommitInfo(operation="CHANGE", commit_id=""), BLIND), Committed
    )
    with pytest.raises(InvalidInput, match="'value'"):
        table.attach_partition(name)


def test_dropped_files_go_once_no_version_names_them(tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    table.settle()
    for expired in (False, True):
        name = table.detach_partition(US if expired else EU)
        version = table.version
        paths = [part.path for part in detached_of(log_of(table).refresh())[name].parts]
        if expired:
            log_of(table).commit(
                log_of(table).refresh(), [expired_before(version)], CommitInfo(operation="EXPIRE", commit_id=""), BLIND
            )
        assert table.drop_detached(name) == (len(paths) if expired else 0)
        assert [storage_of(table).exists(path) for path in paths] == [not expired]
        with pytest.raises(InvalidInput, match="no detached partition"):
            table.attach_partition(name)
    assert values(table) == {4: 4}


def test_dropped_files_stay_while_a_reader_holds_a_version_that_names_them(tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    table.settle()
    log, before, held = log_of(table), table.version, values(table)
    name = table.detach_partition(EU)
    with table.maintenance.hold(before, 60.0):
        log.commit(log.refresh(), [expired_before(table.version)], CommitInfo(operation="EXPIRE", commit_id=""), BLIND)
        assert table.drop_detached(name) == 0
        assert dict(zip(*table.to_arrow(["id", "value"], version=before).to_pydict().values(), strict=True)) == held


def test_a_partition_attached_in_between_is_not_dropped(tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    name = table.detach_partition(EU)
    log_of(table).commit(
        log_of(table).refresh(), [expired_before(table.version)], CommitInfo(operation="EXPIRE", commit_id=""), BLIND
    )
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: other.attach_partition(name)), pytest.raises(InvalidInput, match="detached"):
        table.drop_detached(name)
    assert values(table) == {1: 1, 2: 2, 3: 3, 4: 4}


# -- replace -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [True, False])
def test_a_partition_is_replaced_in_one_commit(tmp_path: Path, keyed: bool) -> None:
    table = two_partitions(tmp_path, keyed)
    table.settle()
    before = table.version
    assert table.replace_partition(EU, batch([row(1, 10), row(5, 50)], keyed=False)) == before + 1
    assert values(table) == {1: 10, 3: 3, 4: 4, 5: 50}
    table.replace_partition({"region": "new"}, batch([row(6, 6, "new")], keyed=False))
    assert values(table) == {1: 10, 3: 3, 4: 4, 5: 50, 6: 6}
    if keyed:
        table.apply(batch([row(5, None, op="d"), row(6, 60, "us")]))
        table.settle()
        assert values(table) == {1: 10, 3: 3, 4: 4, 6: 60}


def test_rows_that_do_not_belong_are_refused_and_leave_no_file(tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    table.settle()
    files = set((tmp_path / "table" / "_lakebed").iterdir())
    refused = {
        "rows of region=us": [row(8, 8, "us")],
        "hold the key {'id': 8} twice": [row(8, 8), row(8, 9)],
        "the key {'id': 3}, which is live": [row(1, 1), row(3, 3)],
    }
    for text, rows in refused.items():
        with pytest.raises(InvalidInput) as caught:
            table.replace_partition(EU, batch(rows, keyed=False))
        assert text in str(caught.value)
    assert values(table) == {1: 1, 2: 2, 3: 3, 4: 4}
    assert set((tmp_path / "table" / "_lakebed").iterdir()) == files


@pytest.mark.parametrize("change", ["replace", "apply", "delete", "truncate", "settle"])
def test_a_commit_stands_though_its_checkpoint_can_not_be_written(tmp_path: Path, change: str) -> None:
    table = two_partitions(tmp_path, properties={"lakebed.checkpoint_interval": "1"})
    in_the_way = Path(table.path, "_delta_log")
    for version in range(table.version, table.version + 10):
        (in_the_way / f"{version:020d}.checkpoint.parquet").mkdir()
    changes: dict[str, tuple[Callable[[], object], dict[int, int]]] = {
        "replace": (lambda: table.replace_partition(EU, batch([row(1, 10)], keyed=False)), {1: 10, 3: 3, 4: 4}),
        "apply": (lambda: table.apply(batch([row(1, 10)])), {1: 10, 2: 2, 3: 3, 4: 4}),
        "delete": (lambda: table.delete("id = 1"), {2: 2, 3: 3, 4: 4}),
        "truncate": (table.truncate, {}),
        "settle": (table.settle, {1: 1, 2: 2, 3: 3, 4: 4}),
    }
    do, expected = changes[change]
    do()
    assert values(lakebed.open(table.path)) == expected


# -- change rows and other readers -------------------------------------------------------------------------------------


def changes_of(table: lakebed.Table) -> list[tuple[str, int | None]]:
    """The change rows of the newest version."""
    versions = versions_with_changes(table.path, table.version, table.version)
    rows = [one for version in versions for found in read_version(table.path, version) for one in found.to_pylist()]
    return sorted((one["_change_type"], one["id"]) for one in rows)


def test_change_rows_tell_what_left_and_what_came(tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    table.delete("id = 1")
    assert changes_of(table) == [("delete", 1)]
    table.update({"value": "0"}, "id = 2")
    assert changes_of(table) == [("upsert", 2)]
    name = table.detach_partition(EU)
    assert changes_of(table) == [("delete", 2)]
    table.attach_partition(name)
    assert changes_of(table) == [("upsert", 2)]
    table.drop_detached(table.detach_partition(EU))
    assert changes_of(table) == []
    table.replace_partition(US, batch([row(8, 8, "us")], keyed=False))
    assert changes_of(table) == [("delete", 3), ("upsert", 8)]
    table.apply(batch([row(9, 9)]))
    table.truncate()
    assert changes_of(table) == [("truncate", None)]


@pytest.mark.parametrize("keyed", [True, False])
def test_another_reader_reads_the_same_at_every_version(tmp_path: Path, keyed: bool) -> None:
    table = two_partitions(tmp_path, keyed, properties={"lakebed.checkpoint_interval": "3"})
    table.delete("id = 2")
    name = table.detach_partition(EU)
    versions = [table.version]
    table.attach_partition(name)
    versions.append(table.version)
    table.update({"value": "value * 2"}, "id < 4")
    table.settle()
    versions.append(table.version)
    table.replace_partition(US, batch([row(8, 8, "us")], keyed=False))
    versions.append(table.version)
    log_of(table).write_checkpoint(log_of(table).refresh())
    table.truncate()
    versions.append(table.version)
    for version in versions:
        assert delta_rs(table, version) == own(table, version), f"version {version}"


def test_a_claim_that_comes_before_a_partition_is_replaced_ends_too(tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    table.settle()
    with before_its_commits(table, lambda: claim_everything(table)):
        table.replace_partition(EU, batch([row(7, 7, "eu")], keyed=False))
    assert not claims_of(log_of(table).refresh().domains)


# -- beside writers that never rest -----------------------------------------------------------------------------------


def joins(table: lakebed.Table, how: str) -> Callable[[], object]:
    """Something that brings 200 keys into the partition eu."""
    rows = [row(number, number, "eu") for number in range(0, 400, 2)]
    table.apply(batch(rows))
    table.settle()
    if how == "replace":
        return lambda: table.replace_partition(EU, batch(rows, keyed=False))
    name = table.detach_partition(EU)
    return lambda: table.attach_partition(name)


@pytest.mark.parametrize("how", ["attach", "replace"])
@pytest.mark.parametrize("between", ["other ranges", "other keys", "settled", "merged"])
def test_keys_are_looked_up_once_though_others_commit_before_each_attempt(
    how: str, between: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(tmp_path, [row(1, 1, "us")], partition_by=["region"])
    join, other, came, looked_up = joins(table, how), lakebed.open(table.path), list[int](), list[int]()
    lookup = IndexLocator.lookup

    def counted(self: IndexLocator, base: Any, keys: pa.Table) -> pa.Table:
        looked_up.append(len(keys))
        return lookup(self, base, keys)

    def meanwhile() -> None:
        number = 2 * len(came) + (1001 if between == "other ranges" else 3)
        came.append(number)
        other.apply(batch([row(number, number, "us")]))
        if between in ("settled", "merged"):
            other.settle()
        if between == "merged":
            merge_base(other)

    monkeypatch.setattr(IndexLocator, "lookup", counted)
    attempts = 1 if between == "other ranges" else 9
    log, commit = log_of(table), log_of(table).commit

    def interrupted(*arguments: Any) -> Any:
        if len(came) < 8:
            meanwhile()
        attempted.append(len(came))
        return commit(*arguments)

    attempted = list[int]()
    monkeypatch.setattr(log, "commit", interrupted)
    join()
    assert len(attempted) == attempts
    assert sum(count for count in looked_up if count >= 200) == 200, "all keys, once"
    assert values(table) == {1: 1, **{n: n for n in range(0, 400, 2)}, **{n: n for n in came}}
    assert table.doctor(deep=True).findings == ()


@pytest.mark.parametrize("how", ["attach", "replace"])
def test_a_change_of_one_of_the_keys_that_comes_before_the_commit_counts(how: str, tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1, "us")], partition_by=["region"])
    join, other = joins(table, how), lakebed.open(table.path)
    with (
        before_its_commits(table, lambda: other.apply(batch([row(6, 60, "us")]))),
        pytest.raises(InvalidInput, match=r"has the key \{'id': 6\}, which is live in the table"),
    ):
        join()
    assert values(table)[6] == 60


def test_what_comes_into_a_partition_before_it_is_replaced_is_replaced(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1, "us")], partition_by=["region"])
    replaces, other = joins(table, "replace"), lakebed.open(table.path)
    with before_its_commits(table, lambda: other.apply(batch([row(7, 7, "eu"), row(9, 9, "us")]))):
        replaces()
    assert values(table).keys() == {1, 9, *range(0, 400, 2)}


# -- beside deletes that late events meet ------------------------------------------------------------------------------


def merge_base(table: lakebed.Table) -> None:
    """Make one part of what each partition has, deletes included."""
    table.settle()
    snapshot = log_of(table).refresh()
    for region in ("eu", "us", None):
        paths = sorted(part.path for part in snapshot.parts.values() if part.partition_values == {"region": region})
        if len(paths) > 1:
            merger = Merger(log_of(table), storage_of(table), deletion_vectors_of(table), "replica")
            merger.run(paths, 1, LocalKernel(storage_of(table), log_of(table).refresh))


DELETES = {"in the tail": lambda table: None, "settled": lakebed.Table.settle, "merged": merge_base}


@pytest.mark.parametrize("deletes", DELETES)
@pytest.mark.parametrize("region", ["eu", "us"])
def test_a_row_that_was_deleted_while_it_was_detached_comes_back_dead(
    deletes: str, region: str, tmp_path: Path
) -> None:
    """``region``: where the delete is kept; a source that sends no other value than the key knows no better."""
    rows = [row(1, 1, "eu", 10), row(2, 2, "eu", 10), row(3, 3, "eu", 10), row(4, 4, "us", 10)]
    table = make(tmp_path, rows, partition_by=["region"], sequence_by="seq")
    name = table.detach_partition(EU)
    table.apply(batch([row(5, 5, region, 1)]))
    table.apply(batch([row(1, 0, region, 20, "d"), row(2, 0, region, 9, "d"), row(3, 0, region, 10, "d")]))
    DELETES[deletes](table)
    table.attach_partition(name)
    assert values(table) == {2: 2, 4: 4, 5: 5}, "1 and 3 were deleted since, the delete of 2 came late"
    metrics = dict(table.inspect.timeline().to_pylist()[0]["metrics"])
    assert metrics["rowsMarkedDead"] == 2
    table.settle()
    assert table.update({"value": "value + 1"}, "true").rows == 3
    assert values(table) == {2: 3, 4: 5, 5: 6}
    table.delete("true")
    assert values(table) == {}
    table.settle()
    assert values(table) == {}


@pytest.mark.parametrize("merges", [0, 1, 2])
@pytest.mark.parametrize("by", ["apply", "delete"])
@pytest.mark.parametrize("lacks", [None, ["value"]])
def test_of_a_row_and_a_delete_with_the_same_sequence_the_later_one_counts(
    by: str, lacks: list[str] | None, merges: int, tmp_path: Path
) -> None:
    """Also after merges with newer rows, and of a row that was completed when it was settled with newer ones."""
    table = make(tmp_path, [row(1, 1, "us", 5), row(2, 2, "us", 5)], partition_by=["region"], sequence_by="seq")
    table.settle()
    if by == "delete":
        table.delete("id < 3")
    else:
        table.apply(batch([row(1, None, "us", 5, "d"), row(2, None, "us", 5, "d")]))
    table.apply(batch([row(1, 10, "eu", 5) | {"missing": lacks}]))
    table.apply(batch([row(3, 3, "eu", 9), row(4, 4, "us", 9)]))
    table.settle()
    name = table.detach_partition(EU)
    for number in range(merges):
        table.apply(batch([row(5 + number, 5 + number, "us", 9)]))
        merge_base(table)
    table.apply(batch([row(3, None, "us", 9, "d")]))
    merge_base(table)
    table.attach_partition(name)
    merge_base(table)
    first = {1: 10} if lacks is None else {1: None}  # what it was completed from is deleted
    assert values(table) == {**first, 4: 4, **{5 + number: 5 + number for number in range(merges)}}


def test_deletes_that_come_back_with_a_partition_outweigh_older_rows_that_came_meanwhile(tmp_path: Path) -> None:
    table = make(tmp_path, [row(7, 7, "eu")], partition_by=["region"], sequence_by="seq")
    table.apply(batch([row(number, 0, "eu", 10, "d") for number in (1, 2, 3)]))
    table.settle()
    name = table.detach_partition(EU)
    table.apply(batch([row(1, 1, "us", 9), row(2, 2, "us", 10), row(3, 3, "us", 11)]))
    assert values(table) == {1: 1, 2: 2, 3: 3}
    table.attach_partition(name)
    assert values(table) == {2: 2, 3: 3, 7: 7}
    table.delete("true")
    assert values(table) == {}


@pytest.mark.parametrize("deletes", DELETES)
def test_rows_that_replace_a_partition_are_refused_if_they_were_deleted_with_a_newer_sequence(
    deletes: str, tmp_path: Path
) -> None:
    table = make(tmp_path, [row(1, 1, "us", 10)], partition_by=["region"], sequence_by="seq")
    table.apply(batch([row(1, 0, "us", 20, "d"), row(5, 5, "us", 1)]))
    DELETES[deletes](table)
    with pytest.raises(InvalidInput, match=r"has the key {'id': 1}, which was deleted with a newer seq; leave it out"):
        table.replace_partition(EU, batch([row(1, 2, "eu", 19)], keyed=False))
    table.replace_partition(EU, batch([row(1, 2, "eu", 20)], keyed=False))
    assert values(table) == {1: 2, 5: 5}
    table.delete("true")
    assert values(table) == {}


class LateEvents:
    """A table with ``sequence_by`` whose partitions leave and come back, beside a dictionary that knows of no partitions.

    Few sequences, so that many are equal; rows move between partitions; deletes come with any partition.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.table = make(folder, [], partition_by=["region"], sequence_by="seq")
        self.other = lakebed.open(self.table.path)
        self.oracle = Oracle(("id",), tuple(SCHEMA.names), "seq")
        self.away: dict[str, tuple[str, set[int]]] = {}  # by name: the region, and the keys of its live rows
        self.serial = 0

    def step(self) -> None:
        rng, table = self.random, self.table
        action = rng.choice(["apply", "apply", "apply", "delete", "settle", "merge", "merge", "detach", "attach"])
        if action == "apply":
            self.apply(self.table)
        elif action == "delete":
            self.delete(rng.randrange(6))
        elif action == "settle":
            table.settle()
        elif action == "merge":
            merge_base(table)
        elif action == "detach":
            table.settle()
            parts = log_of(table).refresh().parts.values()
            here = {str(part.partition_values["region"]) for part in parts}
            if here:
                region = rng.choice(sorted(here))
                live = set(table.to_arrow(where=f"region = '{region}'")["id"].to_pylist())
                self.away[table.detach_partition({"region": region})] = region, live
        elif action == "attach" and self.away:
            self.attach(rng.choice(sorted(self.away)))

    def apply(self, table: lakebed.Table) -> None:
        """A row of a key that is live elsewhere would be there twice; deletes may come for any key."""
        rng, changes = self.random, []
        live_away = set().union(*(live for _, live in self.away.values()))
        for id in rng.sample(range(6), 2):
            self.serial += 1
            op = "u" if id not in live_away and rng.random() < 0.6 else "d"
            changes.append(row(id, self.serial, rng.choice(["eu", "us"]), rng.randrange(4), op))
        table.apply(batch(changes))
        self.oracle.apply(changes)

    def meanwhile(self) -> None:
        """What others do between what an attach finds and its commit."""
        for _ in range(self.random.randint(0, 2)):
            self.apply(self.other)
        if self.random.random() < 0.5:
            self.other.settle()
        if self.random.random() < 0.5:
            merge_base(self.other)

    def delete(self, id: int) -> None:
        """A mutation, whose delete has the sequence of the row."""
        if self.table.delete(f"id = {id}").rows:
            sequence, _ = self.oracle.newest[id,]
            self.oracle.newest[id,] = sequence, None

    def attach(self, name: str) -> None:
        with before_its_commits(self.table, self.meanwhile):
            self.table.attach_partition(name)
        del self.away[name]
        if not self.away:
            self.check()

    def check(self) -> None:
        assert in_order(self.table.to_arrow().to_pylist()) == self.oracle.rows()


@pytest.mark.few(3)
@seeds(3, quick=0)
def test_a_partition_that_leaves_and_comes_back_changes_nothing_whatever_is_late(seed: int, tmp_path: Path) -> None:
    """It is as if the partition had been there all the time."""
    world = LateEvents(seed, tmp_path)
    for _ in range(40):
        world.step()
    for name in list(world.away):
        world.attach(name)
    world.check()
    world.table.delete("true")
    assert values(world.table) == {}


# -- anything, in any order --------------------------------------------------------------------------------------------


class World:
    """A partitioned table under random treatment beside a list of the rows it should hold at every version."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.keyed = self.random.random() < 0.6
        self.table = make(
            folder, [], self.keyed, partition_by=["region"], properties={"lakebed.checkpoint_interval": "4"}
        )
        self.other = lakebed.open(self.table.path)
        self.rows: list[Row] = []
        self.states: dict[int, list[Row]] = {0: []}
        self.detached: dict[str, list[Row]] = {}
        self.serial = 0

    def changes(self) -> list[Row]:
        rng, out = self.random, []
        for _ in range(rng.choice([1, 4])):
            self.serial += 1
            id = rng.randrange(10) if self.keyed else self.serial
            out.append(row(id, self.serial, rng.choice(["eu", "us", None]), self.serial))
        return out

    def applied(self, rows: list[Row], changes: list[Row]) -> list[Row]:
        for change in changes:
            bare = {name: change[name] for name in SCHEMA.names}
            rows = [one for one in rows if not self.keyed or one["id"] != change["id"]] + [bare]
        return rows

    def step(self) -> None:
        rng, table, before = self.random, self.table, self.table.version
        action = rng.choice(
            [
                "apply",
                "apply",
                "settle",
                "mutate",
                "detach",
                "detach",
                "attach",
                "drop",
                "replace",
                "overwrite",
                "truncate",
            ]
        )
        region = rng.choice(["eu", "us", None])
        inside = [one for one in self.rows if one["region"] == region]
        outside = [one for one in self.rows if one["region"] != region]
        if action == "apply":
            changes = self.changes()
            table.apply(batch(changes, self.keyed))
            self.rows = self.applied(self.rows, changes)
        elif action == "settle":
            table.settle()
        elif action == "mutate":
            if rng.random() < 0.5:
                table.delete("value % 3 = 0")
                self.rows = [one for one in self.rows if one["value"] % 3]
            else:
                table.update({"region": "'us'", "value": "value + 1"}, "value % 4 = 0")
                self.rows = [
                    one if one["value"] % 4 else one | {"region": "us", "value": one["value"] + 1} for one in self.rows
                ]
        elif action == "detach" and inside:
            self.detach(region, before)
        elif action == "attach" and self.detached:
            name, gone = rng.choice(list(self.detached.items()))
            live = {one["id"] for one in self.rows}
            if self.keyed and any(one["id"] in live for one in gone):
                with pytest.raises(InvalidInput, match="live in the table"):
                    table.attach_partition(name)
            else:
                table.attach_partition(name)
                self.rows = self.rows + self.detached.pop(name)
        elif action == "drop" and self.detached:
            name = rng.choice(list(self.detached))
            table.drop_detached(name)
            del self.detached[name]
        elif action == "replace":
            live = {one["id"] for one in outside}
            new = {c["id"]: c | {"region": region} for c in self.changes() if c["id"] not in live}
            table.replace_partition({"region": region}, batch(list(new.values()), keyed=False))
            self.rows = self.applied(outside, list(new.values()))
        elif action == "overwrite":
            self.overwrite()
        elif action == "truncate" and rng.random() < 0.3:
            table.truncate()
            self.rows = []
        for version in range(before + 1, table.version + 1):
            # What settles on the way to a commit changes nothing.
            rows = self.rows if version == table.version or action in ("apply", "settle") else None
            if rows is not None:
                self.states.setdefault(version, in_order(rows))

    def overwrite(self) -> None:
        """At once, or by tasks beside changes, which count after it."""
        rng = self.random
        choices: dict[str | None, tuple[Callable[[Row], bool], Callable[[Row], Row]]] = {
            None: (lambda one: True, lambda one: one),
            "region = 'eu'": (lambda one: one["region"] == "eu", lambda one: one | {"region": "eu"}),
            "coalesce(region, '') <> 'eu'": (lambda one: one["region"] != "eu", lambda one: one | {"region": None}),
            "value % 2 = 0": (lambda one: one["value"] % 2 == 0, lambda one: one | {"value": 2 * one["value"]}),
            "region = 'us' and value % 3 = 0": (
                lambda one: one["region"] == "us" and one["value"] % 3 == 0,
                lambda one: one | {"region": "us", "value": 3 * one["value"]},
            ),
        }
        where = rng.choice(list(choices))
        leaves, fitting = choices[where]
        outside = [one for one in self.rows if not leaves(one)]
        live = {one["id"] for one in outside}
        new = {c["id"]: fitting(c) for c in self.changes() if c["id"] not in live}
        rows, between = batch(list(new.values()), keyed=False), self.changes() if rng.random() < 0.7 else []
        self.rows = self.applied(outside, list(new.values()))
        if not between and rng.random() < 0.5:
            self.table.overwrite(rows, where)
            return
        came: list[Row] = []
        began = False

        def one_more() -> None:
            if began and between:
                came.append(between.pop(0))
                self.other.apply(batch(came[-1:], self.keyed))
            if began and rng.random() < 0.3:
                self.other.settle()
            if began and self.keyed and rng.random() < 0.2:  # else rows that stay would be merged with those that leave
                merge_base(self.other)

        def meanwhile() -> None:
            nonlocal began
            began = True
            for _ in range(rng.randrange(1 + len(between))):
                one_more()

        with before_its_commits(self.table, *[one_more] * 4, all_of_them=False):
            overwrite_by_tasks(self.table, rows, where, meanwhile)
        self.rows = self.applied(self.rows, came)
        assert self.table.doctor(deep=True).findings == (), "no key is live twice"

    def detach(self, region: str | None, before: int) -> None:
        """Sometimes a change comes in between, and the detach takes its rows along, or leaves what it took away."""
        between = self.changes() if self.random.random() < 0.5 else []
        if not between:
            name = self.table.detach_partition({"region": region})
        else:
            safe = {one["id"] for one in self.rows if one["region"] == region}
            between = [change for change in between if not self.keyed or change["id"] not in safe]
            with before_its_commits(self.table, lambda: self.other.apply(batch(between, self.keyed))):
                name = self.table.detach_partition({"region": region})
            self.rows = self.applied(self.rows, between)
        self.detached[name] = [one for one in self.rows if one["region"] == region]
        self.rows = [one for one in self.rows if one["region"] != region]


@seeds(3)
def test_every_version_equals_the_oracle(seed: int, tmp_path: Path) -> None:
    world = World(seed, tmp_path)
    for _ in range(world.random.choice([8, 16])):
        world.step()
    world.table.settle()
    world.states[world.table.version] = in_order(world.rows)
    for version, rows in world.states.items():
        assert in_order(world.table.to_arrow(version=version).to_pylist()) == rows, f"version {version}"
    for name, rows in world.detached.items():
        (listed,) = [one for one in world.table.inspect.detached().to_pylist() if one["name"] == name]
        assert listed["rows"] == len(rows)
