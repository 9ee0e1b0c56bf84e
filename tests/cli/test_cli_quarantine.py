"""``lakebed quarantine show``: what could not become a row is shown so that a person can read it, and replayed when it can."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import exit_codes, main
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.decode.typed.registry import RegistrySettings
from lakebed.parts.quarantine import QUARANTINE_SCHEMA
from tests.decode.avro_events import encoded, framed
from tests.decode.records import records
from tests.decode.schema_registry import SchemaRegistry

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("price", pa.decimal128(10, 2)), ("name", pa.string())])
PIPELINE = """
table: {{path: {path}, keys: [id], sequence_by: id, schema: {{id: long not null, price: 'decimal(10,2)', name: string}}}}
source: {{kind: files, folder: {folder}}}
format: {{kind: json, decimal_text: {text}}}
"""
AVRO_PIPELINE = """
table: {{path: {path}, keys: [id], sequence_by: id}}
source: {{kind: kafka, topics: [orders], config: {{bootstrap.servers: "localhost:1"}}}}
format: avro
registry: {{url: "{url}"}}
"""
VALUES = ['{"id": 1, "price": "AfQ=", "name": "größe"}', '{"id": 2, "price": "x"}', "{not json", b"\xff\x00"]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table with four records in its quarantine: two of a topic, two of a file that is still there."""
    monkeypatch.setenv("COLUMNS", "100")
    lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], sequence_by="id")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a b.jsonl").write_bytes(b'{"id": 9}\n{not json\n\xff\x00\n')
    made = lakebed.create(tmp_path / "t_quarantine", QUARANTINE_SCHEMA)
    refused = decoder("json", DecoderSchema(SCHEMA, ("id",))).decode(records(VALUES)).quarantined
    file = pa.array(["shop.orders"] * 2 + [f"file://{tmp_path}/in/a%20b.jsonl"] * 2)
    offsets = pa.array([0, 1, None, None], pa.int64())
    made.apply(refused.set_column(2, "topic", file).set_column(4, "offset", offsets))
    for name, text in (("wrong.yml", "string"), ("right.yml", "precise")):
        (tmp_path / name).write_text(PIPELINE.format(path=tmp_path / "t", folder=tmp_path / "in", text=text))
    return str(tmp_path / "t")


