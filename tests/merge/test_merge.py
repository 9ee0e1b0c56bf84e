"""Merging: the live rows of the sources, no other, in sort-key order (S1, S2), and where each of them came from."""

from __future__ import annotations

import itertools
import pickle
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from lakebed.errors import Corrupt, InvalidInput
from lakebed.log.actions import Part
from lakebed.merge.kernel import MergedPart, MergeSource, merge_parts
from lakebed.merge.provenance import Provenance
from lakebed.merge.reader import MergeLimits
from lakebed.parts import write
from lakebed.parts.changes import DELETE, OP_COLUMN, SEQUENCE_COLUMN, UPSERT, WriteSpec
from lakebed.parts.write import write_parts
from lakebed.sortkey.ranges import is_point, order_columns, range_of
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect
from tests.table.values import TYPES
from tests.worlds import seeds

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("x", pa.float64()),
        pa.field("s", pa.string()),
        pa.field("n", pa.struct([pa.field("a", pa.struct([pa.field("b", pa.int32())]))])),
    ]
)
Row = dict[str, Any]


def source(
    folder: Path, rows: pa.Table, spec: WriteSpec, dead: Sequence[int] = (), keeps_deletes: bool = False
) -> MergeSource:
    storage = open_part_storage(folder)
    [written] = write_parts(rows, spec, storage)
    part = written.base_part(OP_COLUMN in rows.column_names)
    return MergeSource(part, BitMap64(dead), keeps_deletes, storage.duckdb_url(part.path))


def foreign(folder: Path, rows: pa.Table, values: dict[str, str | None] | None = None, **options: Any) -> MergeSource:
    path = f"part-{len(list(folder.iterdir()))}.parquet"
    pq.write_table(rows, folder / path, **options)
    part = Part(path=path, rows=len(rows), bytes=(folder / path).stat().st_size, partition_values=values or {})
    return MergeSource(part, BitMap64(), False, str(folder / path))


def merged(folder: Path, sources: Sequence[MergeSource], spec: WriteSpec, **options: Any) -> list[MergedPart]:
    return merge_parts(sources, spec, open_part_storage(folder), connect(threads=1), **options)


def stored(folder: Path, part: MergedPart | Part) -> pa.Table:
    return pq.read_table(folder / part.path, partitioning=None)


def bits(table: pa.Table) -> list[str]:
    """Each row as text that tells -0.0 from 0.0 and equals itself where it holds NaN."""
    return [repr(row) for row in table.to_pylist()]


