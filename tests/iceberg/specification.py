"""What the specification of Iceberg's REST catalog says of answers, by a client that is made from it (Apache Polaris')."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import re
import sys
from typing import Any

from tests.infra.downloads import iceberg_rest_client

_RESPONSE = re.compile(r"'(\d\d\d|5XX)': (?:\"(\w+)\"|None)")
_OF_HTTP = {405, 408, 413, 415, 429}
"""Refusals that any server may answer with."""


def check(operation: str, status: int, body: bytes) -> Any:
    """The answer to an operation, by its name in the specification. Raises AssertionError if it is not as described."""
    described = responses(operation)
    key = "5XX" if status >= 500 and str(status) not in described else str(status)
    assert key in described or status in _OF_HTTP, (
        f"{operation} answers {status}, which is not described: {body[:300]!r}"
    )
    name = described.get(key, "IcebergErrorResponse")
    if name is None or not body:
        assert not body, f"{operation} {status} has no body"
        return None
    value = json.loads(body)
    is_as_described(name, value)
    if status >= 400 and name == "IcebergErrorResponse":
        assert value["error"]["code"] == status and value["error"]["message"] and value["error"]["type"]
    return value


def is_as_described(name: str, value: Any) -> None:
    """Raises pydantic's ValidationError, or AssertionError for members that are not described."""
    model = _model(name)
    assert model.from_dict(value) is not None
    known = {each.alias or field for field, each in model.model_fields.items()}
    assert set(value) <= known, f"{name} has no {set(value) - known}"


@functools.cache
def responses(operation: str) -> dict[str, str | None]:
    """The models of the answers to an operation, by status."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).lower()
    for module, name in (
        ("iceberg_configuration_api", "IcebergConfigurationAPI"),
        ("iceberg_catalog_api", "IcebergCatalogAPI"),
    ):
        method = getattr(getattr(_imported(f"api.{module}"), name), words, None)
        if method is not None:
            return {
                status: model or None for status, model in _RESPONSE.findall(inspect.getsource(inspect.unwrap(method)))
            }
    raise LookupError(operation)


def _model(name: str) -> Any:
    return getattr(
        _imported("models." + re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()), name
    )


def _imported(module: str) -> Any:
    folder = str(iceberg_rest_client())
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(f"apache_polaris.sdk.catalog.{module}")
