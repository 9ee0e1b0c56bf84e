"""``lakebed init`` writes pipeline files that validate, from options, from files and from answers on a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from lakebed.cli import main
from lakebed.cli.arguments import parse_columns
from lakebed.pipeline.draft import Draft, columns_of, format_of, text_of
from lakebed.pipeline.sections import KafkaSection
from lakebed.pipeline.settings import DatabasePipeline, load, parse_pipeline
from lakebed.schema.type_names import table_schema, type_text
from tests.waiting import outcome
from tests.worlds import examples

LINES = '{"id": 7, "price": 1.5, "at": "2026-02-02T08:00:00Z", "tags": ["a"], "where": {"x": 1}, "op": "u"}\n'
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1)
PLAIN = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def inbox(name: str, text: str) -> Path:
    Path("inbox").mkdir(exist_ok=True)
    (Path("inbox") / name).write_text(text)
    return Path("inbox")


def test_a_file_for_a_folder_takes_columns_and_deletes_from_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    inbox("monday.jsonl", LINES)
    assert main(["init", "shop.yml", "--source", "files", "--folder", "inbox", "--keys", "id"]) == 0
    pipeline = load("shop.yml")
    assert dict(pipeline.table.schema) == {
        "id": "long not null",
        "price": "double",
        "at": "timestamp",
        "tags": "array<string>",
        "where": "struct<x: long>",
    }
    assert pipeline.format.operation_field == "op"  # type: ignore[union-attr]
    assert main(["validate", "shop.yml"]) == 0
    assert "next: lakebed run shop.yml" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--source", "generator"],
        ["--source", "kafka", "--bootstrap-servers", "k:9092", "--topic", "shop.public.orders", "--columns",
         "id: long, lines: array<struct<sku: string, pieces: int>>, price: decimal(10, 2)", "--keys", "id",
         "--sequence-by", "source.lsn"],
        ["--source", "kafka", "--bootstrap-servers", "k:9092", "--topic", "a", "--topic", "b", "--record-format", "json",
         "--columns", "id: long not null"],
    ],
)  # fmt: skip
def test_what_it_writes_validates(arguments: list[str]) -> None:
    assert main(["init", *arguments]) == 0
    assert main(["validate", "pipeline.yml"]) == 0
    if "a" in arguments:
        source = load("pipeline.yml").source
        assert isinstance(source, KafkaSection) and source.topics == ("a", "b")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "give --source, --columns; on a terminal, lakebed init asks"),
        (["--source", "kafka"], "give --bootstrap-servers, --topic, --columns;"),
        (["--source", "kafak"], "there is no source 'kafak'; there are kafka, files, generator"),
        (["--source", "files", "--folder", "inbox", "--keys", "ident"], "keys"),
        (["--source", "files", "--folder", "inbox", "--keys", "id", "--sequence-by", "att"], "--sequence-by: there is no column"),
        (["--source", "files", "--folder", "inbox", "--record-format", "parquet"], "the files in inbox can't be read as parquet"),
        (["--source", "files", "--folder", "inbox", "--record-format", "xml"], "there is no format 'xml'"),
        (["--source", "generator", "--columns", "id"], "'id' is no column"),
        (["--source", "generator", "--columns", "id: lnog"], "there is no type 'lnog'"),
        (["--source", "generator", "--columns", "id: long, id: long"], "the column 'id' is there twice"),
        (["taken.yml", "--source", "generator"], "taken.yml is there already"),
        (["none/x.yml", "--source", "generator"], "none/x.yml can't be written"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_and_nothing_is_written(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    inbox("monday.jsonl", LINES)
    Path("taken.yml").write_text("mine")
    assert main(["init", *arguments]) == 2
    assert complaint in capsys.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == ["inbox", "taken.yml"]
    assert Path("taken.yml").read_text() == "mine"


def test_a_file_is_written_over_only_if_that_is_asked_for() -> None:
    Path("pipeline.yml").write_text("mine")
    assert main(["init", "--source", "generator", "--force"]) == 0
    assert "generator" in Path("pipeline.yml").read_text()


@pytest.mark.slow
def test_a_terminal_is_asked_for_the_rest(tmp_path: Path) -> None:
    inbox("monday.jsonl", LINES)
    mine, theirs = pty.openpty()
    command = [sys.executable, "-c", "import sys; from lakebed.cli import main; sys.exit(main())", "init", "shop.yml"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    for answer in (
        "flies",
        "files",
        "outbox",
        "inbox",
        "jsn",
        "",
        "lake/shop",
        "idd",
        "",
        "att",
        "at",
    ):  # the empty ones: json, id
        os.write(mine, answer.encode() + b"\n")
    shown = b""
    try:
        while piece := os.read(mine, 4096):
            shown += piece
    except OSError:  # the other end is closed
        pass
    os.close(mine)
    outcome(process)
    assert process.returncode == 0, shown
    pipeline = load("shop.yml")
    assert (pipeline.table.path, pipeline.table.keys, pipeline.table.sequence_by) == ("lake/shop", ("id",), "at")
    assert pipeline.format_kind == "json" and b"Where do changes come from" in shown
    for wrong in (
        b"no source 'flies'",
        b"no folder outbox",
        b"no format 'jsn'",
        b"no column 'idd'",
        b"no column 'att'",
    ):
        assert wrong in shown


@examples(30)
@example(path="./${HOME}/$${B}", folder="in: [x] # ${C:-d}", names=["id"])
@example(path="'no'", folder="yes", names=["y", "null"])
@example(path="lake", folder="longer-than-a-name-may-be" * 20, names=["id"])
@given(path=TEXTS, folder=TEXTS, names=st.lists(PLAIN, min_size=1, max_size=4, unique=True))
def test_whatever_the_answers_hold_comes_back_from_the_file(path: str, folder: str, names: list[str]) -> None:
    assume(not os.path.isdir(folder))  # of one that is there, init also asks whether the table lies in it
    columns = {name: "long" for name in names}
    draft = Draft(path=path, source="files", format="json", columns=columns, keys=(names[0],), folder=folder)
    read = parse_pipeline(text_of(draft, "p.yml"), "p.yml", {})
    assert (read.table.path, read.source.folder) == (path, folder)  # type: ignore[union-attr]
    assert (dict(read.table.schema), read.table.keys) == (columns, (names[0],))


@pytest.mark.parametrize(
    "kind", ["long", "decimal(12,2)", "array<map<string, struct<a: long, b: date>>>", "timestamp_ntz"]
)
def test_a_type_is_written_as_it_is_read(kind: str) -> None:
    assert type_text(table_schema({"c": kind}).field("c").type) == kind


def test_columns_of_other_files(tmp_path: Path) -> None:
    times = pa.array([1], pa.time64("us"))
    rows = pa.table({"id": pa.array([1], pa.uint32()), "big": pa.array([1], pa.uint64()), "t": times, "s": ["x"]})
    Path("parquet").mkdir()
    pq.write_table(rows, "parquet/a.parquet")
    assert columns_of("parquet", "parquet") == {"id": "long", "big": "decimal(20,0)", "t": "string", "s": "string"}
    folder = inbox("a.csv", "id,name\n1,x\n")
    assert (format_of(str(folder)), columns_of(str(folder), "csv")) == ("csv", {"id": "long", "name": "string"})
    assert (format_of("nowhere"), columns_of("nowhere", "json")) == (None, {})
    assert parse_columns("a: map<string, long>, b: decimal(3, 1) not null") == {
        "a": "map<string, long>",
        "b": "decimal(3, 1) not null",
    }


def test_a_file_for_a_database_validates(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--database", "./lake/shop", "--bootstrap-servers", "k:9092", "--topic-prefix", "my.shop"]
    assert main(["init", "shop.yml", *options, "--record-format", "debezium-avro", "--registry", "http://r:8081"]) == 0
    pipeline = load("shop.yml")
    assert isinstance(pipeline, DatabasePipeline)
    assert str(pipeline.naming.table_of("my.shop.public.orders")) == "public.orders"
    assert re.fullmatch(pipeline.source.topic_pattern or "", "my.shop.public.orders")
    assert not re.fullmatch(pipeline.source.topic_pattern or "", "my-shop.public.orders")
    assert main(["validate", "shop.yml"]) == 0
    capsys.readouterr()
    assert main(["init", "other.yml", "--database", "x", "--keys", "id"]) == 2
    assert "--keys is for one table; leave it out with --database" in capsys.readouterr().err
    assert main(["init", "other.yml", "--database", "x", "--bootstrap-servers", "k:9092"]) == 2
    assert "give --topic-prefix" in capsys.readouterr().err
    assert main(["init", "other.yml", *options, "--record-format", "json"]) == 2
    assert "records of json carry no schema" in capsys.readouterr().err
    assert not Path("other.yml").exists()
