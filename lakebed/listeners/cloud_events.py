"""Table events as CloudEvents 1.0 in JSON, as webhooks, Kafka topics and clients of the service get them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import orjson

from lakebed.errors import InvalidInput
from lakebed.listeners.event_types import TableEvent, data_of, event_of

CONTENT_TYPE = "application/cloudevents+json"
_PREFIX, _SUFFIX = "dev.lakebed.table.", ".v1"


def type_of(event: TableEvent) -> str:
    """The CloudEvents type: ``dev.lakebed.table.appended.v1``."""
    return f"{_PREFIX}{event.kind}{_SUFFIX}"


def cloud_event(event: TableEvent, source: str) -> dict[str, Any]:
    """The event as a JSON object. ``source``: the root that the table is below."""
    time = {} if event.time_ms is None else {"time": _iso(event.time_ms)}
    return {
        "specversion": "1.0",
        "id": event.id,
        "type": type_of(event),
        "source": source,
        "subject": event.table,
        **time,
        "datacontenttype": "application/json",
        "data": data_of(event),
    }


def encoded(event: TableEvent, source: str) -> bytes:
    """The event as the bytes that are sent: the same whenever it is sent."""
    return orjson.dumps(cloud_event(event, source))


def table_event(value: Mapping[str, Any]) -> TableEvent:
    """The table event in a CloudEvent. Raises InvalidInput for one of another type, or of a newer version."""
    kind = str(value.get("type", ""))
    try:
        return event_of(kind.removeprefix(_PREFIX).removesuffix(_SUFFIX), value["data"])
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"an event of the type {kind!r} is no event of a table that is known here: {error}"
        ) from None


def _iso(time_ms: int) -> str:
    time = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
