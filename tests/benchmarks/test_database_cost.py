"""The benchmark of databases sends events of now, and has a figure for a window without any."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import lakebed
from benchmarks import database_cost
from benchmarks.kafka import SCHEMA


class Enough(Exception):
    """Ends a producer that would go on for ever."""


class Caught:
    """Takes events in place of a producer."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.values: list[bytes] = []
        made.append(self)

    def produce(self, topic: str, value: bytes, key: bytes) -> None:
        self.values.append(value)

    def poll(self, seconds: float) -> None:
        if len(self.values) > 10:
            raise Enough


made: list[Caught] = []


def test_an_event_has_the_time_at_which_it_is_produced_in_its_row_and_its_source() -> None:
    before = time.time() - 1
    with patch.object(database_cost, "Producer", Caught), pytest.raises(Enough):
        database_cost.produce("", ["a", "b"], 1000, 0.2)
    events = [json.loads(value) for value in made[-1].values]
    assert all(before <= one["after"]["updated_at"] / 1e6 <= time.time() for one in events)
    assert all(before <= one["source"]["ts_ms"] / 1e3 <= time.time() for one in events)


def test_a_window_without_events_has_no_figure(tmp_path: Path) -> None:
    lakebed.create(str(tmp_path / "a"), SCHEMA, keys=["id"])
    found = database_cost.freshness([str(tmp_path / "a")], 0, 1)
    assert all(np.isnan(each).all() for each in found.values())
