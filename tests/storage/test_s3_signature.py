"""The headers that sign a quick look are those of botocore."""

from __future__ import annotations

import datetime

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from lakebed.storage.s3.signature import head_headers

DAYS = [datetime.datetime(2026, 2, 28, 23, 59, 59), datetime.datetime(2026, 3, 1)]


@pytest.mark.parametrize("token", [None, "a/token=="])
@pytest.mark.parametrize("host", ["bucket.s3.eu-west-1.amazonaws.com", "127.0.0.1:9000", "[::1]:9000"])
@pytest.mark.parametrize("path", ["/key", "/bucket/a%20b%2Bc/%C3%A9/_delta_log/00000000000000000001.json"])
def test_a_look_is_signed_as_botocore_signs_it(
    token: str | None, host: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for region in ("us-east-1", "eu-west-1"):
        for secret in ("a-secret", "another"):
            for day in DAYS:
                keys = ReadOnlyCredentials("the-key", secret, token)
                monkeypatch.setattr("botocore.auth.get_current_datetime", lambda day=day: day)
                request = AWSRequest("HEAD", f"https://{host}{path}")
                S3SigV4Auth(keys, "s3", region).add_auth(request)
                at = day.replace(tzinfo=datetime.UTC).timestamp()
                headers = head_headers(keys, region=region, host=host, path=path, at=at)
                theirs = {name.lower(): value for name, value in request.headers.items()}
                assert {name.lower(): value for name, value in headers.items()} == {"host": host, **theirs}
