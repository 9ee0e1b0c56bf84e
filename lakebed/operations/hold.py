"""A reader's hold on an old version: no cleanup deletes its files while the hold lasts (see ``log.holds``).

1. Read the newest snapshot: the version must be there and unexpired.
2. Commit a hold. If a cleanup commits first, start again with step 1.
3. At the end remove it. If that fails, it ends by itself, and the next cleanup removes it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from lakebed.coordination.hold_commits import begin_hold, end_hold
from lakebed.errors import InvalidInput, LakebedError
from lakebed.log.entry_values import MS_MAX
from lakebed.log.holds import Hold
from lakebed.log.table_log import TableLog

_logger = logging.getLogger("lakebed.cleanup")


@contextmanager
def hold(log: TableLog, version: int, seconds: float) -> Iterator[int]:
    """Keep a version readable for so many seconds, or until the block ends. Raises VersionNotFound, InvalidInput."""
    if seconds <= 0:
        raise InvalidInput(f"a version can't be held for {seconds} seconds; give more than 0", version=version)
    held = Hold(str(uuid.uuid4()), version, min(MS_MAX, log.now_ms() + int(seconds * 1000)))
    begin_hold(log, held)
    try:
        log.at_version(version)  # a cleanup of the log alone may have been faster
        yield version
    finally:
        try:
            end_hold(log, held)
        except LakebedError as error:
            _logger.warning("the hold on version %d ends by itself: %s", version, error)