def random_table(rng: random.Random, count: int) -> pa.Table:
    rows = [
        {
            "k": rng.choice([None, *range(6)]),
            "x": rng.choice([None, 0.0, -0.0, float("nan"), float("inf"), rng.random()]),
            "s": rng.choice([None, "", "a", "ä", "z" * 20]),
            "n": rng.choice([None, {"a": None}, {"a": {"b": rng.randrange(9)}}]),
        }
        for _ in range(count)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def place(row: Row, order_by: Sequence[str]) -> tuple[Any, ...]:
    """Nulls first, NaN last, strings by their bytes."""
    out: list[Any] = []
    for name in order_by:
        value = row[name]
        if value is None:
            out.append((0, 0))
        elif isinstance(value, float) and value != value:
            out.append((2, 0))
        else:
            out.append((1, value.encode() if isinstance(value, str) else value))
    return tuple(out)


@seeds(15, quick=5)
def test_a_merge_is_what_plain_python_makes_of_the_same_rows(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    group_rows = rng.choice([3, 122_880])
    monkeypatch.setattr(write, "ROW_GROUP_ROWS", group_rows)
    limits = MergeLimits(
        row_group_rows=group_rows,  # sources are read alone, or as one scan
        key_copies=rng.choice([2, 1 << 60]),  # keys are sorted in memory, or by DuckDB
        number_bytes=rng.choice([16, 1 << 60]),  # or in memory if they are numbers
        chunks_in_memory=rng.choice([5, 4_000_000, 1 << 60]),  # a chunk is a part, some rows, a row
        reads_of_a_row_max=rng.choice([0, 1 << 60]),  # rows are spilled, or not
    )
    order_by = rng.choice([(), ("k",), ("k", "x"), ("x", "s"), ("s", "k", "x")])
    schema = rng.choice([SCHEMA, SCHEMA.remove(3)])  # with a nested column DuckDB reads, else Arrow
    spec = WriteSpec(schema=schema, sort_key=order_by, keys=("k",), sequence_by=rng.choice([None, "_hidden"]))
    if not order_by:
        spec = WriteSpec(schema=schema)
    hidden, columns = spec.sequence_column == SEQUENCE_COLUMN, list(schema.names)
    columns += [SEQUENCE_COLUMN] if hidden else []
    sources, expected = [], []
    for ordinal in range(rng.randrange(1, 7)):
        table = random_table(rng, rng.randrange(1, 12)).select(schema.names)
        if hidden:
            table = table.append_column(SEQUENCE_COLUMN, pa.array(rng.choices(range(99), k=len(table)), pa.int64()))
        has_op = bool(spec.keys) and rng.random() < 0.7
        if has_op:
            table = table.append_column(OP_COLUMN, pa.array(rng.choices([UPSERT, DELETE], [4, 1], k=len(table))))
        unsorted = spec if rng.random() < 0.7 else WriteSpec(schema=schema, sequence_by=spec.sequence_by)
        one = source(tmp_path, table, unsorted, keeps_deletes=hidden and rng.random() < 0.7)
        rows = stored(tmp_path, one.part).to_pylist()
        deletes = {at for at, row in enumerate(rows) if has_op and row[OP_COLUMN] == DELETE}
        dead = deletes | {at for at in range(len(rows)) if rng.random() < 0.3}
        if rng.random() < 0.1:
            dead = set(range(len(rows)))
        sources.append(MergeSource(one.part, BitMap64(dead), one.keeps_deletes, one.url))
        for at, row in enumerate(rows):
            tombstone = one.keeps_deletes and at in deletes
            if at not in dead or tombstone:
                expected.append((place(row, spec.order_by), ordinal, at, tombstone, row))
    expected.sort(key=lambda each: each[:3])
    rows_max = rng.choice([1, 4, 1000])
    parts = merged(tmp_path, sources, spec, rows_max=rows_max, limits=limits)
    assert [part.rows for part in parts] == [
        len(expected[at : at + rows_max]) for at in range(0, len(expected), rows_max)
    ]
    for at, part in enumerate(parts):
        wanted = expected[at * rows_max :][: part.rows]
        found = stored(tmp_path, part)
        tombstones = [number for number, each in enumerate(wanted) if each[3]]
        assert bits(found.select(columns)) == [repr({name: each[4][name] for name in columns}) for each in wanted]
        assert part.provenance.ordinals.tolist() == [each[1] for each in wanted]
        assert part.provenance.rows.tolist() == [each[2] for each in wanted]
        assert list(part.dead) == tombstones and part.deletes == len(tombstones)
        assert part.has_op_column == (OP_COLUMN in found.column_names) == bool(tombstones)
        assert set(found.column_names) == {*columns, *([OP_COLUMN] if tombstones else [])}
        if tombstones:
            ops = found[OP_COLUMN].to_pylist()
            assert ops == [DELETE if each[3] else UPSERT for each in wanted]
        assert orjson.loads(part.stats)["numRecords"] == part.rows
        assert part.bytes == (tmp_path / part.path).stat().st_size and part.path.startswith("_lakebed/")


@pytest.mark.parametrize("sort_key", [(), ("id",)])
def test_values_at_the_edges_of_every_type_come_out_bit_exact(sort_key: tuple[str, ...], tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in TYPES.items())])
    spec = WriteSpec(schema=schema, sort_key=sort_key)
    longest = max(len(values) for _, values in TYPES.values())
    rows = [
        {"id": at, **{name: values[at % len(values)] for name, (_, values) in TYPES.items()}}
        for at in range(2 * longest)
    ]
    tables = [pa.Table.from_pylist(rows[start::2], schema) for start in range(2)]
    sources = [source(tmp_path, table, spec) for table in tables]
    [part] = merged(tmp_path, sources, spec)
    order = sorted(rows, key=lambda row: row["id"]) if sort_key else rows[::2] + rows[1::2]
    assert bits(stored(tmp_path, part).cast(schema)) == bits(pa.Table.from_pylist(order, schema))


@pytest.mark.parametrize("name", [name for name, (kind, _) in TYPES.items() if not pa.types.is_nested(kind)])
def test_a_part_is_sorted_by_a_key_of_any_type_as_the_writer_sorts_it(name: str, tmp_path: Path) -> None:
    kind, values = TYPES[name]
    schema = pa.schema([("v", kind), ("id", pa.int64())])
    spec = WriteSpec(schema=schema, sort_key=("v", "id"))
    tables = [pa.table({"v": pa.array(values, kind), "id": pa.array(range(at, at + len(values)))}) for at in (0, 100)]
    [part] = merged(tmp_path, [source(tmp_path, table, spec) for table in tables], spec)
    at_once = source(tmp_path, pa.concat_tables(tables).cast(schema), spec).part
    assert bits(stored(tmp_path, part)) == bits(stored(tmp_path, at_once))


