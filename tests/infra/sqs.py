"""A server of SQS's API: ElasticMQ. Its queues are in memory, so they are gone when it ends."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from tests.infra.downloads import elasticmq_jars
from tests.infra.jvm import java_options
from tests.infra.s3 import ACCESS_KEY, REGION, SECRET_KEY
from tests.infra.server import HOST, Server, can_connect

HEAP_MB_MAX = 128
_SETTINGS = """\
include classpath("application.conf")
node-address {{ protocol = http, host = "{host}", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-hostname = "{host}", bind-port = {port}, sqs-limits = strict }}
rest-stats {{ enabled = false }}
"""


class SqsServer(Server):
    """One server; make a queue of your own with ``create_queue``."""

    name = "elasticmq"

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.ports[0]}"

    def client(self) -> Any:
        return boto3.client(
            "sqs",
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
        )

    def create_queue(self, name: str) -> str:
        """Creates a queue and returns its URL."""
        return str(self.client().create_queue(QueueName=name)["QueueUrl"])

    def prepare(self) -> None:
        (self.run_folder / "elasticmq.conf").write_text(_SETTINGS.format(host=HOST, port=self.ports[0]))

    def command(self) -> list[str]:
        jars, settings = elasticmq_jars(), self.run_folder / "elasticmq.conf"
        options = java_options(HEAP_MB_MAX)
        return [*options, f"-Dconfig.file={settings}", "-cp", f"{jars}/*", "org.elasticmq.server.Main"]

    def is_ready(self) -> bool:
        if not can_connect(self.ports[0]):
            return False
        try:
            self.client().list_queues()
        except (BotoCoreError, ClientError):
            return False
        return True
