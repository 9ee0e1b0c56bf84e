"""What the deliveries of this process to listeners show to Prometheus. ``table``: the root whose tables they listen to."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeAlias, assert_never

from prometheus_client import CollectorRegistry, Counter, Gauge

from lakebed.events import EventsDelivered, ListenerLeft, ListenerSeen

_OfListeners: TypeAlias = EventsDelivered | ListenerSeen | ListenerLeft


class ListenerMetrics:
    """The metrics of listeners. Gauges are those of listeners that this process delivers to, and go with them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("table", "listener")
        self._delivered = Counter(
            "lakebed_listener_events", "Table events that a listener acknowledged.", labels, registry=registry
        )
        self._failures = Counter(
            "lakebed_listener_failures",
            "Deliveries that a listener did not acknowledge; they are tried again.",
            labels,
            registry=registry,
        )
        self._behind = Gauge(
            "lakebed_listener_behind_seconds",
            "Age of the oldest table event that a listener has not acknowledged; 0 if none is known.",
            labels,
            registry=registry,
        )
        self._failing = Gauge(
            "lakebed_listener_failing", "Whether deliveries to a listener fail.", labels, registry=registry
        )
        self._delivering = Gauge(
            "lakebed_listener_delivering", "Whether this process delivers to a listener.", labels, registry=registry
        )

    def __call__(self, event: _OfListeners) -> None:
        """Take in one event."""
        labels = (event.table, event.listener)
        match event:
            case EventsDelivered():
                self._delivered.labels(*labels).inc(event.events)
                self._failures.labels(*labels).inc(event.failures)
            case ListenerSeen():
                self._behind.labels(*labels).set(event.behind_seconds)
                self._failing.labels(*labels).set(event.is_failing)
                self._delivering.labels(*labels).set(1)
            case ListenerLeft():
                self._delivering.labels(*labels).set(0)
                for gauge in (self._behind, self._failing):
                    with suppress(KeyError):
                        gauge.remove(*labels)
            case _:
                assert_never(event)
