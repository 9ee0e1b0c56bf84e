"""The quick look at an object of S3: it asks for the same object as the client would, and says nothing where it does not know."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.auth import _host_from_url
from botocore.config import Config

from lakebed import events
from lakebed.errors import InvalidInput
from lakebed.storage.roots import S3Root
from lakebed.storage.s3.objects import S3Objects
from lakebed.storage.s3.quick_look import is_there
from tests.infra.s3 import S3Server

KEYS = ["plain", "a b+c/é ü/=&?#%25.json", "_delta_log/00000000000000000001.json", "a//b/../c", "tilde~'()*!"]


@pytest.mark.parametrize("key", [key for key in KEYS if ".." not in key and "//" not in key])
def test_an_object_is_found_when_it_is_there_by_one_request(s3: S3Server, key: str) -> None:
    objects = S3Objects(S3Root(s3.create_bucket(), "lake"))
    asked: list[events.StoreRequested] = []
    end = events.listen(lambda event: asked.append(event) if isinstance(event, events.StoreRequested) else None)
    assert not objects.has(key)
    objects.put(key, b"x")
    assert objects.has(key)
    end()
    assert [(each.operation, each.result) for each in asked] == [("head", "missing"), ("put", "ok"), ("head", "ok")]


def test_what_the_quick_look_does_not_know_is_asked_as_usual(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = S3Objects(S3Root(s3.create_bucket(), "lake"))
    objects.put("there", b"x")
    with monkeypatch.context() as through_proxy:
        through_proxy.setattr("lakebed.storage.s3.objects.is_there", lambda *given: None)
        assert objects.has("there") and not objects.has("nothing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(InvalidInput, match="denied"):
        objects.has("there")


@pytest.mark.parametrize(
    "given",
    [
        {"region_name": "us-east-1"},
        {"region_name": "eu-west-1"},
        {"region_name": "cn-north-1"},
        {"region_name": "eu-west-1", "config": Config(s3={"use_dualstack_endpoint": True})},
        {"region_name": "us-east-1", "endpoint_url": "https://store.example:9000/deep"},
        {"region_name": "x", "endpoint_url": "http://store.example", "config": Config(s3={"addressing_style": "path"})},
        {"region_name": "x", "endpoint_url": "http://h:80", "config": Config(s3={"addressing_style": "virtual"})},
    ],
)
@pytest.mark.parametrize("token", [None, "a-token"])
def test_it_asks_for_the_same_object_as_the_client_and_signs_as_the_client_does(
    given: dict[str, Any], token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = boto3.session.Session("the-key", "the-secret", token)
    config = Config(signature_version="s3v4").merge(given.get("config", Config()))
    client = session.client("s3", **{**given, "config": config})
    sent: list[tuple[str, list[str]]] = []

    class Connection:
        def __init__(self, origin: str) -> None:
            self.origin = origin

        def sendall(self, request: bytes) -> None:
            sent.append((self.origin, request.decode().split("\r\n")))

        def recv(self, size: int) -> bytes:
            return b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n"

        def close(self) -> None: ...

    monkeypatch.setattr("lakebed.storage.s3.quick_look.connected", Connection)
    by_client: list[Any] = []

    def keep(request: Any, **_: object) -> object:
        by_client.append(request)
        return type("Answer", (), {"status_code": 404, "headers": {}, "content": b"", "raw": None, "text": ""})()

    client.meta.events.register("before-send.s3.HeadObject", keep)
    for bucket in (f"bucket-{uuid.uuid4().hex[:8]}", "with.dots"):
        for key in KEYS:
            assert is_there(client, session.get_credentials(), bucket, key) is False
            with pytest.raises(Exception, match="404"):
                client.head_object(Bucket=bucket, Key=key)
            origin, (request, *lines) = sent[-1]
            headers = dict(line.split(": ", 1) for line in lines if line)
            assert request.startswith("HEAD ") and request.endswith(" HTTP/1.1")
            ours, theirs = urlsplit(origin + request.split(" ")[1]), urlsplit(by_client[-1].url)
            assert (ours.scheme, ours.hostname, ours.path) == (theirs.scheme, theirs.hostname, theirs.path)
            assert (ours.port or 80) == (theirs.port or 80) or ours.scheme == "https"
            assert headers["host"] == _host_from_url(by_client[-1].url)
            said = by_client[-1].headers["Authorization"].decode().partition(" SignedHeaders=")[0]
            assert headers["Authorization"].partition(" SignedHeaders=")[0] == said
            said = by_client[-1].headers.get("X-Amz-Security-Token")
            assert headers.get("x-amz-security-token") == (said.decode() if isinstance(said, bytes) else said)


@pytest.mark.parametrize("signature", ["s3", "none"])
def test_it_says_nothing_where_requests_are_signed_in_another_way(
    signature: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore import UNSIGNED

    session = boto3.session.Session("the-key", "the-secret")
    config = Config(signature_version=UNSIGNED if signature == "none" else signature)
    client = session.client("s3", endpoint_url="http://127.0.0.1:1", region_name="x", config=config)
    assert is_there(client, session.get_credentials(), "bucket", "key") is None
    v4 = session.client(
        "s3", endpoint_url="http://store.example", region_name="x", config=Config(signature_version="s3v4")
    )
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:2")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:2")
    assert is_there(v4, session.get_credentials(), "bucket", "key") is None
