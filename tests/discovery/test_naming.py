"""Each topic is one table in a folder of its own, whatever its name is."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakebed.discovery import PART_BYTES_MAX, Naming, NoTable, TableName, prefix_of
from lakebed.errors import InvalidInput
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from tests.worlds import examples

HOSTILE = [
    "", ".", "..", "...", "a", "a.", ".a", "a..b", "../x", "public.orders", "Public.Orders", "public.ORDERS", "public/orders",
    "public.orders_quarantine", "public.orders!5fquarantine", f"public.{QUARANTINE_SUFFIX}", "_lakebed.database", "_lakebed", "_",
    "default.orders", "orders", "Default.orders", "!64efault.orders", "default.", "public.naïve", "public.nai\u0308ve",
    "public.!2e", "public.!", "public.!!", "public.%2e", "\0.\0", "x" * 249, "x" * 248 + "y", "p." + "q" * 160, "p." + "q" * 161,
    "é" * 100 + "." + "é" * 100, "fs.files.chunks", "a.b.c", "a.b_c", "public." + "_delta_log", "public.x.", "con.aux",
    "~.$HOME", "-.-rf", "a b.c\nd",
]  # fmt: skip
NAMES = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(max_size=300),
    st.text("aA._-!26ef/é", max_size=20),
    st.from_regex(re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII), fullmatch=True),
)


def test_the_usual_names_are_readable() -> None:
    folders = {name: TableName(name).folder for name in ("public.orders", "dbo.Order-Lines", "app.schema.t", "orders")}
    assert folders == {
        "public.orders": "public/orders",
        "dbo.Order-Lines": "dbo/Order-Lines",
        "app.schema.t": "app/schema.t",
        "orders": "default/orders",
    }


@examples(100)
@given(NAMES, NAMES)
@example("public.orders_quarantine", "public.orders!5fquarantine")
def test_two_names_never_share_a_folder_nor_that_of_a_quarantine(one: str, other: str) -> None:
    mine, theirs = TableName(one).folder, TableName(other).folder
    assert (mine == theirs) == (one == other)
    assert mine + QUARANTINE_SUFFIX != theirs


@examples(100)
@given(NAMES)
def test_the_folder_of_a_name_that_is_not_cut_says_the_name(name: str) -> None:
    folder = TableName(name).folder
    assert TableName.of_folder(folder) == (None if "!!" in folder else TableName(name))


@examples(100)
@given(NAMES)
def test_a_folder_that_no_name_has_is_nobodys(folder: str) -> None:
    found = TableName.of_folder(folder)
    assert found is None or found.folder == folder
    for other in (
        "public",
        "public/",
        "/orders",
        "public/x_quarantine",
        "public/a/b",
        "_lakebed/database",
        "public/!2E",
        "a/é",
    ):
        assert TableName.of_folder(other) is None


@examples(100)
@given(NAMES)
def test_a_folder_stays_below_the_database_and_is_never_hidden_or_too_long(name: str) -> None:
    parts = TableName(name).folder.split("/")
    assert len(parts) == 2
    for part in parts:
        assert re.fullmatch(r"[A-Za-z0-9!-][A-Za-z0-9_.!-]*", part), part
        assert part not in (".", "..") and not part.endswith(".")
        assert len(part) <= PART_BYTES_MAX and len(part + QUARANTINE_SUFFIX) <= 255
    assert os.path.normpath("/lake/shop/" + "/".join(parts)) == "/lake/shop/" + "/".join(parts)


def test_all_hostile_names_have_folders_of_their_own() -> None:
    assert len({TableName(name).folder for name in HOSTILE}) == len(HOSTILE)


SHOP = Naming(prefix="shop", include=(r"public\..*",), exclude=(r"public\.tmp_.*",))


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("shop", "changes of schemas"),
        ("shop.transaction", "transactions"),
        ("__debezium-heartbeat.shop", "heartbeats"),
        ("shop.public.tmp_1", "database.exclude has 'public\\\\.tmp_.*'"),
        ("shop.audit.log", "nothing in database.include"),
        ("store.public.orders", "does not begin with 'shop.'"),
        ("shopping.public.orders", "does not begin with 'shop.'"),
    ],
)
def test_a_topic_that_is_no_table_says_why(topic: str, reason: str) -> None:
    found = SHOP.table_of(topic)
    assert isinstance(found, NoTable)
    assert reason in found.reason


def test_a_topic_is_the_table_of_its_name_without_the_prefix() -> None:
    assert SHOP.table_of("shop.public.orders") == TableName("public.orders")
    assert Naming(events=False).table_of("transaction") == TableName("transaction")
    assert Naming(prefix="a.b").table_of("a.b.c.d") == TableName("c.d")
    others = {"transaction_topic": "shop.tx", "signal_topic": "shop.signal", "notification_topic": "shop.told"}
    for topic in others.values():
        assert isinstance(Naming(prefix="shop", **others).table_of(topic), NoTable)


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        (r"shop\.public\..*", "shop"),
        (r"shop\.(a|b)\..*", "shop"),
        (r"^my-shop\..*", "my-shop"),
        (r"my\-shop\..*", "my-shop"),
        ("shop.public.*", "shop"),
        (r"shop.*", None),
        (r"(shop|store)\..*", None),
        (r"shop\.a|store\.b", None),
        (r"shop\.[a|b]", "shop"),
        (r"shop?\.a", None),
        (r".*", None),
    ],
)
def test_the_prefix_is_known_from_a_pattern_that_allows_one_only(pattern: str, prefix: str | None) -> None:
    if prefix is not None:
        assert prefix_of((), pattern) == prefix
        return
    with pytest.raises(InvalidInput, match=re.escape("database.topic_prefix")):
        prefix_of((), pattern)


def test_the_prefix_is_known_from_topics_that_share_it() -> None:
    assert prefix_of(("shop.a.b", "shop.c.d"), None) == "shop"
    for topics in (("shop.a.b", "store.a.b"), ("orders",), ("shop", "shop.a")):
        with pytest.raises(InvalidInput):
            prefix_of(topics, None)
