"""Who may not ask gets nothing, and what nobody may do is not done."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from lakebed.errors import InvalidInput, LakebedError
from lakebed.service import app
from lakebed.service.app import BURST_MAX, PER_SECOND_MAX, Rates, tokens_of
from lakebed.service.tokens import Role, TokenFile, Tokens, digest_of, line_of, new_token
from tests.service.conftest import TOKENS, Serve

CHANGES = [
    ("POST", "/v1/tables", {"name": "x", "columns": [{"name": "id", "type": "long"}]}),
    ("PATCH", "/v1/tables/orders", {"properties": {"lakebed.read_budget": 3}}),
    ("POST", "/v1/tables/orders/jobs", {"kind": "settle"}),
    ("DELETE", "/v1/tables/orders/jobs/x", None),
    ("DELETE", "/v1/tables/orders", None),
]


def test_without_a_token_or_with_a_wrong_one_nothing_is_answered(lake: Path, serve: Serve) -> None:
    served = serve(lake)
    for role in (None, "no such token", "", "a-reader's-token "[:-2]):
        for method, target, body in (("GET", "/v1/tables", None), ("GET", "/v1/tables/orders", None), *CHANGES):
            status, headers, answer = served.ask(method, target, body, role=role)
            assert status == 401 and headers["www-authenticate"] == "Bearer" and b"orders" not in answer
    assert served.ask("GET", "/v1/healthz", role=None)[0] == 200
    assert served.ask("GET", "/v1/tables", role=None, Authorization="Basic " + TOKENS["reader"])[0] == 401


def test_a_reader_changes_nothing(lake: Path, serve: Serve) -> None:
    served = serve(lake)
    before = served.json("/v1/tables/orders")["version"]
    for method, target, body in CHANGES:
        problem = served.problem(method, target, body, role="reader")
        assert problem["status"] == 403 and "reader" in problem["detail"]
    assert served.json("/v1/tables/orders")["version"] == before and not (lake / "x").exists()


def test_without_tokens_this_machine_may_read_and_a_foreign_page_may_not(lake: Path, serve: Serve) -> None:
    served = serve(lake, nobody=Role.READER)
    assert served.ask("GET", "/v1/tables/orders", role=None)[0] == 200
    assert served.ask("DELETE", "/v1/tables/orders", role=None)[0] == 401
    assert served.ask("GET", "/v1/tables/orders", role=None, Host="evil.example")[0] == 421
    assert served.ask("POST", "/v1/tables/orders/scan", b"{}", role=None, Content_Type="text/plain")[0] == 415


@pytest.mark.parametrize(
    "where",
    [
        "id in (select id from read_csv('/etc/passwd'))", "read_text('/etc/passwd') = day", "getenv('HOME') = day",
        "sum(amount) > 1", "row_number() over () = 1", "id = 1; drop table x", "id = 1) or (true", "sleep_ms(1000000) is null",
        "nextval('s') = 1", "unnest([1, 2]) = id", "current_setting('secret_directory') = day and $1", "id = ?", "*", "",
        "query('select 1') = id", "nothing_here = 3", "exists (from glob('/*'))",
    ],
)  # fmt: skip
def test_a_condition_is_an_expression_over_a_row_or_it_is_refused(lake: Path, serve: Serve, where: str) -> None:
    served = serve(lake)
    for target in ("/v1/tables/orders/scan", "/v1/tables/orders/jobs"):
        body = {"where": where} if target.endswith("scan") else {"kind": "recluster", "arguments": {"where": where}}
        problem = served.problem("POST", target, body)
        assert problem["status"] == 400 and "root:" not in problem["detail"]


def test_a_condition_that_would_take_long_is_never_run(lake: Path, serve: Serve) -> None:
    served = serve(lake)
    for slow in (
        "list_sum(list_transform(range(100000000), lambda x: x * amount)) > 0 and repeat('x', 1000000000) > day",
        "regexp_matches(day, repeat('a', 1000000000))",  # DuckDB evaluates the constant when it binds the condition
    ):
        began = time.process_time()
        scan = served.json("/v1/tables/orders/scan", "POST", {"where": slow})
        assert scan["files_matched"] == scan["files_of_version"] and time.process_time() - began < 5


def test_no_path_leads_out_of_the_roots(lake: Path, serve: Serve) -> None:
    outside = lake.parent / "outside"
    (outside / "_delta_log").mkdir(parents=True)
    served = serve(lake)
    names = (
        "..%2Foutside",
        "%2e%2e%2foutside",
        "..",
        "%2e%2e",
        "..%5Coutside",
        "orders%2F..%2F..%2Foutside",
        "%00",
        ".",
        "_lakebed",
    )
    for name in names:
        assert served.ask("GET", f"/v1/tables/{name}")[0] in (400, 404), name
    assert served.ask("GET", "/v1/../../etc/passwd")[0] == 404


def test_requests_are_bounded_in_size_and_time(lake: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(lake)
    large = json.dumps({"where": "id = 1", "columns": ["x" * app.BODY_BYTES_MAX]}).encode()
    assert served.problem("POST", "/v1/tables/orders/scan", large)["status"] == 413
    nested = b"[" * 100_000
    assert served.problem("POST", "/v1/tables/orders/scan", nested)["status"] == 400
    assert served.problem("GET", "/v1/tables?limit=3&limit=4")["status"] == 400
    assert served.problem("GET", "/v1/tables?nonsense=1")["detail"].startswith("this route has no parameter 'nonsense'")
    assert served.problem("PUT", "/v1/tables")["status"] == 405
    monkeypatch.setattr(app, "BODY_SECONDS_MAX", 0.2)
    host, port = served.address.split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/tables/orders/scan HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKENS['reader']}\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 10\r\n\r\n".encode())
        assert connection.recv(1_000).startswith(b"HTTP/1.1 408")
    monkeypatch.setattr(app, "REQUEST_SECONDS_MAX", 0.0)
    assert served.problem("GET", "/v1/tables/orders/parts")["status"] == 504


def test_a_caller_sends_so_many_requests_a_second_and_others_are_not_kept_from_it() -> None:
    now = 0.0
    rates = Rates(lambda: now)
    assert all(rates.wait_seconds("a") == 0 for _ in range(int(BURST_MAX)))
    assert 0 < rates.wait_seconds("a") <= 1 / PER_SECOND_MAX and rates.wait_seconds("b") == 0
    now += 1.0
    assert sum(rates.wait_seconds("a") == 0 for _ in range(2_000)) == int(PER_SECOND_MAX)


def test_tokens_are_read_again_when_their_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    first, second = new_token(), new_token()
    file.write_text(f"# who\n\n{line_of(first, Role.READER, 'dashboards')}\n")
    tokens = tokens_of(str(file), "0.0.0.0", "")
    caller = tokens.caller(f"Bearer {first}")
    assert caller is not None and (caller.name, caller.role) == ("dashboards", Role.READER)
    file.write_text(line_of(second, Role.OPERATOR, "alice"))
    assert tokens.caller(f"Bearer {first}") is None
    assert (found := tokens.caller(f"bearer {second}")) is not None and found.role is Role.OPERATOR
    file.unlink()
    assert tokens.caller(f"Bearer {second}") is None
    nobody = tokens.caller(None)
    assert nobody is not None and nobody.role is Role.NOBODY


def test_a_file_of_tokens_that_is_wrong_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    for wrong in (
        "admin " + digest_of("x") + " bob",
        "reader abc bob",
        f"reader {digest_of('x')}",
        "a-token-in-the-clear",
    ):
        file.write_text("# a comment\n" + wrong)
        with pytest.raises(InvalidInput, match="line 2"):
            TokenFile(str(file))
    with pytest.raises(InvalidInput, match="can't be read"):
        TokenFile(str(tmp_path / "nothing"))
    with pytest.raises(InvalidInput, match="without spaces"):
        line_of("x", Role.READER, "two words")
    with pytest.raises(InvalidInput, match="--tokens"):
        tokens_of(None, "0.0.0.0", "own")
    assert isinstance(tokens_of(None, "127.0.0.1", "own"), Tokens)


def test_a_service_whose_store_fails_says_so(lake: Path, serve: Serve) -> None:
    (lake / "broken" / "_delta_log").mkdir(parents=True)
    (lake / "broken" / "_delta_log" / f"{0:020d}.json").write_text("{nonsense")
    served = serve(lake)
    problem = served.problem("GET", "/v1/tables/broken")
    assert problem["status"] == 500 and problem["type"] == "urn:lakebed:problem:corrupt"
    with pytest.raises(LakebedError):
        served.client().table("broken")
    assert served.client().tables() == ("broken", "orders", "public.items")


def test_the_files_of_the_page_need_no_token_and_what_it_asks_does(lake: Path, serve: Serve) -> None:
    served = serve(lake)
    status, headers, body = served.ask("GET", "/", role=None)
    assert status == 200 and b"warehouse.js" in body and "frame-ancestors 'none'" in headers["content-security-policy"]
    assert served.ask("GET", "/", role=None, If_None_Match=headers["etag"])[0] == 304
    assert served.ask("GET", "/warehouse.js", role=None)[0] == 200
    for target in (
        "/v1/whoami",
        "/v1/survey",
        "/v1/queue",
        "/v1/jobs",
        "/api/table?path=orders",
        "/api/levels?path=orders",
    ):
        assert served.ask("GET", target, role=None)[0] == 401
    assert served.ask("GET", "/api/table?path=nothing", role="reader")[0] == 404
    on_loopback = serve(lake, nobody=Role.READER)
    assert on_loopback.ask("GET", "/", role=None, Host="evil.example")[0] == 421
