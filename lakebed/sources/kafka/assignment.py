"""Many ranges, fetched at once: one client is assigned to all their partitions, and each has a queue of its own.

A client that reads one range after the other waits for the brokers' answer each time, and each range costs an assignment and a
fetch. Here one fetch asks a broker for all.

1.  ``assigned`` assigns the ranges to a client for as long as its block lasts. Meanwhile ``queue_of`` gives the queue of a range
    to the thread that reads it, once.
2.  A range that is not assigned, or does not go as usual, is read by a client of its own, from where it stopped
    (``kafka.range``). So what an error means is decided there alone, and for one range. If nothing comes for a while, no
    other range is begun here.
3.  A queue holds ``_QUEUE_KILOBYTES`` and what one more fetch brings of its partition (``max.partition.fetch.bytes``, 1 MiB), and
    there are ``RANGES_MAX`` queues at most: some 80 MiB, whatever is in the topics.
4.  A thread may still read when the block ends. The last one gives the client back, which then serves the next ranges.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from lakebed.decode.native.library import library
from lakebed.sources.kafka.clients import KafkaClient, KeptClients, PartitionQueue, Refused
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.source import Place, Range

RANGES_MAX = 64
_QUEUE_KILOBYTES = 256
_kept_clients: KeptClients[KafkaClient] = KeptClients(KafkaClient.close)
_Key = tuple[int, str, Place, int]
"""The process, the settings, the partition, and the first offset of a range."""
_waiting: dict[_Key, _Assignment] = {}


@contextmanager
def assigned(settings: KafkaSettings, ranges: Iterable[Range]) -> Iterator[None]:
    """Fetch these ranges at once, as many as fit, while the block lasts. Those of one partition must be one range."""
    begins = {one.place: one.start for one in ranges if one.size}
    begins = dict(list(begins.items())[:RANGES_MAX])
    if library() is None or len(begins) < 2:
        yield
        return
    config = {**settings.range_config(), "queued.max.messages.kbytes": _QUEUE_KILOBYTES}
    key = repr(sorted(config.items()))
    try:
        made = _Assignment(key, _kept_clients.take(key) or KafkaClient(config), begins)
    except Refused:  # a client of its own says why
        yield
        return
    keys = [_key_of(settings, place, start) for place, start in begins.items()]
    _waiting.update(dict.fromkeys(keys, made))
    try:
        yield
    finally:
        for each in keys:
            _waiting.pop(each, None)
        made.end()


def queue_of(settings: KafkaSettings, place: Place, start: int) -> _AssignedQueue | None:
    """The queue of a range that begins there, which must be closed; None if it is not assigned, or was read already."""
    found = _waiting.pop(_key_of(settings, place, start), None)
    return None if found is None else found.begin(place)


def _key_of(settings: KafkaSettings, place: Place, start: int) -> _Key:
    return os.getpid(), repr(sorted(settings.range_config().items())), place, start


class _AssignedQueue:
    """The queue of one range, for the thread that reads it."""

    def __init__(self, assignment: _Assignment, queue: PartitionQueue) -> None:
        self._assignment = assignment
        self.queue = queue

    def close(self, *, is_stalled: bool = False) -> None:
        """``is_stalled``: nothing came for a while."""
        self.queue.close()
        self._assignment.gave_back(is_stalled)


class _Assignment:
    """The ranges of one client."""

    def __init__(self, key: str, client: KafkaClient, begins: dict[Place, int]) -> None:
        """Raises ``Refused``."""
        self._key, self._client = key, client
        self._lock = threading.Lock()
        self._users = 1  # who made it
        self._is_stalled = False
        self._queues: dict[Place, PartitionQueue] = {}
        try:
            for place in begins:
                self._queues[place] = PartitionQueue(client, *place)
            client.assign(begins)
        except Refused:
            self._is_stalled = True
            self.end()
            raise

    def begin(self, place: Place) -> _AssignedQueue | None:
        with self._lock:
            queue = None if self._is_stalled else self._queues.pop(place, None)
            self._users += queue is not None
        return None if queue is None else _AssignedQueue(self, queue)

    def end(self) -> None:
        """No other range is begun."""
        with self._lock:
            queues, self._queues = self._queues, {}
        for queue in queues.values():
            queue.close()
        self.gave_back()

    def gave_back(self, is_stalled: bool = False) -> None:
        """One that used the client does no more."""
        with self._lock:
            self._users -= 1
            self._is_stalled |= is_stalled
            is_last = not self._users
        if not is_last:
            return
        if self._is_stalled or not self._client.is_quiet():
            self._client.close()
        else:
            self._client.unassign()
            _kept_clients.give_back(self._key, self._client)
