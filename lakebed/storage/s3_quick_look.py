"""Whether an object is there, asked of S3 at about half of the processor's time that a request of boto3 takes.

A worker of a fleet asks that for thousands of tables again and again, and mostly nothing is there. The url is signed by the
client of the process (``generate_presigned_url``), and urllib3 sends the request, without the layers of botocore. An answer that
is neither "there" nor "not there" says nothing: then the caller asks as usual, with retries and explanations. So does who has a
proxy in the environment.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from botocore.exceptions import BotoCoreError
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies
from urllib3 import PoolManager, Timeout
from urllib3.exceptions import HTTPError

_EXPIRES_SECONDS = 120
_CONNECT_SECONDS, _READ_SECONDS = 5, 20
_CONNECTIONS_MAX = 8


def is_there(client: Any, bucket: str, key: str) -> bool | None:
    """Whether the object exists; None if the answer does not say."""
    pool = _pool(os.getpid(), client.meta.endpoint_url)
    if pool is None:
        return None
    try:
        url = client.generate_presigned_url(
            "head_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=_EXPIRES_SECONDS
        )
        answer = pool.request("HEAD", url, retries=False, redirect=False)
    except (BotoCoreError, HTTPError, OSError):
        return None
    return {200: True, 404: False}.get(answer.status)


@lru_cache(maxsize=4)
def _pool(pid: int, endpoint: str) -> PoolManager | None:
    """The connections of a process, since they must not be shared with a forked one; None if there is a proxy."""
    if get_environ_proxies(endpoint):
        return None
    bundle = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE") or get_cert_path(True)
    timeout = Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS)
    return PoolManager(maxsize=_CONNECTIONS_MAX, timeout=timeout, cert_reqs="CERT_REQUIRED", ca_certs=bundle)
