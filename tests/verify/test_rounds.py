"""A round of comparing keys, and what a difference looks like."""

from __future__ import annotations

import pytest

from lakebed.verify.canonical import Column, Rule, Shape
from lakebed.verify.comparing import STANDS, STANDS_UNMARKED, Difference, Rounds, Version, difference_of
from lakebed.verify.judging import looks_like, same_but_blanks, same_json, same_number
from tests.verify.memory import NUMBER, TEXT

KEY = ("7",)
OLD, NEW = Version(1, "100"), Version(2, "101")


def rounds_of(*read: tuple[list[Version], list[int], list[Version]]) -> Rounds:
    rounds = Rounds.of([KEY])
    for before, lake, after in read:
        rounds.take({KEY: before}, {KEY: lake}, {KEY: after})
    return rounds


def test_a_key_is_equal_to_either_reading_of_its_source() -> None:
    assert rounds_of(([OLD], [1], [NEW])).equal == 1
    assert rounds_of(([OLD], [2], [NEW])).equal == 1
    assert rounds_of(([], [], [NEW])).equal == 1


def test_a_key_that_stands_differs() -> None:
    standing = ([OLD], [9], [OLD])
    assert rounds_of(*[standing] * (STANDS - 1)).different == {}
    assert list(rounds_of(*[standing] * STANDS).different) == [KEY]


def test_a_row_without_a_mark_must_stand_longer() -> None:
    """It may have changed and changed back, each time just when the table was read."""
    standing = ([Version(1)], [9], [Version(1)])
    assert rounds_of(*[standing] * (STANDS_UNMARKED - 1)).different == {}
    assert list(rounds_of(*[standing] * STANDS_UNMARKED).different) == [KEY]


def test_a_change_begins_anew() -> None:
    standing, changed = ([OLD], [9], [OLD]), ([OLD], [9], [NEW])
    assert rounds_of(*[standing] * (STANDS - 1), changed, standing).different == {}


def test_a_row_that_was_written_again_with_the_same_values_has_changed() -> None:
    again = Version(OLD.checksum, "102")
    found = rounds_of(*[([OLD], [9], [again])] * STANDS)
    assert (found.different, list(found.pending)) == ({}, [KEY])


def test_another_row_of_the_table_begins_anew() -> None:
    found = rounds_of(([], [8], []), ([], [9], []), ([], [8], []))
    assert found.different == {}


def test_a_doubled_row_is_not_equal() -> None:
    assert list(rounds_of(*[([OLD], [1, 1], [OLD])] * STANDS).different) == [KEY]


def columns(*names: str, rule: Rule = TEXT, kind: str = "text") -> Shape:
    id = Column(name="id", source_name="id", kind="int4", rule=NUMBER)
    return Shape(
        keys=(id,), columns=(id, *(Column(name=name, source_name=name, kind=kind, rule=rule) for name in names))
    )


def found(shape: Shape, source: list[list[str | None]], lake: list[list[str | None]]) -> Difference:
    difference = difference_of(shape, KEY, source, lake)
    assert difference is not None
    return difference


def test_a_difference_names_its_kind_and_the_first_column() -> None:
    shape = columns("a", "b")
    assert found(shape, [["7", "x", "y"]], []).kind == "missing"
    assert found(shape, [], [["7", "x", "y"]]).kind == "surplus"
    assert found(shape, [["7", "x", "y"]], [["7", "x", "y"]] * 2).kind == "doubled"
    changed = found(shape, [["7", "x", "y"]], [["7", "x", None]])
    assert (changed.kind, changed.column) == ("differs", "b")
    assert found(shape, [["7", "x", "y"]], [["7", "y", "x"]]).looks_like == "a and b are exchanged"
    assert found(shape, [["7", "long", "y"]], [["7", "lo", "y"]]).looks_like == "the text is cut"
    assert difference_of(shape, KEY, [["7", "x", "y"]], [["7", "x", "y"]]) is None


def test_long_values_are_cut() -> None:
    [row] = found(columns("a"), [["7", "x" * 5000]], []).source
    assert row["a"] == "x" * 199 + "…"


@pytest.mark.parametrize(
    ("kind", "source", "lake", "says"),
    [
        ("timestamp without time zone", "1704067205000000", "1704074405000000", "+2 h: a time zone"),
        ("timestamp without time zone", "1704067205000000", "1704047405000000", "-5.5 h: a time zone"),
        ("timestamp without time zone", "1704067205123456", "1704067205123000", "cut to milliseconds"),
        ("timestamp without time zone", "1704067205123456", "1704067205123457", ""),
        ("numeric", "NaN", None, "null for NaN"),
        ("numeric", "12.5", "12", ""),
        ("time without time zone", "24:00:00", "00:00:00", "Debezium sends 24:00 as 00:00"),
        ("time without time zone", "12:00:00", "00:00:00", ""),
        ("name", "x", None, "null for changes of the type name"),
        ("integer[]", "1:1" * 1000, None, "null for large values of some types"),
        ("text[]", "1:a1:b", "--", "null for inner arrays"),
        ("integer[]", "1,2", "-,-", "null for inner arrays"),
        ("integer[]", "1,2", "1", ""),
        ("date", "-735160", "-703383", "a year before Christ"),
        ("date", "19783", "19782", ""),
        ("date", "-719162", "-703383", ""),
        ("timestamp without time zone", "253402300799999999", None, "nanoseconds has no such time"),
        ("datetime(6)", "0000-00-00 00:00:00", None, "null for a day that no calendar has"),
        ("date", "0000-00-00", "0", "another day for a day that no calendar has"),
        ("date", "-701265", "29220", "years below 100"),
        ("datetime(3)", "253402300799000000", "-4852202632933723", "nanoseconds has no such time"),
        ("bigint(20) unsigned", "18446744073709551615", "-1", "bigint.unsigned.handling.mode=long"),
        ("float", "16777216", "16777200", "six digits of a float"),
        ("float", "16777216", "16777300", ""),
        ("time(6)", "838:59:59", None, "times within a day alone"),
        ("time", "12:00:00", None, ""),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "00123e45-67e8-9b12-d3a4-564266141740", "moved by a byte"),
        ("text", "x", None, ""),
        ("text", "x", "__debezium_unavailable_value", "placeholder"),
    ],
)
def test_what_a_value_looks_like(kind: str, source: str, lake: str | None, says: str) -> None:
    guess = looks_like(kind, source, lake)
    assert says in guess if says else guess == ""


def test_judges_compare_values_exactly() -> None:
    assert same_json('{"b": 1, "a": [null, true]}', '{"a":[null,true],"b":1.0}')
    assert not same_json('{"a": 1}', '{"a": true}')
    assert not same_json('{"a": 12345678901234567890.1}', '{"a": 12345678901234567890.2}')
    assert not same_json('{"a": 1}', "no document")
    assert same_number("1.50", "1.5") and same_number("NaN", "NAN")
    assert not same_number("0.30000000000000004", "0.3")
    assert not same_number("NaN", "null")
    assert same_but_blanks("ab   ", "ab")
    assert not same_but_blanks(" ab", "ab")
