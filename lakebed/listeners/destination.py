"""Where events are delivered to, as the loop of a delivery sees it; and a function of this process as such a place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from lakebed.listeners.event_types import TableEvent

Groups: TypeAlias = Mapping[str, Sequence[TableEvent]]
"""Events by table, in order."""
Callback: TypeAlias = Callable[[TableEvent], object]
_logger = logging.getLogger("lakebed.listeners")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an event was not acknowledged. ``is_of_all``: other tables' events would fare the same; ``pause_seconds``: how long the
    receiver asks to be left alone."""

    reason: str
    is_of_all: bool = False
    pause_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Sent:
    """How many of a table's events were acknowledged, the first ones; and why not all, if so."""

    acknowledged: int
    failure: Failure | None = None


class Destination(Protocol):
    """A place that acknowledges events. Only one thread uses it."""

    def send(self, groups: Groups) -> Mapping[str, Sent]:
        """Send events: of each table in order, and none after one that was not acknowledged. Takes bounded time.

        Raises LakebedError if nothing can be sent, for example without a secret.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class CallbackDestination:
    """Calls a function with each event; one that raises has not acknowledged it."""

    def __init__(self, callback: Callback, is_stopped: Callable[[], bool]) -> None:
        self._callback = callback
        self._is_stopped = is_stopped

    def send(self, groups: Groups) -> Mapping[str, Sent]:
        """Call the function, table by table, until the listening stops."""
        return {table: self._called(events) for table, events in groups.items()}

    def close(self) -> None:
        """Nothing is held."""

    def _called(self, events: Sequence[TableEvent]) -> Sent:
        for number, event in enumerate(events):
            if self._is_stopped():
                return Sent(number, Failure(reason="it is stopped", is_of_all=True))
            try:
                self._callback(event)
            except Exception as error:
                _logger.exception("a listener failed on %s of %s", event.kind, event.table)
                return Sent(number, Failure(reason=f"{type(error).__name__}: {error}"))
        return Sent(len(events))
