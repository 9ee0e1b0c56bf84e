"""At every point a bank's tables have all of its money, and every transfer; without points they do not."""

from __future__ import annotations

import random
from concurrent.futures import Future
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

import lakebed
from lakebed.errors import InvalidInput, StoreUnavailable, TableNotFound, VersionNotFound
from lakebed.points.keeper import SettledPoints
from lakebed.positions.point_log import Point, PointLog, TableAt
from lakebed.table import internals_of
from tests.database.bank import TOTAL, TRANSACTIONS, Bank, Copy
from tests.worlds import seeds

MONEY = """
    select (select sum(balance) from public.checking) + (select sum(balance) from savings) as money, count(*) as n
    from transfers
"""
LEFT_OUT = {"audit.transfers": "its type is impossible"}


def lagging(bank: Bank, draw: random.Random) -> dict[tuple[str, int], int]:
    """The ends that a planner sees, where some topics lag behind the others."""
    return {
        place: draw.randint(0, end)
        for place, end in bank.source.ends().items()
        if draw.random() < 0.5 and place[0] != TRANSACTIONS
    }


def seen_in(moment: lakebed.Moment) -> tuple[int, int]:
    (row,) = moment.query(MONEY).to_pylist()
    return row["money"], row["n"]


@seeds(2, quick=0)
def test_at_every_point_no_money_is_missing(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    bank = Bank(draw)
    copy = Copy(tmp_path / "bank", bank)
    points: list[Point] = []
    for number in range(12):
        for _ in range(draw.randint(0, 4)):
            bank.transfer()
        if draw.random() < 0.2:
            copy.start()
        if draw.random() < 0.3:
            draw.choice(list(copy.tables.values())).settle()
        # Before a batch has read all that there is, a topic may lack rows of its snapshot.
        ends = None if number == 3 else lagging(bank, draw)
        points += [point] if (point := copy.batch(ends)) else []
    for _ in range(2):  # the point that was waited for, and then the newest
        points += [point] if (point := copy.batch()) else []
    warehouse = lakebed.warehouse(copy.path)
    assert len(points) > 2
    for point in points:
        with warehouse.at(point.number) as moment:
            assert seen_in(moment) == (TOTAL, point.time_ms)  # the bank's clock counts the transfers
    assert seen_in(warehouse.at("newest")) == (TOTAL, bank.transfers)


@seeds(3)
def test_no_point_lacks_rows_of_a_snapshot_that_is_read_in_pieces(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    bank = Bank(draw)
    copy = Copy(tmp_path / "bank", bank)
    points = []
    for number in range(6):
        bank.transfer()
        if draw.random() < 0.2:
            copy.start()
        points.append(copy.batch(lagging(bank, draw) if number < 4 else None))
    warehouse = lakebed.warehouse(copy.path)
    assert any(points[-2:])
    for point in points:
        if point is not None and not point.left_out:
            with warehouse.at(point.number) as moment:
                assert seen_in(moment) == (TOTAL, point.time_ms)


@pytest.mark.slow
def test_every_delta_reader_sees_the_money_at_the_versions_of_a_settled_point(tmp_path: Path) -> None:
    """Also if the tables go on while they are settled, and others settle beyond the point."""
    draw = random.Random(5)
    bank = Bank(draw)
    copy = Copy(tmp_path / "bank", bank)
    warehouse, points = lakebed.warehouse(copy.path), PointLog.of(copy.path)

    def settle_to(name: str, version: int) -> Future[int | None]:
        if draw.random() < 0.3:
            bank.transfer()
            copy.batch()
        future: Future[int | None] = Future()
        future.set_result(internals_of(warehouse.table(name)).settler.settle_to(version))
        return future

    rounds = SettledPoints(points, settle_to, pause_seconds=0.0)
    settled = set[int]()
    copy.batch()
    for _ in range(12):
        bank.transfer()
        copy.batch(lagging(bank, draw))
        if draw.random() < 0.2:
            warehouse.table("public.checking").settle()
        rounds.next()
        rounds.next()
        try:
            moment = warehouse.at(settled=True)
        except VersionNotFound:
            continue
        settled.add(moment.number)
        checking, savings, transfers = (
            DeltaTable(f"{copy.path}/{name.replace('.', '/')}", version=moment.settled_versions[name])
            for name in ("public.checking", "public.savings", "audit.transfers")
        )
        query = QueryBuilder().register("c", checking).register("s", savings).register("t", transfers)
        sql = (
            "select (select sum(balance) from c) + (select sum(balance) from s) as money, (select count(*) from t) as n"
        )
        (row,) = pa.table(query.execute(sql).read_all()).to_pylist()
        assert (row["money"], row["n"]) == (TOTAL, moment.time.microsecond // 1000) == seen_in(moment)
    assert len(settled) > 2
    with pytest.raises(VersionNotFound, match=r"point \d+ is not settled"):
        warehouse.at(min(set(warehouse.points()["point"].to_pylist()) - settled)).settled_versions  # noqa: B018


def test_tables_are_settled_at_their_own_pace_where_points_do_not_come(tmp_path: Path) -> None:
    """One that is left out, and all if there is no newer point for long: their tails must not grow without end."""
    points = PointLog.of(str(tmp_path))
    points.create()
    now, released = [0.0], list[str]()

    def settle_to(name: str, version: int) -> Future[int | None]:
        future: Future[int | None] = Future()
        future.set_result(version)
        return future

    rounds = SettledPoints(points, settle_to, 1.0, released.append, clock=lambda: now[0])
    at = TableAt(version=1, table_id="x")
    points.take(Point(number=7, time_ms=0, transaction="7", tables={"a.b": at}, left_out={"a.c": "it is parked"}))
    rounds.next()
    assert released == ["a.c"]
    for _ in range(20):
        now[0] += 0.5
        rounds.next()
    assert points.settled().number == 7
    assert set(released) == {"a.b", "a.c"}


def test_that_tables_are_settled_is_said_later_if_the_log_could_not_be_written(tmp_path: Path) -> None:
    points, now = PointLog.of(str(tmp_path)), [0.0]
    points.create()

    def settle_to(name: str, version: int) -> Future[int | None]:
        future: Future[int | None] = Future()
        future.set_result(version)
        return future

    rounds = SettledPoints(points, settle_to, 1.0, clock=lambda: now[0])
    at = TableAt(version=1, table_id="x")
    points.take(Point(number=7, time_ms=0, transaction="7", tables={"a.b": at}))
    with patch.object(PointLog, "settle", side_effect=StoreUnavailable("no answer")):
        rounds.next()
        with pytest.raises(StoreUnavailable):
            rounds.next()
    now[0] += 1.0
    rounds.next()
    rounds.next()
    assert points.settled().number == 7


def test_without_points_money_is_missing(tmp_path: Path) -> None:
    """So the query above can tell."""
    draw = random.Random(7)
    bank = Bank(draw)
    copy = Copy(tmp_path / "bank", bank, cuts=False)
    wrong = 0
    for _ in range(6):
        bank.transfer()
        copy.batch(lagging(bank, draw))
        balances = [sum(table.to_arrow()["balance"].to_pylist()) for table in list(copy.tables.values())[:2]]
        wrong += sum(balances) != TOTAL
    assert wrong


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy with three points, at the ends of the transfers 1, 2 and 3; the list is parked at the second one."""
    copy = Copy(tmp_path_factory.mktemp("lake") / "bank", bank := Bank(random.Random(0)))
    for parked in ({}, LEFT_OUT, {}):
        copy.parked = {f"bank.{name}": why for name, why in parked.items()}
        bank.transfer()
        assert copy.batch() is not None
    return copy


def test_a_moment_is_found_by_number_and_by_the_sources_time(copy: Copy) -> None:
    warehouse = lakebed.warehouse(copy.path)
    assert warehouse.tables() == ("audit.transfers", "public.checking", "public.savings")
    points = warehouse.points()
    numbers = points["point"].to_pylist()[::-1]
    assert numbers == sorted(numbers) and len(numbers) == 3
    assert warehouse.watermark() == points["time"].to_pylist()[0]
    assert warehouse.at(numbers[0]).number == numbers[0]
    assert warehouse.at("1970-01-01T00:00:00.002Z").number == numbers[1]
    assert warehouse.at("2026-01-01").number == numbers[2] == warehouse.at().number
    assert seen_in(warehouse.at(numbers[0])) == (TOTAL, 1)


def test_a_parked_table_is_left_out_and_named(copy: Copy) -> None:
    warehouse = lakebed.warehouse(copy.path)
    moment = warehouse.at(warehouse.points()["point"].to_pylist()[1])
    assert moment.tables == ("public.checking", "public.savings")
    assert moment.left_out == LEFT_OUT
    with pytest.raises(TableNotFound, match=r"audit.transfers is left out of point \d+: its type is impossible"):
        moment.to_arrow("audit.transfers")
    with pytest.raises(
        TableNotFound, match=r"no table audit.tranfers in point \d+; it has public.checking, public.savings"
    ):
        moment.to_arrow("audit.tranfers")


def test_what_can_not_be_is_refused_clearly(copy: Copy, tmp_path: Path) -> None:
    warehouse = lakebed.warehouse(copy.path)
    for moment in (5.0, True, None):
        with pytest.raises(InvalidInput, match="neither the number of a point nor a time"):
            warehouse.at(moment)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="is not a time"):
        warehouse.at("yesterday")
    with pytest.raises(VersionNotFound, match="point 0: it was never taken, or has expired"):
        warehouse.at(0)
    with pytest.raises(VersionNotFound, match="a point that old"):
        warehouse.at("1969-01-01")
    with pytest.raises(VersionNotFound, match=r"no point yet.*provide\.transaction\.metadata"):
        lakebed.warehouse(tmp_path / "nothing").at()
    assert lakebed.warehouse(tmp_path / "nothing").watermark() is None
    assert lakebed.warehouse(tmp_path / "nothing").points().num_rows == 0
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("select * from nothing", "nothing"),
        ("delete from transfers", "not one SELECT"),
        ("select * from read_csv('/etc/passwd')", "read_csv"),
        ("select * from '/etc/passwd'", "passwd"),
        ("select oops from transfers", "oops"),
    ],
)
def test_a_query_reads_these_tables_and_nothing_else(copy: Copy, sql: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        lakebed.warehouse(copy.path).query(sql)


def test_a_query_calls_tables_with_their_schema_or_without(copy: Copy) -> None:
    warehouse = lakebed.warehouse(copy.path)
    for name in ("transfers", "TRANSFERS", "audit.transfers", '"audit"."transfers"', "audit.transfers as t"):
        assert warehouse.query(f"select count(*) as n from {name}")["n"].to_pylist() == [3]
    assert warehouse.query("with t as (select 1 as n) select * from t").num_rows == 1
