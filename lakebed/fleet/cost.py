"""What a day of looks costs: requests to the store, and their price at S3's list. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from lakebed.discovery.looks import RELIST_SECONDS, SECONDS_MAX

_DAY_SECONDS = 86_400
REQUESTS_OF_A_LISTING = 3
"""Is the known version still there, the hint at the newest checkpoint, and the list from there on."""
REQUESTS_OF_A_BEAT = 3
"""The commit, the version that it was made on, and often a name that another worker took."""
READ_DOLLARS = 0.4e-6
WRITE_DOLLARS = 5.0e-6
"""S3's list price of a GET, and of a PUT or LIST."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayOfLooks:
    """Requests of a day in which nothing happens, and their price at S3's list."""

    looks: float
    listings: float
    beats: float
    discoveries: float

    @property
    def reads(self) -> float:
        """GET requests."""
        return self.looks + self.listings * (REQUESTS_OF_A_LISTING - 1) + self.beats * (REQUESTS_OF_A_BEAT - 1)

    @property
    def writes(self) -> float:
        """PUT and LIST requests."""
        return self.listings + self.beats + self.discoveries

    @property
    def dollars(self) -> float:
        """The price of all of them."""
        return self.reads * READ_DOLLARS + self.writes * WRITE_DOLLARS


def day_of_looks(
    tables: int,
    workers: int = 1,
    *,
    look_seconds: float = SECONDS_MAX,
    beat_seconds: float,
    discovery_seconds: float,
    schemas: int = 1,
) -> DayOfLooks:
    """What ``workers`` ask of the store in a day in which nothing happens to ``tables``."""
    pages = schemas + tables / 1000
    return DayOfLooks(
        looks=tables * _DAY_SECONDS / look_seconds,
        listings=tables * _DAY_SECONDS / max(RELIST_SECONDS, look_seconds),
        beats=workers * _DAY_SECONDS / beat_seconds,
        discoveries=workers * pages * _DAY_SECONDS / discovery_seconds,
    )
