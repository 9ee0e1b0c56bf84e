"""What the driver tells the process that plans the batches of a database, by a file in a folder that both know.

The driver replaces ``control.json`` whenever something in it changes; the planner looks at it ten times a second.
``positions.json`` says where planning begins: it is written once, before the query starts.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lakebed.positions.positions import Position

MAX_AGE_SECONDS = 10.0
_CONTROL, _POSITIONS = "control.json", "positions.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """``tick``: a larger one than before asks for a batch, even if nothing is new.

    ``max_age_seconds``: how long unread records of a topic may wait for others, by topic; for all others
    ``default_max_age_seconds``. ``limits``: how many records of a topic a batch may read; 0 leaves the topic out.
    ``together_seconds``: at this pace all topics that have unread records are read together, whatever their age.
    """

    tick: int = 0
    default_max_age_seconds: float = MAX_AGE_SECONDS
    max_age_seconds: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    together_seconds: float | None = None

    def max_age_of(self, topic: str) -> float:
        return self.max_age_seconds.get(topic, self.default_max_age_seconds)


class ControlFile:
    """The newest ``Control`` in a folder; the defaults until there is one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _CONTROL
        self._seen: tuple[int, int] | None = None
        self._control = Control()

    def newest(self) -> Control:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return self._control
        seen = found.st_ino, found.st_mtime_ns
        if seen != self._seen:
            self._control, self._seen = Control(**json.loads(self._path.read_text())), seen
        return self._control


def write_control(folder: Path, control: Control) -> None:
    """Replaces what the planner was told before."""
    _replace(folder / _CONTROL, json.dumps(asdict(control)))


def write_positions(folder: Path, positions: Mapping[str, Position]) -> None:
    """Says where planning begins: the position of each topic that a table has read."""
    documents = {
        topic: {"id": position.topic_id, "offsets": dict(position.offsets)} for topic, position in positions.items()
    }
    _replace(folder / _POSITIONS, json.dumps(documents))


def read_positions(folder: Path) -> dict[str, Position]:
    """What ``write_positions`` wrote; empty if it did not."""
    try:
        documents = json.loads((folder / _POSITIONS).read_text())
    except FileNotFoundError:
        return {}
    return {
        topic: Position(
            offsets={int(number): offset for number, offset in found["offsets"].items()}, topic_id=found["id"]
        )
        for topic, found in documents.items()
    }


def _replace(path: Path, text: str) -> None:
    written = path.with_name(f"{path.name}.{threading.get_ident()}")  # several threads may write it
    written.write_text(text)
    os.replace(written, path)
