"""Steps of one delivery to a catalog, as a process makes them, without threads and pauses."""

from __future__ import annotations

from collections.abc import Callable

from lakebed.listeners.catalogs.entry import CatalogClient
from lakebed.listeners.catalogs.following import CatalogDestination
from lakebed.listeners.delivery import Delivery
from lakebed.listeners.feed import CHECK_SECONDS, Cursor, Feed
from lakebed.listeners.listener import Listener
from lakebed.listeners.targets import Catalog
from tests.clock import Clock


class Follower:
    """A process that delivers to a catalog. ``step`` sees all that there is by then."""

    def __init__(
        self,
        root: str,
        target: Catalog,
        cursor: Cursor | None = None,
        connect: Callable[[Catalog], CatalogClient] | None = None,
    ) -> None:
        self.clock = Clock(0.0)
        self.listener = Listener(name="catalog", target=target)
        self.feed = Feed(root, clock=self.clock)
        self.destination = CatalogDestination(
            target, self.feed.root, self.feed.root_of, connect=connect, clock=self.clock
        )
        self.delivery = Delivery(
            "catalog",
            self.feed,
            self.destination,
            self.listener.beginning(self.feed, oldest=False) if cursor is None else cursor,
            wants_table=self.listener.wants_table,
            wants=self.listener.wants,
            keep=lambda moved: True,
            clock=self.clock,
        )

    def step(self, rounds: int = 1) -> str:
        """Rounds, each long after the one before; returns why the newest attempt failed."""
        for _ in range(rounds):
            self.clock.now += CHECK_SECONDS
            while self.delivery.step() == 0.0:
                pass
        return self.delivery.error

    def behind_seconds(self) -> float:
        return self.delivery.behind_seconds(1_900_000_000_000)
