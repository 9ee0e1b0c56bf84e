"""Every answer is as the OpenAPI document says, whatever is asked; and nothing that is asked breaks the service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.service.conftest import Serve, Served

STREAMS = {"stream_events", "stream_table_events"}
HOSTILE = [
    "", " ", "\0", "..", "../../etc/passwd", "/etc/passwd", "%2e%2e%2f", "orders/../orders", "_lakebed", "a" * 5_000, "ключ",
    "💥", "' or 1=1 --", "1; drop table orders", "read_csv('/etc/passwd')", "(select 1)", "getenv('HOME')", "sleep_ms(100000)",
    "-1", "1e400", "9" * 400, "0x10", "true", "null", "*", "\ud7ff", "repeat('x', 100000000) = amount", "{}",
    "((((((((((((((((1))))))))))))))))",
]  # fmt: skip


class Described:
    """A service, each answer of which is checked against its document."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.document = served.json("/v1/openapi.json")
        self.succeeded: set[str] = set()

    def operations(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        for path, methods in self.document["paths"].items():
            for method, operation in methods.items():
                yield path, method.upper(), operation

    def ask(
        self, operation_id: str, path: dict[str, str], query: dict[str, str], body: Any = None, **headers: str
    ) -> tuple[int, Any]:
        template, method, operation = next(each for each in self.operations() if each[2]["operationId"] == operation_id)
        for name, value in path.items():
            template = template.replace(f"{{{name}}}", quote(value, safe=""))
        target = f"{template}?{urlencode(query)}" if query else template
        status, answered, raw = self.served.ask(method, target, body, **headers)
        described = operation["responses"].get(str(status), operation["responses"]["default"])
        is_described = str(status) in operation["responses"]
        assert is_described == (status < 400), (operation_id, status, raw[:300])
        [(media_type, content)] = described["content"].items()
        assert answered["content-type"].partition(";")[0] == media_type
        value = json.loads(raw)
        schema = {**content["schema"], "components": self.document["components"]}
        for error in Draft202012Validator(schema).iter_errors(value):
            raise AssertionError(f"{operation_id} {status}: {list(error.absolute_path)} {error.message[:500]}")
        if status < 400:
            self.succeeded.add(operation_id)
        return status, value


@pytest.fixture
def described(lake: Path, serve: Serve) -> Described:
    return Described(serve(lake))


def test_the_document_is_sound(described: Described) -> None:
    assert described.document["openapi"] == "3.1.0"
    ids = [operation["operationId"] for _, _, operation in described.operations()]
    assert len(ids) == len(set(ids)) and set(ids) > STREAMS
    for path, _, operation in described.operations():
        named = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
        assert named == {part[1:-1] for part in path.split("/") if part.startswith("{")}
        for each in operation["parameters"]:
            Draft202012Validator.check_schema(each["schema"])
        for response in operation["responses"].values():
            for content in response["content"].values():
                Draft202012Validator.check_schema(content["schema"])
    for schema in described.document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_each_route_answers_as_it_is_described(described: Described) -> None:
    one = {"name": "orders"}
    for operation_id in (
        "describe_table", "list_partitions", "list_schemas", "list_claims", "list_compactions", "list_parts", "plan_table",
        "list_jobs",
    ):  # fmt: skip
        described.ask(operation_id, one, {})
    described.ask("health", {}, {})
    described.ask("openapi", {}, {})
    described.ask("see_caller", {}, {})
    described.ask("list_tables", {}, {"search": "o", "limit": "1"})
    described.ask("survey_tables", {}, {"search": "o", "sort": "late", "limit": "1"})
    described.ask("list_commits", one, {"files": "true", "last": "50"})
    described.ask("scan_table", one, {}, {"where": "id > 3", "columns": ["id"]})
    new = {"name": "made", "columns": [{"name": "id", "type": "long", "nullable": False}], "keys": ["id"]}
    described.ask("create_table", {}, {}, new)
    described.ask("change_table", one, {}, {"properties": {"lakebed.read_budget": 4}}, If_Match="*")
    _, job = described.ask("start_job", one, {}, {"kind": "recluster", "arguments": {"final": True}})
    described.ask("list_all_jobs", {}, {"state": "waiting", "limit": "1"})
    described.ask("see_queue", {}, {"state": "waiting", "limit": "1"})
    described.ask("see_job", {**one, "id": job["id"]}, {})
    described.ask("cancel_job", {**one, "id": job["id"]}, {})
    described.ask("drop_table", {"name": "made"}, {"delay_seconds": "100"})
    hook = {"kind": "webhook", "url": "http://127.0.0.1:1/hook", "tables": ["public.*"]}
    assert described.ask("put_listener", {"name": "hook"}, {}, hook)[0] == 201
    assert described.ask("put_listener", {"name": "hook"}, {}, {**hook, "kinds": ["appended"]})[0] == 200
    assert described.ask("see_listener", {"name": "hook"}, {})[1]["kinds"] == ["appended"]
    assert [each["name"] for each in described.ask("list_listeners", {}, {})[1]["listeners"]] == ["hook"]
    described.ask("remove_listener", {"name": "hook"}, {})
    assert described.ask("see_listener", {"name": "hook"}, {})[0] == 404
    everything = {operation["operationId"] for _, _, operation in described.operations()}
    assert described.succeeded == everything - STREAMS


def values_of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema allows, more or less."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "const" in schema:
        return st.just(schema["const"])
    if "oneOf" in schema:
        return st.one_of([values_of(each) for each in schema["oneOf"]])
    match schema.get("type"):
        case "object" if "properties" in schema:
            required = {name: values_of(schema["properties"][name]) for name in schema["required"]}
            others = {name: values_of(each) for name, each in schema["properties"].items() if name not in required}
            return st.fixed_dictionaries(required, optional=others)
        case "object":
            return st.dictionaries(st.sampled_from([*HOSTILE, "amount", "lakebed.read_budget"]), anything(), max_size=3)
        case "array":
            return st.lists(values_of(schema["items"]), max_size=3)
        case "integer":
            return st.integers(-2, 40) | st.sampled_from([2**31, 2**53, 2**63, 2**64, 10**30])
        case "boolean":
            return st.booleans()
        case _:
            return st.sampled_from([*HOSTILE, "orders", "id", "amount", "long", "id > 3", "settle", "2026-01-01"])


def anything() -> st.SearchStrategy[Any]:
    return st.sampled_from([*HOSTILE, 0, -1, 1.5, True, None, [], {}, ["id"], {"id": "long"}, 10**30])


@st.composite
def requests(
    draw: st.DrawFn, document: dict[str, Any]
) -> tuple[str, dict[str, str], dict[str, str], Any, dict[str, str]]:
    operations = [each for methods in document["paths"].values() for each in methods.values()]
    operation = draw(st.sampled_from([each for each in operations if each["operationId"] not in STREAMS]))
    path, query, headers = {}, {}, {}
    for each in operation["parameters"]:
        if each["in"] == "path":
            path[each["name"]] = draw(st.sampled_from(["orders", "public.items", *filter(None, HOSTILE)]))
        elif draw(st.booleans()):
            value = str(draw(values_of(each["schema"]) | anything()))
            if each["in"] == "query":
                query[each["name"]] = value
            else:
                headers[each["name"].replace("-", "_")] = value if value.isprintable() and value.isascii() else "*"
    body = None
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        body = draw(st.one_of(values_of(schema), values_of(schema), anything()))
    return operation["operationId"], path, query, body, headers


def test_whatever_is_asked_the_answer_is_as_described_and_never_a_failure_of_the_service(described: Described) -> None:
    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(requests(described.document))
    def ask(request: tuple[str, dict[str, str], dict[str, str], Any, dict[str, str]]) -> None:
        operation_id, path, query, body, headers = request
        status, answer = described.ask(operation_id, path, query, body, **headers)
        assert status < 500, (request, answer)

    ask()
    assert described.ask("describe_table", {"name": "orders"}, {})[0] == 200
