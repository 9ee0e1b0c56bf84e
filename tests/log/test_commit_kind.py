"""The kind of a commit by its actions alone: one case for each operation, and for each pair whose actions are alike."""

from __future__ import annotations

import pytest

from lakebed.log.actions import (
    Action,
    AddChangePart,
    AddPart,
    ChangePart,
    Commit,
    CommitInfo,
    Domain,
    Part,
    RemoveChangePart,
    RemovePart,
    Transaction,
    part_domain,
)
from lakebed.log.claims import Claim
from lakebed.log.commit_kind import (
    CommitKind,
    ended_claim,
    is_append,
    kind_of,
    merged_into,
    replaced,
    restored,
    restores,
    rows_expired,
    settles,
    truncated,
    truncates,
)
from lakebed.log.entries import CLAIM, DETACHED, EXPIRED, HOLD, PURGE, PURGED, SCHEMA, SOURCE_TRUNCATES, STREAM
from lakebed.schema.metadata import Metadata, Protocol

PATH = "_lakebed/parts/a.parquet"
PROTOCOL = Protocol(3, 7)
METADATA = Metadata(id="t", schema_string="{}", partition_columns=(), configuration={})
NEW = AddPart(Part(path=PATH, rows=2, bytes=20))
OLD = RemovePart(path="_lakebed/parts/old.parquet", deleted_ms=1)
MOVED_IN = AddPart(NEW.part, data_change=False)
MOVED_OUT = RemovePart(path=OLD.path, deleted_ms=1, data_change=False)
CHANGES = AddChangePart(ChangePart(path=PATH, version=1, ordinal=0, rows=2, bytes=20))
MUTATED = AddChangePart(ChangePart(path=PATH, version=1, ordinal=0, rows=2, bytes=20, mutation=True))
SETTLED = RemoveChangePart(part_domain(PATH))
BATCH = Transaction(STREAM + "orders", 7)
DETACH = Domain(DETACHED + "eu", "{}")
ATTACH = Domain(DETACHED + "eu", "", removed=True)
RELEASE = Domain(HOLD + "r", "", removed=True)
MERGE = Claim(id="1", replica="a", sources=(OLD.path,), level=1, lease_ms=9)
UPLOAD = Claim(id="2", replica="a", sources=(OLD.path,), level=1, lease_ms=9, volatile=True)
INFO = CommitInfo(operation="whatever it says", commit_id="c", metrics={"rows": 1})

KINDS: list[tuple[str, CommitKind, tuple[Action, ...]]] = [
    ("a table is created", CommitKind.CREATE, (PROTOCOL, METADATA)),
    ("a property is set", CommitKind.PROPERTIES, (METADATA,)),
    ("a column is added", CommitKind.ALTER, (METADATA, Domain(SCHEMA + "000001", "{}"))),
    ("the first column is renamed", CommitKind.ALTER, (PROTOCOL, METADATA, Domain(SCHEMA + "000001", "{}"))),
    ("changes join the tail", CommitKind.APPEND, (CHANGES, BATCH)),
    ("rows join a table without keys", CommitKind.APPEND, (NEW, BATCH)),
    ("a batch has no row", CommitKind.APPEND, (BATCH,)),
    ("a batch has a truncate of the source before its rows", CommitKind.APPEND, (truncated(1), SETTLED, CHANGES, BATCH)),
    ("a delete writes changes", CommitKind.MUTATION, (MUTATED,)),
    ("an update replaces rows of a table without keys", CommitKind.MUTATION, (OLD, NEW)),
    ("a delete takes the last row of a part", CommitKind.MUTATION, (OLD,)),
    ("changes become a base part", CommitKind.SETTLE, (SETTLED, NEW)),
    ("changes leave the tail and no row is left of them", CommitKind.SETTLE, (SETTLED, OLD)),
    ("everything leaves the table", CommitKind.TRUNCATE, (truncated(1), SETTLED, OLD)),
    ("parts are merged", CommitKind.MERGE, (MOVED_OUT, MOVED_IN, MERGE.ended())),
    ("parts are merged, and the claim was removed before", CommitKind.MERGE, (MOVED_OUT, MOVED_IN)),
    ("a volatile part is uploaded", CommitKind.UPLOAD, (MOVED_OUT, MOVED_IN, UPLOAD.ended())),
    ("a partition is replaced", CommitKind.REPLACE_PARTITION, (OLD, NEW, replaced({"region": "eu"}))),
    ("a partition is detached", CommitKind.DETACH_PARTITION, (OLD, DETACH)),
    ("a partition is attached", CommitKind.ATTACH_PARTITION, (NEW, ATTACH)),
    ("a detached partition is dropped", CommitKind.DROP_DETACHED, (ATTACH,)),
    ("an earlier version is restored", CommitKind.RESTORE, (OLD, NEW, SETTLED, CHANGES, restored(9, 3))),
    ("a detached partition is again what it was", CommitKind.RESTORE, (ATTACH, restored(9, 3))),
    ("a MERGE inserts rows in a table without keys", CommitKind.MUTATION, (NEW, merged_into(7))),
    ("parts with old rows leave", CommitKind.EXPIRE_ROWS, (OLD, rows_expired("day", "2026-01-01", 7))),
    ("a claim is made", CommitKind.CLAIM, (MERGE.to_action(),)),
    ("a claim is given back", CommitKind.CLAIM, (MERGE.ended(),)),
    ("a reader holds a version", CommitKind.HOLD, (Domain(HOLD + "r", "{}"),)),
    ("a reader releases it", CommitKind.HOLD, (RELEASE,)),
    ("versions expire, and holds that ended with them", CommitKind.EXPIRE, (RELEASE, Domain(EXPIRED, "{}"))),
    ("a purge begins", CommitKind.PURGE, (Domain(PURGE + "1", "{}"),)),
    ("versions end with a purge", CommitKind.PURGE, (Domain(PURGED, "{}"), Domain(PURGE + "1", "{}"), Domain(EXPIRED, "{}"))),
    ("another tool writes an entry of its own", CommitKind.OTHER, (Domain("delta.clustering", "{}"),)),
    ("nothing is in the commit", CommitKind.OTHER, ()),
]  # fmt: skip


