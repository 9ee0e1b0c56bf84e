"""Under which names a server of this machine may be addressed.

A page of another site may have a domain that resolves to this machine (DNS rebinding). So a server that answers callers without a
token refuses requests under a name that is neither an address nor its own. ``LAKEBED_HOSTS`` may list further names, with commas
between, for servers that are reached under a name of DNS.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
from collections.abc import Sequence
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

_REFUSED = (
    "this server answers to an address, to localhost, to this machine's name, to the host that it was started with and to the "
    "names in LAKEBED_HOSTS"
)
_PORT = re.compile(r":\d*$")


class Hosts:
    """The names of this machine, and the host that a server was started with: under these it answers."""

    def __init__(self, host: str) -> None:
        own = {
            "localhost",
            host,
            socket.gethostname(),
            socket.getfqdn(),
            *os.environ.get("LAKEBED_HOSTS", "").split(","),
        }
        self._names = {name.strip().lower() for name in own} - {""}

    def is_allowed(self, hosts: Sequence[str]) -> bool:
        """Whether the Host headers of a request are exactly one, with an IP address or a name of this machine."""
        if len(hosts) != 1:
            return False
        name = _PORT.sub("", hosts[0].strip().lower())
        if name.startswith("[") and name.endswith("]"):
            name = name[1:-1]
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class HostCheck:
    """Middleware (ASGI): a request under a name that is not allowed gets 421 and a problem document (RFC 9457)."""

    def __init__(self, application: ASGIApp, hosts: Hosts) -> None:
        self._application = application
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._hosts.is_allowed(Headers(scope=scope).getlist("host")):
            status = HTTPStatus.MISDIRECTED_REQUEST
            problem = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": _REFUSED}
            await Response(json.dumps(problem), status, media_type="application/problem+json")(scope, receive, send)
            return
        await self._application(scope, receive, send)


def is_loopback(host: str) -> bool:
    """Whether nobody beyond this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
