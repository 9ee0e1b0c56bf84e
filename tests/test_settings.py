"""Properties of a table: parsed where they are set, or refused; what a log has of them by others stops nobody."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

import lakebed
from lakebed.errors import Corrupt, InvalidInput
from lakebed.log.actions import CommitInfo
from lakebed.log.conflicts import BLIND
from lakebed.log.table_log import Committed
from lakebed.settings import (
    INTERVAL_SECONDS_MAX,
    TIERS,
    ConflictScope,
    DailyHours,
    MergePolicy,
    ReclusterDepth,
    TableSettings,
    TimeToLive,
    Volatile,
    interval_seconds,
    parse_interval,
    parse_settings,
    retention_seconds,
)
from lakebed.table import internals_of
from lakebed.version import ENGINE
from tests.internals import log_of
from tests.worlds import examples

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
RETENTION = "delta.deletedFileRetentionDuration"
COUNTED = ("checkpoint_interval", "read_budget", "target_part_rows", "settle_after_changes", "settle_after_bytes")
LASTING = ("log_retention", "tombstone_retention", "settle_after_age", "upload_after")
REFUSED: list[tuple[str, Any, str]] = [
    *(
        (RETENTION, text, "it must be an interval such as '7 days'")
        for text in ("garbage", "soon", "P7D", "", "7", "-1 days")
    ),
    (RETENTION, "interval 1 month", "it must be an interval such as '7 days'"),
    (RETENTION, "1 week and 2 days", "it must be an interval such as '7 days'"),
    (RETENTION, "99999999 days", "it must be at most 36500 days"),
    ("delta.logRetentionDuration", "1 month", "it must be an interval"),
    ("lakebed.log_retention", "9" * 5000 + " days", "it must be an interval"),
    ("lakebed.tombstone_retention", "４ days", "it must be an interval"),
    ("lakebed.read_budget", [8], "a property is a text: write '[8]'"),
    ("lakebed.read_budget", None, "a property is a text"),
    ("lakebed.read_budget", "0", "it must be a whole number from 1"),
    ("lakebed.read_budget", "8.0", "it must be a whole number from 1"),
    ("lakebed.read_budget", "9" * 5000, "it must be a whole number from 1"),
    ("lakebed.purge_dead_ratio", "nan", "it must be a number above 0 and at most 1"),
    ("lakebed.purge_dead_ratio", "0.3_0", "it must be a number above 0 and at most 1"),
    ("lakebed.recluster_depth", "inf", "it must be a number of at least 1"),
    ("lakebed.ttl", "90 days", "it must be a column and how long rows live"),
    ("lakebed.off_peak", "22-6", "it must be a part of the day"),
    ("lakebed.volatile", b"on", "a property is a text"),
    ("lakebed.volatile", "true", "it must be one of auto, on, off"),
    ("lakebed.merge", "Auto", "it must be one of auto"),
    ("lakebed.plan_bytes_max", "1000", "twice lakebed.target_part_bytes"),
    ("lakebed.tier", "0", "it must be one of p0, p1, p2"),
    ("lakebed.pool", "a pool", "it must be a name of letters"),
    ("lakebed.freshness", "interval 0 seconds", "it must be an interval of at least 1 second"),
    ("lakebed.reed_budget", "8", "did you mean 'lakebed.read_budget'?"),
    ("LAKEBED.read_budget", "8", "there is no table property 'LAKEBED.read_budget'"),
    ("delta.enableChangeDataFeed", "true", "is not supported"),
    ("delta.inCommitTimestampEnablementVersion", "3", "is not supported"),
    ("owner", [7], "a property is a text: write '[7]'"),
    ("owner", None, "a property is a text"),
]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lakebed.Table:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    return lakebed.create(tmp_path / "table", SCHEMA, keys=["id"])


def set_unchecked(table: lakebed.Table, properties: Mapping[str, str]) -> None:
    """As one who does not check what is set."""
    snapshot = log_of(table).refresh()
    metadata = replace(snapshot.metadata, configuration={**snapshot.metadata.configuration, **properties})
    assert isinstance(
        log_of(table).commit(snapshot, [metadata], CommitInfo(operation="SET", commit_id="", engine=ENGINE), BLIND),
        Committed,
    )


def batch(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "v": ids}, SCHEMA)


@pytest.mark.parametrize(("name", "value", "said"), REFUSED, ids=lambda value: str(value)[:30])
def test_a_property_that_can_not_be_is_refused_where_it_is_set(
    table: lakebed.Table, tmp_path: Path, name: str, value: Any, said: str
) -> None:
    before = table.version
    with pytest.raises(InvalidInput, match=re.escape(said)) as at_creation:
        lakebed.create(tmp_path / "other", SCHEMA, properties={name: value})
    with pytest.raises(InvalidInput, match=re.escape(said)) as later:
        table.set_properties({name: value})
    assert name in str(at_creation.value) and name in str(later.value)
    assert table.version == before and not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["keys", "sequence_by", "sort_key", "sort_key_version", "sort_key_frame"])
def test_what_a_table_is_made_of_is_no_property_to_set(table: lakebed.Table, tmp_path: Path, name: str) -> None:
    for value in ('["id"]', "1"):
        with pytest.raises(InvalidInput, match="give a new table its"):
            lakebed.create(tmp_path / "other", SCHEMA, properties={f"lakebed.{name}": value})
        with pytest.raises(InvalidInput, match=r"fixed when the table is created|changed by set_sort_key"):
            table.set_properties({f"lakebed.{name}": value})


def test_what_delta_must_have_switched_on_stays_on(table: lakebed.Table, tmp_path: Path) -> None:
    for name in ("delta.enableDeletionVectors", "delta.enableInCommitTimestamps"):
        with pytest.raises(InvalidInput, match=f"{name} is 'false'; it must be one of true"):
            lakebed.create(tmp_path / "other", SCHEMA, properties={name: "false"})
        with pytest.raises(InvalidInput, match="fixed when the table is created"):
            table.set_properties({name: "true"})
        lakebed.create(tmp_path / name, SCHEMA, properties={name: "true"})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7 days", 7 * 86400),
        ("interval 1 week 12 hours", 7 * 86400 + 12 * 3600),
        (" INTERVAL 36 HOURS ", 36 * 3600),
        ("1day2hours", 86400 + 7200),
        ("1500 milliseconds", 2),
        ("36500 days", INTERVAL_SECONDS_MAX),
        ("0 seconds", 0),
    ],
)
def test_intervals_are_those_of_delta_without_months_and_years(text: str, seconds: int) -> None:
    assert parse_interval(text) == seconds == parse_settings({"lakebed.log_retention": text}).log_retention_seconds


def test_a_timedelta_beyond_all_times_is_refused() -> None:
    assert interval_seconds(timedelta(days=2)) == 2 * 86400
    with pytest.raises(InvalidInput, match="at most 36500 days"):
        interval_seconds(timedelta.max)


_counts = st.integers(1, 10**18 - 1)
_seconds = st.integers(0, INTERVAL_SECONDS_MAX)


@examples(50)
@given(
    st.builds(
        TableSettings,
        keys=st.lists(st.text(), max_size=3).map(tuple),
        sort_key=st.lists(st.text(), max_size=3).map(tuple),
        sequence_by=st.none() | st.text(),
        sort_key_version=_counts,
        sort_key_frame=st.text(),
        conflict_scope=st.sampled_from(get_args(ConflictScope)),
        checkpoint_interval=_counts,
        log_retention_seconds=_seconds,
        tombstone_retention_seconds=_seconds,
        read_budget=_counts,
        target_part_bytes=st.integers(1, 10**9),
        target_part_rows=_counts,
        merge=st.sampled_from(get_args(MergePolicy)),
        merge_first=st.sampled_from(["newest", "lightest"]),
        recluster_depth=st.builds(ReclusterDepth, st.floats(1, 1e9))
        | st.builds(ReclusterDepth, st.floats(1e-9, 100), st.just(True)),
        plan_bytes_max=st.integers(2 * 10**9, 10**18 - 1),
        purge_dead_ratio=st.floats(0, 1, exclude_min=True),
        settle_after_changes=st.none() | _counts,
        settle_after_bytes=st.none() | _counts,
        settle_after_age_seconds=st.none() | _seconds,
        ttl=st.none() | st.builds(TimeToLive, st.sampled_from(["at", "a:b", "ü c"]), st.integers(1, 10**9)),
        off_peak=st.none() | st.builds(DailyHours, st.integers(0, 719), st.integers(720, 1439)),
        volatile=st.sampled_from(get_args(Volatile)),
        upload_after_seconds=_seconds,
        volatile_bytes_max=_counts,
        tier=st.sampled_from(TIERS),
        pool=st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True),
        freshness_seconds=st.none() | st.integers(1, 10**6),
    )
)
def test_settings_come_out_of_the_log_as_they_went_in(found: TableSettings) -> None:
    assert parse_settings(found.to_properties()) == found


def test_the_greatest_settings_break_nothing(table: lakebed.Table) -> None:
    most = {f"lakebed.{name}": "9" * 18 for name in (*COUNTED, "plan_bytes_max", "volatile_bytes_max")}
    most |= {f"lakebed.{name}": "36500 days" for name in LASTING} | {RETENTION: "36500 days"}
    most["lakebed.target_part_bytes"] = "4" + "9" * 17
    table.set_properties(most)
    for settling in (most, {"lakebed.settle_after_changes": "1", "lakebed.read_budget": "1"}):
        table.set_properties(settling)
        for ids in ((1, 2), (2, 3)):
            table.apply(batch(*ids))
            table.settle()
        table.maintenance.compact()
        internals_of(table).tidy()
        table.maintenance.vacuum()
        assert not table.doctor().findings and not table.status().findings
        assert not internals_of(table).settler.settle_if_due(None)
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 3]


def test_a_property_of_the_log_that_can_not_be_read_stops_nobody_and_is_reported(
    table: lakebed.Table, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = {
        RETENTION: "garbage", "lakebed.read_budget": "many", "lakebed.log_retention": "P7D", "lakebed.of_tomorrow": "1",
        "lakebed.plan_bytes_max": "1",
    }  # fmt: skip
    set_unchecked(table, wrong)
    table = lakebed.open(table.path)
    assert all(name in caplog.text for name in wrong)
    for ids in ((1, 2), (2, 3)):
        table.apply(batch(*ids))
        table.settle()
    table.maintenance.compact()
    internals_of(table).tidy()
    assert table.maintenance.vacuum(dry_run=False).num_rows == 0, "seven days are kept"
    for found in (table.status().findings, table.doctor().findings):
        assert sorted(finding.where for finding in found) == sorted(wrong)
        assert {finding.check for finding in found} == {"property"}
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 3]
    table.set_properties({RETENTION: "1 day", "lakebed.read_budget": "4"})
    assert log_of(table).refresh().settings.read_budget == 4
    assert RETENTION not in {finding.where for finding in table.status().findings}


def test_a_log_that_does_not_tell_the_keys_is_corrupt(table: lakebed.Table) -> None:
    set_unchecked(table, {"lakebed.keys": "id"})
    with pytest.raises(Corrupt, match=r"lakebed\.keys is 'id'; it must be a JSON list of column names"):
        lakebed.open(table.path).to_arrow()


def test_a_retention_of_another_writer_is_adopted_or_refused_by_name(tmp_path: Path) -> None:
    kept = {RETENTION: "interval 1 week 2 days", "delta.logRetentionDuration": "interval 30 days"}
    write_deltalake(tmp_path / "kept", batch(1), configuration=kept)
    table = lakebed.convert(tmp_path / "kept", keys=["id"])
    assert table.properties.items() >= kept.items()
    assert retention_seconds(table.properties) == 9 * 86400
    table.set_properties({"lakebed.read_budget": "4"})
    write_deltalake(tmp_path / "refused", batch(1), configuration={RETENTION: "interval 1 month"})
    with pytest.raises(InvalidInput, match=f"property {RETENTION} is 'interval 1 month'; it must be an interval"):
        lakebed.convert(tmp_path / "refused", keys=["id"])
