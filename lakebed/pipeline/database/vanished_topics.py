"""Notices topics that are gone, in a thread of the pipeline of a database, and says so in the logs of their tables.

A table whose topic is gone stays as it is: nothing comes any more, and no batch shows that. A topic counts as gone when two looks
in a row do not find it, since brokers that have just started do not know all of theirs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping

from lakebed.errors import LakebedError
from lakebed.log.table_log import TableLog
from lakebed.positions.topic_gone import note_topic, topic_gone_of

LOOK_SECONDS = 60.0
_logger = logging.getLogger("lakebed.run")


class VanishedTopics:
    """``there``: asks the brokers for the topics that are there; ``tables``: the logs of the tables, by topic."""

    def __init__(self, there: Callable[[], Collection[str]], tables: Callable[[], Mapping[str, TableLog]]) -> None:
        self._there = there
        self._tables = tables
        self._missed: set[str] = set()

    def look(self) -> None:
        """Compare the topics with the tables. Raises LakebedError if the brokers do not answer."""
        there, tables = self._there(), self._tables()
        missing = {topic for topic in tables if topic not in there}
        for topic, log in tables.items():
            try:
                self._note(topic, log, is_missing=topic in missing)
            except LakebedError as error:  # the next look tries again
                _logger.info("whether the topic %s is gone can't be noted: %s", topic, error)
        self._missed = missing

    def _note(self, topic: str, log: TableLog, *, is_missing: bool) -> None:
        newest = log.newest or log.refresh()
        is_noted = topic_gone_of(newest) is not None
        if is_noted == is_missing or (is_missing and topic not in self._missed):
            return
        if note_topic(log, topic, is_gone=is_missing) and is_missing:
            _logger.warning("the topic %s is gone, or can't be read: nothing comes into %s any more", topic, log.root)

    def run(self, stop: threading.Event) -> None:
        """Look now and then until ``stop`` is set."""
        while not stop.wait(LOOK_SECONDS):
            try:
                self.look()
            except LakebedError as error:
                _logger.info("which topics there are is not known now: %s", error)
            except Exception:
                _logger.exception("which topics there are is not known now")
