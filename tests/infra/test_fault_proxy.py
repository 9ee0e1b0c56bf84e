"""The proxy fails what it is told to, at the rate it is told to, and passes everything else on unharmed."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from tests.infra.fault_proxy import Fault, FaultProxy, FaultRates, Request
from tests.infra.s3 import S3Server
from tests.infra.server import HOST

pytestmark = pytest.mark.slow


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.create_bucket()


def once(s3_server: S3Server, proxy: FaultProxy) -> Any:
    """A client that does not retry, so that a fault is seen."""
    return s3_server.client(proxy.endpoint, retries={"total_max_attempts": 1})


@pytest.mark.parametrize("size_bytes", [0, 1, 1_000, 300_000, 20_000_000])
def test_without_faults_bodies_of_any_size_arrive_intact(
    s3_server: S3Server, flaky_s3: FaultProxy, bucket: str, size_bytes: int
) -> None:
    body = os.urandom(size_bytes)
    flaky_s3.traffic(reset=True)
    client = once(s3_server, flaky_s3)
    client.put_object(Bucket=bucket, Key="part", Body=body)
    assert s3_server.client().get_object(Bucket=bucket, Key="part")["Body"].read() == body
    assert client.get_object(Bucket=bucket, Key="part")["Body"].read() == body
    assert client.head_object(Bucket=bucket, Key="part")["ContentLength"] == size_bytes

    # A request of another program that came to this port by mistake is counted too: it has its own entry, and its bytes.
    traffic = flaky_s3.traffic()
    path = f"/{bucket}/part"
    own = [request for request in traffic.recent if bucket in request.path]
    assert [(request.method, request.path) for request in own] == [("PUT", path), ("GET", path), ("HEAD", path)], (
        traffic
    )
    put, get, head = own
    assert size_bytes <= put.bytes_sent <= size_bytes * 1.01 + 1_000
    assert (get.bytes_received, head.bytes_received) == (size_bytes, 0)
    assert traffic.requests == Counter(request.method for request in traffic.recent), traffic
    for method in ("PUT", "GET", "HEAD"):
        of_method = [request for request in traffic.recent if request.method == method]
        assert traffic.bytes_sent[method] == sum(request.bytes_sent for request in of_method), traffic
        assert traffic.bytes_received[method] == sum(request.bytes_received for request in of_method), traffic
    assert not traffic.faults


def test_a_multipart_upload_goes_through(s3_server: S3Server, flaky_s3: FaultProxy, bucket: str) -> None:
    client = once(s3_server, flaky_s3)
    upload = client.create_multipart_upload(Bucket=bucket, Key="big")["UploadId"]
    names = {"Bucket": bucket, "Key": "big", "UploadId": upload}
    bodies = [os.urandom(5 * 1024 * 1024), os.urandom(100)]
    parts = [
        {"PartNumber": number, "ETag": client.upload_part(**names, PartNumber=number, Body=body)["ETag"]}
        for number, body in enumerate(bodies, 1)
    ]
    client.complete_multipart_upload(**names, MultipartUpload={"Parts": parts})
    assert client.get_object(Bucket=bucket, Key="big")["Body"].read() == b"".join(bodies)


def test_a_fault_before_is_a_503_and_the_server_never_saw_the_request(
    s3_server: S3Server, flaky_s3: FaultProxy, bucket: str
) -> None:
    flaky_s3.fail_next(Fault.BEFORE, method="PUT")
    with pytest.raises(ClientError) as failed:
        once(s3_server, flaky_s3).put_object(Bucket=bucket, Key="a", Body=b"x" * 100_000)
    assert failed.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
    assert keys(s3_server, bucket) == []


def test_a_reset_breaks_the_connection_and_the_server_never_saw_the_request(
    s3_server: S3Server, flaky_s3: FaultProxy, bucket: str
) -> None:
    flaky_s3.fail_next(Fault.RESET, method="PUT")
    with pytest.raises(HTTPClientError):
        once(s3_server, flaky_s3).put_object(Bucket=bucket, Key="a", Body=b"x" * 100_000)
    assert keys(s3_server, bucket) == []


def test_a_fault_after_leaves_the_client_in_doubt_though_the_object_is_there(
    s3_server: S3Server, flaky_s3: FaultProxy, bucket: str
) -> None:
    flaky_s3.fail_next(Fault.AFTER, path_contains="/log/")
    client = once(s3_server, flaky_s3)
    client.put_object(Bucket=bucket, Key="data/a", Body=b"other paths are not hit")
    with pytest.raises(HTTPClientError):
        client.put_object(Bucket=bucket, Key="log/1", Body=b"landed", IfNoneMatch="*")
    assert s3_server.client().get_object(Bucket=bucket, Key="log/1")["Body"].read() == b"landed"
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=bucket, Key="log/1", Body=b"again", IfNoneMatch="*")


def test_rates_hold_and_a_client_that_retries_loses_nothing(
    s3_server: S3Server, flaky_s3: FaultProxy, bucket: str
) -> None:
    flaky_s3.set_rates(FaultRates(before=0.1, reset=0.1, after=0.1, methods=frozenset({"PUT"})), seed=7)
    client = once(s3_server, flaky_s3)
    for number in range(200):
        for _ in range(20):
            try:
                client.put_object(Bucket=bucket, Key=f"{number:03}", Body=b"%d" % number)
                break
            except (BotoCoreError, ClientError):
                continue  # at once: boto3's own retries wait for seconds
    traffic = flaky_s3.traffic()
    assert keys(s3_server, bucket) == [f"{number:03}" for number in range(200)]
    assert set(traffic.faults) == set(Fault)
    assert 0.2 < sum(traffic.faults.values()) / traffic.requests["PUT"] < 0.4


def test_equal_seeds_draw_equal_faults() -> None:
    def draws(seed: int) -> list[Fault | None]:
        proxy = FaultProxy(server_port=1, seed=seed)
        proxy.set_rates(FaultRates(before=0.2, reset=0.2, after=0.2))
        return [proxy.draw(Request("PUT", "/b/k")) for _ in range(200)]

    assert draws(1) == draws(1) != draws(2)


def test_a_proxy_that_was_killed_refuses_and_comes_back_at_the_same_address(
    s3_server: S3Server, flaky_s3: FaultProxy, bucket: str
) -> None:
    address = flaky_s3.endpoint
    client = once(s3_server, flaky_s3)
    client.put_object(Bucket=bucket, Key="a", Body=b"1")
    flaky_s3.kill()
    with pytest.raises(BotoCoreError):
        client.put_object(Bucket=bucket, Key="b", Body=b"2")
    flaky_s3.start()
    assert flaky_s3.endpoint == address
    client.put_object(Bucket=bucket, Key="b", Body=b"2")
    assert keys(s3_server, bucket) == ["a", "b"]


@pytest.mark.parametrize("end", [FaultProxy.stop, FaultProxy.kill])
def test_a_proxy_that_ends_ends_every_connection_even_one_that_it_just_accepted(
    end: Callable[[FaultProxy], None],
) -> None:
    proxy = FaultProxy(server_port=1).start()
    is_over = threading.Event()

    def connect_again_and_again() -> list[socket.socket]:
        connected = []
        while not is_over.is_set():
            with contextlib.suppress(OSError):  # refused: nothing listens between an end and the next start
                connected.append(socket.create_connection((HOST, proxy.port)))
        return connected

    with warnings.catch_warnings(record=True) as left_open, ThreadPoolExecutor(1) as pool:
        warnings.simplefilter("always", ResourceWarning)
        clients = pool.submit(connect_again_and_again)
        try:
            for _ in range(20):
                time.sleep(0.005)  # some connections are there, others are on their way
                end(proxy)
                proxy.start()
        finally:
            is_over.set()
        connected = clients.result()
        end(proxy)
        gc.collect()
        for client in connected:
            client.settimeout(10)
            with client, contextlib.suppress(ConnectionError):
                assert client.recv(1) == b""
    assert not [str(each.message) for each in left_open]


def keys(s3_server: S3Server, bucket: str) -> list[str]:
    return [entry["Key"] for entry in s3_server.client().list_objects_v2(Bucket=bucket).get("Contents", [])]
