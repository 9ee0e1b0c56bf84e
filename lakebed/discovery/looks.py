"""When a table to which nothing comes is looked at next. Pure.

A look reads the name of the version after the newest one that is known. It finds nothing (one request), or the table has work.

1. The pause is a tenth of the time since the table changed: so a change is found late by a tenth of how long nothing came.
2. It is at least ``SECONDS_MIN``, and at most ``SECONDS_MAX`` or what the user has set, or a quarter of ``lakebed.freshness`` if
   that is less.
3. Every ``RELIST_SECONDS`` the log is listed too: that shows a table that was dropped, or created again.

4. A worker that stands by for a table looks at it twice in the time of ``lakebed.freshness``.

Hints (a commit of this process, a poke, an event of S3) make a look earlier. Without any hint nothing is missed. Looks for hints
of the same table are ``SECONDS_MIN`` apart, and twice as far after each hint for which nothing was found: so no flood of hints
costs much more than the looks without it.
"""

from __future__ import annotations

SECONDS_MIN = 1.0
SECONDS_MAX = 300.0
RELIST_SECONDS = 4 * 3600.0
_IDLE_SHARE = 0.1
_FRESHNESS_SHARE = 0.25
_STANDBY_SHARE = 0.5


def hinted_pause_seconds(in_vain: int) -> float:
    """How long to wait from one look to the next for a hint. ``in_vain``: the last hints for which nothing was found."""
    return min(SECONDS_MAX, SECONDS_MIN * 2.0 ** min(in_vain, 30))


def pause_seconds(idle_seconds: float, freshness_seconds: int | None = None, seconds_max: float | None = None) -> float:
    """How long to wait until the next look. ``idle_seconds``: since the table changed last; ``seconds_max``: at most."""
    longest = SECONDS_MAX if seconds_max is None else seconds_max
    if freshness_seconds is not None:
        longest = min(longest, _FRESHNESS_SHARE * freshness_seconds)
    return max(SECONDS_MIN, min(longest, _IDLE_SHARE * idle_seconds))


def standby_pause_seconds(freshness_seconds: int | None) -> float:
    """How long a worker that stands by for a table waits until its next look. Without a freshness it waits for nothing."""
    return SECONDS_MAX if freshness_seconds is None else max(SECONDS_MIN, _STANDBY_SHARE * freshness_seconds)
