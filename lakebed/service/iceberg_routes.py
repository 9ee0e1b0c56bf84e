"""Iceberg's REST catalog, for reading: ``/iceberg/v1``, as Iceberg's specification describes it (``rest-catalog-open-api.yaml``).

1. A path is split before it is decoded, since a name may have a slash. Levels of a namespace have ``%1F`` between them.
2. A route is served as all routes of the service are (``app``): with roles, limits, and threads.
3. Every error is in Iceberg's form, an object with ``message``, ``type`` and ``code``.

What would write is refused: the log is the only truth, and nobody writes it through Iceberg. Metadata is given as published.
Beside it are the settings with which the service itself reaches the store. Its keys are given only if it was started so, to
callers with a token who ask for them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote_plus, urlsplit

import orjson
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.responses import Response

from lakebed.errors import LakebedError, Retry
from lakebed.iceberg.metadata import metadata_name
from lakebed.service.answers import RETRY_SECONDS, Refused, Schema, status_of
from lakebed.service.catalog import Catalog
from lakebed.service.iceberg_tables import Namespace, NoSuch, PublishedTable, PublishedTables
from lakebed.service.routes import Answer, Call, Route
from lakebed.service.tokens import Role
from lakebed.storage.roots import S3Root, parse_root

PREFIX = "/iceberg"


class _Rest(PathConvertor):
    """The rest of a path, also with ends of lines."""

    regex = "(?s:.*)"


register_url_convertor("rest", _Rest())
EVERYTHING = PREFIX + "/{rest:rest}"
_LEVELS = "\x1f"
_PAGE_MAX = 1_000
_PAGE: Mapping[str, Schema] = {
    "pageToken": {"type": "string", "maxLength": 10_000},
    "pageSize": {"type": "integer", "minimum": 1},
}
_REPORT: Schema = {"type": "object"}
_NAMESPACES = "/v1/namespaces"
_NAMESPACE = f"{_NAMESPACES}/{{namespace}}"
_TABLE = f"{_NAMESPACE}/tables/{{table}}"
_VIEW = f"{_NAMESPACE}/views/{{view}}"
_KINDS = {
    HTTPStatus.BAD_REQUEST: "BadRequestException",
    HTTPStatus.UNAUTHORIZED: "NotAuthorizedException",
    HTTPStatus.FORBIDDEN: "ForbiddenException",
    HTTPStatus.NOT_FOUND: "NotFoundException",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableException",
    HTTPStatus.INTERNAL_SERVER_ERROR: "InternalServerError",
}
_logger = logging.getLogger("lakebed.service")

_ROWS = (
    "rows come by pipelines, table.apply or SQL of lakebed.spark(); columns change by table.alter or ALTER TABLE there"
)
_MAKING = "tables are made by lakebed.create, by POST /v1/tables, or by CREATE TABLE in SQL of lakebed.spark()"
_NAMES = "a namespace is a folder with tables: it is there as long as it has one, and has no properties"
_WRITES: Mapping[str, str] = {
    f"POST {_NAMESPACES}": _NAMES,
    f"DELETE {_NAMESPACE}": _NAMES,
    f"POST {_NAMESPACE}/properties": _NAMES,
    f"POST {_NAMESPACE}/tables": _MAKING,
    f"POST {_NAMESPACE}/register": "lakebed.convert and lakebed convert adopt tables of Delta's and files of Parquet",
    f"POST {_TABLE}": _ROWS,
    f"DELETE {_TABLE}": "tables are dropped by table.drop(), DELETE /v1/tables/{name}, or DROP TABLE in SQL of lakebed.spark()",
    "POST /v1/tables/rename": "a table keeps its name, which is that of its folder",
    "POST /v1/transactions/commit": _ROWS,
    f"POST {_NAMESPACE}/views": "lakebed has no views",
    f"POST {_NAMESPACE}/register-view": "lakebed has no views",
    f"POST {_VIEW}": "lakebed has no views",
    f"DELETE {_VIEW}": "lakebed has no views",
    "POST /v1/views/rename": "lakebed has no views",
}
"""What would write, with what to do instead."""


class IcebergRest:
    """The routes, over the tables of a catalog."""

    def __init__(self, catalog: Catalog, *, shares_keys: bool = False) -> None:
        """``shares_keys``: give callers with a token the keys with which this service reaches the store."""
        self._tables = PublishedTables(catalog)
        self._shares_keys = shares_keys
        served = (
            _route("GET /v1/config", self._config, query={"warehouse": {"type": "string"}}),
            _route(f"GET {_NAMESPACES}", self._list_namespaces, query={"parent": {"type": "string"}, **_PAGE}),
            _route(f"GET {_NAMESPACE}", self._load_namespace),
            _route(f"HEAD {_NAMESPACE}", self._has_namespace),
            _route(f"GET {_NAMESPACE}/tables", self._list_tables, query=_PAGE),
            _route(f"GET {_TABLE}", self._load_table, query={"snapshots": {"enum": ["all", "refs"]}}),
            _route(f"HEAD {_TABLE}", self._has_table),
            _route(f"POST {_TABLE}/metrics", self._take_metrics, body=_REPORT),
        )
        self._endpoints = [each.operation.replace("/v1/", "/v1/{prefix}/", 1) for each in served[1:]]
        writes = (_route(operation, partial(_refuse, instead)) for operation, instead in _WRITES.items())
        self.routes = (*served, *writes, _route("POST /v1/oauth/tokens", _no_oauth, role=Role.NOBODY))
        self._by_shape = [(each, each.path.split("/")) for each in self.routes]

    def find(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        """The route of a request, and what its path names. ``raw_path``: as it was sent. Raises Refused."""
        sent = raw_path.decode("ascii", "replace").removeprefix(PREFIX).split("/")
        found = [(route, shape) for route, shape in self._by_shape if _fits(shape, sent)]
        for route, shape in found:
            if route.method == method:
                return route, {
                    name[1:-1]: _decoded(text) for name, text in zip(shape, sent, strict=True) if name[:1] == "{"
                }
        if found:
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"{method} is not served here")
        raise Refused(HTTPStatus.NOT_FOUND, f"there is nothing here: GET {PREFIX}/v1/config lists what is served")

    # -- routes ------------------------------------------------------------------------------------------------------------

    def _config(self, call: Call) -> Answer:
        # A token of this service is not exchanged for another one, which clients of Java would try again and again.
        defaults = {"token-refresh-enabled": "false"}
        return Answer(value={"defaults": defaults, "overrides": {}, "endpoints": self._endpoints})

    def _list_namespaces(self, call: Call) -> Answer:
        parent = _levels(call.query.get("parent", ""))
        if parent:
            parent = self._parent(parent)
        depth = len(parent) + 1
        found = [_LEVELS.join(one) for one in self._tables.namespaces() if len(one) == depth and one[:-1] == parent]
        page, following = _page(call, lambda after, count: [one for one in found if one > after][:count])
        return Answer(value={"namespaces": [one.split(_LEVELS) for one in page], "next-page-token": following})

    def _parent(self, parent: Namespace) -> Namespace:
        """The parent that is meant: some clients encode each of its levels once more than others."""
        try:
            self._tables.require_namespace(parent)
        except NoSuch:
            decoded = tuple(map(_decoded, parent))
            if decoded == parent:
                raise
            self._tables.require_namespace(decoded)
            return decoded
        return parent

    def _load_namespace(self, call: Call) -> Answer:
        namespace = _namespace(call)
        self._tables.require_namespace(namespace)
        return Answer(value={"namespace": list(namespace), "properties": {}})

    def _has_namespace(self, call: Call) -> Answer:
        self._tables.require_namespace(_namespace(call))
        return _NOTHING

    def _list_tables(self, call: Call) -> Answer:
        namespace = _namespace(call)
        self._tables.require_namespace(namespace)
        page, following = _page(call, partial(self._tables.tables_in, namespace))
        identifiers = [{"namespace": list(namespace), "name": name} for name in page]
        return Answer(value={"identifiers": identifiers, "next-page-token": following})

    def _load_table(self, call: Call) -> Answer:
        table = self._table(call)
        head, mode = table.head, call.query.get("snapshots", "all")
        wants_keys = "vended-credentials" in call.headers.get("x-iceberg-access-delegation", "")
        keys = self._shares_keys and wants_keys and bool(call.caller.name)
        value = {
            "metadata-location": f"{table.root.rstrip('/')}/{metadata_name(head.number)}",
            "metadata": head.document if mode == "all" else _with_refs_alone(head.document),
            "config": (config := store_settings(table.root, with_keys=keys)),
        }
        which = f"{head.document['table-uuid']}-v{head.number}-{head.document['current-snapshot-id']}"
        settings = hashlib.blake2b(orjson.dumps(config), digest_size=8).hexdigest()  # keys may be others by now
        return Answer(value=value, etag=f"{which}-{head.base}-{len(head.snapshots)}-{mode}-{settings}")

    def _has_table(self, call: Call) -> Answer:
        self._table(call)
        return _NOTHING

    def _take_metrics(self, call: Call) -> Answer:
        self._table(call)
        _logger.debug(
            "%s read %s of Iceberg: %s", call.who, call.path["table"], orjson.dumps(call.body)[:2_000].decode()
        )
        return _NOTHING

    def _table(self, call: Call) -> PublishedTable:
        may_publish = call.caller.role >= Role.OPERATOR
        return self._tables.require(_namespace(call), call.path["table"], may_publish=may_publish)


_NOTHING = Answer(value=None, status=HTTPStatus.NO_CONTENT)


def _route(
    operation: str,
    handle: Callable[[Call], Answer],
    *,
    role: Role = Role.READER,
    query: Mapping[str, Schema] | None = None,
    body: Schema | None = None,
) -> Route:
    method, path = operation.split(" ")
    return Route(
        method=method,
        path=path,
        operation=operation,
        summary="As Iceberg's specification describes it.",
        role=role,
        query=query or {},
        takes_other_parameters=True,
        body=body,
        answers={},
        handle=handle,
    )


def _refuse(instead: str, call: Call) -> Answer:
    raise Refused(HTTPStatus.FORBIDDEN, f"nobody writes through Iceberg's catalog here: {instead}")


def _no_oauth(call: Call) -> Answer:
    text = "tokens of this service are made by lakebed serve token: give one as the property token, not as credential"
    return Answer(value={"error": "unsupported_grant_type", "error_description": text}, status=HTTPStatus.BAD_REQUEST)


# -- Names in a path, and pages --------------------------------------------------------------------------------------------


def _fits(shape: Sequence[str], sent: Sequence[str]) -> bool:
    return len(shape) == len(sent) and all(
        one == other or (one[:1] == "{" and other) for one, other in zip(shape, sent, strict=True)
    )


def _decoded(text: str) -> str:
    """A part of a path. Java's client sends a space as a plus; a plus is sent as ``%2B`` by all. Raises Refused."""
    try:
        return unquote_plus(text, errors="strict")
    except UnicodeDecodeError:
        raise Refused(HTTPStatus.BAD_REQUEST, f"{text[:100]!r} is no text in UTF-8") from None


