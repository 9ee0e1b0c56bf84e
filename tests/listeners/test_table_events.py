"""Table events: one case for each, a pure function of the actions, and the same whatever ``commitInfo`` says."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import orjson
import pytest

import lakebed
from lakebed.listeners.event_types import (
    CONTENT_TYPE,
    KINDS,
    Dropped,
    Resync,
    TableEvent,
    cloud_event,
    data_of,
    encoded,
    table_event,
)
from lakebed.listeners.table_events import database_events_of, events_of, resync_of, time_of
from lakebed.log.actions import Action, AddChangePart, AddPart, ChangePart, Commit, CommitInfo, Domain, RemovePart
from lakebed.log.claims import Claim
from lakebed.log.commit_kind import replaced, restored, rows_expired, truncated
from lakebed.log.entries import (
    DETACHED,
    EXPIRED,
    FAILING,
    JOB,
    PARKED,
    POINT,
    POINT_TABLE,
    POSITION,
    PURGED,
    SCHEMA,
    SETTLED,
    VERIFIED,
)
from lakebed.log.removals import Dropped as DropEntry
from lakebed.log.removals import undropped
from tests.internals import log_of
from tests.log.test_commit_kind import (
    BATCH,
    CHANGES,
    METADATA,
    MOVED_IN,
    MOVED_OUT,
    MUTATED,
    NEW,
    OLD,
    PATH,
    PROTOCOL,
    UPLOAD,
)
from tests.log.test_commit_kind import (
    KINDS as CASES,
)
from tests.log.test_commit_kind import (
    SETTLED as LEFT_TAIL,
)
from tests.table.test_commit_info_is_not_state import Rewrite, altered, commits, keyed, rewritten, stripped, unkeyed

DESCRIBED = replace(
    METADATA, schema_string='{"type":"struct","fields":[{"name":"id"},{"name":"day"}]}', partition_columns=("day",)
)
MARKED = AddPart(replace(NEW.part, path=OLD.path))
SETTLED_PART = AddPart(replace(NEW.part, max_block=6))
RECLUSTER = Claim(id="3", replica="a", sources=(OLD.path,), level=2, lease_ms=9, kind="recluster")
POSITION_7 = Domain(POSITION + "orders", '{"offsets":{"0":7},"id":null}')
PARK = Domain(PARKED, '{"error":"it has no key","kind":"InvalidInput","since_ms":1,"failures":3}')
DETACH = Domain(DETACHED + "x", '{"partition":{"day":"1"},"version":4,"parts":[{},{}]}')
SOURCES = '"sources":["x","y"],"failures":4,"error":"a bad part","kind":"Corrupt","since_ms":1,"not_before_ms":9'
PARK_MERGE = Domain(FAILING + "a", "{" + SOURCES + "}")
RUNNING = '{"id":"7","kind":"vacuum","state":"running","by":"ada","attempts":1,"progress":{"parts":2},"error":""}'
UNDETACHED = replace(DETACH, configuration="", removed=True)
COLUMN_ADDED = Domain(SCHEMA + "000002", '{"version":4,"change":{"add":{"day":"date"}},"reason":"asked"}')

MERGED = "parts_before=1 parts=1 rows=2 bytes=20"
EVENTS: dict[str, tuple[tuple[Action, ...], str]] = {
    "a Delta table is adopted": ((PROTOCOL, DESCRIBED), "adopted columns=('id', 'day') partition_by=('day',) properties={}"),
    "a batch comes in": (
        (CHANGES, BATCH, POSITION_7), "appended rows=2 deletes=0 bytes=20 parts=1 positions={'orders': {'0': 7}}",
    ),
    "another writer does not count its rows": (
        (AddPart(replace(NEW.part, rows=-1)),), "appended rows=None deletes=0 bytes=20 parts=1 positions={}",
    ),
    "the source truncates before rows": (
        (truncated(4), LEFT_TAIL, OLD, CHANGES, BATCH),
        "truncated parts=1 change_parts=1; appended rows=2 deletes=0 bytes=20 parts=1 positions={}",
    ),
    "everything leaves": ((truncated(4), LEFT_TAIL, OLD), "truncated parts=1 change_parts=1"),
    "changes are settled": ((LEFT_TAIL, SETTLED_PART, OLD, MARKED), "settled change_parts=1 through=6 marked=1"),
    "no row is left of what is settled": ((LEFT_TAIL,), "settled change_parts=1 through=None marked=0"),
    "parts are merged": (
        (MOVED_OUT, MOVED_IN), f"merged work=merge level=0 uploaded=False {MERGED} bytes_before=None",
    ),
    "a volatile part is uploaded": (
        (replace(MOVED_OUT, bytes=9), MOVED_IN, UPLOAD.ended()),
        f"merged work=merge level=0 uploaded=True {MERGED} bytes_before=9",
    ),
    "parts are sorted again": (
        (MOVED_OUT, MOVED_IN, RECLUSTER.ended()),
        f"reclustered work=recluster level=0 uploaded=False {MERGED} bytes_before=None",
    ),
    "a delete writes changes": ((MUTATED,), "mutated changes=2 parts_removed=0 parts_added=0"),
    "a delete marks rows of the base": ((OLD, MARKED), "mutated changes=0 parts_removed=1 parts_added=1"),
    "a column is added": (
        (DESCRIBED, COLUMN_ADDED),
        "schema_changed number=2 change={'add': {'day': 'date'}} reason=asked columns=('id', 'day')",
    ),
    "a property is set": ((replace(METADATA, configuration={"a": "b"}),), "properties_changed properties={'a': 'b'}"),
    "an earlier version is the newest again": ((OLD, NEW, restored(4, 2)), "restored restored=2"),
    "old rows leave": (
        (OLD, rows_expired("day", "2026-01-01", 9)),
        "rows_expired column=day before=2026-01-01 parts_removed=1 parts_added=0",
    ),
    "old rows were looked for": ((rows_expired("day", "2026-01-01", 9),), ""),
    "rows are purged": ((Domain(PURGED, '{"version":4,"rows":3,"id":"p"}'),), "purged name=p rows=3"),
    "a merge is parked": (
        (PARK_MERGE,),
        "merge_parked name=a sources=2 error=Corrupt reason=a bad part failures=4 not_before_ms=9",
    ),
    "a merge is resumed": ((replace(PARK_MERGE, configuration="", removed=True),), "merge_resumed name=a"),
    "a table is compared with its source": (
        (Domain(VERIFIED, '{"time_ms":9,"outcome":"differs","position":"0/1","version":4,"rows":9,"differing":2}'),),
        "verified outcome=differs position=0/1 rows=9 differing=2 digest=",
    ),
    "a job runs": (
        (Domain(JOB + "7", RUNNING),),
        "job_changed name=7 work=vacuum state=running by=ada attempts=1 progress={'parts': 2} error=",
    ),
    "a job is forgotten": ((Domain(JOB + "7", "", removed=True),), ""),
    "a partition is replaced": (
        (OLD, NEW, replaced({"day": "1"})), f"partition_replaced partition={{'day': '1'}} {MERGED}",
    ),
    "a partition is detached": ((OLD, DETACH), "partition_detached name=x partition={'day': '1'} parts=2"),
    "a partition is attached": (
        (AddPart(replace(NEW.part, partition_values={"day": "1"})), UNDETACHED),
        "partition_attached name=x partition={'day': '1'} parts=1 rows=2",
    ),
    "what was detached is dropped": ((UNDETACHED,), "detached_dropped name=x"),
    "versions expire": ((Domain(EXPIRED, '{"before":3}'),), "versions_expired before=3"),
    "a table is dropped": ((DropEntry(7).to_action(),), "drop_begun final=False"),
    "a dropped table's files go": ((DropEntry(7, is_final=True).to_action(),), "drop_begun final=True"),
    "a dropped table is back": ((undropped(),), "undropped"),
    "a table is parked": ((PARK,), "parked error=InvalidInput reason=it has no key failures=3"),
    "a table is resumed": ((replace(PARK, configuration="", removed=True),), "resumed"),
}  # fmt: skip
TAKEN = (
    Domain(POINT, '{"point":57,"time_ms":9,"transaction":"7:1","left_out":{"b":"it lags"},"resume":{},"taken_ms":9}'),
    Domain(POINT_TABLE + "public.orders", '{"version":12,"table":"t","position":""}'),
    Domain(POINT_TABLE + "gone", "", removed=True),
)
POINTS: dict[str, tuple[tuple[Action, ...], str]] = {
    "the log of points is made": ((PROTOCOL, METADATA), ""),
    "a point is taken": (
        TAKEN,
        "point_reached point=57 source_ms=9 transaction=7:1 versions={'public.orders': 12} left_out={'b': 'it lags'}",
    ),
    "a point is settled": ((Domain(SETTLED, '{"point":52}'),), "point_settled point=52"),
}


COMMON = {each.name for each in fields(TableEvent)}


def said(events: tuple[TableEvent, ...]) -> str:
    """The kinds of events, and the fields that are their own."""
    return "; ".join(
        " ".join([event.kind, *(f"{name}={value}" for name, value in data_of(event).items() if name not in COMMON)])
        for event in events
    )


@pytest.mark.parametrize("case", EVENTS, ids=lambda case: case.replace(" ", "-"))
def test_a_commit_has_these_events_in_any_order_of_its_actions(case: str) -> None:
    actions, expected = EVENTS[case]
    lie = CommitInfo(operation="RESTORE", commit_id="c", metrics={"rows": 99})
    for order in itertools.islice(itertools.permutations((*actions, lie)), 24):
        events = events_of(Commit(4, order), table="public.orders", table_id="t")
        assert said(events) == expected
        assert [event.index for event in events] == list(range(len(events)))
        assert {(event.table, event.table_id, event.version) for event in events} <= {("public.orders", "t", 4)}


def test_the_first_version_is_the_table_as_it_was_made() -> None:
    events = events_of(Commit(0, (PROTOCOL, DESCRIBED, POSITION_7)), table="t", table_id="t")
    assert said(events) == "created columns=('id', 'day') partition_by=('day',) properties={}"


@pytest.mark.parametrize("case", POINTS, ids=lambda case: case.replace(" ", "-"))
def test_the_log_of_a_database_has_events_of_points(case: str) -> None:
    actions, expected = POINTS[case]
    assert said(database_events_of(Commit(4, actions), table="d", table_id="t")) == expected


def test_every_type_of_event_has_a_case() -> None:
    covered = {one.split()[0] for _, said in (*EVENTS.values(), *POINTS.values()) for one in said.split("; ") if one}
    assert covered | {"created", "resync", "dropped"} == KINDS.keys()


def test_every_kind_of_commit_is_read_without_an_error() -> None:
    silent = set()
    for _, kind, actions in CASES:
        fixed = tuple(DESCRIBED if action is METADATA else _whole(action) for action in actions)
        if not events_of(Commit(0 if kind.name == "CREATE" else 1, fixed), table="t", table_id="t"):
            silent.add(kind.value)
    assert silent <= {"claim", "hold", "other", "purge", "expire rows"}


def _whole(action: Action) -> Action:
    """The action with an entry's text as it is in a log."""
    texts = {SCHEMA: COLUMN_ADDED.configuration, DETACHED: DETACH.configuration, EXPIRED: '{"before":3}'}
    texts |= {PURGED: '{"version":4,"rows":3,"id":"p"}'}
    for prefix, text in texts.items():
        if isinstance(action, Domain) and action.domain.startswith(prefix) and not action.removed:
            return replace(action, configuration=text)
    return action


