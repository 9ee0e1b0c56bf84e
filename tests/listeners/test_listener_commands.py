"""``lakebed events print | listen | listeners | deliver`` as somebody at a terminal uses them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakebed
from lakebed.cli import main
from tests.listeners.receiver import Received, receiver
from tests.listeners.test_listening import changes, make

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def lake(tmp_path: Path) -> str:
    path = str(tmp_path / "lake")
    orders = make(path, "public/orders")
    orders.apply(changes())
    orders.settle()
    make(path, "items").apply(changes())
    return path


@pytest.fixture
def received() -> Iterator[Received]:
    with receiver() as one:
        yield one


def ran(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[list[str], str]:
    assert main(list(arguments)) == code
    out, err = capsys.readouterr()
    return out.splitlines(), err


def test_events_are_printed_for_people_and_for_programs(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines, note = ran(capsys, "events", "print", lake, "--table", "public.*")
    assert [" ".join(line.split()[1:4]) for line in lines] == [
        "public.orders 0 created",
        "public.orders 1 appended",
        "public.orders 2 settled",
    ]
    assert "rows=3 deletes=0" in lines[1]
    found = re.search(r"--after (\S+)", note)
    assert found is not None
    assert ran(capsys, "events", "print", lake, "--table", "public.*", "--after", found[1])[0] == []
    lakebed.open(f"{lake}/public/orders").apply(changes())
    [line], _ = ran(capsys, "events", "print", lake, "--after", found[1], "--table", "public.*", "--format", "json")
    event = json.loads(line)
    assert (event["type"], event["subject"]) == ("dev.lakebed.table.appended.v1", "public.orders")
    only, _ = ran(capsys, "events", "print", f"{lake}/public/orders", "--after", "1", "--kind", "settled")
    assert len(only) == 1 and " orders 2 settled " in only[0]
    _, error = ran(capsys, "events", "print", lake, "--after", "1", code=2)
    assert "has several tables; --after takes the cursor" in error
    _, error = ran(capsys, "events", "print", lake, "--kind", "merge", code=2)
    assert "there are no events 'merge'" in error


def test_a_listener_is_added_listed_served_and_removed(
    lake: str, received: Received, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBED_SECRET_SHOP", "0123456789abcdef0123456789abcdef")
    arguments = ("events", "listen", lake, "shop", "--webhook", received.url, "--secret", "LAKEBED_SECRET_SHOP")
    [said], _ = ran(capsys, *arguments, "--from", "oldest", "--kind", "appended")
    assert said == f"listener shop is added; lakebed events deliver {lake} sends it events"
    ran(capsys, "events", "deliver", lake, "--duration", "3")
    assert sorted(event["subject"] for event in received.acknowledged) == ["items", "public.orders"]
    assert all("webhook-signature" in headers for headers, _ in received.requests)
    [row], _ = ran(capsys, "events", "list", lake, "--format", "json")
    listed = json.loads(row)
    assert (listed["listener"], listed["to"], listed["kinds"]) == ("shop", received.url, "appended")
    assert listed["delivered_by"] is None and listed["error"] is None
    [said], _ = ran(capsys, *arguments)
    assert said == "listener shop is changed; it goes on where it is"
    ran(capsys, "events", "deliver", lake, "--duration", "1")
    assert len(received.acknowledged) == 2
    [said], _ = ran(capsys, "events", "listen", lake, "shop", "--remove")
    assert said == "listener shop is removed"
    assert "there is no listener 'shop'" in ran(capsys, "events", "listen", lake, "shop", "--remove", code=2)[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kafka", "b:9092"], "--kafka needs --topic"),
        (["--kafka", "b:9092", "--topic", "t", "--config", "acks"], "has no =; write NAME=VALUE"),
        (["--webhook", "http://x/", "--topic", "t"], "--topic and --config are for --kafka"),
        (["--webhook", "http://x/", "--secret", "hunter2"], "LAKEBED_SECRET_"),
        (["--webhook", "x/"], "must begin with http"),
        (["--webhook", "http://x/", "--as", "iceberg"], "--as and --database are for --catalog"),
        (["--catalog", "thrift://x", "--topic", "t"], "--catalog has neither --topic nor --secret"),
        (["--catalog", "thrift://x", "--kind", "appended"], "leave the kinds of events out"),
        (["--catalog", "hive"], "is no catalog: give thrift://HOST:PORT"),
    ],
)
def test_a_listener_that_can_not_be_is_refused(
    lake: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert message in ran(capsys, "events", "listen", lake, "shop", *arguments, code=2)[1]


def test_a_table_has_no_listeners_of_its_own(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, error = ran(capsys, "events", "listen", f"{lake}/public/orders", "shop", "--webhook", "http://x/", code=2)
    assert "is a table; listeners are kept by a folder with tables" in error
    assert ran(capsys, "events", "list", lake, "--format", "json")[0] == []


def test_a_catalog_is_added_listed_and_begins_with_all_tables(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("events", "listen", lake, "hive", "--catalog", "thrift://127.0.0.1:9", "--database", "shop_{schema}")
    [said], _ = ran(capsys, *arguments)
    assert said == f"listener hive is added; lakebed events deliver {lake} has it follow"
    ran(capsys, "events", "deliver", lake, "--duration", "1")
    [row], _ = ran(capsys, "events", "list", lake, "--format", "json")
    listed = json.loads(row)
    assert (listed["listener"], listed["to"]) == ("hive", "thrift://127.0.0.1:9 as delta")
    assert listed["kinds"] == "definitions"
    [said], _ = ran(capsys, *arguments, "--as", "iceberg")
    assert said == "listener hive is changed; it goes on where it is"
