"""The verdict on outages: each of its five questions finds what is wrong, and nothing else."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.outages.__main__ import down_on_page
from benchmarks.outages.gate import Gate
from benchmarks.outages.verdict import Lag, Outage, Records, Said, judge, named

OUTAGE = Outage("kafka", "refuse", 100.0, 160.0)


def said(*, first: float = 110.0, last: float = 162.0, kind: str = "kafka", surface: str = "status") -> list[Said]:
    """Looks each second, which name the kind from ``first`` to ``last``."""
    return [
        Said(surface, at, at + 0.5, frozenset({kind} if first <= at <= last else ()), not first <= at <= last)
        for at in map(float, range(300))
    ]


def lags(recovered: float = 165.0) -> list[Lag]:
    return [Lag(float(at), float(at - 100) if 100 < at < recovered else 1.0) for at in range(300)]


RECORDS = Records(outages=[OUTAGE], said=said(), lags=lags(), lines=[101.0, 161.0])


def test_an_outage_that_is_named_in_time_and_ends_in_time_is_right() -> None:
    verdict = judge(RECORDS)
    assert verdict.violations == []
    row = verdict.rows["kafka"]
    assert (row.outages, row.detection, row.recovery, row.false_alarms) == (1, 10.5, 5.0, 0)


@pytest.mark.parametrize(
    "records, violation",
    [
        (replace(RECORDS, said=said(first=130.0)), "status did not name the outage of kafka"),
        (replace(RECORDS, said=said(kind="registry")), "status did not name the outage of kafka"),
        (replace(RECORDS, said=said(last=150.0)), "status did not name the outage of kafka"),
        (replace(RECORDS, said=[replace(one, is_well=True) for one in said()]), "status did not name the outage of kafka"),
        (replace(RECORDS, said=[one for one in said() if not 100 < one.began < 160]), "status said nothing at all"),
        (replace(RECORDS, lags=lags(200.0)), "rows flowed again only 40 s after"),
        (replace(RECORDS, lags=[*lags(), Lag(290.0, 45.0), Lag(291.0, 0.0)]), "a stall at 290 s"),
        (replace(RECORDS, said=said(first=50.0)), "status named kafka at 50 s, before any outage"),
        (replace(RECORDS, said=said(last=190.0)), "status named kafka at 176 s, 16 s after the last outage"),
        (replace(RECORDS, said=[*said(), Said("status", 20.0, 20.1, frozenset(), False)]), "status named something at 20 s"),
        (replace(RECORDS, lines=[120.0] * 60), "60 lines of log in the 75 s"),
        (replace(RECORDS, ends_wrong=["orders differs"]), "orders differs"),
    ],
)  # fmt: skip
def test_each_question_finds_what_is_wrong(records: Records, violation: str) -> None:
    assert violation in "\n".join(judge(records).violations)


def test_a_short_outage_need_not_be_named_and_the_connector_needs_kafka() -> None:
    short = replace(RECORDS, outages=[replace(OUTAGE, ended=110.0)], said=said(first=1e9), lags=lags(111.0))
    assert judge(short).violations == []
    both = [*said(), *said(kind="connector", surface="display")]
    assert judge(replace(RECORDS, said=both)).violations == [
        violation for violation in judge(replace(RECORDS, said=both)).violations if "display did not name" in violation
    ]


def test_texts_name_what_is_down() -> None:
    assert named("put of s3://lake/orders/_delta_log/1.json failed 8 times") == {"s3"}
    assert named("kafka at broker:9092 did not answer") == {"kafka"}
    assert named("the connector of shop sends no heartbeats any more") == {"connector"}
    assert named("[Errno 28] No space left on device") == {"disk"}
    assert named("the schema registry at http://registry can't be reached") == {"registry"}


def test_the_page_says_what_is_wrong_above_its_tables() -> None:
    well = {"findings": []}
    down = {"findings": [{"check": "store", "what": "…"}, {"check": "run", "what": "…"}]}
    assert down_on_page(json.dumps({"databases": [well], "tables": [down]})) == (True, "")
    assert down_on_page(json.dumps({"databases": [down], "tables": []})) == (False, "run; store")


# -- the gate --------------------------------------------------------------------------------------------------------


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it gets."""
    listening = socket.create_server(("127.0.0.1", 0))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(asyncio.start_server(serve, sock=listening))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield listening.getsockname()[1]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def connected(gate: Gate) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gate.port), timeout=10)


def answer_to(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return connection.recv(1000)


def test_a_gate_that_refuses_resets_and_lets_all_pass_when_it_is_open_again(echo: int) -> None:
    with Gate(echo) as gate:
        before = connected(gate)
        assert answer_to(before, b"a") == b"a"
        gate.shut("refuse")
        with pytest.raises(ConnectionRefusedError):
            connected(gate)
        with pytest.raises(ConnectionError):
            before.sendall(b"b") or before.recv(10) or before.sendall(b"c") or before.recv(10)
            raise ConnectionResetError  # it was closed, and not reset
        gate.open()
        assert answer_to(connected(gate), b"d") == b"d"


def test_what_is_on_its_way_when_a_gate_stalls_arrives_later_and_is_lost_if_it_loses(echo: int) -> None:
    with Gate(echo) as gate:
        stalled = connected(gate)
        assert answer_to(stalled, b"a") == b"a"
        gate.shut("stall")
        stalled.sendall(b"b")
        gate.open()
        assert stalled.recv(10) == b"b"
        gate.shut("lose")
        stalled.sendall(b"c")
        gate.open()
        stalled.setblocking(False)
        with pytest.raises(BlockingIOError):
            stalled.recv(10)
        assert answer_to(connected(gate), b"d") == b"d"