def test_the_time_is_the_commits_or_else_the_newest_in_its_actions() -> None:
    late = RemovePart(path=PATH, deleted_ms=70)
    early = AddChangePart(ChangePart(path=PATH, version=1, ordinal=0, rows=1, bytes=1, modified_ms=50))
    said = CommitInfo(operation="", commit_id="", timestamp_ms=60)
    assert time_of(Commit(1, (said, late, early))) == 60
    assert time_of(Commit(1, (late, early))) == 70
    assert time_of(Commit(1, (PARK,))) is None


@pytest.mark.parametrize("make", [keyed, unkeyed])
@pytest.mark.parametrize("rewrite", [stripped, altered])
def test_a_log_without_commit_infos_has_the_same_events(
    make: Callable[[Path], lakebed.Table], rewrite: Rewrite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    table = make(tmp_path)
    copy = rewritten(table, rewrite, tmp_path)
    table_id = log_of(table).refresh().metadata.id
    mine, theirs = (
        [event for commit in commits(each) for event in events_of(commit, table="t", table_id=table_id)]
        for each in (table, copy)
    )
    if rewrite is stripped:
        assert all(event.time_ms for event in theirs)
        theirs = [replace(event, time_ms=known.time_ms) for event, known in zip(theirs, mine, strict=True)]
    assert theirs == mine
    kinds = {event.kind for event in mine}
    assert kinds >= {"created", "appended", "mutated", "truncated", "partition_replaced", "partition_detached"}
    assert all(table_event(json.loads(encoded(event, "lake"))) == event for event in mine)


def test_a_cloud_event_has_what_the_specification_asks_for() -> None:
    [event] = events_of(
        Commit(7, (CHANGES, CommitInfo(operation="", commit_id="", timestamp_ms=1500))), table="a.b", table_id="t"
    )
    assert cloud_event(event, "s3://lake/shop") == {
        "specversion": "1.0", "id": "t/7/0", "type": "dev.lakebed.table.appended.v1", "source": "s3://lake/shop",
        "subject": "a.b", "time": "1970-01-01T00:00:01.500Z", "datacontenttype": "application/json",
        "data": {
            "table": "a.b", "table_id": "t", "version": 7, "index": 0, "time_ms": 1500, "rows": 2, "deletes": 0, "bytes": 20,
            "parts": 1, "positions": {},
        },
    }  # fmt: skip
    assert CONTENT_TYPE == "application/cloudevents+json"
    assert "time" not in cloud_event(replace(event, time_ms=None), "lake")


def test_a_field_of_a_later_version_is_left_out_and_an_unknown_type_is_refused() -> None:
    dropped = Dropped(table="a", table_id="t", version=7, index=-1, time_ms=None)
    value = cloud_event(dropped, "lake")
    assert value["id"] == "t/7/dropped"
    assert table_event({**value, "data": {**value["data"], "why": "?"}}) == dropped
    with pytest.raises(lakebed.errors.InvalidInput, match=r"dev\.lakebed\.table\.melted\.v1"):
        table_event({**value, "type": "dev.lakebed.table.melted.v1"})


def test_resync_says_what_the_table_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    table = keyed(tmp_path)
    snapshot = log_of(table).refresh()
    event = resync_of(snapshot, table="t", lost_after=3)
    assert isinstance(event, Resync) and event.version == table.version and event.lost_after == 3
    assert event.columns == ("id", "region", "value", "seq") and event.partition_by == ("region",)
    assert (event.parts, event.tail_parts) == (len(snapshot.parts), len(snapshot.tail))
    assert table_event(orjson.loads(encoded(event, "lake"))) == event
