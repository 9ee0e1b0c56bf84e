"""Asks all that a pipeline needs every few seconds whether it answers, each in a thread of the process that runs the pipeline.

Who plans a batch, reads a schema or commits waits long before it fails. Meanwhile nothing fails and nothing comes in: a run would
say that it is running. So each *dependency* has a watch:

- kafka: the metadata, asked of the brokers by the consumer. Not by the admin client: its requests that time out can end the
  process (an assertion of librdkafka 2.x).
- connector: heartbeats of Debezium (``heartbeat.interval.ms``), whose topic is beside those that are read. Where it sends none, a
  connector that is down looks like a database in which nothing happens.
- registry: a schema that no registry has. That the schemas in use are known already makes an outage no less one.
- store: whether an object is there, which has an answer however few objects there are; and whether any of the last writes of
  this process had success.
- source: the folder of files or the table that is read, by the same question.
- disk: room in the folders in which this process writes.

1. A look that fails is a trouble. So is one that has no answer for ``ANSWER_SECONDS``, whatever the patience of the client.
2. The first look that succeeds ends the trouble.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lakebed.errors import LakebedError, Retry, StoreUnavailable
from lakebed.failures import Outage
from lakebed.health.file_checks import DISK_BYTES_MIN
from lakebed.health.run_report import Down
from lakebed.storage.local_folders import base_folder
from lakebed.storage.object_store import open_objects
from lakebed.storage.roots import LocalRoot, parse_root

if TYPE_CHECKING:
    from lakebed.decode.typed.registry import RegistrySettings
    from lakebed.sources.kafka.settings import KafkaSettings


# -- What the threads beside a run do again and again, without taking much of a core ---------------------------------------


SAMPLE_SECONDS = 1.0
SAMPLE_SHARE = 0.02  # of a core at most is spent on each kind of look at the tables
_logger = logging.getLogger("lakebed.run")


def seldom(
    work: Callable[[], None], done: threading.Event, used_seconds: Callable[[], float] = time.thread_time
) -> None:
    """Do it once a second, or so seldom that it takes ``SAMPLE_SHARE`` of a core. To wait for something costs nothing.

    An error is logged, and the next time may do better: a thread that ended would leave old figures on every surface.
    """
    outage = Outage(f"the thread {threading.current_thread().name}", _logger)
    while not done.is_set():
        before = used_seconds()
        try:
            work()
        except Exception as error:
            outage.failed(error)
        else:
            outage.works()
        done.wait(max(SAMPLE_SECONDS, (used_seconds() - before) / SAMPLE_SHARE))


# -- Asks all that a pipeline needs every few seconds whether it answers ---------------------------------------------------


LOOK_SECONDS = 2.0
_LOOK_AGAIN_SECONDS = 0.5
"""While it is down: all that waits is waiting for its return."""
ANSWER_SECONDS = 5.0
_LOOK_SHARE = 0.005
"""Of a core, at most: the metadata of thousands of topics cost some milliseconds."""


@dataclass(frozen=True, slots=True)
class _Trouble:
    error: LakebedError
    since: float


class Watch:
    """Whether a dependency answers, from ``start`` until ``stop`` is set."""

    def __init__(
        self,
        name: str,
        ask: Callable[[], None],
        *,
        stops_all: bool = True,
        forget: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Args:
        name: Of the dependency.
        ask: Raises LakebedError if it does not answer.
        stops_all: Whether nothing can be ingested without it.
        forget: Called when it answers again: makes this process forget connections that the network may have lost.
        clock: Epoch seconds.
        """
        self.name = name
        self.stops_all = stops_all
        self._ask = ask
        self._forget = forget
        self._clock = clock
        self._trouble: _Trouble | None = None
        self._asking_since: float | None = None

    @property
    def down(self) -> Down | None:
        """What is wrong, and since when; None if it answers, as far as is known."""
        trouble = self._newest()
        return None if trouble is None else Down(self.name, str(trouble.error), int(trouble.since * 1000))

    @property
    def trouble(self) -> LakebedError | None:
        """The error; None if it answers, as far as is known."""
        trouble = self._newest()
        return None if trouble is None else trouble.error

    def _newest(self) -> _Trouble | None:
        trouble, since = self._trouble, self._asking_since
        if trouble is None and since is not None and self._clock() - since > ANSWER_SECONDS:
            return _Trouble(Retry(f"the {self.name} has not answered for more than {ANSWER_SECONDS:.0f} s"), since)
        return trouble

    def look(self) -> None:
        """Ask once."""
        self._asking_since = began = self._clock()
        since = self._trouble.since if self._trouble else began
        try:
            self._ask()
            if self._trouble is not None:
                self._forget()
        except LakebedError as error:
            self._trouble = _Trouble(error, since)
        except Exception:  # a fault here is no trouble of the dependency
            _logger.exception("whether the %s answers is not known now", self.name)
            self._trouble = None
        else:
            self._trouble = None
        self._asking_since = None

    def start(self, stop: threading.Event) -> None:
        """Look now and then in a thread until ``stop`` is set."""

        def run() -> None:
            pause = LOOK_SECONDS
            while not stop.wait(pause):
                used = time.thread_time()
                self.look()
                least = LOOK_SECONDS if self._trouble is None else _LOOK_AGAIN_SECONDS
                pause = max(least, (time.thread_time() - used) / _LOOK_SHARE)
            self._trouble = None

        threading.Thread(target=run, name=f"lakebed-watch-{self.name}", daemon=True).start()


