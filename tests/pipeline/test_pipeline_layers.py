"""A pipeline file whose source is another table: what is derived from that table, and what is refused before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
import yaml

import lakebed
from lakebed.cli import main
from lakebed.errors import InvalidInput, LakebedError
from lakebed.pipeline.check import check
from lakebed.pipeline.places import check_checkpoint
from lakebed.pipeline.settings import Pipeline, parse_pipeline
from lakebed.pipeline.target import open_or_create

COLUMNS = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string()), pa.field("price", pa.decimal128(9, 2))]
)


@pytest.fixture(autouse=True)
def no_spark(own_cache: None) -> Iterator[None]:
    with patch("lakebed.sparks.session.require_java", side_effect=AssertionError("Spark was started")):
        yield


def file_of(folder: Path, **more: object) -> str:
    content: dict[str, object] = {"table": {"path": str(folder / "dwd")}, "metrics": {"port": None}}
    content["source"] = {"kind": "lakebed", "path": str(folder / "ods")}
    if more.get("source") == {"kind": "generator"}:
        content["source"] = {}
    for key, value in more.items():
        known = content.get(key)
        content[key] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    return yaml.safe_dump(content, sort_keys=False)


def pipeline_of(folder: Path, **more: object) -> Pipeline:
    return parse_pipeline(file_of(folder, **more), "layer.yml", {})  # type: ignore[arg-type]


def an_upstream(folder: Path, sequence_by: str | None = None) -> lakebed.Table:
    return lakebed.create(folder / "ods", COLUMNS, keys=["id"], sequence_by=sequence_by)


def test_a_layer_has_the_columns_keys_and_order_of_its_upstream(tmp_path: Path) -> None:
    an_upstream(tmp_path, "source.lsn")
    pipeline = pipeline_of(tmp_path)
    check(pipeline)
    table = open_or_create(pipeline)
    detail = table.inspect.detail().to_pylist()[0]
    assert table.schema.equals(COLUMNS)
    assert (detail["keys"], detail["sequence_by"]) == (["id"], "_change_sequence")
    check(pipeline)  # and again, with the table that is there


def test_validate_shows_what_the_table_will_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    an_upstream(tmp_path)
    (tmp_path / "layer.yml").write_text(file_of(tmp_path))
    assert main(["validate", str(tmp_path / "layer.yml")]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["table"]["schema"] == {"id": "long not null", "name": "string", "price": "decimal(9,2)"}
    assert shown["table"]["keys"] == ["id"] and shown["format"] == {"kind": "changes"}
    again = parse_pipeline(yaml.safe_dump(shown), "again.yml", {})
    check(again)


def test_settings_of_the_file_win_over_those_of_the_upstream(tmp_path: Path) -> None:
    an_upstream(tmp_path)
    table = open_or_create(pipeline_of(tmp_path, table={"keys": ["name"], "sequence_by": "_commit_version"}))
    detail = table.inspect.detail().to_pylist()[0]
    assert (detail["keys"], detail["sequence_by"]) == (["name"], "_commit_version")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"source": {"path": "nowhere"}}, r"line 7: source.path: there is no table at .*must run first"),
        ({"table": {"schema": {"id": "long"}, "keys": ["id"]}}, "late changes are among those of the source"),
        ({"table": {"schema": {"no": "long"}, "keys": ["no"]}}, "the table 'no' is a key of has changes without it"),
        ({"table": {"schema": {"id": "long", "x": "int not null"}}}, "the source has no column 'x', which is not null"),
        ({"table": {"sequence_by": "nmae"}}, r"no column 'nmae'.*did you mean 'name'"),
        (
            {"source": {"starting_version": "last"}},
            "starting_version is 'last'; it must be snapshot, newest or a version",
        ),
        ({"format": {"kind": "json"}}, "the source lakebed makes changes, so leave the format out"),
    ],
)
def test_what_can_not_be_is_refused_with_its_line(more: dict[str, object], expected: str, tmp_path: Path) -> None:
    an_upstream(tmp_path, "source.lsn")
    if more.get("source") == {"path": "nowhere"}:
        more = {"source": {"path": str(tmp_path / "nowhere")}}
    with pytest.raises(InvalidInput, match=expected):
        check(pipeline_of(tmp_path, **more))


def test_a_pipeline_does_not_read_the_table_that_it_writes(tmp_path: Path) -> None:
    an_upstream(tmp_path)
    with pytest.raises(LakebedError, match="can't read the table that it writes"):
        check(pipeline_of(tmp_path, table={"path": str(tmp_path / "ods")}))


def test_other_sources_have_no_changes(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="only a source of kind lakebed makes changes"):
        pipeline_of(tmp_path, source={"kind": "generator"}, format={"kind": "changes"})


def test_a_checkpoint_of_another_upstream_is_refused(tmp_path: Path) -> None:
    an_upstream(tmp_path)
    place = tmp_path / "checkpoint"
    (place / "offsets").mkdir(parents=True)
    (place / "offsets" / "0").write_text("v1")
    (place / "lakebed_source.json").write_text('{"kind": "lakebed", "table": "lake/other"}')
    with pytest.raises(InvalidInput, match="records how far the table lake/other was read"):
        check_checkpoint(pipeline_of(tmp_path), str(place))


# -- transform and bootstrap: what the file itself shows ---------------------------------------------------------------

KAFKA = {"kind": "kafka", "topics": ["orders"], "config": {"bootstrap.servers": "127.0.0.1:1"}}
TABLE = {"path": "lake/t", "schema": {"id": "long", "n": "long"}, "keys": ["id"]}
PARQUET = {"kind": "parquet", "path": "rows", "position": {"orders": {"0": 5}}}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"transform": "select 1", "evolve": ["add"]}, "evolve: the columns of the table are those that the SQL"),
        ({"transform": "select 1", "on_mismatch": "rescue"}, "with transform it can be quarantine or fail"),
        ({"transform": {"sql": "select 1", "keys": ["no"]}}, "keys names 'no', which is none of the columns"),
        ({"transform": {"sql": "select 1", "columns": {"id": "longg"}}}, "longg"),
        ({"bootstrap": {**PARQUET, "position": {"order": {"0": 5}}}}, "'order' is none of source.topics.*orders"),
        ({"bootstrap": {**PARQUET, "position": {"orders": {"x": 5}}}}, "use partitions and offsets"),
        ({"bootstrap": {**PARQUET, "position": {}}}, "position is empty"),
        ({"bootstrap": {**PARQUET, "table": "t"}}, "for parquet give path"),
        ({"bootstrap": {**PARQUET, "kind": "jdbc"}}, "for jdbc give url"),
        ({"bootstrap": PARQUET, "source": {"kind": "generator"}, "format": None}, "follows Kafka from there"),
    ],
)
def test_what_transform_and_bootstrap_can_not_be_is_refused(more: dict[str, object], expected: str) -> None:
    content: dict[str, object] = {"table": TABLE, "source": KAFKA, "format": {"kind": "json"}, **more}
    content = {key: value for key, value in content.items() if value is not None}
    with pytest.raises(InvalidInput, match=expected):
        check(parse_pipeline(yaml.safe_dump(content, sort_keys=False), "p.yml", {}))
