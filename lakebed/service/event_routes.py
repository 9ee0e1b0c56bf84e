"""Routes of events: streams of them, and the listeners that they are sent to, which stand in the logs of the roots."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from lakebed.errors import InvalidInput
from lakebed.listeners.feed import Cursor, Feed
from lakebed.listeners.listener import Delivering, Listener, ListenerLog
from lakebed.service.answers import NAMES, TEXT, TEXTS, TIME, TRUTH, Refused, Schema, listed, or_null, record, time_text
from lakebed.service.event_streams import Asked
from lakebed.service.routes import Answer, Call, Route
from lakebed.service.tokens import Role

_AFTER: Schema = {"type": "string", "minLength": 1, "maxLength": 200_000}
_STREAM: Schema = {"type": "string"}


def _stream(call: Call) -> Response:
    after = call.headers.get("last-event-id") or call.query.get("after")
    return call.streams.open(Asked(call.who, call.is_caller_known, after, call.path.get("name")))


def _logs(call: Call) -> list[ListenerLog]:
    """The listeners of each root. Raises InvalidInput if all roots are tables."""
    folders = call.catalog.folders()
    if not folders:
        raise InvalidInput("every root of this service is a table; listeners are for folders with tables")
    return [ListenerLog(root) for root in folders]


def _put(call: Call) -> Answer:
    listener = Listener.of_json(call.name, call.body)
    is_new = False
    for log in _logs(call):
        known, _ = log.state()
        oldest = bool(call.query.get("from_begin"))
        cursor = Cursor() if call.name in known else listener.beginning(Feed(log.root), oldest=oldest)
        is_new = log.put(listener, cursor) or is_new
    return Answer(value=_value(listener, call), status=HTTPStatus.CREATED if is_new else HTTPStatus.OK)


def _list(call: Call) -> Answer:
    found = {name: each for log in _logs(call) for name, each in log.state()[0].items()}
    return Answer(value={"listeners": [_value(each, call) for _, each in sorted(found.items())]})


def _see(call: Call) -> Answer:
    for log in _logs(call):
        known, _ = log.state()
        if call.name in known:
            return Answer(value=_value(known[call.name], call))
    raise Refused(HTTPStatus.NOT_FOUND, f"there is no listener {call.name[:64]!r}; GET /v1/listeners lists them")


def _remove(call: Call) -> Answer:
    logs = [log for log in _logs(call) if call.name in log.state()[0]]
    if not logs:
        raise Refused(HTTPStatus.NOT_FOUND, f"there is no listener {call.name[:64]!r}; GET /v1/listeners lists them")
    for log in logs:
        log.remove(call.name)
    return Answer(value={"removed": call.name})


def _value(listener: Listener, call: Call) -> dict[str, Any]:
    deliveries = []
    for log in _logs(call):
        _, delivering = log.state()
        if (one := delivering.get(listener.name)) is not None:
            deliveries.append(_delivery(log.root, one))
    return {"name": listener.name, "deliveries": deliveries, **listener.to_json()}


def _delivery(root: str, one: Delivering) -> dict[str, Any]:
    return {
        "root": root,
        "process": one.process,
        "error": one.error,
        "failing_since": time_text(one.since_ms) if one.since_ms else None,
        "behind_seconds": one.behind_seconds,
    }


_TEXT: Schema = {"type": "string"}
_OF_ALL: dict[str, Schema] = {"tables": NAMES, "kinds": NAMES}
_WEBHOOK = record({"kind": {"const": "webhook"}, "url": TEXT}, {"secret": TEXT, **_OF_ALL})
_KAFKA = record({"kind": {"const": "kafka"}, "servers": TEXT, "topic": TEXT}, {"config": TEXTS, **_OF_ALL})
_CATALOG = record(
    {"kind": {"const": "catalog"}, "url": TEXT}, {"format": TEXT, "database": TEXT, "config": TEXTS, **_OF_ALL}
)
_CONFIG: dict[str, Schema] = {"config": {"type": "object"}}
_DELIVERY = record(
    {
        "root": _TEXT,
        "process": _TEXT,
        "error": _TEXT,
        "failing_since": or_null(TIME),
        "behind_seconds": {"type": "number"},
    }
)
_HAS: dict[str, Schema] = {
    "name": _TEXT,
    "deliveries": listed(_DELIVERY),
    "tables": listed(_TEXT),
    "kinds": listed(_TEXT),
}
LISTENER: Schema = {
    "oneOf": [
        record({**_HAS, "kind": {"const": "webhook"}, "url": _TEXT, "secret": _TEXT}),
        record({**_HAS, "kind": {"const": "kafka"}, "servers": _TEXT, "topic": _TEXT, **_CONFIG}),
        record(
            {**_HAS, "kind": {"const": "catalog"}, **dict.fromkeys(("url", "format", "database"), _TEXT), **_CONFIG}
        ),
    ]
}
ROUTES = (
    Route(
        method="GET", path="/v1/events", operation="stream_events",
        summary="Events of all tables, as CloudEvents: from now on, after a cursor, or from the beginning of the logs.",
        query={"after": _AFTER}, headers={"Last-Event-ID": _AFTER}, media_type="text/event-stream",
        answers={200: _STREAM}, stream=_stream,
    ),
    Route(
        method="GET", path="/v1/tables/{name}/events", operation="stream_table_events",
        summary="Events of a table, as CloudEvents: from now on, after a version or a cursor, or from the beginning of its log.",
        query={"after": _AFTER}, headers={"Last-Event-ID": _AFTER}, media_type="text/event-stream",
        answers={200: _STREAM}, stream=_stream,
    ),
    Route(
        method="PUT", path="/v1/listeners/{name}", operation="put_listener", role=Role.OPERATOR,
        summary="Have events sent to a webhook or to Kafka, from now on or from the beginning, or have a catalog follow.",
        query={"from_begin": TRUTH}, body={"oneOf": [_WEBHOOK, _KAFKA, _CATALOG]}, answers={200: LISTENER, 201: LISTENER},
        handle=_put,
    ),
    Route(
        method="GET", path="/v1/listeners", operation="list_listeners", role=Role.OPERATOR,
        summary="Where events are sent, and who sends them.",
        answers={200: record({"listeners": listed(LISTENER)})}, handle=_list,
    ),
    Route(
        method="GET", path="/v1/listeners/{name}", operation="see_listener", role=Role.OPERATOR,
        summary="Where the events of a listener are sent, and who sends them.", answers={200: LISTENER}, handle=_see,
    ),
    Route(
        method="DELETE", path="/v1/listeners/{name}", operation="remove_listener", role=Role.OPERATOR,
        summary="Send no more events to a listener, and forget how far it has got.",
        answers={200: record({"removed": _TEXT})}, handle=_remove,
    ),
)  # fmt: skip
