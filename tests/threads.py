"""The threads that began in one test: those that another one left behind do not count."""

from __future__ import annotations

import threading


class ThreadsSince:
    """Those that began after it was made."""

    def __init__(self) -> None:
        self._before = frozenset(threading.enumerate())

    def named(self, *beginnings: str) -> list[str]:
        """The names of those that run and whose name begins so, such as ``lakebed-merge``."""
        return [
            each.name for each in threading.enumerate() if each.name.startswith(beginnings) and each not in self._before
        ]

    def is_running_this(self) -> bool:
        """Whether the caller's thread is one of them, or the thread of the test."""
        return threading.current_thread() not in self._before or threading.current_thread() is threading.main_thread()
