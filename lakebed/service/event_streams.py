"""Events of tables as server-sent events: what ``lakebed.listeners.feed`` reads, each as a CloudEvent in JSON.

    id: <cursor>                        up to here; a client that connects again sends it as Last-Event-ID, and misses nothing
    event: dev.lakebed.table.appended.v1
    data: {"specversion": "1.0", …}

The id is at the last event of each read, so what came after the last id comes again: at least once, in order for each table. All
streams share one feed a root, so they share its looks at the logs. A stream ends when its caller's token is taken back: whoever
connects again is told why.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson
from starlette.responses import Response, StreamingResponse

from lakebed.errors import InvalidInput, LakebedError
from lakebed.listeners.event_types import encoded, type_of
from lakebed.listeners.feed import At, Batch, Cursor, Feed
from lakebed.service.answers import Refused, slug_of

if TYPE_CHECKING:
    from lakebed.service.catalog import Catalog

_STREAMS_MAX = 200
CALLER_STREAMS_MAX = 20
BEGIN = "begin"
_BETWEEN = "~"
_EVENTS_MAX = 500
_ALIVE_SECONDS = 15.0
_PAUSE_SECONDS = (
    0.1,
    1.0,
)  # at least; and at most before it is asked again whether the feed has something or the server ends
_THREADS = 4
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}


@dataclass(frozen=True, slots=True)
class _Place:
    """A feed, and up to where a stream has read it."""

    feed: Feed
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a stream: by whom, from where on, and of which table. ``table`` is None for all tables."""

    who: str
    is_caller_known: Callable[[], bool]
    after: str | None
    table: str | None


class EventStreams:
    """The streams of a service. Used from one event loop."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._feeds = {root: Feed(root) for root in catalog.roots}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="lakebed-events")
        self._streams: Counter[str] = Counter()  # by caller
        self._is_closed = False

    def open(self, asked: Asked) -> Response:
        """An answer that sends events as long as its caller reads it. Raises as ``Catalog.root_of``."""
        if asked.table is None:
            return self._stream(list(self._feeds.values()), asked, lambda name: True)
        root = self._catalog.root_of(asked.table)
        [feed] = (each for place, each in self._feeds.items() if root == place or root.startswith(f"{place}/"))
        return self._stream([feed], asked, lambda name: name == asked.table)

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _stream(self, feeds: list[Feed], asked: Asked, wanted: Callable[[str], bool]) -> Response:
        later = {"Retry-After": "30"}
        if self._streams.total() >= _STREAMS_MAX:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many streams of events are open", later)
        if self._streams[asked.who] >= CALLER_STREAMS_MAX:
            text = f"{asked.who} has {CALLER_STREAMS_MAX} streams of events open already; end one of them"
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, text, later)
        cursors = _cursors(asked.after, asked.table, len(feeds))
        return StreamingResponse(
            self._events(feeds, cursors, wanted, asked), headers=_HEADERS, media_type="text/event-stream"
        )

    async def _events(
        self, feeds: list[Feed], cursors: list[Cursor] | None, wanted: Callable[[str], bool], asked: Asked
    ) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        self._streams[asked.who] += 1
        try:
            yield b": lakebed\n\n"
            if cursors is None:
                cursors = [await loop.run_in_executor(self._pool, feed.newest, wanted) for feed in feeds]
            places = [_Place(feed, cursor) for feed, cursor in zip(feeds, cursors, strict=True)]
            spoke_at, troubles = time.monotonic(), dict[str, tuple[object, ...]]()
            while not self._is_closed and asked.is_caller_known():
                has_more = False
                for number, place in enumerate(places):
                    batch = await loop.run_in_executor(self._pool, place.feed.read, place.cursor, _EVENTS_MAX, wanted)
                    places[number] = _Place(place.feed, batch.cursor)
                    has_more = has_more or batch.more
                    text = b"".join(_lines(batch, place.feed.root, places)) + b"".join(_problems(batch, troubles))
                    if text:
                        spoke_at = time.monotonic()
                        yield text
                if time.monotonic() - spoke_at > _ALIVE_SECONDS:
                    spoke_at = time.monotonic()
                    yield b": alive\n\n"
                if not has_more:
                    pause = min(each.feed.pause_seconds() for each in places)
                    await asyncio.sleep(max(_PAUSE_SECONDS[0], min(_PAUSE_SECONDS[1], pause)))
        except LakebedError as error:
            yield _problem("", error)
        except RuntimeError:  # the pool is shut: the server ends
            return
        finally:
            self._streams -= Counter([asked.who])


def _cursors(after: str | None, name: str | None, count: int) -> list[Cursor] | None:
    """Where to begin, for each feed; None: after what there is now. Raises InvalidInput."""
    if after is None:
        return None
    if after == BEGIN:
        return [Cursor()] * count
    if name is not None and after.isascii() and after.isdigit() and len(after) < 16:
        return [Cursor({name: At(int(after))})]
    cursors = [Cursor.of_text(each) for each in after.split(_BETWEEN)]
    if len(cursors) != count:
        raise InvalidInput(
            f"the cursor is one of {len(cursors)} roots, and this service has {count}; begin without one"
        )
    return cursors


def _lines(batch: Batch, source: str, places: list[_Place]) -> Iterator[bytes]:
    for number, event in enumerate(batch.events, 1):
        if number == len(batch.events):
            yield b"id: " + _BETWEEN.join(place.cursor.to_text() for place in places).encode() + b"\n"
        yield b"event: " + type_of(event).encode() + b"\ndata: " + encoded(event, source) + b"\n\n"


def _problems(batch: Batch, known: dict[str, tuple[object, ...]]) -> Iterator[bytes]:
    """Tables that can't be read now: said once, until it is another error."""
    for name, error in batch.errors.items():
        if known.get(name) != error.args:
            known[name] = error.args
            yield _problem(name, error)
    for name in known.keys() - batch.errors.keys():
        del known[name]


def _problem(name: str, error: LakebedError) -> bytes:
    value = {"type": f"urn:lakebed:problem:{slug_of(type(error))}", "detail": str(error), "table": name}
    return b"event: problem\ndata: " + orjson.dumps(value) + b"\n\n"
