"""What a message of hints says, whoever sends it."""

from __future__ import annotations

from typing import Any

import pytest

from lakebed.errors import InvalidInput
from lakebed.fleet.hints import Hint, message_of

COMMIT = "_delta_log/00000000000000000007.json"


def event(key: Any, bucket: Any = "lake", **more: Any) -> dict[str, Any]:
    return {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": bucket}, "object": {"key": key}}, **more}


def roots(*records: Any) -> list[tuple[str, ...]]:
    message = message_of({"Records": [*records]})
    assert not message.malformed
    return [hint.roots for hint in message.hints]


def test_the_root_of_a_table_or_a_list_of_them() -> None:
    assert message_of("s3a://lake/shop/orders/").hints == (Hint(("s3://lake/shop/orders",)),)
    assert message_of(["/lake/a", "s3://lake/b"]).hints == (Hint(("/lake/a",)), Hint(("s3://lake/b",)))
    assert message_of([]).hints == ()


def test_an_event_of_a_commit_is_a_hint_with_its_version() -> None:
    [hint] = message_of({"Records": [event(f"shop/orders/{COMMIT}")]}).hints
    assert hint == Hint(("s3://lake/shop/orders",), 7)
    assert roots(event(COMMIT)) == [("s3://lake",)], "a bucket that is a table"


@pytest.mark.parametrize(
    "name",
    [
        "shop/orders/part-1.parquet",
        "shop/orders/_delta_log/00000000000000000007.checkpoint.parquet",
        "shop/orders/_delta_log/_last_checkpoint",
        "shop/orders/_delta_log/7.json",
        f"shop/orders/x{COMMIT}",
        f"shop/orders/{COMMIT}.tmp",
        f"shop/orders/{COMMIT}\n",
        "shop/orders/_delta_log/٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٧.json",
    ],
)
def test_an_event_of_another_object_is_none(name: str) -> None:
    assert roots(event(name)) == []


def test_an_object_that_was_deleted_is_no_hint() -> None:
    assert roots(event(f"a/{COMMIT}", eventName="ObjectRemoved:Delete")) == []
    assert roots(event(f"a/{COMMIT}", eventName="s3:ObjectRemoved:Delete")) == []
    assert roots(event(f"a/{COMMIT}", eventName="s3:ObjectCreated:CompleteMultipartUpload")) == [("s3://lake/a",)]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a+b/t", ("s3://lake/a b/t", "s3://lake/a+b/t")),
        ("a%2Bb/t", ("s3://lake/a+b/t", "s3://lake/a%2Bb/t")),
        ("a%252Fb/t", ("s3://lake/a%2Fb/t", "s3://lake/a%252Fb/t")),
        ("caf%C3%A9", ("s3://lake/café", "s3://lake/caf%C3%A9")),
        ("100%", ("s3://lake/100%",)),
        ("%zz%FF", ("s3://lake/%zz\ufffd", "s3://lake/%zz%FF")),
        ("a/../b", ("s3://lake/a/../b",)),
        ("a\nb\0", ("s3://lake/a\nb\0",)),
    ],
)
def test_keys_are_decoded_once_and_also_taken_as_they_are(key: str, expected: tuple[str, ...]) -> None:
    assert roots(event(f"{key}/{COMMIT}")) == [expected]


def test_a_key_that_is_encoded_as_a_whole_is_read() -> None:
    assert roots(event(f"shop/t/{COMMIT}".replace("/", "%2F"))) == [("s3://lake/shop/t",)]


def test_the_event_that_s3_sends_to_try_a_notification_says_nothing() -> None:
    assert message_of({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "lake"}).hints == ()


@pytest.mark.parametrize(
    "record",
    [
        None,
        7,
        "x",
        [],
        {},
        {"s3": {}},
        {"s3": {"bucket": {"name": "lake"}}},
        event(7),
        event(f"a/{COMMIT}", bucket=None),
    ],
)
def test_a_record_of_another_form_is_counted_and_the_others_are_taken(record: Any) -> None:
    message = message_of({"Records": [record, event(f"a/{COMMIT}")]})
    assert message.malformed == 1 and [hint.roots for hint in message.hints] == [("s3://lake/a",)]


@pytest.mark.parametrize("body", [7, None, {}, [7], ["gopher://x/y"], [""], {"Records": 7}, "\0"])
def test_a_message_of_another_form_is_refused(body: object) -> None:
    with pytest.raises(InvalidInput):
        message_of(body)
