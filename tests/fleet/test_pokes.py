"""Hints make looks earlier: of the worker that owns the table, without a look too many, also of tables that are new."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lakebed
from lakebed import events
from lakebed.cli.command_line import execute
from lakebed.compaction.maintenance import TableMaintainers
from lakebed.coordination.log_cache import LogCache
from lakebed.errors import InvalidInput
from lakebed.fleet import hints, watched
from lakebed.fleet.hints import Hint
from lakebed.fleet.worker import HINTED_DISCOVERY_SECONDS, FleetWorker, Heard, Limits
from lakebed.http import Listening
from lakebed.log.stores import LogStore, has_object
from lakebed.service.app import poke_server
from lakebed.service.tokens import Role, line_of
from tests.fleet.test_worker import SCHEMA, changes, is_settled, tables_in, working
from tests.internals import log_of
from tests.stepping import Steps

HOUR = 3600.0
HINTED_LOOK_SECONDS = 1.0
"""So far apart are looks for hints that were right."""


@pytest.fixture(autouse=True)
def seldom(own_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No look comes by itself in the time of a test, and no commit of this process is heard."""
    monkeypatch.setattr(watched, "pause_seconds", lambda idle, freshness, longest: HOUR)
    monkeypatch.setattr(FleetWorker, "_hear", lambda self, event: None)


def rests(worker: FleetWorker, tables: int) -> bool:
    """Whether it knows so many tables, and has nothing to do for them."""
    state = worker.state()
    return (state.owned, state.unseen, state.active, state.waiting) == (tables, 0, 0, 0)


def hint(table: lakebed.Table, version: int | None = None) -> Hint:
    return Hint((table.path,), version)


def test_a_hint_lets_a_table_be_settled_that_nobody_would_look_at_for_an_hour(tmp_path: Path, steps: Steps) -> None:
    hinted, other = tables_in(tmp_path / "lake", 2)
    with working(tmp_path / "lake", "one") as [one]:
        steps.run_until(lambda: rests(one, 2))
        steps.run()
        looks = one.state().looks
        for table in (hinted, other):
            table.apply(changes(1))
        assert one.hear(hint(hinted, log_of(hinted).refresh().version)) == (hinted.path, Heard.LOOKS)
        steps.run_until(lambda: is_settled(hinted) and rests(one, 2))
        steps.run()
        assert one.state().looks <= looks + 2, "one for the hint, one as the table comes to rest"
        assert not is_settled(other), "which nobody has looked at"


def test_an_event_of_a_version_that_the_worker_has_seen_costs_no_look(tmp_path: Path, steps: Steps) -> None:
    [table] = tables_in(tmp_path / "lake", 1)
    with working(tmp_path / "lake", "one") as [one]:
        steps.run_until(lambda: rests(one, 1))
        steps.run()
        table.apply(changes(1))
        one.hear(hint(table, log_of(table).refresh().version))
        steps.run_until(lambda: is_settled(table) and rests(one, 1))
        steps.run()
        looks, newest = one.state().looks, log_of(table).refresh().version
        for version in range(newest + 1):
            assert one.hear(hint(table, version)) == (table.path, Heard.KNOWN), (
                "among them commits of the worker itself"
            )
        assert one.hear(hint(table, newest + 1)) == (table.path, Heard.LOOKS)
        steps.run_for(1)
        assert one.state().looks == looks + 1


def begun(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, steps: Steps) -> list[float]:
    """When each call of a method began."""
    moments: list[float] = []
    method = getattr(owner, name)

    def noted(*arguments: Any) -> Any:
        moments.append(steps.clock())
        return method(*arguments)

    monkeypatch.setattr(owner, name, noted)
    return moments


def pauses(moments: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(moments)]


def test_a_flood_of_hints_is_a_few_looks_ever_farther_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Steps
) -> None:
    looks = begun(monkeypatch, watched.Watched, "look", steps)
    [table] = tables_in(tmp_path / "lake", 1)
    with working(tmp_path / "lake", "one") as [one]:
        steps.run_until(lambda: rests(one, 1))
        steps.run_for(HINTED_LOOK_SECONDS)
        looks.clear()
        for count in range(1, 5):
            for _ in range(100):
                assert one.hear(hint(table))[1] is Heard.LOOKS
            steps.run_until(lambda: len(looks) == count)  # noqa: B023
        assert pauses(looks) == [2.0, 4.0, 8.0], "the pause doubles after each hint in vain"
        table.apply(changes(1))
        one.hear(hint(table))
        steps.run_until(lambda: is_settled(table) and rests(one, 1))
        steps.run_for(HINTED_LOOK_SECONDS)
        looks.clear()
        one.hear(hint(table))
        steps.run()
        assert len(looks) == 1, "who was right once is believed at once again"