def kafka_watches(settings: KafkaSettings) -> list[Watch]:
    """The watches over the brokers of these settings, and over the connector that fills the topics."""
    from lakebed.sources.kafka.clients import close_kept_clients
    from lakebed.sources.kafka.cluster import KafkaCluster
    from lakebed.sources.kafka.lag import Heartbeats

    quick = replace(settings, timeout_seconds=min(ANSWER_SECONDS, settings.timeout_seconds))
    heartbeats = Heartbeats(KafkaCluster(quick))
    kafka = Watch("kafka", KafkaCluster(quick).answers, forget=close_kept_clients)
    return [kafka, Watch("connector", heartbeats.look, stops_all=False)]


def registry_watch(settings: RegistrySettings) -> Watch:
    """The watch over a registry."""
    from lakebed.decode.typed.registry import Registry

    config = {**settings.config, "max.retries": "0"}
    quick = replace(settings, config=config, timeout_seconds=min(ANSWER_SECONDS, settings.timeout_seconds))
    return Watch("registry", Registry(quick).check, stops_all=False)


def store_watches(path: str) -> list[Watch]:
    """The watches over the place of a table or a database, and over the local disks that are written to."""
    place = parse_root(path)
    folders = [Path(tempfile.gettempdir()), base_folder()]
    if isinstance(place, LocalRoot):
        folders.append(Path(place.path))
    watches = [Watch("disk", lambda: require_room(folders), stops_all=False)]
    if not isinstance(place, LocalRoot):
        from lakebed.storage.s3_client import forget_connections

        objects = open_objects(place)

        def answers() -> None:
            objects.require_answer()
            objects.require_writes()

        watches.append(Watch("store", answers, forget=forget_connections))
    return watches


def folder_watches(path: str) -> list[Watch]:
    """The watch over a folder or a table that is read."""
    place = parse_root(path)
    if not isinstance(place, LocalRoot):
        return [Watch("source", open_objects(place).require_answer)]

    def look() -> None:
        try:
            os.stat(place.path)
        except OSError as error:
            raise StoreUnavailable(f"{place} can't be read: {error.strerror}") from None

    return [Watch("source", look)]


def require_room(folders: Iterable[Path]) -> None:
    """Raises StoreUnavailable if the disk of one of these folders is full, or can't be looked at."""
    for folder in folders:
        there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
        try:
            free = shutil.disk_usage(there).free
        except OSError as error:
            raise StoreUnavailable(f"the disk of {folder} does not answer: {error}") from None
        if free < DISK_BYTES_MIN:
            raise StoreUnavailable(f"the disk of {folder} is full: less than {DISK_BYTES_MIN >> 20} MB are free")
