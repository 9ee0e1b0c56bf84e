"""When a table to which nothing comes is looked at next. Pure.

A look reads the name of the version after the newest one that is known. It finds nothing (one request), or the table has work.

1. The pause is a tenth of the time since the table changed: so a change is found late by a tenth of how long nothing came.
2. It is at least ``SECONDS_MIN``, and at most ``SECONDS_MAX``, or a quarter of ``lakebed.freshness`` if that is less.
3. Every ``RELIST_SECONDS`` the log is listed too: that shows a table that was dropped, or made anew.

Hints (a commit of this process, a poke) make a look earlier. Without any hint nothing is missed.
"""

from __future__ import annotations

SECONDS_MIN = 1.0
SECONDS_MAX = 300.0
RELIST_SECONDS = 4 * 3600.0
_IDLE_SHARE = 0.1
_FRESHNESS_SHARE = 0.25


def pause_seconds(idle_seconds: float, freshness_seconds: int | None = None) -> float:
    """How long to wait until the next look. ``idle_seconds``: since the table changed last."""
    longest = SECONDS_MAX if freshness_seconds is None else min(SECONDS_MAX, _FRESHNESS_SHARE * freshness_seconds)
    return max(SECONDS_MIN, min(longest, _IDLE_SHARE * idle_seconds))
