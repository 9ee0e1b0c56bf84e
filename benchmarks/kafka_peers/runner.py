"""Runs one system, in its own environment, started by the driver: ``python -m benchmarks.kafka_peers.runner TASK.json``.

The driver asks in JSON lines, and gets one for each: ``create`` a table, ``start`` its stream, tell its ``commits``, ``stop``
it, write its ``rows`` to a folder. The end of the pipe ends the process.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.kafka_peers.stream import Feed, Stream
from benchmarks.peers.runner import session

Answer = dict[str, Any]


class Runner:
    """Answers the driver; one stream at a time."""

    def __init__(self, module: str, name: str, memory: str, feed: Feed) -> None:
        self._kind = getattr(importlib.import_module(f"benchmarks.kafka_peers.{module}"), name)
        self._feed = feed
        self._spark = session(memory, feed.local, dict(self._kind.session(feed)))
        self._stream: Stream

    def create(self, name: str) -> Answer:
        self._stream = self._kind(self._spark, self._feed, name)
        return {
            "settings": dict(self._stream.settings),
            "spark": self._spark.version,
            "resolves": self._stream.resolves,
        }

    def start(self, topic: str) -> Answer:
        self._stopped = False
        started = time.time()
        self._stream.start(topic)
        return {"time": started}

    def commits(self) -> Answer:
        """Raises what ended a query, unless it was stopped."""
        for query in () if self._stopped else self._stream.queries:
            if error := query.exception():
                raise error
        return {reader: [asdict(commit) for commit in commits] for reader, commits in self._stream.commits().items()}

    def stop(self) -> Answer:
        self._stopped = True
        self._stream.stop()
        return {}

    def rows(self, folder: str) -> Answer:
        self._stream.rows().write.parquet(folder)
        return {}


def serve(questions: Any, answers: Any, runner: Callable[[], Runner]) -> int:
    """Answer until there are no more questions; 1 after one that could not be answered."""

    def tell(answer: Answer) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        served = runner()
        tell({})
        for line in questions:
            question = json.loads(line)
            tell(getattr(served, question.pop("do"))(**question))
    except Exception as error:
        traceback.print_exc()
        tell({"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"})
        return 1
    return 0


def main() -> int:
    task = json.loads(Path(sys.argv[1]).read_text())
    feed = Feed(**task.pop("feed"))
    with os.fdopen(int(sys.argv[2]), "w") as answers, os.fdopen(int(sys.argv[3])) as questions:
        return serve(questions, answers, lambda: Runner(**task, feed=feed))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of a failed system must not keep the process
