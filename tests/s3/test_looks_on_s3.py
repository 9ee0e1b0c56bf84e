"""A fleet asks S3 whether there is a next version: cheaply, and as surely as by reading it."""

from __future__ import annotations

import pytest

from lakebed.errors import InvalidInput
from lakebed.log.stores import open_store
from lakebed.log.stores.log_store import has_object
from lakebed.storage.s3.objects import S3Objects
from tests.infra.s3 import S3Server

pytestmark = pytest.mark.slow


def test_an_object_is_there_once_it_was_put_and_not_before(s3: S3Server) -> None:
    store = open_store(f"s3://{s3.create_bucket()}/lake/a table")
    name = "_delta_log/00000000000000000007.json"
    assert not has_object(store, name)
    store.put_if_absent(name, b"1")
    assert has_object(store, name)
    store.delete(name)
    assert not has_object(store, name)
    assert isinstance(store, S3Objects) and store.counters().operations["head"].requests == 3, "one request each"


def test_who_may_not_ask_learns_why(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"s3://{s3.create_bucket()}/lake")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(InvalidInput, match="denied"):
        has_object(store, "x")


def test_a_server_that_fails_is_asked_again_as_usual(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"s3://{s3.create_bucket()}/lake")
    monkeypatch.setattr("lakebed.storage.s3.objects.is_there", lambda *_: None)
    assert not has_object(store, "x")
    store.put_if_absent("x", b"1")
    assert has_object(store, "x")
