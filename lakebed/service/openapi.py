"""The OpenAPI 3.1 document, made from the declarations of the routes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lakebed.service.problems import MEDIA_TYPE
from lakebed.service.routes import Route, Schema
from lakebed.service.schemas import COMPONENTS, NAME, ref
from lakebed.service.tokens import Role
from lakebed.version import __version__

_IN_PATH = re.compile(r"{(\w+)}")


def openapi(routes: Sequence[Route]) -> dict[str, Any]:
    """The document of these routes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "lakebed",
            "version": __version__,
            "summary": "Tables of a lake: what their logs say, what to read of them, and jobs on them.",
        },
        "paths": paths,
        "components": {
            "schemas": COMPONENTS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    out: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": NAME} for name in _IN_PATH.findall(route.path)),
            *_parameters("query", route.query),
            *_parameters("header", route.headers),
        ],
        "responses": {
            **{str(status): _response(schema, route.media_type) for status, schema in route.answers.items()},
            "default": _response(ref("Problem"), MEDIA_TYPE, "what is wrong"),
        },
        "security": [] if route.role is Role.NOBODY else [{"token": []}],
        "x-role": route.role.name.lower(),
    }
    if route.body is not None:
        out["requestBody"] = {"required": True, "content": {"application/json": {"schema": route.body}}}
    return out


def _parameters(place: str, schemas: Mapping[str, Schema]) -> list[dict[str, Any]]:
    return [{"name": name, "in": place, "required": False, "schema": schema} for name, schema in schemas.items()]


def _response(schema: Schema, media_type: str, description: str = "the answer") -> dict[str, Any]:
    return {"description": description, "content": {media_type: {"schema": schema}}}
