"""What the page is told, over HTTP: figures that agree with the table, and nothing to those who may not ask."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pyarrow as pa
import pytest

import lakebed
from lakebed import http
from lakebed.errors import InvalidInput, MissingPrerequisite
from lakebed.events import SourceLagged
from lakebed.health.status import Observer, Status
from lakebed.parts.quarantine import QUARANTINE_SCHEMA, QUARANTINE_SUFFIX
from lakebed.table import internals_of
from lakebed.ui import documents, watch
from lakebed.ui.documents import Live, blotted, shown
from lakebed.ui.pages import PageServer
from tests.clock import Clock
from tests.infra.s3 import S3Server
from tests.ui.conftest import Serve, Served
from tests.ui.tables import batch, claim
from tests.waiting import outcome, wait_until

ONE = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def watched_of(page: Served, table: lakebed.Table) -> watch.Watched:
    found = page.tables.find(table.path)
    assert found is not None
    return found


def test_figures_are_those_of_the_table(orders: lakebed.Table, serve: Serve) -> None:
    page = serve(orders)
    [told] = page.json("/api/tables")["tables"]
    status = orders.status()
    figures = told["figures"]
    assert (told["path"], told["name"], told["severity"]) == (orders.path, "orders", "ok")
    for name in (
        "version",
        "rows",
        "dead_rows",
        "bytes",
        "parts",
        "tail_rows",
        "depth",
        "read_budget",
        "backlog_bytes",
    ):
        assert figures[name] == getattr(status, name), name
    whole = page.of("table", orders)
    assert whole["figures"] == figures
    assert whole["shape"]["sort_key"] == ["region", "created"]
    planned = orders.maintenance.plan().to_pylist()
    assert [plan["why"] for plan in whole["plan"]["plans"]] == [
        row["why"] for row in planned if row["level"] is not None
    ]
    assert {left["why"] for left in whole["plan"]["left"]} == {row["why"] for row in planned if row["level"] is None}


def test_the_page_plans_what_is_read_most_first_as_the_command_does(tmp_path: Path, serve: Serve) -> None:
    table = lakebed.create(
        tmp_path / "t", ONE.append(pa.field("region", pa.string())), keys=["id"], sort_key=["region"]
    )
    for number in range(3):
        table.apply(pa.table({"id": [number], "region": [f"r{number}"]}, table.schema))
        table.settle()
    table.set_sort_key(["id"])
    table.set_properties({"lakebed.count_reads": "on"})
    table.to_arrow(where="region = 'r2'")
    internals_of(table).reads.close()  # publishes what was counted
    page = serve(table)
    planned = [row["why"] for row in table.maintenance.plan().to_pylist() if row["level"] is not None]
    assert planned[0].endswith("read 1 time in the last hour")
    assert [plan["why"] for plan in page.of("table", table)["plan"]["plans"]] == planned


def test_all_answers_of_a_look_are_about_one_version_though_the_table_changes_meanwhile(
    orders: lakebed.Table, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, first = Observer.look, orders.version

    def look_while_somebody_writes(self: Observer, deep: bool = False) -> Status:
        found = look(self, deep)
        if orders.version == first:
            orders.apply(orders.to_arrow().slice(0, 5))
            orders.delete("order_id >= 0")
            orders.settle()
        return found

    monkeypatch.setattr(Observer, "look", look_while_somebody_writes)
    seen, _ = watched_of(serve(orders), orders).seen()
    assert seen is not None and seen.levels is not None and seen.timeline is not None
    figures, *drawings = (
        json.loads(seen.table.body)["figures"],
        json.loads(seen.levels.body),
        json.loads(seen.timeline.body),
    )
    assert {one["version"] for one in (figures, *drawings)} == {seen.version}
    assert figures["rows"] == orders.to_arrow(version=seen.version).num_rows


def test_levels_and_parts_are_those_of_the_table(orders: lakebed.Table, serve: Serve) -> None:
    page = serve(orders)
    picture = page.of("levels", orders)
    parts = {row["path"]: row for row in orders.inspect.parts().to_pylist()}
    assert picture["parts"] == len(parts) == len(picture["columns"]["first"])
    for index in range(len(parts)):
        told = page.of("part", orders, id=picture["columns"]["id"][index])
        part = parts.pop(told["path"])
        for name in ("rows", "dead_rows", "bytes", "min_block", "max_block"):
            assert picture["columns"][name][index] == part[name], name
    assert not parts


def test_the_timeline_is_that_of_the_log(orders: lakebed.Table, serve: Serve) -> None:
    page = serve(orders)
    wait_until(lambda: page.of("timeline", orders)["is_whole"])
    commits = page.of("timeline", orders)["commits"]
    known = orders.inspect.timeline().to_pylist()
    assert [(commit["version"], commit["operation"]) for commit in commits] == [
        (row["version"], row["operation"]) for row in known
    ]
    assert commits[0]["metrics"] == dict(known[0]["metrics"])


def test_a_running_merge_is_reported_with_an_estimate_from_earlier_ones(orders: lakebed.Table, serve: Serve) -> None:
    merging = claim(orders, Clock(time.time()), 2, 30)
    kept = sum(row["bytes"] for row in orders.inspect.parts().to_pylist() if row["path"] in merging.sources)
    page = serve(orders)
    told = page.of("table", orders)
    [found] = told["claims"]
    merges = [row for row in orders.inspect.compactions().to_pylist() if row["seconds"]]
    rate = sum(row["bytes_in"] for row in merges) / sum(row["seconds"] for row in merges)
    assert (found["id"], found["replica"], found["is_live"], found["parts"]) == (merging.id, "worker-2", True, 2)
    assert found["since_ms"] == merging.since_ms and found["lease_ms"] == merging.lease_ms
    assert found["bytes"] == kept and told["merges_weighed"] == len(merges)
    assert found["estimated_seconds"] == pytest.approx(found["bytes"] / rate, abs=0.001)
    picture = page.of("levels", orders)
    states = [picture["states"][state] for state in picture["columns"]["state"]]
    assert states.count("claimed") == 2


def test_what_did_not_change_is_not_sent_again_and_what_did_is(orders: lakebed.Table, serve: Serve) -> None:
    page = serve(orders)
    target = f"/api/levels?path={quote(orders.path, safe='')}"
    wait_until(lambda: page.of("timeline", orders)["is_whole"])
    for each in (
        target,
        target.replace("levels", "table"),
        target.replace("levels", "timeline"),
        "/api/tables",
        "/main.js",
    ):
        answer, body = page.ask(each)
        tag = answer.headers["ETag"]
        again, nothing = page.ask(each, If_None_Match=tag)
        assert (again.status, nothing, again.headers["ETag"]) == (304, b"", tag), each
    answer, body = page.ask(target)
    orders.delete("amount < 50000")
    assert wait_until(lambda: page.ask(target, If_None_Match=answer.headers["ETag"])[1]) != body


def test_a_table_that_does_not_change_is_not_planned_again(
    orders: lakebed.Table, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[int] = []
    real = watch.plan
    monkeypatch.setattr(watch, "RELOOK_SECONDS", 3600.0)
    monkeypatch.setattr(watch, "plan", lambda *all, **named: planned.append(all[0].version) or real(*all, **named))
    page = serve(orders, interval=0.05)
    for _ in range(30):
        page.of("table", orders)
        time.sleep(0.03)
    assert planned == [orders.version]


def test_nobody_looks_at_tables_while_nobody_asks(
    orders: lakebed.Table, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "IDLE_SECONDS", 0.3)
    page = serve(orders, interval=0.05)
    page.of("table", orders)
    wait_until(lambda: watched_of(page, orders).is_asleep)
    orders.delete("amount < 50000")
    assert page.of("table", orders)["figures"]["version"] == orders.version, "who asks waits for a new look"


def test_answers_are_compressed_for_those_who_can_read_that(orders: lakebed.Table, serve: Serve) -> None:
    page = serve(orders)
    target = f"/api/timeline?path={quote(orders.path, safe='')}"
    wait_until(lambda: page.of("timeline", orders)["is_whole"])
    plain, zipped = page.ask(target), page.ask(target, Accept_Encoding="br, gzip")
    assert zipped[0].headers["Content-Encoding"] == "gzip" and plain[0].headers["Content-Encoding"] is None
    assert gzip.decompress(zipped[1]) == plain[1]


def test_a_broken_table_says_why_and_the_others_are_shown(tmp_path: Path, orders: lakebed.Table, serve: Serve) -> None:
    broken = lakebed.create(tmp_path / "broken", ONE, keys=["id"])
    commit = broken.apply(pa.table({"id": [1]}, ONE))
    file = Path(broken.path, "_delta_log", f"{commit:020}.json")
    whole = file.read_bytes()
    file.write_bytes(b"{ not JSON")
    missing = str(tmp_path / "missing")
    page = serve(broken, missing, orders)
    told = {table["name"]: table for table in page.json("/api/tables")["tables"]}
    assert (told["broken"]["severity"], told["broken"]["figures"]) == ("critical", None)
    assert "can't be read" in told["broken"]["findings"][0]["what"] and told["broken"]["findings"][0]["remedy"]
    assert told["missing"]["error"] == f"there is no table at {missing}"
    assert told["orders"]["severity"] == "ok"
    answer, body = page.ask(f"/api/levels?path={quote(broken.path, safe='')}")
    assert (answer.status, "can't be read now" in body.decode()) == (503, True)
    file.write_bytes(whole)
    wait_until(lambda: page.of("table", broken)["severity"] == "ok")
    lakebed.create(missing, ONE, keys=["id"])
    wait_until(lambda: page.of("table", missing)["severity"] == "ok")


def test_a_table_whose_store_hangs_is_called_late_and_holds_up_no_other(
    orders: lakebed.Table, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LATE_SECONDS", 0.5)
    monkeypatch.setattr(watch, "WAIT_SECONDS", 1.0)
    slow = lakebed.create(tmp_path / "slow", ONE, keys=["id"])
    page = serve(slow, orders)
    page.of("table", slow)
    pipe = Path(slow.path, "_delta_log", f"{1:020}.json")
    os.mkfifo(pipe)  # whoever reads it waits
    wait_until(lambda: [table["is_late"] for table in page.json("/api/tables")["tables"]] == [True, False])
    assert page.of("table", slow)["figures"]["version"] == 0, "what was seen last"
    with pipe.open("wb"):
        pipe.unlink()


@pytest.fixture
def requests_that_wait(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that waited for a look, but for those that look."""
    waited: list[str] = []

    class Counting(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            name = threading.current_thread().name
            waited.extend([] if name.startswith("lakebed-ui") else [name])
            return super().wait(timeout)

    monkeypatch.setattr(watch, "threading", SimpleNamespace(Condition=Counting, Thread=threading.Thread))
    return waited


def test_a_store_that_never_answered_is_waited_for_once(
    requests_that_wait: list[str], orders: lakebed.Table, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "WAIT_SECONDS", 0.5)
    monkeypatch.setattr(watch, "LATE_SECONDS", 0.5)
    slow = lakebed.create(tmp_path / "slow", ONE, keys=["id"])
    pipe = Path(slow.path, "_delta_log", f"{1:020}.json")
    os.mkfifo(pipe)
    page = serve(slow, orders)
    wait_until(lambda: [table["is_late"] for table in page.json("/api/tables")["tables"]] == [True, False])
    assert requests_that_wait
    requests_that_wait.clear()
    told = [table["severity"] for table in page.json("/api/tables")["tables"]]
    assert told == [None, "ok"] and not requests_that_wait
    with pipe.open("wb"):
        pipe.unlink()


def test_a_path_that_is_no_utf_8_leaves_the_other_tables_alone(
    orders: lakebed.Table, serve: Serve, tmp_path: Path
) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    page = serve(odd, orders)
    told = page.json("/api/tables")["tables"]
    assert [table["severity"] for table in told] == ["critical", "ok"]
    assert told[0]["path"] == f"{tmp_path}/\ufffd"
    assert page.of("table", told[0]["path"])["error"].startswith("there is no table at")
    lakebed.create(odd, ONE, keys=["id"])
    wait_until(lambda: page.of("table", told[0]["path"])["severity"] == "ok")


def test_tables_that_differ_in_what_is_hidden_are_both_shown(serve: Serve, tmp_path: Path) -> None:
    page = serve(*(lakebed.create(tmp_path / f"token={name}", ONE, keys=["id"]) for name in "ab"))
    told = page.json("/api/tables")["tables"]
    assert len({table["path"] for table in told}) == 2 and all("***" in table["path"] for table in told)


def test_what_is_sent_along_with_a_request_is_no_request(
    orders: lakebed.Table, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "IDLE_SECONDS", 0.1)
    inner = b"GET /api/tables HTTP/1.1\r\nHost: localhost\r\n\r\n"
    outer = b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(inner)
    answers = b""
    with socket.create_connection(serve(orders).address, timeout=60) as connection:
        connection.sendall(outer + inner)
        with suppress(ConnectionResetError):
            while read := connection.recv(65536):
                answers += read
    assert answers.count(b"HTTP/1.1 ") == 1


def test_only_get_and_head_are_answered(orders: lakebed.Table, serve: Serve) -> None:
    page = serve(orders)
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
        answer, _ = page.ask("/api/tables", method)
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD"), method
    answer, body = page.ask("/api/tables", "HEAD")
    assert (answer.status, body) == (200, b"") and int(answer.headers["Content-Length"]) > 100


def test_a_name_that_was_made_to_lead_here_is_refused(orders: lakebed.Table, serve: Serve) -> None:
    page = serve(orders)
    for host in (
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "",
        "localhost.evil.example",
        "[::1].evil",
    ):
        answer, body = page.ask("/api/tables", Host=host)
        assert (answer.status, b"orders" in body) == (421, False), host
    for host in (
        "localhost",
        "[::1]",
        "LOCALHOST:8080",
        "127.0.0.1:9466",
        "[::1]:9466",
        "10.1.2.3",
        socket.gethostname(),
    ):
        assert page.ask("/api/tables", Host=host)[0].status == 200, host


@pytest.mark.parametrize(
    "target",
    [
        "/../server.py", "/..%2fserver.py", "/%2e%2e/server.py", "//etc/passwd", "/page/index.html", "/main.js/", "/api",
        "/api/table", "/api/table?path=/etc", "/api/levels?path=..", "/api/part?path=x&id=1",
        "/api/runbook?section=../errors", "/\0", "/main.js%00",
        "//[x",
    ],
)  # fmt: skip
def test_nothing_but_the_page_and_the_tables_is_served(target: str, serve: Serve, tmp_path: Path) -> None:
    with socket.create_connection(("127.0.0.1", int(serve(str(tmp_path)).url.rsplit(":", 1)[1][:-1]))) as client:
        client.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert re.match(rb"HTTP/1\.1 40[04] ", answer), answer[:80]


def test_a_part_keeps_its_id_and_one_that_left_is_soon_null(orders: lakebed.Table, serve: Serve) -> None:
    page = serve(orders)
    before = page.of("levels", orders)
    told = {number: page.of("part", orders, id=number)["path"] for number in before["columns"]["id"]}
    orders.apply(batch(random.Random(3), 50_000, 40, 20_700))
    orders.settle()
    orders.maintenance.compact()
    after = wait_until(lambda: (now := page.of("levels", orders))["version"] == orders.version and now)
    live = {row["path"] for row in orders.inspect.parts().to_pylist()}
    assert {path for number, path in told.items() if number in after["columns"]["id"]} == live & set(told.values())
    left = {number for number, path in told.items() if path not in live}
    assert left and {page.of("part", orders, id=number)["path"] for number in left} <= set(told.values())
    for later in range(5):  # looks
        orders.apply(batch(random.Random(3), 60_000 + 100 * later, 40, 20_700))
        wait_until(lambda: page.of("levels", orders)["version"] == orders.version)
    assert {page.of("part", orders, id=number) for number in left} == {None}
    answer, _ = page.ask(f"/api/part?path={quote(orders.path, safe='')}&id=x")
    assert answer.status == 400


def test_schema_properties_and_writers_are_those_of_the_table(orders: lakebed.Table, serve: Serve) -> None:
    page = serve(orders)
    shape = page.of("table", orders)["shape"]
    assert [(one["name"], one["is_nullable"]) for one in shape["columns"]] == [
        ("order_id", False),
        ("region", True),
        ("created", True),
        ("amount", True),
    ]
    assert shape["properties"]["lakebed.read_budget"] == "2"
    wait_until(lambda: page.of("timeline", orders)["is_whole"])
    timeline = page.of("timeline", orders)
    commits = [one for writer in timeline["writers"] for one in writer["commits"].items()]
    assert sum(times for _, times in commits) == len(timeline["commits"]) == orders.version + 1
    assert sum(writer["ingested_rows"] for writer in timeline["writers"]) == sum(
        commit["ingested_rows"] for commit in timeline["commits"]
    )


def test_the_quarantine_is_counted_by_reason(serve: Serve, tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", ONE, keys=["id"])
    records = {
        name: pa.nulls(5, kind) for name, kind in zip(QUARANTINE_SCHEMA.names, QUARANTINE_SCHEMA.types, strict=True)
    }
    records["reason"] = pa.array(["<b>no key", "too long", "too long", None, "too long"])
    beside = lakebed.create(table.path + QUARANTINE_SUFFIX, QUARANTINE_SCHEMA)
    beside.apply(pa.table(records, QUARANTINE_SCHEMA))
    told = serve(table).of("table", table)
    assert [(one["records"], one["reason"]) for one in told["quarantine"]["reasons"]] == [
        (3, "too long"),
        (1, "<b>no key"),
        (1, ""),
    ]
    [finding] = told["findings"]
    assert (finding["check"], finding["runbook"]) == ("quarantine", "LakebedQuarantineGrowing")


def test_every_section_of_the_runbook_that_a_finding_leads_to_is_there(serve: Serve, orders: lakebed.Table) -> None:
    page = serve(orders)
    for check in (*documents._SECTIONS, "M1", "G1"):
        section = documents.section_of(check)
        assert section, check
        assert page.json(f"/api/runbook?section={section}")["text"].startswith(f"## {section}\n"), check
    assert documents.section_of("orphan") is None


def test_what_this_process_knows_of_the_source_is_shown_without_a_new_version(
    orders: lakebed.Table, serve: Serve
) -> None:
    live = Live()
    page = serve(orders, live=live)
    assert page.of("table", orders)["live"] is None
    live(SourceLagged(table=orders.path, topic="<i>orders", records=17))
    wait_until(lambda: page.of("table", orders)["live"])
    assert page.of("table", orders)["live"]["lag"] == [{"topic": "<i>orders", "records": 17}]
    live(SourceLagged(table=orders.path, topic="<i>orders", records=0))
    wait_until(lambda: page.of("table", orders)["live"]["lag"][0]["records"] == 0)


def test_the_page_may_only_talk_to_where_it_came_from(orders: lakebed.Table, serve: Serve) -> None:
    page = serve(orders)
    for target in ("/", "/main.js", "/style.css", "/api/tables", "/none"):
        answer, _ = page.ask(target)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "http" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff" and "Server" not in answer.headers
    for file in resources.files("lakebed.ui").joinpath("page").iterdir():
        text = file.read_text()
        addresses = set(re.findall(r"https?://[^\s\"'`]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not addresses and "innerHTML" not in text and not re.search(r"\beval\(|style=", text), file.name


def test_credentials_are_never_shown(
    orders: lakebed.Table, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        watch.Observer,
        "look",
        lambda self: (_ for _ in ()).throw(
            InvalidInput("no answer from https://ann:s3cr3t@host/x?X-Amz-Signature=abc&secret=def")
        ),
    )
    page = serve(orders, str(tmp_path / "x"))
    body = page.ask("/api/tables")[1].decode()
    assert "https://***@host/x" in body and not re.search("s3cr3t|abc|def|ann:", body)
    assert blotted("aws_secret_access_key = 'x y'").startswith("aws_secret_access_key = '***")
    assert shown({"properties": {"password": "x", "lakebed.keys": "id"}}) == {
        "properties": {"password": "***", "lakebed.keys": "id"}
    }
    assert len(shown("x" * 10_000)) < 1_000


def test_a_path_that_can_t_be_one_and_a_port_that_is_taken_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        PageServer([""], "127.0.0.1", 0, 1.0)
    with pytest.raises(InvalidInput, match="--host"):
        PageServer([str(tmp_path)], "", 0, 1.0)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(MissingPrerequisite, match="--port"):
        PageServer([str(tmp_path)], "127.0.0.1", taken.getsockname()[1], 1.0)


@pytest.mark.slow
def test_the_command_serves_until_it_is_asked_to_stop(orders: lakebed.Table) -> None:
    command = [
        sys.executable,
        "-c",
        "import sys; from lakebed.cli import main; sys.exit(main())",
        "serve",
        "page",
        orders.path,
        "--log-format",
        "off",
    ]
    with subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        found = re.search(r"http://\S+/", said)
        assert found, said
        told = json.load(urllib.request.urlopen(f"{found[0]}api/tables", timeout=120))
        assert told["tables"][0]["figures"]["version"] == orders.version
        process.send_signal(signal.SIGTERM)
        assert outcome(process)[1] == "" and process.returncode == 0


def test_a_table_in_s3_is_shown(s3: S3Server, serve: Serve) -> None:
    table = lakebed.create(f"s3://{s3.create_bucket()}/t", ONE, keys=["id"])
    table.apply(pa.table({"id": [1, 2]}, ONE))
    page = serve(table)
    assert page.of("table", table)["figures"]["tail_rows"] == 2
    assert page.of("levels", table)["parts"] == 1
