"""The signal that asks Debezium for rows again, and what its notifications tell of the snapshot."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from lakebed.decode.debezium.snapshots import Notification, SnapshotProgress, read_notification, snapshot_signal
from lakebed.decode.formats import schemas_of
from lakebed.decode.typed.registry import RegistrySettings
from lakebed.decode.typed.schemas import read_one
from lakebed.errors import InvalidInput
from tests.decode.avro_events import encoded, framed
from tests.decode.schema_registry import SchemaRegistry


def notification(kind: str, signal_id: str = "mine", connector: str = "shop", **data: str) -> Notification:
    return Notification(signal_id=signal_id, connector=connector, kind=kind, data={"connector_name": connector, **data})


def test_a_signal_names_the_tables_as_debezium_knows_them() -> None:
    assert json.loads(snapshot_signal("7", ["public.orders", "shop.items"])) == {
        "id": "7",
        "type": "execute-snapshot",
        "data": {"type": "incremental", "data-collections": ["public.orders", "shop.items"]},
    }


def test_a_condition_is_that_of_each_table() -> None:
    data = json.loads(snapshot_signal("7", ["public.a", "public.b"], "id > 17 and name <> 'x\"'"))["data"]
    filters = [(one["data-collection"], one["filter"]) for one in data["additional-conditions"]]
    assert filters == [(name, "id > 17 and name <> 'x\"'") for name in ("public.a", "public.b")]


@pytest.mark.parametrize("name", ["public.orders", "public.a.b", "public.a+b", "public.price$", "a-b.c_d", "orders"])
def test_what_names_a_table_matches_no_other(name: str) -> None:
    [pattern] = json.loads(snapshot_signal("7", [name]))["data"]["data-collections"]
    others = ["public.orders2", "public.aXb", "public.aab", "public.a.b", "public.price", "public.ordersx", "aXb.c_d"]
    # A name in Debezium has a dot between schema and table at least, so one that has none can't stand where a dot does.
    matched = [other for other in [*others, name] if re.fullmatch(pattern, other)]
    assert matched == ([name, name] if name in others else [name])


@pytest.mark.parametrize("with_schema", [False, True])
def test_a_notification_is_read_with_an_inline_schema_or_without(with_schema: bool) -> None:
    document: dict[str, Any] = {
        "id": "mine",
        "aggregate_type": "Incremental Snapshot",
        "type": "IN_PROGRESS",
        "additional_data": {"connector_name": "shop", "last_processed_key": "7"},
        "timestamp": 1_700_000_000_000,
    }
    value = json.dumps({"schema": {}, "payload": document} if with_schema else document).encode()
    assert read_notification(value) == notification("IN_PROGRESS", last_processed_key="7")
    other = json.dumps(document | {"aggregate_type": "Initial Snapshot"}).encode()
    assert read_notification(other) is None and read_notification(None) is None


def test_a_notification_is_read_in_the_format_of_the_records() -> None:
    schema = {
        "type": "record",
        "name": "Notification",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "aggregate_type", "type": "string"},
            {"name": "type", "type": "string"},
            {"name": "additional_data", "type": ["null", {"type": "map", "values": ["null", "string"]}], "default": None},
        ],
    }  # fmt: skip
    document = {
        "id": "mine",
        "aggregate_type": "Incremental Snapshot",
        "type": "IN_PROGRESS",
        "additional_data": {"connector_name": "shop", "last_processed_key": "7"},
    }
    with SchemaRegistry() as registry:
        value = framed(registry.register(schema), encoded(schema, document))
        schemas, _ = schemas_of("debezium-avro", {"registry": RegistrySettings(url=registry.url)})

        def typed(value: bytes) -> dict[str, Any]:
            return dict(read_one(schemas, value)[1].to_pylist()[0])

        expected = notification("IN_PROGRESS", last_processed_key="7")
        assert read_notification(value, typed) == expected
        assert read_notification(json.dumps(document).encode(), typed) == expected
        with pytest.raises(InvalidInput, match=r"is no notification in the pipeline's format"):
            read_notification(b"\x00\x00\x00\x00\x09abc", typed)


@pytest.mark.parametrize("value", [b"", b"\x00\x00\x00\x00\x07abc", b"7", b"[]", b"{}", b'{"payload": null}'])
def test_what_is_no_notification_says_where_it_came_from(value: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"a record of database\.notification_topic is no notification in JSON"):
        read_notification(value)


def test_progress_is_that_of_the_snapshot_which_the_signal_asked_for() -> None:
    progress = SnapshotProgress("mine", "shop", ["public.orders"])
    assert progress.take(notification("STARTED", "theirs")) is None
    assert progress.take(notification("COMPLETED", "theirs")) is None
    assert progress.take(notification("COMPLETED", "mine", "another")) is None
    assert not progress.has_begun and not progress.is_over
    assert progress.take(notification("STARTED")) == "the connector has begun"
    told = notification(
        "IN_PROGRESS", current_collection_in_progress="public.orders", last_processed_key="7", maximum_key="90"
    )
    assert progress.take(told) == "public.orders: up to key 7 of 90"
    # Another signal that comes while it runs gives all notifications its own id.
    scanned = notification("TABLE_SCAN_COMPLETED", "later", total_rows_scanned="1234", status="SUCCEEDED")
    assert progress.take(scanned) == "public.orders: 1,234 rows"
    assert not progress.is_over
    progress.take(notification("COMPLETED", "later"))
    assert progress.is_over and progress.rows == {"public.orders": 1234} and not progress.failed


def test_progress_tells_tables_whose_rows_were_not_sent() -> None:
    progress = SnapshotProgress("mine", "shop", ["public.a", "public.b"])
    progress.take(notification("STARTED"))
    for table, status in (("public.a", "NO_PRIMARY_KEY"), ("public.b", "EMPTY")):
        told = notification("TABLE_SCAN_COMPLETED", scanned_collection=table, total_rows_scanned="0", status=status)
        assert progress.take(told) is not None
    progress.take(notification("ABORTED"))
    assert progress.is_over and progress.was_aborted
    assert progress.failed == {"public.a": "NO_PRIMARY_KEY"} and progress.rows == {"public.b": 0}
