"""Tables that are parked: their logs say so, and a thread looks whether they were resumed.

1.  A table that is parked gets the entry ``lakebed.parked`` in its log (``coordination.failing``). A user who removes it, in any
    process, resumes the table: within ``LOOK_SECONDS`` it is read again, from where it stopped.
2.  While the log can't be written, the table is parked in this process alone. When it can be again, and the cause was one that
    passes, the table is read again. Any other cause stays in the log then. That the table is dropped passes when it comes back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from lakebed import errors
from lakebed.coordination.failing import park, parked_of, resume
from lakebed.errors import LakebedError, Retry, TableDropped, Unexpected
from lakebed.ingest.database.member import Member
from lakebed.log.table_log import TableLog

LOOK_SECONDS = 3.0
_THREADS = 4
_logger = logging.getLogger("lakebed.ingest")


@dataclass(slots=True)
class _Watched:
    """A parked table. ``place``: whether its log says so; ``here``: the log could not be written."""

    member: Member
    place: Literal["new", "here", "log"]
    is_looked_at: bool = False


class ParkedTables:
    """Writes that tables are parked, and notices that they are resumed. Until ``close``."""

    def __init__(self, resumed: Callable[[Member], None], look_seconds: float = LOOK_SECONDS) -> None:
        """``resumed``: called, by another thread, with a table that is to be read again."""
        self._resumed = resumed
        self._look_seconds = look_seconds
        self._watched: dict[str, _Watched] = {}
        self._closing = threading.Event()
        self._came = threading.Event()
        self._pool = ThreadPoolExecutor(_THREADS, "lakebed-parked")
        self._thread: threading.Thread | None = None

    def watch(self, member: Member, *, in_log: bool) -> None:
        """A table is parked. ``in_log``: its log says so already."""
        self._watched[member.topic] = _Watched(member, "log" if in_log else "new")
        self._came.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lakebed-parked-looks", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End. What is in the logs stays."""
        self._closing.set()
        self._came.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        while not self._closing.is_set():
            for one in list(self._watched.values()):
                if not one.is_looked_at:  # a log that hangs is asked once
                    one.is_looked_at = True
                    with suppress(RuntimeError):  # closed meanwhile
                        self._pool.submit(self._look, one)
            self._came.wait(self._look_seconds)
            self._came.clear()

    def _look(self, one: _Watched) -> None:
        table = one.member.table
        assert table is not None
        try:
            if self._is_over(one, table.log):
                del self._watched[one.member.topic]
                self._resumed(one.member)
        except LakebedError as error:
            one.place = "here" if one.place == "new" else one.place
            _logger.debug("%s is parked, and its log does not answer: %s", table.name, error)
        except Exception:
            _logger.exception("%s is parked, and its log can't be read", table.name)
        finally:
            one.is_looked_at = False

    def _is_over(self, one: _Watched, log: TableLog) -> bool:
        """Whether the table is to be read again. If not, its log says that it is parked."""
        parked = one.member.parked
        assert parked is not None
        if one.place == "log":
            return parked_of(log.refresh()) is None
        park(log, parked)
        if one.place == "here" and _may_pass(parked.kind) and parked_of(log.refresh()) == parked:  # nobody else's
            resume(log)
            return True
        one.place = "log"
        return False


def _may_pass(kind: str) -> bool:
    """Whether an error of this class may pass by itself."""
    known = getattr(errors, kind, Unexpected)
    return isinstance(known, type) and issubclass(known, (Retry, Unexpected, TableDropped))
