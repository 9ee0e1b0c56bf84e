"""Whatever a name or a text holds, it stays inside its quotes."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from lakebed.quoting import literal, quote, quote_for_spark
from lakebed.sortkey.sort_key import parse_sort_key

HOSTILE = [
    "a b",
    'a"b',
    '""',
    "a'b",
    "''",
    "a`b",
    "``",
    "a\\",
    "a\n",
    '"; drop table t; --',
    "'; drop table t; --",
    "ä 😀",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_name_and_a_text_come_back_from_duckdb_as_they_are(text: str) -> None:
    found = duckdb.sql(f"select {literal(text)} as {quote(text)}")
    assert found.columns == [text] and found.fetchall() == [(text,)]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_comes_back_from_a_sort_key_as_it_is(name: str) -> None:
    [term] = parse_sort_key([f"{quote_for_spark(name)} desc"], pa.schema([(name, pa.int64())]))
    assert term.columns == (name,)
