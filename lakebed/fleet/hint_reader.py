"""Reads hints from a queue, in a thread. A queue that fails is a warning, and is tried again later, less and less often."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TypeAlias

from lakebed.errors import LakebedError

PAUSE_SECONDS = (1.0, 300.0)
"""The first and the longest pause before a queue that failed is tried again."""
_CLOSE_SECONDS = 2.0
_logger = logging.getLogger("lakebed.fleet")

Messages: TypeAlias = Generator[bytes | None, None, None]
"""The bodies of messages as they come; None now and then while there are none. Raises LakebedError."""


class HintReader:
    """One queue. ``messages`` connects to it: called again after each failure."""

    def __init__(self, name: str, messages: Callable[[], Messages], received: Callable[[bytes], None]) -> None:
        """``name``: of the queue, for people; ``received`` takes the body of each message."""
        self._name = name
        self._messages = messages
        self._received = received
        self._closed = threading.Event()
        self._connected = threading.Event()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="lakebed-hints", daemon=True)

    @property
    def is_connected(self) -> bool:
        """Whether hints that are sent now are received."""
        return self._connected.is_set()

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self) -> None:
        """Read no more."""
        self._closed.set()
        self._thread.join(_CLOSE_SECONDS)  # one that waits for a message ends with it, or with the process

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._read()
            except LakebedError as error:
                self._failed(str(error))
            except Exception as error:  # hints are never worth the end of a worker, or of the thread
                _logger.exception("hints are not read from %s", self._name)
                self._failed(repr(error))

    def _read(self) -> None:
        with closing(self._messages()) as messages:
            for body in messages:
                if self._closed.is_set():
                    return
                if not self.is_connected:
                    _logger.info("hints are read from %s", self._name)
                    self._failures = 0
                    self._connected.set()
                if body is not None:
                    self._take(body)

    def _take(self, body: bytes) -> None:
        try:
            self._received(body)
        except Exception:  # one message must not be read again and again
            _logger.exception("a hint from %s failed", self._name)

    def _failed(self, text: str) -> None:
        first, last = PAUSE_SECONDS
        pause = min(last, first * 2.0 ** min(self._failures, 30))
        if self._failures == 0 or pause == last:
            _logger.warning("no hints come from %s, so tables are looked at later: %s", self._name, text)
        self._failures += 1
        self._connected.clear()
        self._closed.wait(pause)