def test_a_hint_that_comes_during_a_look_for_hints_waits_as_long_as_one_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, during = [1000.0], list[float | None]()
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    for module in (watched, hints):
        monkeypatch.setattr(module, "time", clock)

    def hinted_meanwhile(store: LogStore, name: str) -> bool:
        during.append(one.hinted())
        return has_object(store, name)

    monkeypatch.setattr(watched, "has_object", hinted_meanwhile)
    [table] = tables_in(tmp_path, 1)
    maintenance = TableMaintainers()
    one = watched.Watched(table.path, LogCache(1 << 20), maintenance, may_begin=lambda tier: True)
    one.look()
    pauses = [one.hinted()]
    for _ in range(4):
        now[0] += pauses[-1] or 0.0
        pauses.append(one.look())
    maintenance.stop()
    assert during == [None] * 4, "the look itself says when the next one is"
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_a_hint_does_not_try_a_table_earlier_that_can_not_be_read(tmp_path: Path, steps: Steps) -> None:
    [table] = tables_in(tmp_path / "lake", 1)
    log = tmp_path / "lake" / "public" / "foreign" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("this is no commit")
    with working(tmp_path / "lake", "one") as [one]:
        steps.run()
        assert one.state().troubles and one.state().unseen == 1
        (log / f"{0:020d}.json").unlink()
        table.apply(changes(1))
        assert one.hear(Hint((str(log.parent),)))[1] is Heard.LOOKS
        assert one.hear(hint(table))[1] is Heard.LOOKS
        steps.run_until(lambda: is_settled(table))
        assert one.state().troubles, "it was not looked at again"


def test_a_table_that_nobody_has_found_yet_is_found_for_a_hint(tmp_path: Path, steps: Steps) -> None:
    with working(tmp_path / "lake", "one") as [one]:
        steps.run()
        table = lakebed.create(tmp_path / "lake" / "public" / "t", SCHEMA, keys=["id"])
        table.apply(changes(1))
        assert one.hear(hint(table)) == (table.path, Heard.NEW)
        steps.run_for(HINTED_DISCOVERY_SECONDS)
        assert is_settled(table)


def test_hints_of_tables_that_do_not_exist_are_few_discoveries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Steps
) -> None:
    found = begun(monkeypatch, FleetWorker, "_discover", steps)
    lake = str(tmp_path / "lake")
    with working(tmp_path / "lake", "one") as [one]:
        steps.run()
        for count in range(1, 5):
            for name in ("t", "public/t", "public/other"):
                assert one.hear(Hint((f"{lake}/{name}",)))[1] is Heard.NEW
            steps.run_until(lambda: len(found) == count + 1)  # noqa: B023
        assert pauses(found) == [10.0, 20.0, 40.0, 80.0], "the pause doubles after each that found nothing"
        for name in ("a/b/c", "_lakebed/fleet", "public/.hidden", "a//b", "", "../lake/t", "a/"):
            assert one.hear(Hint((f"{lake}/{name}",)))[1] is Heard.UNRELATED, name
        assert one.hear(Hint((f"{lake}er/t",)))[1] is Heard.UNRELATED


def test_a_hint_is_for_the_worker_that_owns_the_table(tmp_path: Path, steps: Steps) -> None:
    tables = tables_in(tmp_path / "lake", 12)
    for table in tables[:3]:
        table.set_properties({"lakebed.freshness": "1 hour"})
    with working(tmp_path / "lake", "a", "b") as [a, b]:
        steps.run_until(lambda: a.state().owned + b.state().owned == 12 and min(a.state().owned, b.state().owned) > 0)
        steps.run_until(lambda: a.state().standing_by + b.state().standing_by == 3)
        steps.run_until(lambda: not a.state().unseen and not b.state().unseen)
        for table in tables:
            assert sorted([a.hear(hint(table))[1], b.hear(hint(table))[1]]) == [Heard.ELSEWHERE, Heard.LOOKS]


def test_the_second_spelling_of_a_key_counts_if_the_first_is_no_table(tmp_path: Path, steps: Steps) -> None:
    table = lakebed.create(tmp_path / "lake" / "a+b", SCHEMA, keys=["id"])
    with working(tmp_path / "lake", "one") as [one]:
        steps.run_until(lambda: rests(one, 1))
        both = Hint((table.path.replace("+", " "), table.path))
        assert one.hear(both) == (table.path, Heard.LOOKS)


