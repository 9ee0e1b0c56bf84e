"""Takes the messages of hints that reach a worker, whatever brings them: reads them, hands them on, counts them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from lakebed import events
from lakebed.errors import InvalidInput
from lakebed.fleet.hints import Message, message_in, message_of
from lakebed.fleet.worker import FleetWorker, Heard

_WARN_SECONDS = 600.0
_logger = logging.getLogger("lakebed.fleet")


class Hearing:
    """What a worker hears. Safe to use from several threads."""

    def __init__(self, worker: FleetWorker) -> None:
        self._worker = worker
        self._warned: dict[str, float] = {}  # when, by source

    def poked(self, body: object) -> Mapping[str, object]:
        """Take the JSON of a request; returns the roots of its tables by what this worker makes of each. Raises InvalidInput."""
        try:
            message = message_in(body)
        except InvalidInput:
            self._emit("http", {}, 1)
            raise
        heard = self._hear(message, "http")
        return {"worker": self._worker.id, **heard, "malformed": message.malformed}

    def received(self, body: bytes, source: str) -> None:
        """Take a message of a queue. One that nobody can read is counted, and logged once in a while."""
        try:
            message = message_of(body)
        except InvalidInput as error:
            self._emit(source, {}, 1)
            self._warn(source, str(error))
            return
        self._hear(message, source)
        if message.malformed:
            self._warn(source, "a record of S3's events has no bucket or no key")

    def _hear(self, message: Message, source: str) -> dict[str, list[str]]:
        heard: dict[str, list[str]] = {each.value: [] for each in Heard}
        for hint in message.hints:
            root, what = self._worker.hear(hint)
            heard[what].append(root)
        self._emit(source, {what: len(roots) for what, roots in heard.items()}, message.malformed)
        return heard

    def _emit(self, source: str, counts: Mapping[str, int], malformed: int) -> None:
        event = events.HintsReceived(
            table=self._worker.roots[0], worker=self._worker.id, source=source, malformed=malformed, **counts
        )
        events.emit(event)

    def _warn(self, source: str, text: str) -> None:
        now = time.monotonic()
        if now - self._warned.get(source, -_WARN_SECONDS) >= _WARN_SECONDS:
            self._warned[source] = now
            _logger.warning("a hint from %s can't be read, and is left out: %s", source, text)
