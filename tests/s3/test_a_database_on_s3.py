"""A whole database in an object store: its tables are found by their folders, and points show all of them as of one moment."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import main
from lakebed.discovery import TableName, tables_below
from lakebed.storage.object_store import open_objects
from lakebed.storage.roots import parse_root
from lakebed.storage.s3_client import s3_client
from tests.database.bank import COLUMNS, TOTAL, Bank, Copy
from tests.database.test_bank import lagging, seen_in
from tests.infra.s3 import S3Server

ODD_NAMES = ("default.x", "plain", "größe.a b%20c", "a.b.c", "_hidden.+&=?", "x." + "long" * 60, "x.y_quarantine")


pytestmark = pytest.mark.usefixtures("own_cache")


def test_at_every_point_no_money_is_missing(s3: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    root = f"s3://{s3.create_bucket()}/lake/bank"
    draw = random.Random(1)
    bank = Bank(draw)
    copy = Copy(root, bank)
    copy.batch()  # the rows of the snapshot
    points = []
    for number in range(6):
        for _ in range(draw.randint(1, 3)):
            bank.transfer()
        if number == 3:
            copy.start()  # another process: what it knows is in the store
        points.append(copy.batch(lagging(bank, draw)))
        copy.tables["bank.public.checking"].settle()
    points += [copy.batch(), copy.batch()]  # what lagged behind, and then the rest
    warehouse = lakebed.warehouse(root)
    assert warehouse.tables() == ("audit.transfers", "public.checking", "public.savings") == tuple(sorted(COLUMNS))
    taken = [point for point in points if point is not None]
    assert len(taken) > 2
    for point in taken:
        with warehouse.at(point.number) as moment:
            assert seen_in(moment) == (TOTAL, point.time_ms)
    assert seen_in(warehouse.at("newest")) == (TOTAL, bank.transfers)
    [detail] = warehouse.table("public.savings").inspect.detail().to_pylist()
    assert "lakebed.volatile is auto, the table is in an object store" in detail["volatile"]
    assert main(["status", root]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in COLUMNS), said


@pytest.mark.parametrize("prefix", ["", "/some/where"])
def test_tables_are_found_by_their_folders_whatever_their_names(s3: S3Server, prefix: str) -> None:
    root = f"s3://{s3.create_bucket()}{prefix}"
    assert tables_below(root) == {} and lakebed.warehouse(root).tables() == ()
    names = [TableName(name) for name in ODD_NAMES]
    for name in names:
        lakebed.create(f"{root}/{name.folder}", pa.schema([("id", pa.int64())]))
    bucket = parse_root(root).bucket  # type: ignore[union-attr]
    s3_client().put_object(Bucket=bucket, Key=f"{prefix[1:]}/no/table.txt".lstrip("/"), Body=b"")
    found = tables_below(root)
    assert set(found.values()) == {f"{root}/{name.folder}" for name in names}
    assert set(ODD_NAMES) - set(found) == {name for name in ODD_NAMES if len(name) > 160}
    assert open_objects(parse_root(root)).folders("no") == []  # type: ignore[arg-type]