def test_records_are_shown_with_their_place_and_their_reasons_counted(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quarantine", "show", path]) == exit_codes.OK
    out = capsys.readouterr().out
    counts, shown = out.split("\n\n")
    assert counts.splitlines()[0].split() == ["reason", "records", "newest_utc"]
    assert [line.rsplit("   ", 1)[0].split("  ")[0] for line in counts.splitlines()[2:]] == [
        "column 'price': \"…\" is not a valid decimal",
        "column 'price': \"…\" is not a valid decimal; if it is Debezium's base64, set decimal_text to 'precise'",
        "not JSON: Expecting property name enclosed in double quotes",
        "not UTF-8: byte 0 of 2",
    ]
    assert "shop.orders-3-0" in shown and 'größe"}' in shown
    assert "\na b.jsonl:2 " in shown and "\na b.jsonl:3 " in shown and "1970-01-01 00:00:02   {not json" in shown
    assert "\n    not JSON" in shown
    assert (
        main(["quarantine", "show", path, "--where", 'partition = 3 and "offset" = 1', "--format", "json"])
        == exit_codes.OK
    )
    [line] = capsys.readouterr().out.splitlines()
    record = json.loads(line)
    assert (record["topic"], record["partition"], record["offset"], record["value"]) == ("shop.orders", 3, 1, VALUES[1])
    assert main(["quarantine", "show", path, "--where", "nix = 1"]) == exit_codes.WRONG_INPUT
    assert "nix" in capsys.readouterr().err


def test_a_table_without_a_quarantine_has_nothing_to_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lakebed.create(tmp_path / "orders", SCHEMA)
    assert main(["quarantine", "show", str(tmp_path / "orders")]) == exit_codes.OK
    assert "the quarantine is empty" in capsys.readouterr().out
    assert main(["quarantine", "show", str(tmp_path / "order")]) == exit_codes.WRONG_INPUT
    assert f"did you mean {tmp_path / 'orders'}?" in capsys.readouterr().err


def test_a_replay_decodes_with_the_pipeline_file_of_now(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(path).parent
    assert main(["quarantine", "replay", str(folder / "wrong.yml"), "--format", "json"]) == exit_codes.OK
    assert json.loads(capsys.readouterr().out)["records"] == 0
    replay = ["quarantine", "replay", path, "--pipeline", str(folder / "right.yml"), "--format", "json"]
    assert main([*replay, "--where", '"offset" = 1']) == exit_codes.OK
    assert json.loads(capsys.readouterr().out)["left"] == 1
    assert main(replay) == exit_codes.OK
    told = capsys.readouterr()
    done = json.loads(told.out)
    assert (done["records"], done["rows"], done["left"]) == (1, 1, 3)
    assert told.err.count("stay in the quarantine: ") == 3
    [row] = lakebed.open(path).to_arrow().to_pylist()
    assert row == {"id": 1, "price": Decimal("5.00"), "name": "größe"}


def test_a_replay_says_what_it_needs(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quarantine", "replay", path]) == exit_codes.WRONG_INPUT
    assert "--pipeline FILE" in capsys.readouterr().err
    unordered = Path(path).parent / "unordered.yml"
    unordered.write_text(
        (Path(path).parent / "right.yml").read_text().replace("/t,", "/u,").replace(" sequence_by: id,", "")
    )
    lakebed.create(Path(path).parent / "u", SCHEMA, keys=["id"])
    lakebed.create(Path(path).parent / "u_quarantine", QUARANTINE_SCHEMA)
    assert main(["quarantine", "replay", path, "--pipeline", str(unordered)]) == exit_codes.WRONG_INPUT
    assert "not to" in capsys.readouterr().err
    assert main(["quarantine", "replay", str(unordered)]) == exit_codes.WRONG_INPUT
    assert "takes the place of a newer row of its key; give --yes" in capsys.readouterr().err
    assert main(["quarantine", "replay", str(unordered), "--yes"]) == exit_codes.OK


def test_records_of_a_schema_that_was_unknown_are_shown_with_its_id_and_replayed_once_it_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.decode.typed.registry.UNKNOWN_SECONDS", 0.0)
    schema = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
    }
    value = framed(1, encoded(schema, {"id": 7, "name": "größe"}))
    path = str(tmp_path / "t")
    table = lakebed.create(path, SCHEMA, keys=["id"], sequence_by="id")
    with SchemaRegistry() as registry:
        reader = decoder("avro", DecoderSchema(SCHEMA, ("id",)), {"registry": RegistrySettings(url=registry.url)})
        refused = reader.decode(records([value, b"\0\0\0\0\2\xff\x1b[31m"])).quarantined
        lakebed.create(path + "_quarantine", QUARANTINE_SCHEMA).apply(refused)
        file = tmp_path / "p.yml"
        file.write_text(AVRO_PIPELINE.format(path=path, url=registry.url))
        assert main(["quarantine", "show", path]) == exit_codes.OK
        shown = capsys.readouterr().out
        assert "schema id 1: the schema registry does not have it" in shown
        assert "schema id 1, 9 bytes: " in shown and "größe" in shown
        assert "schema id 2, 6 bytes: \\xff" in shown and "\x1b" not in shown
        registry.register(schema)
        assert main(["quarantine", "replay", str(file)]) == exit_codes.OK
        assert capsys.readouterr().out.split()[-2:] == ["left", "1"]
    assert table.to_arrow().to_pylist() == [{"id": 7, "price": None, "name": "größe"}]


def test_a_replay_of_a_table_of_a_database_takes_the_file_of_the_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, path = tmp_path / "shop.yml", str(tmp_path / "shop" / "public" / "t")
    file.write_text(
        f"database: {{path: {tmp_path / 'shop'}}}\n"
        'source: {kind: kafka, topic_pattern: "shop\\\\..*", config: {bootstrap.servers: "localhost:1"}}\n'
        "format: debezium-json\n"
    )
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    topic = {"lakebed.source_topic": "shop.public.t"}
    lakebed.create(path, columns, keys=["id"], sequence_by="id", properties=topic)
    event = {"before": None, "after": {"id": 7, "name": "x"}, "op": "c", "ts_ms": 1, "source": {"ts_ms": 1}}
    refused = decoder("json", DecoderSchema(SCHEMA, ("id",))).decode(records(["{not json"])).quarantined
    value = pa.array([json.dumps(event).encode()], refused.schema.field("value").type)
    at = refused.schema.get_field_index("value")
    lakebed.create(path + "_quarantine", QUARANTINE_SCHEMA).apply(refused.set_column(at, "value", value))
    assert main(["quarantine", "replay", str(file)]) == exit_codes.WRONG_INPUT
    assert f"lakebed quarantine replay {tmp_path / 'shop'}/SCHEMA/TABLE --pipeline {file}" in capsys.readouterr().err
    assert main(["quarantine", "replay", str(tmp_path / "t"), "--pipeline", str(file)]) == exit_codes.WRONG_INPUT
    assert "is none of them" in capsys.readouterr().err
    lakebed.create(tmp_path / "shop" / "public" / "other", columns)
    other = ["quarantine", "replay", str(tmp_path / "shop" / "public" / "other"), "--pipeline", str(file)]
    assert main(other) == exit_codes.WRONG_INPUT
    assert "has no property lakebed.source_topic" in capsys.readouterr().err
    assert main(["quarantine", "replay", path, "--pipeline", str(file)]) == exit_codes.OK
    assert lakebed.open(path).to_arrow().to_pylist() == [{"id": 7, "name": "x"}]
