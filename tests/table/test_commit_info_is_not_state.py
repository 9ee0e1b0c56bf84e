"""What ``commitInfo`` says decides nothing: a log in which another tool rewrote or dropped it is the same table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.ingest.batch_writer import Written, commit_written, write_arrow
from lakebed.log.actions import Commit, RemoveChangePart, RemovePart, Transaction
from lakebed.log.commit_codec import digest_of
from lakebed.log.commit_kind import CommitKind, kind_of
from lakebed.log.conflicts import Conflict, ReadWriteSet, find_conflict
from lakebed.log.entries import Operation
from lakebed.monitoring.table_state import figures_of
from lakebed.operations.mutate_keyed import unsettled_mutations
from lakebed.parts.change_rows import read_version, versions_with_changes
from lakebed.parts.changes import prepare, write_spec_of
from lakebed.planning.workload_from_log import recorded_workload
from lakebed.positions.truncates import Truncate
from lakebed.storage.engine import connect
from tests.compaction.test_merge import kernel, merger
from tests.internals import log_of
from tests.operations.test_mutations import SCHEMA, batch, row

Rewrite = Callable[[dict[str, Any], str], dict[str, Any] | None]


def stripped(info: dict[str, Any], parent: str) -> None:
    """Nothing is left of it."""


def altered(info: dict[str, Any], parent: str) -> dict[str, Any]:
    """Whose commit it is and when it was made stay, as Delta wants it; all else says something that is not so."""
    identity = {
        name: info[name] for name in ("inCommitTimestamp", "timestamp", "txnId", "lakebedTable") if name in info
    }
    lies = {
        "operation": "SETTLE" if info["operation"] != "SETTLE" else "TRUNCATE", "engineInfo": "another tool",
        "operationParameters": {}, "operationMetrics": {"rows": "7", "rowsMarkedDead": "70", "seconds": "700"},
        "isBlindAppend": not info["isBlindAppend"],
    }  # fmt: skip
    return identity | lies | ({"lakebedParent": parent} if "lakebedParent" in info else {})


def rewritten(table: lakebed.Table, rewrite: Rewrite, folder: Path) -> lakebed.Table:
    """A copy of the table with another ``commitInfo`` in each commit."""
    copy = folder / rewrite.__name__
    shutil.copytree(table.path, copy)
    parent = ""
    for file in sorted(copy.glob("_delta_log/*.json")):
        lines = [json.loads(line) for line in file.read_bytes().splitlines()]
        infos = [rewrite(line["commitInfo"], parent) for line in lines if "commitInfo" in line]
        kept = [{"commitInfo": info} for info in infos if info] + [line for line in lines if "commitInfo" not in line]
        data = b"".join(json.dumps(line).encode() + b"\n" for line in kept)
        parent = digest_of(data)
        file.write_bytes(data)
    return lakebed.open(copy)


def keyed(folder: Path) -> lakebed.Table:
    """A table with keys that went through everything that commits."""
    table = lakebed.create(folder / "keyed", SCHEMA, keys=["id"], partition_by=["region"])
    for ids in (range(6), range(4, 9)):
        table.apply(batch([row(id, id, "eu" if id % 2 else "us") for id in ids]))
        table.settle()
    table.apply(batch([row(1, None) | {"missing": ["value"]}, row(2, 20, "us")]))
    table.settle()
    table.update({"value": "value + 1"}, "id = 3")
    table.delete("id = 5")
    table.settle()
    eu = sorted(path for path, part in log_of(table).refresh().parts.items() if part.partition_values["region"] == "eu")
    merger(table).run(eu, 1, kernel())
    name = table.detach_partition({"region": "us"})
    table.attach_partition(name)
    table.replace_partition({"region": "us"}, batch([row(2, 2, "us")]).select(SCHEMA.names))
    table.set_properties({"lakebed.read_budget": "4"})
    with table.maintenance.hold(table.version, seconds=60):
        table.apply(batch([row(100, 1, "ap")]))
    table.settle()
    table.apply(batch([row(100, 1, "ap", op="d")]))
    table.settle()  # takes a part and a change part away, as the truncate of so small a table would
    table.apply(batch([row(7, 70)]))
    table.truncate()
    truncate_at_source(table, batch([row(1, 1)]))
    table.apply(batch([row(8, 80)]))
    table.delete("id = 8")
    return table


def unkeyed(folder: Path) -> lakebed.Table:
    """The same of a table without keys."""
    table = lakebed.create(folder / "unkeyed", SCHEMA, partition_by=["region"])
    for ids in (range(6), range(6, 9)):
        table.apply(batch([row(id, id, "eu" if id % 2 else "us") for id in ids], keyed=False))
    table.delete("id = 1")
    table.update({"value": "value * 10"}, "region = 'us'")
    table.replace_partition({"region": "us"}, batch([row(50, 5, "us")], keyed=False))
    table.detach_partition({"region": "us"})
    table.truncate()
    truncate_at_source(table, batch([row(9, 9)], keyed=False))
    return table


def truncate_at_source(table: lakebed.Table, after: pa.Table) -> None:
    """A batch with a truncate of the source, and these rows after it."""
    log = log_of(table)
    snapshot = log.refresh()
    spec = write_spec_of(snapshot)
    written = write_arrow(prepare(after, spec, connect()), spec, table.path)
    truncate = Truncate(topic="orders", partition=0, offset=7)
    batch_id = Transaction("lakebed.ingest.query", 1)
    commit_written(
        log, snapshot, Written(parts=written.parts, truncates=(truncate,)), batch_id, Operation.STREAMING_UPDATE
    )


def change_rows(table: lakebed.Table, with_times: bool) -> list[dict[str, Any]]:
    versions = versions_with_changes(table.path, 0, table.version)
    rows = [row for each in versions for found in read_version(table.path, each) for row in found.to_pylist()]
    return [row if with_times else row | {"_commit_timestamp": None} for row in rows]


def commits(table: lakebed.Table) -> list[Commit]:
    return list(log_of(table).commits(0, table.version))


def conflicts(table: lakebed.Table) -> list[Conflict | None]:
    """What each commit of the log would be to others that it comes before."""
    found = []
    for commit in commits(table):
        removed = {action.path: () for action in commit.actions if isinstance(action, RemovePart)}
        domains = frozenset(action.domain for action in commit.actions if isinstance(action, RemoveChangePart))
        for access in (
            ReadWriteSet(),
            ReadWriteSet(parts={"x": (("region", "eu"),)}),
            ReadWriteSet(parts=removed),
            ReadWriteSet(change_parts=domains or frozenset(["x"]), looked_up_keys=True),
            ReadWriteSet(read_changes=True),
            ReadWriteSet(whole_table=True),
            ReadWriteSet(claimed=frozenset(removed)),
        ):
            for scope in ("table", "partition", "file"):
                found.append(find_conflict(access, Transaction("lakebed.ingest.query", 1), scope, commit))
    return found


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("make", [keyed, unkeyed])
@pytest.mark.parametrize("rewrite", [stripped, altered])
def test_a_log_whose_commit_infos_are_gone_or_wrong_is_the_same_table(
    make: Callable[[Path], lakebed.Table], rewrite: Rewrite, tmp_path: Path
) -> None:
    table = make(tmp_path)
    copy = rewritten(table, rewrite, tmp_path)
    has_times = rewrite is altered
    assert copy.version == table.version and commits(copy) != commits(table)
    for version in range(table.version + 1):
        same = [each.to_arrow(version=version).sort_by("id").to_pylist() for each in (table, copy)]
        assert same[0] == same[1], version
        parts = [each.inspect.parts(version=version).sort_by("path") for each in (table, copy)]
        assert parts[0] == parts[1], version
    assert change_rows(copy, has_times) == change_rows(table, has_times)
    assert conflicts(copy) == conflicts(table)
    assert list(map(kind_of, commits(copy))) == list(map(kind_of, commits(table)))
    figures = [[figures_of(commit) for commit in commits(each)] for each in (table, copy)]
    for mine, theirs in zip(*figures, strict=True):
        assert (mine.writer, mine.written_bytes, mine.ingested_rows) == (
            theirs.writer,
            theirs.written_bytes,
            theirs.ingested_rows,
        )
    waiting = [
        unsettled_mutations(log_of(each)).drop_columns(["operation", "where", "timestamp"]) for each in (table, copy)
    ]
    assert waiting[0] == waiting[1]
    if has_times:
        assert recorded_workload(log_of(copy), 30, "random") == recorded_workload(log_of(table), 30, "random")


def test_the_rewritten_log_goes_on_with_new_commits(tmp_path: Path) -> None:
    table = keyed(tmp_path)
    for rewrite in (stripped, altered):
        copy = rewritten(table, rewrite, tmp_path)
        for each in (copy, lakebed.open(copy.path)):
            each.apply(batch([row(500, 5)]))
            each.settle()
        assert copy.to_arrow(where="id = 500").num_rows == 1


def test_every_kind_of_commit_is_shown_by_its_actions(tmp_path: Path) -> None:
    told = {
        (commit.info.operation, kind_of(commit))
        for make in (keyed, unkeyed)
        for commit in commits(make(tmp_path))
        if commit.info
    }
    assert told == {
        ("CREATE TABLE", CommitKind.CREATE),
        ("SET TBLPROPERTIES", CommitKind.PROPERTIES),
        ("APPLY", CommitKind.APPEND),
        ("STREAMING UPDATE", CommitKind.APPEND),
        ("SETTLE", CommitKind.SETTLE),
        ("DELETE", CommitKind.MUTATION),
        ("UPDATE", CommitKind.MUTATION),
        ("CLAIM", CommitKind.CLAIM),
        ("MERGE", CommitKind.MERGE),
        ("DETACH PARTITION", CommitKind.DETACH_PARTITION),
        ("ATTACH PARTITION", CommitKind.ATTACH_PARTITION),
        ("REPLACE PARTITION", CommitKind.REPLACE_PARTITION),
        ("HOLD VERSION", CommitKind.HOLD),
        ("RELEASE VERSION", CommitKind.HOLD),
        ("TRUNCATE", CommitKind.TRUNCATE),
    }
