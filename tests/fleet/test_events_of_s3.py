"""Events of a real S3 server reach a worker through its port of pokes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import lakebed
from lakebed.fleet.worker import FleetWorker
from lakebed.http import Listening
from lakebed.service.app import poke_server
from tests.fleet.test_pokes import rests, seldom  # noqa: F401  (a fixture that counts here too)
from tests.fleet.test_worker import LIMITS, SCHEMA, changes, is_settled
from tests.infra.s3 import S3Server, aws_environment
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_commits_to_s3_reach_a_worker_through_a_webhook() -> None:
    workers: list[FleetWorker] = []

    def take(body: object) -> Mapping[str, object]:
        return workers[0].poked(body) if workers else {}  # the server tries the address when it starts

    port = poke_server(take, Listening(port=0), None)
    port.start()
    try:
        with S3Server(events=("--event-webhook-url", f"{port.url}/poke")) as server, aws_environment(server.endpoint):
            root = f"s3://{server.create_bucket()}/shop"
            table = lakebed.create(f"{root}/public/a b+c%20é", SCHEMA, keys=["id"])
            worker = FleetWorker([root], LIMITS, "one")
            worker.start()
            try:
                wait_until(lambda: rests(worker, 1))
                workers.append(worker)
                looks = worker.state().looks
                table.apply(changes(1))
                wait_until(lambda: is_settled(table) and rests(worker, 1))
                assert worker.state().looks <= looks + 2, "one for the hint, and one as the table comes to rest"
                new = lakebed.create(f"{root}/public/new", SCHEMA, keys=["id"])
                new.apply(changes(1))
                wait_until(lambda: is_settled(new))
            finally:
                worker.close()
    finally:
        port.close()
