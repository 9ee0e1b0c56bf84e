"""Events of tables come to a client as they were committed, also through connections that break."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

import lakebed
from lakebed.client import RemoteWarehouse
from lakebed.errors import InvalidInput, TableNotFound
from lakebed.listeners.cursor import Cursor
from lakebed.listeners.feed import Feed
from tests.service.conftest import Serve


def test_the_events_of_a_table_after_a_version_are_those_of_its_log(lake: Path, serve: Serve) -> None:
    remote, table = serve(lake).client("reader").table("orders"), lakebed.open(lake / "orders")
    expected = [each for each in Feed(str(lake)).read(Cursor()).events if each.table == "orders"]
    assert [heard.event for heard in islice(remote.events(after="begin"), len(expected))] == expected
    later = [event for event in expected if event.version > 3]
    stream = remote.events(after=3)
    assert [heard.event for heard in islice(stream, len(later))] == later
    table.apply([{"id": 8_000, "day": "2026-03-03", "amount": 1}])
    heard = next(stream)
    assert heard.event.version == table.version and heard.event.kind == "appended" and heard.cursor is not None


def test_who_connects_again_with_the_last_cursor_misses_nothing(lake: Path, serve: Serve) -> None:
    served = serve(lake)
    client: RemoteWarehouse = served.client("reader")
    expected = Feed(str(lake)).read(Cursor()).events
    first = list(islice(client.events(after="begin"), len(expected)))
    assert [heard.event for heard in first] == list(expected)
    cursor = first[-1].cursor
    assert cursor is not None
    table = lakebed.open(lake / "public" / "items")
    table.apply([{"id": 9_000, "day": "2026-03-03", "amount": 1}])
    again = next(client.events(after=cursor))
    assert again.event.table == "public.items" and again.event.version == table.version


def test_a_place_that_is_none_is_refused(lake: Path, serve: Serve) -> None:
    client = serve(lake).client("reader")
    with pytest.raises(InvalidInput, match="no cursor"):
        next(client.events(after="nonsense"))
    with pytest.raises(TableNotFound):
        client.table("nothing")
