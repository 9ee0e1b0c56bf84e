"""One check of a pipeline file before anything: what it finds, all at once, before Spark starts and a table is made."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import lakebed
from lakebed.cli import main
from lakebed.errors import InvalidInput, LakebedError, Retry
from lakebed.health.run_report import RUNS_FOLDER
from lakebed.pipeline import places
from lakebed.pipeline.check import check
from lakebed.pipeline.driver import SparkStart
from lakebed.pipeline.run import run
from lakebed.pipeline.settings import Pipeline, parse_pipeline
from tests.infra.kafka import KafkaServer

TABLE: dict[str, Any] = {
    "schema": {
        "id": "long not null",
        "name": "string",
        "updated_at": "timestamp",
        "score": "double",
        "tags": "array<string>",
    },
    "keys": ["id"],
}
KAFKA: dict[str, Any] = {"kind": "kafka", "topics": ["orders"], "config": {"bootstrap.servers": "127.0.0.1:1"}}
RESERVED = "_lakebed_x"
SPARK_STARTED = AssertionError("Spark was started")


@pytest.fixture(autouse=True)
def no_spark(own_cache: None, tmp_path: Path) -> Iterator[None]:
    """Whatever starts Spark fails the test."""
    (tmp_path / "in").mkdir()
    with (
        patch("lakebed.pipeline.driver.SparkStart.wait", side_effect=SPARK_STARTED),
        patch("lakebed.sparks.session.require_java", side_effect=SPARK_STARTED),
    ):
        yield


def pipeline_of(folder: Path, table: dict[str, Any] | None = None, **sections: Any) -> Pipeline:
    """A file in block style, so that each setting has a line of its own."""
    content: dict[str, Any] = {"table": {"path": str(folder / "t"), **TABLE, **(table or {})}}
    content |= {"source": {"kind": "files", "folder": str(folder / "in")}, "format": {"kind": "json"}} | sections
    content["metrics"] = {"port": None}
    (folder / "p.yml").write_text(yaml.safe_dump(content, sort_keys=False))
    return parse_pipeline((folder / "p.yml").read_text(), "p.yml", {})


def complaint(pipeline: Pipeline, **how: Any) -> str:
    """What the check says; a run says the same, and neither makes anything but a report of that."""

    def made() -> list[Path]:
        files = (path for path in Path(pipeline.table.path).parent.rglob("*") if path.is_file())
        return sorted(path for path in files if RUNS_FOLDER not in str(path))

    before = made()
    with pytest.raises(LakebedError) as raised:
        check(pipeline, **how)
    with pytest.raises(LakebedError) as of_run:
        run(pipeline, SparkStart(pipeline), threading.Event(), lambda look: None)
    assert (type(of_run.value), str(of_run.value)) == (type(raised.value), str(raised.value))
    assert made() == before, "something was made"
    return str(raised.value)


ROWS = {"kind": "parquet", "extra_columns": {"op": "string", "at": "timestamp"}}
WRONG: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"keys": ["ID"]}, {}, "table.keys[0]", "keys names the column 'ID', which the schema lacks"),
    ({"keys": ["id", "nam"]}, {}, "table.keys[1]", "'nam', which the schema lacks; did you mean 'name'?"),
    ({"keys": ["id", "id"]}, {}, "table.keys[1]", "the column 'id' twice"),
    ({"keys": ["tags"]}, {}, "table.keys[0]", "nested columns can't be used"),
    ({"sequence_by": "updatd_at"}, {}, "table.sequence_by", "did you mean 'updated_at'?"),
    ({"sequence_by": "source.lsn"}, {}, "table.sequence_by", "metadata that rows lack"),
    ({"sequence_by": "kafka.offset"}, {}, "table.sequence_by", "lines of files have no kafka.offset"),
    ({"sequence_by": "updated_at", "keys": []}, {}, "table", "it needs keys"),
    ({"sequence_by": "att"}, {"format": ROWS}, "table.sequence_by", "did you mean 'at'?"),
    ({"sequence_by": "op"}, {"format": ROWS}, "table.sequence_by", "must be whole numbers or timestamps"),
    ({"sort_key": ["date(updated_at)", "nme"]}, {}, "table.sort_key[1]", "did you mean 'name'?"),
    ({"sort_key": ["year(name)"]}, {}, "table.sort_key[0]", "year takes a date or a timestamp"),
    ({"partition_by": ["nme"]}, {}, "table.partition_by[0]", "did you mean 'name'?"),
    ({"partition_by": ["score"]}, {}, "table", "a partition needs a value that text can hold exactly"),
    ({"schema": {RESERVED: "long"}, "keys": []}, {}, f"table.schema.{RESERVED}", "reserved"),
    ({"schema": {"a": "long", "A": "long"}, "keys": []}, {}, "table.schema", "names differ by more than case"),
    ({"properties": {"lakebed.read_budgt": "8"}}, {}, "table.properties.lakebed.read_budgt", "did you mean"),
    ({"properties": {"lakebed.merge": "alot"}}, {}, "table.properties.lakebed.merge", "must be one of"),
    ({"sources": ["public.orders"]}, {}, "table.sources", "no effect: rows of json do not name their table"),
    ({"sources": ["(a"]}, {"format": "debezium-json"}, "table.sources[0]", "'(a' is not a regular expression"),
    ({"schema": {}}, {}, "table.path", "no table.schema to create it with"),
    ({"path": "{folder}/p.yml"}, {}, "table.path", "is no folder"),
    ({"path": "{folder}/p.yml/below/it"}, {}, "table.path", "is no folder"),
    ({"path": "gs://bucket/x"}, {}, "table.path", "lakebed has stores for local paths and s3://"),
    ({"path": "{folder}/in"}, {}, "source.folder", "the table ({folder}/in) lies in {folder}/in"),
    ({"path": "{folder}/in/t", "partition_by": ["name"]}, {}, "source.folder", "so its own files would be read"),
    (
        {"path": "{folder}/in/t"},
        {"source": {"kind": "files", "folder": "{folder}/in", "options": {"recursiveFileLookup": "true"}}},
        "source.folder",
        "so its own files would be read",
    ),
    ({"path": "{folder}"}, {}, "source.folder", "lies in the folder of the table"),
    ({}, {"source": {"kind": "files", "folder": "{folder}/inn"}}, "source.folder", "there is no folder {folder}/inn"),
    (
        {},
        {"source": {"kind": "generator", "inserts": 2.0}, "format": "debezium-json"},
        "source.inserts",
        "inserts are in (0, 1]",
    ),
    ({}, {"source": {**KAFKA, "topics": []}}, "source.topics", "set either 'topics' or 'topic_pattern'"),
    ({}, {"source": {**KAFKA, "config": {}}}, "source", "'bootstrap.servers' is missing"),
    ({}, {"source": {**KAFKA, "starting_offsets": "first"}}, "source.starting_offsets", "use earliest, latest"),
    (
        {},
        {"source": {**KAFKA, "config": {"bootstrap.servers": "127.0.0.1:1", "sasl.pasword": "x"}}},
        "source.config.sasl.pasword",
        "No such configuration property",
    ),
    (
        {},
        {"format": {"kind": "json", "delete_values": ["x"]}},
        "format.delete_values",
        "no effect without operation_field",
    ),
    (
        {},
        {"format": {"kind": "json", "operation_field": "op", "delete_values": ["u"], "upsert_values": ["u"]}},
        "format.delete_values",
        "'u' is in both delete_values and upsert_values",
    ),
    ({"keys": []}, {"format": {"kind": "json", "operation_field": "op"}}, "format.operation_field", "takes no deletes"),
    (
        {"keys": []},
        {"format": {**ROWS, "apply_as_deletes": "op = 'd'"}},
        "format.apply_as_deletes",
        "needs a table with keys",
    ),
    ({}, {"format": {**ROWS, "apply_as_deletes": "opp = 'd'"}}, "format.apply_as_deletes", "did you mean 'op'?"),
    ({}, {"format": {**ROWS, "apply_as_deletes": '`o p` <> "d"'}}, "format.apply_as_deletes", "the column 'o p'"),
    (
        {},
        {"format": {**ROWS, "apply_as_deletes": "lower(op = 'd'"}},
        "format.apply_as_deletes",
        "a bracket is not closed",
    ),
    ({}, {"format": {**ROWS, "apply_as_deletes": "op = 'd"}}, "format.apply_as_deletes", "the quote ' is not closed"),
    ({}, {"format": {**ROWS, "apply_as_deletes": "op) or (op"}}, "format.apply_as_deletes", "a bracket closes"),
    ({}, {"format": {**ROWS, "except_columns": ["nme"]}}, "format.except_columns[0]", "did you mean 'name'?"),
    ({}, {"format": {**ROWS, "except_columns": ["id"]}}, "format.except_columns[0]", "it can't be left out"),
    (
        {},
        {"format": {"kind": "csv", "extra_columns": {"op": "strng"}}},
        "format.extra_columns.op",
        "did you mean 'string'?",
    ),
    (
        {},
        {"format": {"kind": "csv", "extra_columns": {"id": "long"}}},
        "format.extra_columns.id",
        "is a column of the table",
    ),
    ({}, {"checkpoint": "{folder}/t/checkpoint"}, "checkpoint", "lies in the table's folder"),
    ({}, {"checkpoint": "{folder}/p.yml"}, "checkpoint", "is no folder"),
    ({}, {"checkpoint": "{folder}/in"}, "source.folder", "the checkpoint"),
]


def filled(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {key: filled(each, folder) for key, each in value.items()}
    return value.replace("{folder}", str(folder)) if isinstance(value, str) else value


@pytest.mark.parametrize(("table", "sections", "place", "said"), WRONG, ids=[f"{w[2]}-{w[3][:30]}" for w in WRONG])
def test_what_is_wrong_is_reported_with_its_place_before_spark_starts_and_a_table_is_made(
    table: dict[str, Any], sections: dict[str, Any], place: str, said: str, tmp_path: Path
) -> None:
    try:
        pipeline = pipeline_of(tmp_path, filled(table, tmp_path), **filled(sections, tmp_path))
    except InvalidInput as error:
        message = str(error)
    else:
        message = complaint(pipeline)
    assert said.replace("{folder}", str(tmp_path)) in message, message
    line, _, rest = message.removeprefix("p.yml, line ").partition(": ")
    assert line.isdigit() and rest.startswith(f"{place}: "), message


def test_all_findings_are_reported_at_once_each_with_its_line(tmp_path: Path) -> None:
    form = {
        "kind": "csv",
        "extra_columns": {"op": "string"},
        "apply_as_deletes": "opp = 'd'",
        "except_columns": ["nme"],
    }
    table = {"keys": ["idd"], "sequence_by": "updatd_at", "partition_by": ["regn"]}
    message = complaint(pipeline_of(tmp_path, table, format=form))
    first, *others = message.splitlines()
    assert first == "p.yml has 5 errors:"
    lines = (tmp_path / "p.yml").read_text().splitlines()
    for text in others:
        line, name = int(text.split()[1].rstrip(":")), text.split()[2].rstrip(":")
        assert lines[line - 1].strip().lstrip("- ").startswith(name.split("[")[0].rpartition(".")[2]) or "[" in name
    assert [text.split()[2] for text in others] == [
        "table.keys[0]:",
        "table.partition_by[0]:",
        "table.sequence_by:",
        "format.except_columns[0]:",
        "format.apply_as_deletes:",
    ]


def test_a_wrong_folder_does_not_hide_what_else_is_wrong(tmp_path: Path) -> None:
    table = {"path": str(tmp_path / "p.yml"), "keys": ["idd"], "sequence_by": "updatd_at"}
    source = {"kind": "files", "folder": str(tmp_path / "inn")}
    form = {"kind": "json", "operation_field": "op", "delete_values": ["u"], "upsert_values": ["u"]}
    (tmp_path / "file").touch()
    message = complaint(pipeline_of(tmp_path, table, source=source, format=form, checkpoint=str(tmp_path / "file")))
    assert [line.split()[2] for line in message.splitlines()[1:]] == [
        "table.path:",
        "checkpoint:",
        "source.folder:",
        "table.keys[0]:",
        "table.sequence_by:",
        "format.delete_values:",
    ]


def test_all_that_is_wrong_with_the_form_of_a_file_is_reported_at_once() -> None:
    text = "table:\n  path: t\n  kyes: [a]\n  schema: {a: lng, b: strin}\nsource: {kind: kafk}\ntrigger_seconds: -x\n"
    with pytest.raises(InvalidInput) as raised:
        parse_pipeline(text, "p.yml", {})
    assert [line.split(": ")[0] for line in str(raised.value).splitlines()] == [
        "p.yml has 3 errors:",
        "  line 3",
        "  line 6",
        "  line 5",
    ]
    with pytest.raises(InvalidInput, match=r"has 2 errors:\n  line 1.*'lng'.*\n  line 1.*'strin'"):
        parse_pipeline("table: {path: t, schema: {a: lng, b: strin}}\nsource: {kind: generator}", "p.yml", {})


def test_a_file_that_is_right_is_found_so(tmp_path: Path) -> None:
    checked = check(pipeline_of(tmp_path, {"sequence_by": "updated_at", "sort_key": ["date(updated_at)", "id"]}))
    assert checked.table is None and checked.columns.names == list(TABLE["schema"])
    expressions = ["op = 'd'", '`op` == "d"', "op <=> 'd'", "op in ('d', 'D') and at > current_date", "name rlike 'x('"]
    for expression in expressions:
        check(pipeline_of(tmp_path, {"sequence_by": "at"}, format={**ROWS, "apply_as_deletes": expression}))
    check(pipeline_of(tmp_path, checkpoint=str(tmp_path / "t" / "_checkpoints" / "a")))


def test_the_columns_of_files_are_compared_with_those_that_the_file_names(tmp_path: Path) -> None:
    form: dict[str, Any] = {"kind": "csv", "extra_columns": {"op": "string"}, "except_columns": ["tags"]}
    file = tmp_path / "in" / "a.csv"
    file.write_text("id,name,updated_at,score,tags,op\n")
    check(pipeline_of(tmp_path, format=form))
    file.write_text("name,id,updated_at,score,tags,op\n")
    message = complaint(pipeline_of(tmp_path, format=form))
    assert "source.folder: " in message and "has the header name, id, updated_at" in message
    file.write_bytes(b"\xff\xfe\x00")
    assert "a.csv has the header" in complaint(pipeline_of(tmp_path, format=form))
    file.unlink()
    form["except_columns"] = []
    assert "can't have values of the column 'tags', which is list" in complaint(pipeline_of(tmp_path, format=form))
    pq.write_table(pa.table({"id": [1], "nme": ["x"], "op": ["d"]}), tmp_path / "in" / "a.parquet")
    form["kind"] = "parquet"
    message = complaint(pipeline_of(tmp_path, format={**form, "except_columns": ["score"]}))
    assert "lacks the columns name, updated_at, tags; did you mean 'nme'?; nulls in their place would erase" in message
    all_left_out = {**form, "except_columns": ["score", "name", "updated_at", "tags"]}
    notes = check(pipeline_of(tmp_path, format=all_left_out)).notes
    assert [note.partition(" ")[2] for note in notes] == [
        "has columns that no column takes: nme. They are left out; a table can have them",
    ]


@pytest.mark.parametrize(
    ("sequence_by", "near"),
    [
        ("source.lns", "; did you mean 'lsn'?"),
        ("transaction.order", "; did you mean 'total_order'?"),
        ("source.lsn", None),
    ],
)
def test_metadata_that_no_known_connector_writes_is_noted(tmp_path: Path, sequence_by: str, near: str | None) -> None:
    (tmp_path / "in").mkdir(exist_ok=True)
    notes = check(pipeline_of(tmp_path, {"sequence_by": sequence_by}, format="debezium-json")).notes
    told = [note for note in notes if "no connector that lakebed knows" in note]
    assert told == [] if near is None else f"writes {sequence_by}{near}. Records that lack it go to" in told[0]


def test_files_that_can_not_be_read_into_the_columns_are_reported_with_column_and_remedy(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir(exist_ok=True)
    moment = pa.array([1], pa.timestamp("ns"))
    pq.write_table(pa.table({"id": [1], "updated_at": moment}), tmp_path / "in" / "a.parquet")
    form = {"kind": "parquet", "except_columns": ["name", "score", "tags"]}
    notes = check(pipeline_of(tmp_path, format=form)).notes
    assert notes[0] == f"{tmp_path}/in/a.parquet has times in nanoseconds: updated_at. They are cut to microseconds"
    form["except_columns"] = ["name", "updated_at", "tags"]
    (tmp_path / "in" / "a.parquet").unlink()
    pq.write_table(pa.table({"id": [1], "score": pa.array([1], pa.time64("ns"))}), tmp_path / "in" / "b.parquet")
    message = complaint(pipeline_of(tmp_path, format=form))
    assert f"source.folder: the file {tmp_path}/in/b.parquet can't be read: its column 'score' is time64[ns]" in message
    assert "give the column of the table another type, or write the files with one that fits" in message
    (tmp_path / "in" / "b.parquet").write_bytes(b"not whole")
    assert "b.parquet can't be read: Parquet" in complaint(pipeline_of(tmp_path, format=form))


def test_options_of_the_source_are_checked_and_those_without_effect_are_told(tmp_path: Path) -> None:
    def source(**options: str) -> dict[str, Any]:
        return {"kind": "files", "folder": str(tmp_path / "in"), "options": options}

    assert "source.options: options: latestFirst can't be 'true'" in complaint(
        pipeline_of(tmp_path, source=source(latestFirst="true"))
    )
    assert "source.options: options: pathGlobFilter" not in complaint(
        pipeline_of(tmp_path, source=source(pathGlobFilter="[a"))
    ) and "has a '[' without its ']'" in complaint(pipeline_of(tmp_path, source=source(pathGlobFilter="[a")))
    [note] = check(pipeline_of(tmp_path, source=source(maxFileAge="10d"))).notes
    assert note == "the option maxFileAge has no effect: files of every age are read"


def test_a_typing_error_leaves_no_table_behind_so_that_the_corrected_file_runs(tmp_path: Path) -> None:
    wrong = pipeline_of(tmp_path, {"sequence_by": "updatd_at"})
    complaint(wrong)
    right = pipeline_of(tmp_path, {"sequence_by": "updated_at"})
    with pytest.raises(AssertionError, match="Spark was started"):
        run(right, SparkStart(right), threading.Event(), lambda look: None)
    assert lakebed.open(right.table.path).inspect.detail()["sequence_by"].to_pylist() == ["updated_at"]


def test_each_difference_to_a_table_that_exists_is_reported_with_its_line_and_what_to_do(tmp_path: Path) -> None:
    columns = pipeline_of(tmp_path).table.columns
    lakebed.create(tmp_path / "t", columns, ["id"], properties={"lakebed.read_budget": "4"})  # type: ignore[arg-type]
    other = {
        "schema": {**TABLE["schema"], "name": "long", "extra": "date"},
        "sequence_by": "updated_at",
        "properties": {"lakebed.read_budget": "5"},
    }
    message = complaint(pipeline_of(tmp_path, other))
    for said in (
        "table.sequence_by: sequence_by is None in the table and updated_at in the file; change the file, or choose another",
        "table.schema.name: the column name is string in the table and int64 in the file",
        "table.schema.extra: the column extra is only in the file",
        "table.properties.lakebed.read_budget: the property lakebed.read_budget is '4' in the table and '5' in the file; "
        "change the file, or set the table's properties (lakebed.open(",
    ):
        assert said in message


def test_folders_that_can_not_be_read_or_written_are_reported(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path)
    with patch("os.access", lambda path, mode: not mode & os.W_OK):
        assert f"table.path: {tmp_path} can't be written to; give this user the permission" in complaint(pipeline)
    with patch("os.access", lambda path, mode: not mode & os.R_OK):
        assert f"source.folder: {tmp_path}/in can't be read" in complaint(pipeline)


def test_places_that_only_spark_or_arrow_can_reach_are_left_to_them(tmp_path: Path) -> None:
    far = {"kind": "files", "folder": "hdfs://host/in"}
    for connect in (False, True):
        check(pipeline_of(tmp_path, source=far, checkpoint="hdfs://host/checkpoint"), connect=connect)
    assert main(["validate", str(tmp_path / "p.yml")]) == 0
    far["folder"] = "nowhere://host/in"
    assert "source.folder: the folder nowhere://host/in has the scheme nowhere://; files are read from" in complaint(
        pipeline_of(tmp_path, source=far)
    )


def test_a_checkpoint_of_another_source_is_reported(tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    (place / "offsets").mkdir(parents=True)
    (place / "offsets" / "0").touch()
    (place / "lakebed_source.json").write_text('{"kind": "files", "folder": "/elsewhere"}')
    assert "checkpoint: " in complaint(pipeline_of(tmp_path, checkpoint=str(place)))


def test_a_broker_that_does_not_answer_is_asked_once_for_a_short_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "KAFKA_SECONDS", 0.5)
    with socket.socket() as closed:  # bound and not listening: nobody answers there
        closed.bind(("127.0.0.1", 0))
        broker = f"127.0.0.1:{closed.getsockname()[1]}"
        config = {"bootstrap.servers": broker}
        pipeline = pipeline_of(tmp_path, source={**KAFKA, "config": config})
        check(pipeline)  # without being told to connect, nobody is asked
        message = complaint(pipeline, connect=True)
        with pytest.raises(Retry):
            check(pipeline, connect=True)
    assert "source.config.bootstrap.servers: kafka at " + broker + " did not answer" in message
    assert "(asked for 0.5 s). Is the broker running" in message


def test_validate_prints_the_settings_or_all_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline_of(tmp_path, {"sequence_by": "updatd_at", "keys": ["idd"]})
    assert main(["validate", str(tmp_path / "p.yml")]) == 2
    told = capsys.readouterr()
    assert not told.out and told.err.count("\n  line ") == 2 and "has 2 errors:" in told.err
    pipeline_of(tmp_path, source=KAFKA)
    assert main(["validate", str(tmp_path / "p.yml")]) == 0
    assert "# brokers and stores were not asked; --connect does" in capsys.readouterr().out


def test_a_broker_is_asked_for_its_topics(
    tmp_path: Path, kafka: KafkaServer, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = kafka.create_topic(f"checked-{time.time_ns()}", 1)
    config = {"bootstrap.servers": kafka.bootstrap}
    check(pipeline_of(tmp_path, source={**KAFKA, "config": config, "topics": [topic]}), connect=True)
    message = complaint(pipeline_of(tmp_path, source={**KAFKA, "config": config, "topics": [topic[:-1]]}), connect=True)
    assert f"source.topics: kafka: there is no topic {topic[:-1]}; create it" in message
    assert "did you mean 'checked-" in message and f"(the broker is {kafka.bootstrap})" in message
    later = {"kind": "kafka", "config": config, "topic_pattern": "nothing-yet-.*"}
    pipeline_of(tmp_path, source=later)
    assert main(["validate", "--connect", str(tmp_path / "p.yml")]) == 0
    assert "no topic at " in capsys.readouterr().out
    offsets = {topic: {"0": 0, "7": 0}}
    listed = {**KAFKA, "config": config, "topics": [topic], "starting_offsets": offsets}
    said = "source.starting_offsets: kafka: starting_offsets has topic"
    assert said in complaint(pipeline_of(tmp_path, source=listed), connect=True)
