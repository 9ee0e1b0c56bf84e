"""An S3 server on a local folder: versitygw, whose conditional writes are atomic."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.infra.downloads import versitygw
from tests.infra.server import HOST, Server, can_connect

ACCESS_KEY = "lakebed-tests"
SECRET_KEY = "lakebed-tests-secret"
REGION = "us-east-1"


class S3Server(Server):
    """One S3 endpoint; every test makes a bucket of its own with ``create_bucket``."""

    name = "versitygw"

    def __init__(self, run_folder: Path | None = None, events: Sequence[str] = (), address: str = HOST) -> None:
        """``events``: versitygw's options that say where it sends the events of its buckets; ``address``: its own."""
        super().__init__(run_folder)
        self._address = address
        self._events = list(events)

    @property
    def endpoint(self) -> str:
        return f"http://{self._address}:{self.ports[0]}"

    def client(self, endpoint: str | None = None, **config: Any) -> Any:
        """A boto3 client; ``endpoint`` for one that goes through a proxy, ``config`` as botocore's Config."""
        return boto3.client(
            "s3",
            endpoint_url=endpoint or self.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
            config=Config(s3={"addressing_style": "path"}, **config),
        )

    def create_bucket(self, name: str | None = None) -> str:
        """Creates a bucket, with a new name when none is given, and returns its name."""
        bucket = name or f"bucket-{uuid.uuid4().hex[:12]}"
        self.client().create_bucket(Bucket=bucket)
        return bucket

    def prepare(self) -> None:
        (self.run_folder / "buckets").mkdir(exist_ok=True)

    def command(self) -> list[str]:
        listen = f"{self._address}:{self.ports[0]}"
        return [str(versitygw()), "--port", listen, "--region", REGION, "--quiet", *self._events, "posix", "buckets"]

    def environment(self) -> dict[str, str]:
        return {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}

    def is_ready(self) -> bool:
        if not can_connect(self.ports[0], self._address):
            return False
        try:
            self.client(retries={"total_max_attempts": 1}).list_buckets()
        except (BotoCoreError, ClientError):
            return False
        return True


@contextmanager
def aws_environment(endpoint: str) -> Iterator[None]:
    """Sets the AWS variables so that any S3 client of this process and of its children talks to the endpoint."""
    wanted = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        # Without it some clients look for credentials at a cloud's metadata address first.
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
