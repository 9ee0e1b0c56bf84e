"""Rendezvous hashing: workers agree without asking each other, and few tables move."""

from __future__ import annotations

from collections import Counter

from lakebed.fleet.membership import owner_of, ranks_of

TABLES = [f"/lake/public/t{number}" for number in range(2000)]
THREE = {"a": 4.0, "b": 4.0, "c": 4.0}


def test_equal_workers_own_equal_shares() -> None:
    owned = Counter(owner_of(table, THREE) for table in TABLES)
    assert set(owned) == set(THREE) and all(abs(count - 667) < 90 for count in owned.values())


def test_a_worker_with_twice_the_cores_owns_twice_as_much() -> None:
    owned = Counter(owner_of(table, {"small": 2.0, "large": 4.0}) for table in TABLES)
    assert 1.7 < owned["large"] / owned["small"] < 2.3


def test_a_worker_that_goes_moves_its_own_tables_alone() -> None:
    two = {name: cores for name, cores in THREE.items() if name != "b"}
    moved = [table for table in TABLES if owner_of(table, THREE) != owner_of(table, two)]
    assert moved and all(owner_of(table, THREE) == "b" for table in moved)


def test_nobody_owns_a_table_without_workers() -> None:
    assert owner_of(TABLES[0], {}) is None


def test_a_table_with_a_freshness_has_an_owner_and_two_that_stand_by_and_others_have_an_owner_alone() -> None:
    five = {name: 4.0 for name in "abcde"}
    fresh = frozenset(TABLES[::10])
    ranks = {name: ranks_of(name, TABLES, fresh, five) for name in five}
    for table in TABLES:
        found = sorted((ranks[name][table], name) for name in five if table in ranks[name])
        assert [rank for rank, _ in found] == ([0, 1, 2] if table in fresh else [0])
        assert found[0][1] == owner_of(table, five)
        if table in fresh:
            assert found[1][1] == owner_of(table, {name: 4.0 for name in five if name != found[0][1]}), "who is next"