def _levels(text: str) -> Namespace:
    return tuple(text.split(_LEVELS)) if text else ()


def _namespace(call: Call) -> Namespace:
    return _levels(call.path["namespace"])


def _page(call: Call, found: Callable[[str, int | None], Sequence[str]]) -> tuple[Sequence[str], str | None]:
    """A page of sorted texts, and the token of the next one; all of them for a caller who does not ask for pages."""
    token = call.query.get("pageToken")
    if token is None:
        return found("", None), None
    size = min(call.query.get("pageSize", _PAGE_MAX), _PAGE_MAX)
    try:
        after = base64.b64decode(token.encode(), b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise Refused(HTTPStatus.BAD_REQUEST, "pageToken is none that this service gave") from None
    page = found(after, size + 1)
    following = base64.urlsafe_b64encode(page[size - 1].encode()).decode() if len(page) > size else None
    return page[:size], following


def _with_refs_alone(document: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata with those snapshots alone that are the newest of a branch."""
    named = {each["snapshot-id"] for each in document["refs"].values()}
    return {
        name: [each for each in value if each["snapshot-id"] in named]
        if name in ("snapshots", "snapshot-log")
        else value
        for name, value in document.items()
    }


def store_settings(root: str, *, with_keys: bool = False) -> dict[str, str]:
    """How the service reaches the store of a table, in Iceberg's words; with its keys only if they are asked for."""
    if not isinstance(parse_root(root), S3Root):
        return {}
    import boto3  # only those who use S3 need it

    from lakebed.storage.s3_client import s3_client

    keys = boto3.session.Session().get_credentials() if with_keys else None
    return reached_by(s3_client().meta, None if keys is None else keys.get_frozen_credentials())


def reached_by(meta: Any, keys: Any | None = None) -> dict[str, str]:
    """The same of the ``meta`` of a client of boto3."""
    found = {"client.region": meta.region_name, "s3.region": meta.region_name}
    if not (urlsplit(meta.endpoint_url).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn")):
        found |= {"s3.endpoint": meta.endpoint_url, "s3.path-style-access": "true"}
    if keys is not None:
        found |= {"s3.access-key-id": keys.access_key, "s3.secret-access-key": keys.secret_key}
        found |= {"s3.session-token": keys.token}
    return {name: value for name, value in found.items() if value}


# -- Errors ----------------------------------------------------------------------------------------------------------------


def answer_of(error: Refused | LakebedError) -> Response:
    """The answer to a request that failed."""
    if isinstance(error, Refused):
        status, headers = error.status, error.headers
        kind = (
            error.kind
            if isinstance(error, NoSuch)
            else _KINDS.get(status, status.phrase.title().replace(" ", "") + "Exception")
        )
    else:
        status = status_of(error)
        headers = {"Retry-After": str(RETRY_SECONDS)} if isinstance(error, Retry) else {}
        kind = _KINDS.get(status, type(error).__name__)
    body = {"error": {"message": str(error), "type": kind, "code": status.value}}
    return Response(orjson.dumps(body), status.value, headers, "application/json")
