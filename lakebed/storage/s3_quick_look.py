"""Whether an object is there, asked of S3 at less than half of the processor's time that a request of boto3 takes.

A worker of a fleet asks that for thousands of tables again and again, and mostly nothing is there.

1. The client of the process says once for each bucket how its objects are addressed and for which region requests are signed:
   both stand in a presigned url (``generate_presigned_url``). Its host does not count: for AWS it is the one of all regions,
   which redirects requests for new buckets elsewhere. The host is that of the client, as for its own requests.
2. botocore signs the headers of each request (``S3SigV4Auth``), and urllib3 sends it, without the layers of the client. A
   presigned url for each request takes more: its query is long, and is quoted and parsed again on the way.

An answer that is neither "there" nor "not there" says nothing: then the caller asks as usual, with retries and explanations. So
does who has a proxy in the environment, and who signs requests in another way.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies
from urllib3 import HTTPConnectionPool, PoolManager, Timeout
from urllib3.exceptions import HTTPError

_CONNECT_SECONDS, _READ_SECONDS = 5, 20
_CONNECTIONS_MAX = 8
_PROBE = "lakebed"


def is_there(client: Any, credentials: Any, bucket: str, key: str) -> bool | None:
    """Whether the object exists; None if the answer does not say. ``credentials``: those of the client."""
    try:
        place = _place(os.getpid(), client, bucket)
        if place is None or credentials is None:
            return None
        target = place.path + quote(key, safe="/-._~")
        request = AWSRequest("HEAD", place.origin + target)
        S3SigV4Auth(credentials.get_frozen_credentials(), "s3", place.region).add_auth(request)
        headers = dict(request.headers.items())
        answer = place.connections.urlopen("HEAD", target, headers=headers, retries=False, redirect=False)
    except (BotoCoreError, HTTPError, OSError):
        return None
    return {200: True, 404: False}.get(answer.status)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the objects of a bucket are: ``path`` comes before each key, with a slash at its end."""

    origin: str
    path: str
    region: str
    connections: HTTPConnectionPool


@lru_cache(maxsize=64)
def _place(pid: int, client: Any, bucket: str) -> _Place | None:
    """For one process, since connections must not be shared with a forked one. None if it has to be asked as usual."""
    url = urlsplit(client.generate_presigned_url("head_object", Params={"Bucket": bucket, "Key": _PROBE}))
    query = parse_qs(url.query)
    scope = query.get("X-Amz-Credential", [""])[0].split("/")  # the key, the day, the region, the service, aws4_request
    is_usual = query.get("X-Amz-Algorithm") == ["AWS4-HMAC-SHA256"] and scope[3:4] == ["s3"]
    endpoint, path = urlsplit(client.meta.endpoint_url), url.path.removesuffix(_PROBE)
    in_host = url.netloc.startswith(f"{bucket}.")
    origin = f"{endpoint.scheme}://{bucket}.{endpoint.netloc}" if in_host else f"{endpoint.scheme}://{endpoint.netloc}"
    is_usual = is_usual and (in_host or path.endswith(f"/{bucket}/")) and "X-Amz-S3session-Token" not in query
    if not is_usual or get_environ_proxies(origin):
        return None
    return _Place(origin, path, scope[2], _pool(pid).connection_from_url(origin))


@lru_cache(maxsize=1)
def _pool(pid: int) -> PoolManager:
    bundle = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE") or get_cert_path(True)
    timeout = Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS)
    return PoolManager(maxsize=_CONNECTIONS_MAX, timeout=timeout, cert_reqs="CERT_REQUIRED", ca_certs=bundle)
