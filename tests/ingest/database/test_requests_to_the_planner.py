"""The planner gets the newest request in the end, whatever fails on the way, and whoever asks."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

from lakebed.ingest.database_batch import PlanRequest
from lakebed.sources.kafka import gathering
from lakebed.sources.kafka.gathering import Control, ControlFile, write_control
from tests.ingest.database.databases import database, filled
from tests.waiting import wait_until


def test_a_request_that_failed_is_made_again_at_the_next_look(tmp_path: Path) -> None:
    calls: list[PlanRequest] = []

    def ask(request: PlanRequest) -> None:
        calls.append(request)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")

    with database(tmp_path, filled("a")) as one:
        one.ingest.begin(lambda batch_id: one.planner.next(), ask)
        wait_until(lambda: len(calls) > 1)
        assert calls[1] == calls[0]


def test_the_newest_request_comes_last_though_an_older_one_is_late(tmp_path: Path) -> None:
    heard: list[PlanRequest] = []
    with database(tmp_path, filled("_heartbeat", "a")) as one:

        def ask(request: PlanRequest) -> None:
            if not heard and not batches:
                batches.append(request)
                one.batch()  # a batch that ends meanwhile asks with what it found
            heard.append(request)

        batches: list[PlanRequest] = []
        one.ingest.begin(lambda batch_id: one.planner.next(), ask)
        wait_until(lambda: len(heard) > 1)
        wait_until(lambda: heard[-1].left_out == {"_heartbeat"}, heard.__repr__)


def test_two_threads_may_write_the_control_file_at_once(tmp_path: Path) -> None:
    whole, replaced = os.replace, []

    def replace(written: Path, path: Path) -> None:
        replaced.append(written)
        if len(replaced) == 1:
            with patch.object(gathering.threading, "get_ident", lambda: 1):  # another thread, which is quicker
                write_control(tmp_path, Control(tick=1))
        whole(written, path)

    with patch.object(gathering.os, "replace", replace):
        write_control(tmp_path, Control(tick=2))
    assert ControlFile(tmp_path).newest().tick == 2
