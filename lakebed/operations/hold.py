"""A reader's hold on an old version: no cleanup deletes its files while the hold lasts (see ``manifest.holds``).

1. Read the newest snapshot: the version must be there and unexpired.
2. Commit a hold. If a cleanup commits first, start again with step 1.
3. At the end remove it. If that fails, it ends by itself, and the next cleanup removes it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from lakebed.errors import InvalidInput, LakebedError, VersionNotFound
from lakebed.manifest.actions import Domain
from lakebed.manifest.commit_loop import Finished, Proposal, commit_loop
from lakebed.manifest.conflicts import ReadWriteSet
from lakebed.manifest.entries import EXPIRED, Operation
from lakebed.manifest.holds import Hold, first_unexpired
from lakebed.manifest.snapshot import Snapshot
from lakebed.manifest.table_log import TableLog

_logger = logging.getLogger("lakebed.cleanup")


@contextmanager
def hold(log: TableLog, version: int, seconds: float) -> Iterator[int]:
    """Keep a version readable for so many seconds, or until the block ends. Raises VersionNotFound, InvalidInput."""
    if seconds <= 0:
        raise InvalidInput(f"a version can't be held for {seconds} seconds; give more than 0", version=version)
    held = Hold(str(uuid.uuid4()), version, log.now_ms() + int(seconds * 1000))
    _commit(log, held, held.to_action(), Operation.HOLD_VERSION)
    try:
        log.at_version(version)  # a cleanup of the log alone may have been faster
        yield version
    finally:
        try:
            _commit(log, held, held.ended(), Operation.RELEASE_VERSION)
        except LakebedError as error:
            _logger.warning("the hold on version %d ends by itself: %s", version, error)


def _commit(log: TableLog, held: Hold, action: Domain, operation: Operation) -> None:
    def build(snapshot: Snapshot) -> Proposal[None] | Finished[None]:
        if action.removed and held.domain not in snapshot.domains:
            return Finished(None)
        if not action.removed:
            log.at_version(held.version)
            if held.version < (first := first_unexpired(snapshot.domains)):
                raise VersionNotFound(
                    f"version {held.version} has expired and can't be held; the oldest version that is kept is {first}",
                    version=held.version,
                    oldest=first,
                )
        access = ReadWriteSet(domains=frozenset([EXPIRED, held.domain]))
        return Proposal(
            actions=[action], access=access, result=lambda committed: None, parameters={"version": held.version}
        )

    commit_loop(log, operation, build)
