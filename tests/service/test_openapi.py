"""Every answer is as the OpenAPI document says, whatever is asked; and nothing that is asked breaks the service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from jsonschema import Draft202012Validator
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS
from schemathesis.core.parameters import ParameterLocation

from tests.service.conftest import TOKENS, Serve, Served
from tests.worlds import TIMES

STREAMS = {"stream_events", "stream_table_events"}
ASKED = settings(
    max_examples=6 * TIMES,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
"""How often each route is asked."""


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
        "describe_table",
        "list_partitions",
        "list_schemas",
        "list_claims",
        "list_compactions",
        "list_parts",
        "plan_table",
        "list_jobs",
    ):
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


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_whatever_is_asked_the_answer_is_as_described_and_never_a_failure_of_the_service(
    mode: GenerationMode, lake: Path, serve: Serve
) -> None:
    """Requests that the document allows, about a table that there is, and requests that it does not allow."""
    served = serve(lake)
    served.end_streams()
    for found in schemathesis.openapi.from_url(f"{served.url}/v1/openapi.json").get_all_operations():

        @settings(ASKED)
        @given(found.ok().as_strategy(generation_mode=mode))
        def ask(case: Case) -> None:
            # A request may be as its schema says and make no sense, such as a condition with a column that the table lacks;
            # and what is wrong beside the body may be lost on its way into an address.
            excluded = [CHECKS.get_one("positive_data_acceptance")]
            if mode is GenerationMode.POSITIVE and "name" in case.path_parameters:
                case.path_parameters["name"] = "orders"
            if case.meta is None or ParameterLocation.BODY not in case.meta.components:
                excluded.append(CHECKS.get_one("negative_data_rejection"))
            answer = case.call(headers={"Authorization": f"Bearer {TOKENS['operator']}"})
            if answer.status_code != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:  # for its size, whatever is in it
                case.validate_response(answer, excluded_checks=excluded)

        with suppress(Unsatisfiable):  # a route that takes nothing can't be asked wrongly
            ask()
    assert served.json("/v1/tables/orders")["name"] == "orders"