def test_a_merged_part_has_the_statistics_that_the_writer_gives_to_the_same_rows(tmp_path: Path) -> None:
    limits = MergeLimits(row_group_rows=2)  # bounds are those of several row groups
    plain = {name: (kind, values) for name, (kind, values) in TYPES.items() if not pa.types.is_nested(kind)}
    schema = pa.schema(
        [("id", pa.int64()), ("n, a", SCHEMA.field("n").type), ("nan", pa.float64()), ("nothing", pa.string())]
        + [(name, kind) for name, (kind, _) in plain.items()]
    )
    spec, count = WriteSpec(schema=schema, keys=("id",)), max(len(values) for _, values in plain.values())
    rows = [
        {"id": at, "nan": float("nan") if at == 3 else 1.0}
        | {name: values[at % len(values)] for name, (_, values) in plain.items()}
        for at in range(count)
    ]
    tables = [pa.Table.from_pylist(rows[start::2], schema) for start in range(2)]
    [part] = merged(tmp_path, [source(tmp_path, table, spec) for table in tables], spec, limits=limits)
    assert orjson.loads(part.stats) == orjson.loads(
        source(tmp_path, pa.Table.from_pylist(rows, schema), spec).part.stats or ""
    )


def test_foreign_parts_are_read_with_the_partition_of_the_log_and_the_types_of_the_table(tmp_path: Path) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")), ("day", pa.date32()),
         ("raw", pa.binary()), ("region", pa.string()), ("added", pa.string())]
    )  # fmt: skip
    spec = WriteSpec(schema=schema, keys=("id",), sequence_by="hidden", partition_by=("day", "raw", "region"))
    values: dict[str, str | None] = {"day": "2026-03-04", "raw": "a\xff", "region": ""}
    moment = pa.array([1_700_000_000_000_001, None], pa.int64())
    rows = pa.table(
        {
            "id": pa.array([2, 1], pa.int32()),
            "at": moment.cast(pa.timestamp("us")),
            "local": moment.cast(pa.timestamp("us")),
        }
    )
    sources = [foreign(tmp_path, rows, values, use_deprecated_int96_timestamps=True), foreign(tmp_path, rows, values)]
    [part] = merged(tmp_path, sources, spec)
    found = stored(tmp_path, part)
    assert found.schema.types[:3] == [pa.int64(), pa.timestamp("us", "UTC"), pa.timestamp("us")]
    assert found["id"].to_pylist() == [1, 1, 2, 2]
    assert found["at"].cast(pa.int64()).to_pylist() == [None, None, 1_700_000_000_000_001, 1_700_000_000_000_001]
    assert found["local"].cast(pa.int64()).to_pylist() == [None, None, 1_700_000_000_000_001, 1_700_000_000_000_001]
    assert {repr(row) for row in found.select(["day", "raw", "region", "added", SEQUENCE_COLUMN]).to_pylist()} == {
        "{'day': datetime.date(2026, 3, 4), 'raw': b'a\\xc3\\xbf', 'region': None, 'added': None, '_lakebed_seq': None}"
    }


