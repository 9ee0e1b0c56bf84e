"""Asks Kafka every few seconds whether it answers, in a thread of the process that runs a pipeline.

Who plans a batch waits for brokers for ``timeout_seconds``, a minute by default. Meanwhile nothing fails, and nothing comes in: a
run would say that it is running. A look asks for the metadata, by the consumer, and waits a few seconds at most. The admin client
is not asked: its requests that time out can end the process (an assertion of librdkafka 2.x), and so must not be made for a look.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from lakebed.errors import LakebedError

if TYPE_CHECKING:
    from lakebed.ingest.kafka.settings import KafkaSettings

LOOK_SECONDS = 5.0
ANSWER_SECONDS = 5.0
LOOK_SHARE = 0.005
"""Of a core, at most: the metadata of thousands of topics cost some milliseconds."""
_logger = logging.getLogger("lakebed.run")


class SourceWatch:
    """Whether the source answers, from ``start`` until ``stop`` is set."""

    def __init__(self, ask: Callable[[], None]) -> None:
        """``ask``: raises LakebedError if the source does not answer."""
        self._ask = ask
        self.trouble: LakebedError | None = None
        """Why it does not answer; None if it does."""

    def look(self) -> None:
        """Ask once."""
        try:
            self._ask()
        except LakebedError as error:
            self.trouble = error
        except Exception:  # a fault here is no trouble of the source
            _logger.exception("whether the source answers is not known now")
            self.trouble = None
        else:
            self.trouble = None

    def start(self, stop: threading.Event) -> None:
        """Look now and then in a thread until ``stop`` is set."""

        def run() -> None:
            pause = LOOK_SECONDS
            while not stop.wait(pause):
                used = time.thread_time()
                self.look()
                pause = max(LOOK_SECONDS, (time.thread_time() - used) / LOOK_SHARE)
            self.trouble = None

        threading.Thread(target=run, name="lakebed-source", daemon=True).start()


def kafka_watch(settings: KafkaSettings) -> SourceWatch:
    """The watch over the brokers of these settings."""
    from lakebed.ingest.kafka.cluster import KafkaCluster

    seconds = min(ANSWER_SECONDS, settings.timeout_seconds)
    return SourceWatch(KafkaCluster(replace(settings, timeout_seconds=seconds)).answers)
