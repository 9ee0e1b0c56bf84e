"""A process that applies batches and settles each, and kills itself with SIGKILL at one chosen step of settling.

    python -m tests.end_to_end.settle_process <table> <first batch> <batches> <step>

A step is a call of a function, of Python's or of an extension's: between any two lines that do something there is one.
Prints how many steps there were, if it lived to its end.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from types import FrameType
from typing import Any

import pyarrow as pa

import lakebed

KEYS, CHANGES = 400, 120
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("batch", pa.int64()), ("note", pa.string())])


def changes_of(batch: int) -> list[dict[str, Any]]:
    """The same changes every time: a third are deletes, keys come more than once."""
    chance = random.Random(batch)
    return [
        {"id": chance.randrange(KEYS), "batch": batch, "note": f"{batch}.{row}", "op": chance.choice("uud")}
        for row in range(CHANGES)
    ]


class Killer:
    """Counts the steps while it is told to, and ends the process at one of them."""

    def __init__(self, step: int) -> None:
        self.steps = 0
        self._last = step

    def __enter__(self) -> None:
        sys.setprofile(self._count)

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            self.steps += 1
            if self.steps == self._last:
                os.kill(os.getpid(), signal.SIGKILL)


def main(path: str, first: int, batches: int, step: int) -> None:
    table = lakebed.open(path)
    killer = Killer(step)
    for batch in range(first, first + batches):
        table.apply(pa.Table.from_pylist(changes_of(batch)), apply_as_deletes="op = 'd'", batch_id=batch)
        with killer:
            table.settle()
    print(killer.steps)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
