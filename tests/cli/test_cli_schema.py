"""``lakebed alter`` and ``lakebed show schemas``: what they change, ask, refuse and print."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import main
from lakebed.cli.exit_codes import OK, WRONG_INPUT


@pytest.fixture
def path(tmp_path: Path) -> str:
    table = lakebed.create(
        tmp_path / "orders",
        pa.schema([("id", pa.int64()), ("qty", pa.int32()), ("note", pa.string()), ("legacy", pa.string())]),
        keys=["id"],
    )
    table.apply([{"id": 1, "qty": 2, "note": "n", "legacy": "l"}])
    table.settle()
    table.apply([{"id": 2, "qty": 3, "note": "m", "legacy": "k"}])
    return table.path


def test_one_command_changes_everything_and_rewrites_nothing(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = lakebed.open(path)
    parts = table.inspect.parts()
    changes = [
        *("--add", "coupon: string", "--add", "tags:array<string>", "--widen", "qty:long", "--rename", "note=comment"),
        *("--drop", "legacy", "--comment", "qty=pieces, not boxes", "--reason", "the shop moved"),
    ]
    assert main(["alter", path, *changes, "--yes"]) == OK
    assert table.schema.names == ["id", "qty", "comment", "coupon", "tags"]
    table.apply([{"id": 3, "qty": 2**40, "comment": "c", "coupon": "x", "tags": ["a"]}])
    rows = sorted(table.to_arrow().to_pylist(), key=lambda row: int(row["id"]))
    assert rows == [
        {"id": 1, "qty": 2, "comment": "n", "coupon": None, "tags": None},
        {"id": 2, "qty": 3, "comment": "m", "coupon": None, "tags": None},
        {"id": 3, "qty": 2**40, "comment": "c", "coupon": "x", "tags": ["a"]},
    ]
    assert table.inspect.parts()["path"].to_pylist()[:1] == parts["path"].to_pylist()[:1]
    assert table.to_arrow(version=2).column_names == ["id", "qty", "note", "legacy"]
    capsys.readouterr()
    assert main(["show", "schemas", path, "--format", "json"]) == OK
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["operation"] == "CREATE TABLE" and '"legacy"' in first["schema"]
    assert second["reason"] == "the shop moved" and json.loads(second["change"])["drop"] == ["legacy"]
    assert main(["show", "schemas", path]) == OK
    shown = capsys.readouterr().out
    assert "the shop moved" in shown and "rename note to comment" in shown and "drop legacy" in shown


def test_a_dry_run_says_which_readers_it_costs_and_changes_nothing(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["alter", path, "--widen", "qty:long", "--rename", "note=comment", "--dry-run"]) == OK
    told = capsys.readouterr().err
    assert "delta-rs" in told and "refuses the table" in told and "column mapping" in told
    assert main(["alter", path, "--drop", "legacy", "--dry-run"]) == OK
    assert "legacy can no longer be read" in capsys.readouterr().err
    assert main(["alter", path, "--add", "coupon:string", "--dry-run"]) == OK
    assert "nothing is lost" in capsys.readouterr().err
    assert lakebed.open(path).version == 3


def test_what_costs_readers_or_hides_values_is_asked_for(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    for changes, said in (
        (["--widen", "qty:long"], "refuses the table"),
        (["--drop", "legacy"], "legacy can no longer be read"),
    ):
        assert main(["alter", path, *changes]) == WRONG_INPUT
        assert said in (told := capsys.readouterr().err) and "--yes" in told
    assert main(["alter", path, "--add", "coupon:string"]) == OK


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--add", "coupon"], "--add is 'coupon'; write NAME:TYPE"),
        (["--add", "coupon:strng"], "there is no type 'strng'; did you mean 'string'?"),
        (["--add", "coupon:string not null"], "leave 'not null' out"),
        (["--add", "note:string", "--add", "note:long"], "--add names 'note' twice"),
        (["--rename", "note"], "--rename is 'note'; write NAME=TEXT"),
        (["--rename", "nte=comment"], "did you mean 'note'?"),
        (["--drop", "id"], "'id' can't be dropped: it is a key"),
        ([], "there is nothing to change"),
    ],
    ids=str,
)
def test_what_can_t_be_is_refused_by_name(
    path: str, changes: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["alter", path, *changes, "--yes"]) == WRONG_INPUT
    assert message in capsys.readouterr().err
    assert lakebed.open(path).version == 3
