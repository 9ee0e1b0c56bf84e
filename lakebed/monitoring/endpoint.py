"""The endpoint that Prometheus scrapes."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakebed.http import ZIPPING, HostCheck, Hosts, HttpServer, Listening


class MetricsServer(HttpServer):
    """The metrics at ``url``, until ``close``."""

    def __init__(self, registry: CollectorRegistry, listening: Listening) -> None:
        """Takes the port. Raises MissingPrerequisite, InvalidInput."""

        def scrape(request: Request) -> Response:
            encode, kind = choose_encoder(request.headers.get("accept", ""))
            return Response(encode(registry), headers={"Content-Type": kind})

        application = Starlette(
            routes=[Route(path, scrape) for path in ("/metrics", "/")],
            middleware=[Middleware(HostCheck, Hosts(listening.host)), ZIPPING],
        )
        super().__init__(application, listening)
        self.url = f"{self.url}/metrics"
