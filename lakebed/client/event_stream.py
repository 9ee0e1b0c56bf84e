"""Reads server-sent events of the service, and goes on where it was when the connection breaks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from lakebed.client.transport import Transport
from lakebed.errors import StoreUnavailable
from lakebed.listeners.cloud_events import table_event
from lakebed.listeners.event_types import TableEvent

_PAUSE_SECONDS = (0.5, 30.0)


@dataclass(frozen=True, slots=True)
class Heard:
    """An event, and the cursor after it: None where the next event belongs to the same read."""

    event: TableEvent
    cursor: str | None


def events(transport: Transport, steps: tuple[str, ...], after: str | int | None) -> Iterator[Heard]:
    """Events, for as long as the caller asks for the next one. Connections that break are opened again at the last cursor.

    Without ``after``, what comes between two connections before the first event is not seen: give a cursor to miss nothing.
    """
    cursor, pause = None if after is None else str(after), _PAUSE_SECONDS[0]
    while True:
        try:
            for heard in _read(transport.stream(steps, {"after": cursor})):
                cursor, pause = heard.cursor or cursor, _PAUSE_SECONDS[0]
                yield heard
        except StoreUnavailable:
            if pause >= _PAUSE_SECONDS[1]:
                raise
        time.sleep(pause)
        pause = min(_PAUSE_SECONDS[1], pause * 2)


def _read(lines: Iterator[bytes]) -> Iterator[Heard]:
    """The events of a stream. One that ends in the middle of an event has not sent it."""
    kind, data, cursor = "", b"", None
    for line in lines:
        name, _, value = line.rstrip(b"\r\n").partition(b": ")
        if name == b"event":
            kind = value.decode()
        elif name == b"data":
            data = value
        elif name == b"id":
            cursor = value.decode()
        elif not line.strip():
            if data and kind != "problem":
                yield Heard(table_event(orjson.loads(data)), cursor)
            kind, data, cursor = "", b"", None