class Port:
    """The port of pokes of a worker."""

    def __init__(self, url: str) -> None:
        self._address = url.removeprefix("http://")

    def send(self, body: bytes | object, path: str = "/poke", method: str = "POST", **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self._address, timeout=60)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text)


@contextmanager
def listening(one: FleetWorker, tokens: str | None = None) -> Iterator[Port]:
    server = poke_server(one.poked, Listening(port=0), tokens)
    server.start()
    try:
        yield Port(server.url)
    finally:
        server.close()


def test_a_poke_over_http_is_answered_with_what_becomes_of_each_table(tmp_path: Path, steps: Steps) -> None:
    [table] = tables_in(tmp_path / "lake", 1)
    heard: list[events.HintsReceived] = []
    events.listen(lambda event: heard.append(event) if isinstance(event, events.HintsReceived) else None)
    with working(tmp_path / "lake", "one") as [one], listening(one) as port:
        steps.run_until(lambda: rests(one, 1))
        steps.run()
        table.apply(changes(1))
        new = f"{tmp_path}/lake/public/new"
        assert port.send([table.path, new, "s3://elsewhere/t"]) == (
            202,
            {"worker": "one", "looks": [table.path], "known": [], "elsewhere": [], "new": [new],
             "unrelated": ["s3://elsewhere/t"], "malformed": 0},
        )  # fmt: skip
        steps.run_for(1)
        assert is_settled(table)
        assert (heard[0].looks, heard[0].new, heard[0].unrelated, heard[0].malformed) == (1, 1, 1, 0)


def test_a_poke_that_can_not_be_read_is_answered_with_a_problem(tmp_path: Path, steps: Steps) -> None:
    tables_in(tmp_path / "lake", 1)
    malformed: list[int] = []
    events.listen(lambda event: malformed.append(event.malformed) if isinstance(event, events.HintsReceived) else None)
    with working(tmp_path / "lake", "one") as [one], listening(one) as port:
        for body in (b"{", {}, [7], ["gopher://x/y"], None):
            status, problem = port.send(body)
            assert status == problem["status"] == 400 and problem["detail"], body
        assert malformed == [1, 1, 1, 1]
        assert port.send(b'["' + b"x" * (1 << 20) + b'"]')[0] == 413
        assert port.send([], **{"Content-Type": "text/plain"})[0] == 415
        assert port.send([], path="/v1/tables")[0] == 404
        assert port.send([], method="PUT")[0] == 405
        assert port.send([], Host="evil.example")[0] == 421, "a page of somebody else's reaches nothing"
        assert port.send([])[0] == 202 and port.send(b"", "/v1/healthz", "GET")[0] == 200


def test_a_port_that_others_reach_needs_tokens(tmp_path: Path, steps: Steps) -> None:
    tables_in(tmp_path / "lake", 1)
    with pytest.raises(InvalidInput, match="--tokens"):
        poke_server(lambda body: {}, Listening(host="0.0.0.0", port=0), None)
    tokens = tmp_path / "tokens"
    tokens.write_text(line_of("of a reader", Role.READER, "webhook") + "\n")
    with working(tmp_path / "lake", "one") as [one], listening(one, str(tokens)) as port:
        assert port.send([])[0] == 401
        assert port.send([], Authorization="Bearer wrong")[0] == 401
        assert port.send([], Authorization="Bearer of a reader")[0] == 202


def test_a_worker_looks_as_seldom_as_its_user_has_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Steps
) -> None:
    asked: set[float | None] = set()

    def pause(idle: float, freshness: int | None, longest: float | None) -> float:
        asked.add(longest)
        return HOUR

    monkeypatch.setattr(watched, "pause_seconds", pause)
    tables_in(tmp_path / "lake", 1)
    with working(tmp_path / "lake", "one", limits=Limits(cores=1, memory_bytes=1 << 30, look_seconds=77.0)) as [one]:
        steps.run_until(lambda: rests(one, 1) and asked)
    assert asked == {77.0}


def test_the_estimate_counts_the_looks_that_the_user_has_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["simulate", "--idle-tables", "10000", "--look-seconds", "3600"]) == 0
    assert "240,000 looks, one GET each: every 3600 seconds" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        execute(["simulate", "--idle-tables", "10000", "--look-seconds", "0"])
