"""A table with dates and timestamps that Python has no objects for: every way to look at it works, and no value changes."""

from __future__ import annotations

import datetime
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import exit_codes, main
from lakebed.errors import InvalidInput
from lakebed.far_times import iso_text
from lakebed.health.examination import examine
from lakebed.log.actions import AddPart
from lakebed.parts.quarantine import QUARANTINE_SCHEMA
from lakebed.view.arrow_scan import epoch_ms
from tests.health.test_doctor import base, commit, new_path, place
from tests.table.others import File, table_of_others

DAY, STAMP, LOCAL = pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")
PLACE = pa.struct([("at", STAMP), ("day", DAY)])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        ("day", DAY),
        ("at", STAMP),
        ("local", LOCAL),
        ("place", PLACE),
        ("days", pa.list_(DAY)),
    ]
)
DAYS = [6_666_479, -735_160, 2_932_897, -719_163, 2**31 - 2, -(2**31) + 2, 19_000, None]
MICROS = [
    575_983_828_800_123_456,
    -63_517_780_799_876_544,
    253_402_300_800_000_000,
    -62_135_596_800_000_001,
    9_223_372_022_399_999_999,
    -9_223_372_022_400_000_000,
    1_700_000_000_000_000,
    None,
]
FAR = "\"at\" > timestamptz '9999-12-31 23:59:59.999999+00' or day < date '0001-01-01'"


def rows(first: int = 0, of: slice = slice(None)) -> pa.Table:
    day = pa.array(DAYS[of], pa.int32()).view(DAY)
    at = pa.array(MICROS[of], pa.int64()).view(STAMP)
    place = pa.StructArray.from_arrays([at, day], fields=list(PLACE))
    days = pa.ListArray.from_arrays(range(len(day) + 1), day)
    ids = pa.array(range(first, first + len(day)), pa.int64())
    return pa.table([ids, day, at, at.cast(LOCAL), place, days], schema=SCHEMA)


def expected(*tables: pa.Table) -> pa.Table:
    return pa.concat_tables(tables).sort_by("id").combine_chunks()


def read(table: lakebed.Table, **how: Any) -> pa.Table:
    return table.to_arrow(**how).sort_by("id").combine_chunks()


def run(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as end:
        return int(str(end.code))


KEYS = ["at", "day desc", "day(local)", "year(at)", "zorder(at, day)", "hilbert(local, day)"]


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_every_command_shows_it_and_maintenance_keeps_it(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], sort_key=[key])
    for number in range(3):
        table.apply(rows(8 * number))
    table.apply(rows(100, slice(0, 2)))  # all of it is beyond the years that Python has
    everything = expected(*(rows(8 * number) for number in range(3)), rows(100, slice(0, 2)))
    for step in (lambda: None, table.settle, table.maintenance.compact):
        step()
        assert read(table).equals(everything)
        assert read(table, where=FAR)["id"].to_pylist() == [0, 1, 2, 3, 4, 5, *range(8, 14), *range(16, 22), 100, 101]
        for kind in ("clustering", "parts", "figures", "commits"):
            assert run("show", kind, table.path) == exit_codes.OK
            assert run("show", kind, table.path, "--format", "json") == exit_codes.OK
        assert run("verify", table.path, "--self", "--deep") == exit_codes.OK, capsys.readouterr().out
    capsys.readouterr()
    assert run("query", table.path, "select * from t where id = 0") == exit_codes.OK
    assert "+20222-03-15T12:00:00.123456Z" in capsys.readouterr().out
    assert run("query", table.path, "select * from t where id < 8 order by id", "--format", "json") == exit_codes.OK
    for number, line in enumerate(capsys.readouterr().out.splitlines()):
        day, at, shown = DAYS[number], MICROS[number], json.loads(line)
        if day is None or at is None:
            assert (shown["day"], shown["at"], shown["days"]) == (None, None, [None])
            continue
        texts = iso_text(day, DAY), iso_text(at, STAMP)
        assert shown == {
            "id": number,
            "day": texts[0],
            "at": texts[1],
            "local": iso_text(at, LOCAL),
            "place": {"at": texts[1], "day": texts[0]},
            "days": [texts[0]],
        }


def test_pandas_gets_numpys_dates_where_python_has_none(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    table.apply(rows())
    frame = table.to_pandas().sort_values("id")
    day = frame["day"].tolist()
    assert day[:2] == [np.datetime64("20222-03-15"), np.datetime64(-735_160, "D")]
    assert day[6:] == [datetime.date(2022, 1, 8), None]
    assert frame["at"].dtype == "datetime64[us, UTC]" and frame["at"].iloc[0].year == 20222
    assert frame["days"].iloc[0] == [np.datetime64("20222-03-15")]


def test_a_partition_of_a_far_day_is_none_of_the_tables(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, partition_by=["day"])
    table.apply(rows(of=slice(6, 7)))
    with pytest.raises(InvalidInput, match="20222-03-15"):
        table.detach_partition({"day": "20222-03-15"})


def test_a_column_with_duckdbs_infinity_is_adopted_but_is_no_key(tmp_path: Path) -> None:
    values = pa.table({"id": [1, 2], "day": pa.array([2**31 - 1, 0], pa.int32()).view(DAY)})
    path = table_of_others(tmp_path / "t", values.schema, [File(values)])
    with pytest.raises(InvalidInput, match="'day' can't be a key: it has DuckDB's"):
        lakebed.convert(path, keys=["day"])
    table = lakebed.convert(path, keys=["id"])
    assert table.query("select day from t order by id", "t")["day"].cast(pa.int32()).to_pylist() == [2**31 - 1, 0]
    far = pa.table({"day": pa.array(DAYS[:2], pa.int32()).view(DAY)})
    assert (
        len(lakebed.convert(table_of_others(tmp_path / "far", far.schema, [File(far)]), keys=["day"]).to_arrow()) == 2
    )


def test_a_duplicate_key_of_a_far_day_is_named(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["day"])
    table.apply(rows(of=slice(0, 1)))
    table.settle()
    part, path = base(table), new_path()
    shutil.copyfile(place(table, part.path), place(table, path))
    commit(table, AddPart(replace(part, path=path)))
    assert "day = '+20222-03-15' is live 2 times" in examine(table.path, deep=True).findings[0].what


def test_a_record_of_a_far_time_is_shown_in_the_quarantine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    aside = lakebed.create(tmp_path / "t_quarantine", QUARANTINE_SCHEMA)
    times = pa.array(MICROS[:2], pa.int64()).view(STAMP)
    fields = {name: pa.nulls(2, QUARANTINE_SCHEMA.field(name).type) for name in QUARANTINE_SCHEMA.names}
    aside.apply(pa.table(fields | {"time": times, "reason": pa.array(["bad"] * 2)}))
    for form in ("table", "json"):
        assert run("quarantine", "show", str(tmp_path / "t"), "--format", form) == exit_codes.OK
        assert "+20222-03-15T12:00:00.123456Z" in capsys.readouterr().out


@pytest.mark.parametrize("moment", [float("inf"), float("nan"), "infinity", "+20222-03-15"])
def test_no_version_is_of_an_infinite_or_far_time(moment: Any) -> None:
    with pytest.raises(InvalidInput, match="is not a time"):
        epoch_ms(moment)
