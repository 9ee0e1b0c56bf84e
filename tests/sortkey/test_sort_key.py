"""Sort keys as texts: what they mean, and what is said of one that is wrong."""

from __future__ import annotations

import pickle
import random
from dataclasses import dataclass
from types import SimpleNamespace

import orjson
import pyarrow as pa
import pytest

from lakebed.errors import InvalidInput
from lakebed.sortkey.sort_key import SortTerm, frame_properties, parse_sort_key
from tests.sortkey.terms import SCHEMA as EVERY_TYPE
from tests.sortkey.terms import random_key
from tests.worlds import seeds

SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("region", pa.string()),
        ("amount", pa.decimal128(10, 2)),
        ("count", pa.int32()),
        ("ratio", pa.float64()),
        ("a`b", pa.string()),
        ('say"so"', pa.string()),
        ("desc", pa.string()),
        ("nested", pa.struct([("x", pa.int64())])),
    ]
)


def parsed(text: str) -> SortTerm:
    [term] = parse_sort_key([text], SCHEMA)
    return term


@pytest.mark.parametrize(
    ("text", "name", "columns", "is_descending", "nulls_last"),
    [
        ("region", "region", ("region",), False, False),
        ("region ASC nulls first", "region", ("region",), False, False),
        ("region desc", "region desc", ("region",), True, True),
        ("region desc nulls first", "region desc nulls first", ("region",), True, False),
        ("region nulls last", "region nulls last", ("region",), False, True),
        ("a`b", "a`b", ("a`b",), False, False),
        ("`a``b` desc", "`a``b` desc", ("a`b",), True, True),
        ('"say""so""" nulls last', '`say"so"` nulls last', ('say"so"',), False, True),
        ("desc", "desc", ("desc",), False, False),
        ("desc desc", "desc desc", ("desc",), True, True),
        ("day", "day", ("day",), False, False),
        ("day(day)", "day(day)", ("day",), False, False),
        ("Date ( ts )  DESC", "date(ts) desc", ("ts",), True, True),
        ('hour("ts")', "hour(ts)", ("ts",), False, False),
        ("substr(`a``b`,1,4)", "substr(`a``b`, 1, 4)", ("a`b",), False, False),
        ("bucket(16, amount)", "bucket(16, amount)", ("amount",), False, False),
        ("zorder(ts, region,count)", "zorder(ts, region, count)", ("ts", "region", "count"), False, False),
    ],
)
def test_a_term_says_what_where_to_and_where_nulls_go(
    text: str, name: str, columns: tuple[str, ...], is_descending: bool, nulls_last: bool
) -> None:
    term = parsed(text)
    assert (term.name, term.columns, term.is_descending, term.nulls_last) == (name, columns, is_descending, nulls_last)
    assert parsed(term.name) == term and hash(term) == hash(pickle.loads(pickle.dumps(term)))


@seeds(40, quick=40)
def test_every_sort_key_is_read_back_from_its_names(seed: int) -> None:
    terms = parse_sort_key(random_key(random.Random(seed)), EVERY_TYPE)
    assert parse_sort_key([term.name for term in terms], EVERY_TYPE) == terms


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["regoin"], "sort_key names the column 'regoin', which the schema lacks; did you mean 'region'"),
        (["date(tss) desc"], "'tss', which the schema lacks; did you mean 'ts'.*'date\\(tss\\) desc', character 6"),
        (["nested"], "nested columns can't be used there"),
        (["dat(ts)"], "'dat\\(ts\\)', character 1: there is no function 'dat'; did you mean 'date'.*bucket"),
        (["date(region)"], "character 6: date takes a date or a timestamp, and the column 'region' is string"),
        (["hour(day)"], "hour takes a timestamp, and the column 'day' is date32"),
        (["substr(count, 1, 2)"], "substr takes a string or a binary, and the column 'count' is int32"),
        (["bucket(4, ratio)"], "bucket takes .*, and the column 'ratio' is double"),
        (["bucket(0, count)"], "character 8: .*n must be a whole number from 1"),
        (["bucket(count, 4)"], "character 8: .*n must be a whole number from 1"),
        (["substr(region, 0, 2)"], "start must be a whole number from 1"),
        (["substr(region, 1)"], "character 17: a ',' is missing"),
        (["substr(region, 1,"], "character 18: substr.* length must be"),
        (["date(ts"], "character 8: a '\\)' is missing"),
        (["region down"], "character 8: 'down' is not understood; a term is a column or one of date"),
        (["region nulls"], "character 13: after 'nulls' comes 'first' or 'last'"),
        (["region nulls never"], "character 14: after 'nulls'"),
        (["a b"], "'a'"),
        (["  "], "it is empty"),
        (["(ts)"], "'\\(' is no column's name"),
        (["region", "region desc"], "names the column 'region' twice"),
        (["date(ts)", "DATE(ts) desc"], "names 'DATE\\(ts\\) desc' twice"),
        (["zorder(ts, region)", "count"], "zorder must be the only term"),
        (["zorder(ts)"], "zorder takes 2 to 8 columns, not 1"),
        (["hilbert(ts, ts)"], "names a column twice"),
        (["hilbert(ts, day) desc"], "character 18: hilbert takes neither a direction"),
    ],
)
def test_a_wrong_term_is_named_with_the_place_and_what_is_allowed(texts: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse_sort_key(texts, SCHEMA)


@dataclass
class Stored:
    stats: str | None


def snapshot(*stats: object) -> SimpleNamespace:
    return SimpleNamespace(parts={str(at): Stored(orjson.dumps(one).decode()) for at, one in enumerate(stats)})


def test_a_frame_holds_what_the_statistics_of_the_base_tell() -> None:
    terms = parse_sort_key(["zorder(ts, region, amount, ratio)"], SCHEMA)
    first = {"ts": "2026-01-01T00:00:00.000Z", "region": "eu", "amount": 1.5}
    last = {"ts": "2026-02-01T00:00:00.000Z", "region": "us", "amount": 99.25}
    base = snapshot(
        {"minValues": first, "maxValues": last},
        {"numRecords": 3},
        {"minValues": {"amount": -2}, "maxValues": {"amount": 7}},
    )
    properties = frame_properties(terms, base)
    [framed] = parse_sort_key(["zorder(ts, region, amount, ratio)"], SCHEMA, properties["lakebed.sort_key_frame"])
    day = 86_400_000_000
    assert framed.frame == ((20_454 * day, 20_485 * day), (b"eu", b"us"), (-200, 9925), None)
    assert framed != terms[0] and framed.name != terms[0].name, "another frame is another order"
    assert frame_properties(parse_sort_key(["ts"], SCHEMA), base) == {} == frame_properties(terms, snapshot())


@pytest.mark.parametrize("frame", ["no", "[[1, 2]]", '[[1, 2], ["b", "a"]]', "[[1, 2], 3]", '[["x", 2], null]'])
def test_a_frame_that_makes_no_sense_is_refused(frame: str) -> None:
    with pytest.raises(InvalidInput, match=r"lakebed\.sort_key_frame is .*set the sort key again"):
        parse_sort_key(["zorder(count, region)"], SCHEMA, frame)