@pytest.mark.parametrize(("_", "kind", "actions"), KINDS, ids=[case[0].replace(" ", "-") for case in KINDS])
def test_the_actions_say_what_a_commit_did(_: str, kind: CommitKind, actions: tuple[Action, ...]) -> None:
    for order in (actions, actions[::-1]):
        for all_actions in (order, (INFO, *order), (*order, INFO)):
            assert kind_of(Commit(0 if kind is CommitKind.CREATE else 1, all_actions)) is kind


def test_a_protocol_in_a_later_version_is_a_conversion() -> None:
    assert kind_of(Commit(12, (PROTOCOL, METADATA))) is CommitKind.CONVERT


def test_every_kind_has_a_case() -> None:
    assert {kind for _, kind, _ in KINDS} | {CommitKind.CONVERT} == set(CommitKind)


def test_a_commit_that_empties_the_table_is_no_settle() -> None:
    truncate, settle = Commit(1, (truncated(1), SETTLED, OLD)), Commit(1, (SETTLED, OLD))
    assert (truncates(truncate), settles(truncate)) == (True, False)
    assert (truncates(settle), settles(settle)) == (False, True)


def test_a_restore_is_no_settle_though_change_parts_leave() -> None:
    restore = Commit(9, (restored(9, 3), SETTLED, NEW))
    assert (restores(restore), settles(restore), truncates(restore)) == (True, False, False)


def test_the_claim_that_a_commit_ends_is_known_with_its_sources() -> None:
    assert ended_claim(Commit(1, (MOVED_OUT, MERGE.ended()))) == MERGE
    assert ended_claim(Commit(1, (MERGE.to_action(),))) is None  # begins
    assert ended_claim(Commit(1, (Domain(CLAIM + "1", "", removed=True),))) is None  # without its description


def test_an_append_brings_rows_and_what_is_kept_of_its_batch_and_nothing_else() -> None:
    kept = Domain(BATCH.app_id, "{}")
    for brings in (CHANGES, NEW):
        assert is_append((brings,), BATCH) and is_append((INFO, brings, BATCH, kept))
        for other in (
            OLD,
            SETTLED,
            METADATA,
            PROTOCOL,
            DETACH,
            truncated(1),
            restored(9, 3),
            Domain(SOURCE_TRUNCATES, "{}"),
        ):
            assert not is_append((brings, other), BATCH), other
    assert not is_append((MOVED_IN,), BATCH)  # the rows were in the table before
    assert not is_append((), BATCH)
    assert not is_append((CHANGES, kept))  # the entry of a batch that is not in the commit
    assert not is_append((CHANGES, BATCH, Domain(BATCH.app_id, "", removed=True)))