def test_parts_are_split_at_about_so_many_bytes(tmp_path: Path) -> None:
    spec = WriteSpec(schema=pa.schema([("id", pa.int64())]), keys=("id",))
    ids = np.random.default_rng(1).integers(0, 2**62, 20_000)
    sources = [source(tmp_path, pa.table({"id": ids[half::2]}), spec) for half in range(2)]
    parts = merged(tmp_path, sources, spec, bytes_max=sources[0].part.bytes // 2)
    assert len(parts) in (4, 5)
    assert all(part.bytes < sources[0].part.bytes * 0.6 for part in parts)
    assert pa.concat_tables([stored(tmp_path, part) for part in parts])["id"].to_pylist() == sorted(ids.tolist())


def test_wide_rows_are_sorted_chunk_by_chunk(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    spec = WriteSpec(schema=schema, keys=("id",))
    ids, rng = np.arange(40_000), np.random.default_rng(3)
    rng.shuffle(ids)
    tables = [pa.table({"id": half, "text": [f"{one:064}" * 16 for one in half]}) for half in np.split(ids, 4)]
    sources = [source(tmp_path, table, spec) for table in tables]
    small = connect(memory_bytes_max=64 << 20, threads=1)
    [part] = merge_parts(sources, spec, open_part_storage(tmp_path), small)
    found = stored(tmp_path, part)
    assert found["id"].to_pylist() == list(range(40_000))
    assert found["text"].to_pylist() == [f"{one:064}" * 16 for one in range(40_000)]


def test_many_short_parts_are_read_once_for_their_keys_and_once_for_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = WriteSpec(schema=pa.schema([("id", pa.int64()), ("text", pa.string())]), keys=("id",))
    ids, rng = np.arange(120_000), np.random.default_rng(3)
    rng.shuffle(ids)
    tables = [pa.table({"id": piece, "text": [f"{one:0200}" for one in piece]}) for piece in np.split(ids, 60)]
    sources = [source(tmp_path, table, spec) for table in tables]
    reads: list[int] = []
    read_row_group = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_group", lambda *args, **kw: reads.append(1) or read_row_group(*args, **kw)
    )
    small = connect(memory_bytes_max=16 << 20, threads=1)
    [part] = merge_parts(sources, spec, open_part_storage(tmp_path), small)
    assert len(reads) == 2 * len(sources)
    found = stored(tmp_path, part)
    assert found["id"].to_pylist() == list(range(120_000))
    assert found["text"].to_pylist() == [f"{one:0200}" for one in range(120_000)]


def test_sources_that_are_all_dead_give_no_part(tmp_path: Path) -> None:
    spec = WriteSpec(schema=pa.schema([("id", pa.int64())]), keys=("id",))
    sources = [source(tmp_path, pa.table({"id": [1, 2]}), spec, dead=[0, 1])]
    assert merged(tmp_path, sources, spec) == [] == merged(tmp_path, [], spec)


def test_rows_that_died_meanwhile_are_found_in_the_output(tmp_path: Path) -> None:
    spec = WriteSpec(schema=pa.schema([("id", pa.int64())]), keys=("id",))
    sources = [
        source(tmp_path, pa.table({"id": range(0, 20, 2)}), spec, dead=[3]),
        source(tmp_path, pa.table({"id": range(1, 20, 2)}), spec),
    ]
    parts = merged(tmp_path, sources, spec, rows_max=7)
    gone = [part.provenance.map_rows(0, BitMap64([0, 3, 9])) for part in parts]
    assert [
        stored(tmp_path, part)["id"][row].as_py() for part, rows in zip(parts, gone, strict=True) for row in rows
    ] == [
        0,
        18,
    ]
    assert not any(part.provenance.map_rows(5, BitMap64([0])) for part in parts)


def test_a_merge_of_merged_parts_is_reported_in_terms_of_the_original_parts(tmp_path: Path) -> None:
    spec, rng = WriteSpec(schema=SCHEMA, sort_key=("k", "x")), random.Random(5)
    originals = [source(tmp_path, random_table(rng, 30), spec, dead=[1, 4]) for _ in range(5)]
    first, second = merged(tmp_path, originals[:2], spec), merged(tmp_path, originals[3:], spec)
    outer = [
        MergeSource(Part(path=one.path, rows=one.rows, bytes=one.bytes), BitMap64([0]), False, str(tmp_path / one.path))
        for one in (*first, *second)
    ]
    [part] = merged(tmp_path, [outer[0], originals[2], outer[1]], spec)
    whole = part.provenance.compose([first[0].provenance, 2, second[0].provenance.renumbered([3, 4])])
    tables = [stored(tmp_path, one.part).to_pylist() for one in originals]
    places = zip(whole.ordinals.tolist(), whole.rows.tolist(), strict=True)
    assert bits(stored(tmp_path, part)) == [repr(tables[ordinal][row]) for ordinal, row in places]


@seeds(4, quick=2)
def test_a_provenance_survives_its_bytes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.choice([0, 1, 1000]))
    ordinals = rng.integers(0, rng.choice([1, 300, 65_536]), count).astype(np.uint16)
    provenance = Provenance(ordinals, rng.integers(0, 2**32, count).astype(np.uint32))
    assert Provenance.from_bytes(provenance.to_bytes()) == provenance == pickle.loads(pickle.dumps(provenance))
    if count:
        with pytest.raises(Corrupt, match="provenance"):
            Provenance.from_bytes(provenance.to_bytes()[:-3])


