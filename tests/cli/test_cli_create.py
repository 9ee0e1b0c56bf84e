"""``lakebed create`` and ``lakebed convert``, and ``lakebed clean`` of what is due."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import lakebed
from lakebed.cli import main

COLUMNS = {
    "id": "long not null",
    "price": "decimal(12,2)",
    "lines": "array<struct<sku: string, pieces: int>>",
    "at": "timestamp",
}
SQL = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
YAML = "\n".join(f"{name}: '{kind}'" for name, kind in COLUMNS.items())
PIPELINE = f"table: {{path: x, schema: {{{', '.join(YAML.splitlines())}}}}}\nsource: {{kind: generator}}\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("columns.yml").write_text(YAML)
    Path("pipeline.yml").write_text(PIPELINE)


@pytest.mark.parametrize("schema", [SQL, SQL.replace("id long", "`id`: long"), "columns.yml", "pipeline.yml"])
def test_a_table_is_created_from_sql_or_from_a_file(schema: str) -> None:
    options = {"--keys": "id", "--sequence-by": "at", "--sort-key": "at, id desc", "--property": "lakebed.pool=a"}
    assert main(["create", "t", "--schema", schema, *(word for option in options.items() for word in option)]) == 0
    made = lakebed.open("t")
    assert made.schema.names == list(COLUMNS) and not made.schema.field("id").nullable
    [figures] = made.inspect.detail().to_pylist()
    assert (figures["keys"], figures["sort_key"], figures["sequence_by"]) == (["id"], ["at", "id desc"], "at")
    assert made.properties["lakebed.pool"] == "a"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--schema id", "'id' is no column"),
        ("--schema none.yml", "none.yml can't be read"),
        ("--schema empty.yml", "empty.yml has no columns"),
        ("--schema columns.yml --keys nix", "nix"),
        ("--schema columns.yml --property a", "write NAME=VALUE"),
        ("", "--schema"),
    ],
)
def test_what_no_table_can_be_made_of_is_refused(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.yml").write_text("")
    try:
        code = main(["create", "t", *arguments.split()])
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 2 and said in capsys.readouterr().err and not Path("t").exists()


def test_properties_are_set_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["create", "t", "--schema", SQL, "--keys", "id"]) == 0
    assert main(["alter", "t", "--property", "lakebed.pool=a", "--property", "lakebed.ttl=at: 30 days"]) == 0
    capsys.readouterr()
    assert main(["show", "properties", "t", "--format", "json"]) == 0
    shown = {row["name"]: row["value"] for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert shown == lakebed.open("t").properties
    assert (shown["lakebed.pool"], shown["lakebed.ttl"]) == ("a", "at: 30 days")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--property lakebed.pol=a", "lakebed.pool"),
        ("--property lakebed.pool=a --sort-key id", "--sort-key is a change of its own"),
        ("--property lakebed.pool=a --drop name", "--property is a change of its own"),
        ("--property lakebed.pool=a --dry-run", "--property is a change of its own"),
    ],
)
def test_a_property_that_can_not_be_set_is_refused(
    arguments: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["create", "t", "--schema", SQL]) == 0
    assert main(["alter", "t", *arguments.split()]) == 2
    assert said in capsys.readouterr().err and lakebed.open("t").version == 0


def test_an_error_names_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["create", "t", "--schema", SQL]) == 0
    assert main(["create", "t", "--schema", SQL]) == main(["query", "none", "select 1"]) == 2
    said = capsys.readouterr().err
    assert "there is already a table at" in said and "create it with lakebed create" in said
    assert "lakebed." not in said


def test_a_delta_table_is_converted() -> None:
    write_deltalake("t", pa.table({"id": pa.array([1, 2], pa.int64())}))
    assert main(["convert", "t", "--keys", "id"]) == 0
    assert lakebed.open("t").inspect.detail()["keys"].to_pylist() == [["id"]]


def test_what_is_due_is_cleaned_rows_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["create", "t", "--schema", "id long not null, at timestamp", "--keys", "id"]) == 0
    table = lakebed.open("t")
    table.apply(pa.table({"id": [1], "at": pa.array([0], pa.timestamp("us", "UTC"))}, schema=table.schema))
    table.settle()
    capsys.readouterr()
    assert main(["clean", "t"]) == 0
    assert "rows" not in capsys.readouterr().err, "the table has no time to live"
    table.set_properties({"lakebed.ttl": "at: 1 day"})
    assert main(["clean", "t"]) == 0
    rows, files = capsys.readouterr().err.splitlines()
    assert "1 rows, 1 of their 1 parts" in rows and "would be removed" in rows and "would be deleted" in files
    assert table.to_arrow().num_rows == 1
    assert main(["clean", "t", "--no-dry-run"]) == 0 and table.to_arrow().num_rows == 0
    for wrong in ("vacuum --retain-last 3", "expire-rows --older-than 1day"):
        assert main(["clean", "t", "--only", *wrong.split()]) == 2


def test_a_tail_is_settled_before_parts_are_merged(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["create", "t", "--schema", "id long not null", "--keys", "id"]) == 0
    table = lakebed.open("t")
    table.apply(pa.table({"id": [1]}, schema=table.schema))
    assert main(["compact", "t", "--only", "merge"]) == 0 and table.inspect.detail()["tail_rows"][0].as_py() == 1
    assert main(["compact", "t"]) == 0 and table.inspect.detail()["tail_rows"][0].as_py() == 0
