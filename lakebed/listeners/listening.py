"""Listening within a process: a function is called with each event of the tables below a root."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType

from lakebed import events
from lakebed.errors import InvalidInput
from lakebed.listeners.cursor import At, Cursor
from lakebed.listeners.delivery import Delivery
from lakebed.listeners.destination import Callback, CallbackDestination
from lakebed.listeners.feed import Feed
from lakebed.listeners.listener import Wanted

NEWEST, OLDEST = "newest", "oldest"


class Listening:
    """What ``Warehouse.listen`` returns. In a ``with`` block it stops at the end."""

    def __init__(
        self,
        root: str,
        callback: Callback,
        *,
        cursor: str = NEWEST,
        tables: tuple[str, ...],
        kinds: tuple[str, ...],
        feed: Feed | None = None,
    ) -> None:
        """Raises InvalidInput, StoreUnavailable, TableNotFound."""
        wanted = Wanted(tables=tables, kinds=kinds)
        self._feed = feed or Feed(root)
        self._stop, self._wake = threading.Event(), threading.Event()
        self._delivery = Delivery(
            "here",
            self._feed,
            CallbackDestination(callback, self._stop.is_set),
            cursor_of_text(cursor, self._feed, wanted),
            wants_table=wanted.wants_table,
            wants=wanted.wants,
            keep=_kept,
        )
        self._thread = threading.Thread(
            target=self._delivery.run, args=(self._stop, self._wake), name="lakebed-listening", daemon=True
        )
        self._unlisten = events.listen(self._heard)
        self._thread.start()

    @property
    def cursor(self) -> str:
        """Up to where the function has returned, as ``listen`` takes it."""
        return self._delivery.cursor.to_text()

    @property
    def error(self) -> str:
        """Why the newest event could not be read, or what the function raised; "" if all is well."""
        return self._delivery.error

    def stop(self) -> str:
        """End it, once the function has returned; returns the cursor. The function itself may call this."""
        self._unlisten()
        self._stop.set()
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        return self.cursor

    def __enter__(self) -> Listening:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _heard(self, event: events.Event) -> None:
        if self._feed.heard(event):
            self._wake.set()


def cursor_of_text(text: str, feed: Feed, wanted: Wanted) -> Cursor:
    """``newest``, ``oldest`` or a cursor of a feed. Raises InvalidInput, StoreUnavailable, TableNotFound."""
    if not isinstance(text, str):
        raise InvalidInput(f"{text!r} is no cursor: give 'newest', 'oldest', or the text of an earlier one")
    if text == NEWEST:
        return feed.newest(wanted.wants_table)
    return Cursor() if text == OLDEST else Cursor.of_text(text)


def _kept(moved: Mapping[str, At | None]) -> bool:
    return True
