"""Which manifest a part is in, and what metadata says, follows from the set of parts alone."""

from __future__ import annotations

import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.iceberg import after_commit, made_up
from lakebed.iceberg.columns import iceberg_columns
from lakebed.iceberg.manifests import (
    CUTS,
    DATA,
    DELETES,
    Bounds,
    Manifest,
    PartEntry,
    _text_end,
    _text_start,
    manifest_bytes,
    manifests_of,
    part_entry,
)
from lakebed.log.actions import Part
from lakebed.log.deletion_vector import bitmap, inline

SNAPSHOT = made_up(1)
COLUMNS = iceberg_columns(SNAPSHOT)


def part(rng: random.Random, block: int) -> Part:
    path = f"_lakebed/{uuid.UUID(int=rng.getrandbits(128))}.parquet"
    found = Part(path=path, rows=10, bytes=100, min_block=block, max_block=block)
    return found.marked(inline(bitmap([rng.randrange(10)]))) if rng.random() < 0.4 else found


def manifests(parts: list[Part]) -> list[Manifest]:
    return manifests_of([part_entry(each, f"/lake/t/{each.path}") for each in parts], COLUMNS)


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_the_parts_does_not_matter_and_each_is_in_one_manifest(seed: int) -> None:
    rng = random.Random(seed)
    parts = [part(rng, at // 3) for at in range(600)]
    expected = manifests(parts)
    rng.shuffle(parts)
    assert [each.key for each in manifests(parts)] == [each.key for each in expected]
    for content, of in ((DATA, parts), (DELETES, [each for each in parts if each.deletion_vector])):
        named = [entry.part.path for each in expected if each.content == content for entry in each.entries]
        assert sorted(named) == sorted(each.path for each in of)
    assert [manifest_bytes(each, COLUMNS, "/lake/m") for each in expected[:3]] == [
        manifest_bytes(each, COLUMNS, "/lake/m") for each in manifests(parts)[:3]
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_part_that_comes_changes_two_manifests_of_its_kind_and_one_that_is_large_by_then(seed: int) -> None:
    rng = random.Random(seed)
    parts = [part(rng, at) for at in range(1500)]
    before = {each.key for each in manifests(parts)}
    new = part(rng, rng.randrange(1500))
    after = manifests([*parts, new])
    for content in (DATA, DELETES):
        assert len([each for each in after if each.content == content and each.key not in before]) <= 3


def test_manifests_of_the_newest_parts_are_small_and_the_others_few() -> None:
    rng = random.Random(2)
    data = [each for each in manifests([part(rng, at) for at in range(6000)]) if each.content == DATA]
    assert len(data) < 6000 / CUTS[DATA].large * 2 + 60
    assert sum(map(len, (each.entries for each in data[-3:]))) < 9 * CUTS[DATA].small
    for cut in CUTS.values():
        assert cut.large % cut.small == 0


def test_parts_that_come_write_one_manifest_of_data_each_and_of_vectors_seldom_more() -> None:
    """With parts that come one by one, and vectors that change among the newest, as each commit of a stream brings them."""
    random.seed(3)
    snapshot, entries = made_up(200), dict[tuple[str, int], PartEntry]()
    written = {DATA: list[int](), DELETES: list[int]()}
    before = set[str]()
    for _ in range(400):
        for path, each in snapshot.parts.items():
            if (path, each.dead_rows) not in entries:
                entries[path, each.dead_rows] = part_entry(each, f"/lake/t/{path}")
        now = manifests_of([entries[path, each.dead_rows] for path, each in snapshot.parts.items()], COLUMNS)
        for content, counts in written.items():
            counts.append(sum(each.content == content and each.key not in before for each in now))
        before, snapshot = {each.key for each in now}, after_commit(snapshot)
    assert set(written[DATA][1:]) <= {1, 2} and set(written[DELETES][1:]) <= {1, 2, 3}
    assert sum(written[DATA][1:]) < 1.02 * 400 and sum(written[DELETES][1:]) < 1.04 * 400


def test_a_vector_that_comes_or_changes_changes_no_manifest_of_data() -> None:
    parts = list(made_up(300).parts.values())
    marked = [each.marked(inline(bitmap([1, 2, 3]))) if at >= 250 else each for at, each in enumerate(parts)]
    both = [[each.key for each in manifests(of) if each.content == DATA] for of in (parts, marked)]
    assert both[0] == both[1]


def test_vectors_that_change_among_the_newest_change_one_manifest() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        parts = [each for each in made_up(1500).parts.values() if each.deletion_vector]
        before = {each.key for each in manifests(parts)}
        for at in rng.sample(range(1, CUTS[DELETES].together + 1), 4):
            parts[-at] = parts[-at].marked(inline(bitmap(range(20, 30))))
        assert len([each for each in manifests(parts) if each.key not in before]) == 1


@given(st.text(max_size=80), st.text(max_size=80))
def test_cut_texts_are_bounds(text: str, other: str) -> None:
    least, greatest = sorted([text.encode(), other.encode()])
    assert _text_start(least) <= least
    end = _text_end(greatest)
    assert end is None or end >= greatest


def test_bounds_in_bytes() -> None:
    stats = (
        '{"numRecords":3,"minValues":{"id":-1,"amount":-1.50,"region":"ü"},"maxValues":{"id":300,"amount":99999999.99,'
        '"region":"ü"},"nullCount":{"id":0,"amount":1}}'
    )
    found = Bounds(stats, COLUMNS.leaves)
    number = {path[0]: one for path, (one, _) in COLUMNS.leaves.items()}
    assert found.lower[number["id"]] == (-1).to_bytes(8, "little", signed=True)
    assert found.upper[number["amount"]] == (9999999999).to_bytes(5, "big", signed=True)
    assert found.lower[number["amount"]] == (-150).to_bytes(2, "big", signed=True)
    assert found.lower[number["region"]] == "ü".encode()
    assert found.nulls == {number["id"]: 0, number["amount"]: 1}
