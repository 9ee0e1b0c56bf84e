"""The page that ``lakebed run`` serves: unless the file turns it off, whichever ports are taken, and until the run ends."""

from __future__ import annotations

import json
import socket
import urllib.request
from contextlib import closing
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote

import pyarrow as pa
import pytest

import lakebed
from lakebed import events
from lakebed.cli.commands.run import served_page
from lakebed.events import SourceLagged
from lakebed.monitoring.metrics import Metrics
from lakebed.pipeline.run import served_metrics
from lakebed.pipeline.settings import Pipeline, parse_pipeline
from tests.waiting import wait_until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def pipeline(path: Path, page: str) -> Pipeline:
    text = f"table: {{path: '{path}', schema: {{id: long not null}}, keys: [id]}}\nsource: {{kind: generator}}\n"
    return parse_pipeline(text + page, "orders.yml", {})


def test_it_shows_the_table_and_the_lag_that_only_this_process_knows(tmp_path: Path) -> None:
    with served_page(pipeline(tmp_path / "t", "page: {port: 0}\n")) as url:
        assert url is not None
        table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])  # as a run does once the page is there
        address = f"{url}api/table?path={quote(table.path, safe='')}"

        def told() -> dict[str, object]:
            with urllib.request.urlopen(address, timeout=60) as answer:
                found: dict[str, object] = json.load(answer)
            return found

        wait_until(lambda: told()["figures"])
        events.emit(SourceLagged(table=table.path, topic="orders", records=3))
        wait_until(lambda: told()["live"])
        assert told()["live"] == {
            "committed_seconds": None, "visible_seconds": None, "newest_event_ms": None, "queries": {},
            "lag": [{"topic": "orders", "records": 3}],
        }  # fmt: skip
    with pytest.raises(URLError):
        urllib.request.urlopen(url, timeout=60)


def test_metrics_whose_port_is_taken_are_at_another_one_and_a_warning_says_where(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        server = served_metrics(pipeline(tmp_path / "t", f"metrics: {{port: {port}}}\n"), Metrics())
        assert server is not None
        server.close()
    assert f"on 127.0.0.1:{port}" in caplog.text and server.url in caplog.text


def test_a_port_that_is_taken_is_no_obstacle(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with served_page(pipeline(tmp_path / "t", f"page: {{port: {port}}}\n")) as url:
            assert url is not None and f":{port}/" not in url
            with urllib.request.urlopen(url, timeout=60) as answer:
                assert b"<title>lakebed</title>" in answer.read()


def test_the_pipeline_file_turns_it_off(tmp_path: Path) -> None:
    with served_page(pipeline(tmp_path / "t", "page: {port: null}\n")) as url:
        assert url is None