def test_a_missing_or_damaged_source_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    spec = WriteSpec(schema=pa.schema([("id", pa.int64()), ("text", pa.string())]), keys=("id",))
    rows = pa.table({"id": range(5000), "text": [f"text {at * 7919}" for at in range(5000)]})
    good, bad = source(tmp_path, rows, spec), source(tmp_path, rows, spec)
    file = Path(bad.url)
    whole = file.read_bytes()
    file.write_bytes(whole[:-3000] + b"\xff" * 500 + whole[-2500:])  # within the texts
    with pytest.raises(Corrupt, match=bad.part.path):
        merged(tmp_path, [good, bad], spec, rows_max=100)
    file.unlink()
    with pytest.raises(Corrupt, match=bad.part.path):
        merged(tmp_path, [good, bad], spec)
    wrong = MergeSource(good.part, BitMap64([5000]), False, good.url)
    with pytest.raises(Corrupt, match="marks row 5000"):
        merged(tmp_path, [wrong], spec)
    assert [path.name for path in (tmp_path / "_lakebed").iterdir()] == [Path(good.url).name]


def test_a_merge_that_is_asked_to_stop_leaves_no_file(tmp_path: Path) -> None:
    spec = WriteSpec(schema=pa.schema([("id", pa.int64())]), keys=("id",))
    one, seen = source(tmp_path, pa.table({"id": range(10)}), spec), []

    def stop(rows: int) -> None:
        seen.append(rows)
        if rows == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merged(tmp_path, [one], spec, rows_max=4, on_progress=stop)
    assert seen == [0, 4, 8]
    assert [path.name for path in (tmp_path / "_lakebed").iterdir()] == [Path(one.url).name]


def test_parts_of_two_partitions_are_refused(tmp_path: Path) -> None:
    spec = WriteSpec(schema=pa.schema([("id", pa.int64()), ("p", pa.string())]), keys=("id",), partition_by=("p",))
    rows = pa.table({"id": [1]})
    with pytest.raises(InvalidInput, match="one partition"):
        merged(tmp_path, [foreign(tmp_path, rows, {"p": "a"}), foreign(tmp_path, rows, {"p": "b"})], spec)


@pytest.mark.long
@pytest.mark.slow
def test_ten_million_rows_are_merged_within_a_gigabyte(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks.merge", "--task", "10"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(orjson.loads(done.stdout.splitlines()[-1])["private_mb"]) <= 1000


@seeds(3, quick=2)
def test_merged_parts_tell_their_first_and_last_key_and_lie_side_by_side(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    spec = WriteSpec(schema=SCHEMA, sort_key=("s", "k"))
    rows = [random_table(rng, 200) for _ in range(3)]
    rows = [
        table.set_column(2, "s", pa.array([rng.choice([None, "a", "ä" * 40, "ä" * 41]) for _ in range(200)]))
        for table in rows
    ]
    parts = merged(tmp_path, [source(tmp_path, table, spec) for table in rows], spec, rows_max=37)
    order = order_columns(SCHEMA, ("s", "k"), ())
    ranges = [range_of(part.stats, order) for part in parts]
    for part, told in zip(parts, ranges, strict=True):
        assert told.is_bounded
        for row in stored(tmp_path, part).select(["s", "k"]).to_pylist():
            key = (
                *((0, None) if row["s"] is None else (1, row["s"].encode())),
                *((0, None) if row["k"] is None else (1, row["k"])),
            )
            assert told.lower <= key <= told.upper
    for left, right in itertools.pairwise(ranges):
        assert left.upper <= right.lower or is_point(right.lower, left.upper)


@pytest.mark.parametrize("is_spilled", [False, True])
def test_a_dictionary_has_no_value_of_rows_that_were_left_out(is_spilled: bool, tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("s", pa.string()), ("b", pa.binary())])
    spec = WriteSpec(schema=schema, sort_key=("k",), sort_key_version=2)
    of_before = replace(spec, sort_key=("s",), sort_key_version=1)  # rows in another order are spilled
    texts = ["gone" if number % 3 else None if number % 2 else "stays" for number in range(60)]
    binary = [None if text is None else text.encode() for text in texts]
    rows = pa.table({"k": range(60), "s": texts, "b": binary}, schema)
    of_part = source(tmp_path, rows, of_before if is_spilled else spec)
    dead = [place for place, text in enumerate(stored(tmp_path, of_part.part)["s"].to_pylist()) if text == "gone"]
    limits = MergeLimits(row_group_rows=7, reads_of_a_row_max=0)
    [part] = merged(tmp_path, [replace(of_part, dead=BitMap64(dead))], spec, limits=limits)
    read = pq.ParquetFile(tmp_path / part.path, read_dictionary=["s", "b"]).read()
    for name in ("s", "b"):
        assert {value for chunk in read[name].chunks for value in chunk.dictionary.to_pylist()} <= {"stays", b"stays"}
    assert read["s"].to_pylist() == [text for text in texts if text != "gone"]
