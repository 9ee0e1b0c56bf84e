"""What a pipeline file says of records and tables that differ: its defaults, its errors, and the tables that it takes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import lakebed
from lakebed.cli import main
from lakebed.errors import LakebedError
from lakebed.pipeline.check import check
from lakebed.pipeline.settings import Pipeline, parse_pipeline
from lakebed.pipeline.sources import open_decoder
from lakebed.pipeline.target import open_or_create
from lakebed.schema.type_names import table_schema

SCHEMA = {"id": "long not null", "qty": "int", "note": "string not null", "where": "struct<zip: int>"}


def pipeline_of(folder: Path, format: Any = "debezium-json", **sections: Any) -> Pipeline:
    (folder / "in").mkdir(exist_ok=True)
    content = {
        "table": {"path": str(folder / "t"), "schema": SCHEMA, "keys": ["id"]},
        "source": {"kind": "files", "folder": str(folder / "in")},
        "format": format,
        **sections,
    }
    (folder / "p.yml").write_text(yaml.safe_dump(content, sort_keys=False))
    return parse_pipeline((folder / "p.yml").read_text(), "p.yml", {})


def complaint(folder: Path, **sections: Any) -> str:
    with pytest.raises(LakebedError) as raised:
        check(pipeline_of(folder, **sections))
    return str(raised.value)


@pytest.mark.parametrize(
    ("format", "evolve"),
    [
        ("debezium-json", {"add", "relax"}),
        ({"kind": "debezium-json", "unknown_fields": "ignore"}, {"relax"}),
        ({"kind": "debezium-json", "unknown_fields": "quarantine"}, {"relax"}),
        ("json", set()),
        ("parquet", set()),
    ],
)
def test_what_is_done_to_the_table_by_default_depends_on_the_format(
    tmp_path: Path, format: Any, evolve: set[str]
) -> None:
    assert pipeline_of(tmp_path, format).policy.allowed == evolve


def test_made_up_events_change_no_table(tmp_path: Path) -> None:
    assert pipeline_of(tmp_path, source={"kind": "generator"}).policy.allowed == set()


def test_what_the_file_says_counts(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path, evolve=["widen"], on_mismatch="rescue", renamed_columns={"comment": "note"})
    policy = pipeline.policy
    assert (policy.allowed, policy.on_mismatch, policy.renamed) == ({"widen"}, "rescue", {"comment": "note"})
    assert pipeline_of(tmp_path, evolve=[]).policy.allowed == set()
    table = lakebed.create(tmp_path / "t", table_schema({**SCHEMA, "_rescued": "string"}), ["id"])
    decoder_schema = open_decoder(pipeline, table).decoder_schema
    assert decoder_schema.column_of == {"comment": "note"}
    assert (decoder_schema.has_rescued, "_rescued" in decoder_schema.columns.names) == (True, False)


@pytest.mark.parametrize(
    ("sections", "place", "said"),
    [
        ({"evolve": ["ad"]}, "evolve[0]", "must be one of add, widen, relax; did you mean 'add'?"),
        ({"on_mismatch": "drop"}, "on_mismatch", "must be one of quarantine, fail, rescue"),
        ({"evolve": ["add"], "format": "json"}, "evolve", "json carry no schema"),
        ({"evolve": ["add"], "format": {"kind": "debezium-json", "unknown_fields": "ignore"}}, "evolve", "no column is added"),
        ({"renamed_columns": {"a": "b"}, "format": "csv"}, "renamed_columns", "it has no effect"),
        ({"on_mismatch": "fail", "format": "parquet"}, "on_mismatch", "it has no effect"),
        ({"renamed_columns": {"note": "note"}}, "renamed_columns", "the same name"),
        ({"renamed_columns": {"note": "qty"}}, "renamed_columns", "'note' and 'qty' are one column, but the table has both"),
        ({"renamed_columns": {"comment": "notes"}, "evolve": []}, "renamed_columns.comment", "no column 'notes', nor 'com"),
    ],
)  # fmt: skip
def test_what_can_not_be_meant_is_reported_with_its_place(
    tmp_path: Path, sections: dict[str, Any], place: str, said: str
) -> None:
    message = complaint(tmp_path, **sections)
    assert f"{place}: " in message
    assert said in message


def test_a_column_that_can_not_keep_what_is_rescued_is_reported(tmp_path: Path) -> None:
    lakebed.create(tmp_path / "t", table_schema({**SCHEMA, "_rescued": "long"}), ["id"])
    table = {"path": str(tmp_path / "t")}
    assert "'_rescued'" in complaint(tmp_path, on_mismatch="rescue", table=table)


EVOLVED = {
    "id": "long not null",
    "qty": "long",
    "note": "string",
    "where": "struct<zip: int, city: string>",
    "coupon": "string",
    "_rescued": "string",
}


def test_a_table_that_evolved_is_taken_back_by_the_file_that_let_it(tmp_path: Path) -> None:
    lakebed.create(tmp_path / "t", table_schema(EVOLVED), ["id"])
    check(pipeline_of(tmp_path, evolve=["add", "widen", "relax"]))
    message = complaint(tmp_path, evolve=[])
    for said in ("qty is int64", "note may be null", "where is struct", "coupon is only in", "_rescued is only in"):
        assert said in message
    assert "qty" in complaint(tmp_path, evolve=["add", "relax"])
    assert "note" in complaint(tmp_path, evolve=["add", "widen"])


def test_a_table_that_narrowed_is_not_taken_back(tmp_path: Path) -> None:
    narrow = {**SCHEMA, "qty": "short", "where": "struct<city: string>", "note": "long not null"}
    lakebed.create(tmp_path / "t", table_schema(narrow), ["id"])
    message = complaint(tmp_path, evolve=["add", "widen", "relax"])
    assert all(said in message for said in ("qty is int16", "where is struct<city", "note is int64"))


def test_a_renamed_column_is_the_one_of_the_file_if_the_file_says_so(tmp_path: Path) -> None:
    renamed = {("comment" if name == "note" else name): kind for name, kind in SCHEMA.items()}
    lakebed.create(tmp_path / "t", table_schema(renamed), ["id"])
    assert "note" in complaint(tmp_path)
    check(pipeline_of(tmp_path, renamed_columns={"comment": "note"}))
    check(
        pipeline_of(tmp_path, renamed_columns={"comment": "note"}, table={"path": str(tmp_path / "t"), "keys": ["id"]})
    )


def test_a_table_of_wide_types_is_the_one_of_its_file(tmp_path: Path) -> None:
    wide = {"path": str(tmp_path / "t"), "schema": SCHEMA, "keys": ["id"], "types": "wide"}
    table = open_or_create(pipeline_of(tmp_path, table=wide))
    assert [str(table.schema.field(name).type) for name in ("qty", "where")] == ["int64", "struct<zip: int64>"]
    check(pipeline_of(tmp_path, table=wide, evolve=[]))
    assert "qty is int64" in complaint(tmp_path, table={**wide, "types": "given"}, evolve=[])


def test_validate_shows_what_will_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline_of(tmp_path)
    assert main(["validate", str(tmp_path / "p.yml")]) == 0
    shown = yaml.safe_load(capsys.readouterr().out.partition("\n\n")[0])
    assert (shown["evolve"], shown["on_mismatch"]) == (["add", "relax"], "quarantine")
