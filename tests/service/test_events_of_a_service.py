"""Events of tables come to a client as they were committed, also through connections that break."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPResponse
from itertools import islice
from pathlib import Path

import pytest

import lakebed
from lakebed.client import RemoteWarehouse
from lakebed.errors import InvalidInput, TableNotFound
from lakebed.listeners.feed import Cursor, Feed
from lakebed.service import event_streams
from lakebed.service.tokens import Role, Token, Tokens, digest_of
from tests.service.conftest import TOKENS, Serve, Served


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


@contextmanager
def stream(served: Served, role: str) -> Iterator[HTTPResponse]:
    """An open stream of events; its first line was sent, if it is one."""
    connection = HTTPConnection(served.address, timeout=60)
    try:
        connection.request("GET", "/v1/events", headers={"Authorization": f"Bearer {TOKENS[role]}"})
        answer = connection.getresponse()
        answer.readline()
        yield answer
    finally:
        connection.close()


def test_a_caller_has_so_many_streams_and_takes_none_from_others(
    lake: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "CALLER_STREAMS_MAX", 2)
    served = serve(lake)
    with ExitStack() as held:
        assert [held.enter_context(stream(served, "reader")).status for _ in range(3)] == [200, 200, 429]
        assert held.enter_context(stream(served, "operator")).status == 200


def test_a_stream_ends_when_its_token_is_taken_back(lake: Path, serve: Serve) -> None:
    known = [Token(Role.READER, digest_of(TOKENS["reader"]), "reader")]
    served = serve(lake, tokens=Tokens(lambda: tuple(known)))
    with stream(served, "reader") as answer:
        known.clear()
        answer.read()
    with stream(served, "reader") as answer:
        assert answer.status == 401
