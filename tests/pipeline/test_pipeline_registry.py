"""Pipeline files of formats whose schemas are in a registry or in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakebed.cli import main
from lakebed.cli.commands.validate import effective_settings
from lakebed.decode.typed.registry import RegistrySettings
from lakebed.errors import InvalidInput, LakebedError, Retry
from lakebed.pipeline import places
from lakebed.pipeline.check import check
from lakebed.pipeline.settings import Pipeline, decoder_options, load, parse_pipeline
from tests.decode.avro_events import envelope_schema
from tests.decode.schema_registry import SchemaRegistry
from tests.decode.test_typed_records import FIELDS

TABLE = "table: {path: ./lake/orders, keys: [id], schema: {id: long not null}}\n"
SOURCE = "source: {kind: kafka, topics: [orders], config: {bootstrap.servers: 'localhost:1'}}\n"
REGISTRY = "registry: {url: 'http://localhost:8081'}\n"


def pipeline(text: str, environment: dict[str, str] | None = None) -> Pipeline:
    return parse_pipeline(TABLE + SOURCE + text, "p.yml", environment or {})


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "kind", ["avro", "debezium-avro", "protobuf", "debezium-protobuf", "json-schema", "debezium-json-schema"]
)
def test_every_format_with_schemas_takes_a_registry_and_lets_the_table_evolve(kind: str) -> None:
    found = pipeline(f"format: {kind}\n{REGISTRY}")
    check(found)
    assert decoder_options(found)["registry"] == RegistrySettings(url="http://localhost:8081")
    assert found.evolve == ("add", "relax")


def test_the_registrys_own_settings_pass_through_and_its_secrets_are_hidden() -> None:
    text = (
        "format: avro\nregistry: {url: '${URL}', config: {basic.auth.user.info: 'ann:geheim', ssl.key.password: '${PASS}',"
        " ssl.ca.location: /ca.pem}}\n"
    )
    found = pipeline(text, {"URL": "http://registry:8081", "PASS": "hidden-word"})
    assert found.registry is not None and found.registry.config["basic.auth.user.info"] == "ann:geheim"
    shown = json.dumps(effective_settings(found)) + repr(found)
    assert "http://registry:8081" in shown and "/ca.pem" in shown
    assert "geheim" not in shown and "hidden-word" not in shown


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "format: debezium-avro\n",
            "records of debezium-avro name their schemas: add registry with its url, or format.schema_file",
        ),
        ("format: json\n" + REGISTRY, "records of json need no registry"),
        ("format: avro\nregistry: {url: localhost}\n", "line 4: registry: the url must begin with http"),
        ("format: avro\nregistry: {config: {}}\n", "the key 'url' is missing"),
        ("format: {kind: avro, schema_file: a.avsc}\n" + REGISTRY, "the registry has the schemas"),
        ("format: {kind: avro, message: A}\n" + REGISTRY, "it has no effect without schema_file"),
        (
            "format: {kind: avro, key_format: yaml}\n" + REGISTRY,
            "key_format: is 'yaml'; it must be one of same, json, none",
        ),
        ("format: {kind: debezium-avro, operation_field: op}\n" + REGISTRY, "there is no such key here"),
    ],
)
def test_what_does_not_fit_together_is_said_with_its_line(text: str, why: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        pipeline(text)
    assert why in str(caught.value)


def test_lines_of_files_have_no_schema() -> None:
    with pytest.raises(InvalidInput, match="lines of files can't be avro"):
        parse_pipeline(TABLE + "source: {kind: files, folder: ./in}\nformat: avro\n" + REGISTRY, "p.yml", {})


def refused(text: str, **how: Any) -> LakebedError:
    with pytest.raises(LakebedError) as caught:
        check(pipeline(text), **how)
    return caught.value


def test_a_schema_may_stand_in_a_file() -> None:
    Path("row.avsc").write_text('{"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}')
    check(pipeline("format: {kind: avro, schema_file: row.avsc}\n"))
    Path("row.avsc").write_text("{}")
    assert "schema_file: " in str(refused("format: {kind: avro, schema_file: row.avsc}\n"))
    assert "the schema file none.avsc can't be read" in str(refused("format: {kind: avro, schema_file: none.avsc}\n"))


def test_a_file_of_protobuf_brings_the_files_that_it_imports() -> None:
    Path("shop").mkdir()
    Path("shop/money.proto").write_text('syntax = "proto3"; package shop; message Money { int64 cents = 1; }')
    order = 'syntax = "proto3"; import "shop/money.proto";\nimport "google/protobuf/timestamp.proto";\n'
    order = order.replace("; import", ";\nimport")
    Path("order.proto").write_text(order + "message Other {}\nmessage Order { int64 id = 1; shop.Money price = 2; }")
    check(pipeline("format: {kind: protobuf, schema_file: order.proto, message: Order}\n"))
    assert "NoSuch" in str(refused("format: {kind: protobuf, schema_file: order.proto, message: NoSuch}\n"))
    Path("shop/money.proto").write_text('syntax = "proto3";\nimport "order.proto";')
    Path("shop/order.proto").write_text("")
    Path("order.proto").write_text('syntax = "proto3";\nimport "order.proto";')
    assert "circle" in str(refused("format: {kind: protobuf, schema_file: order.proto}\n"))


def test_settings_that_the_client_refuses_are_found_without_a_connection() -> None:
    error = refused("format: avro\nregistry: {url: 'http://localhost:1', config: {no.such.key: '1'}}\n")
    assert "line 4: registry.config: the registry's client refuses config: " in str(error)


def test_connecting_asks_the_registry_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "KAFKA_SECONDS", 0.2)
    with SchemaRegistry() as registry:
        text = f"format: avro\nregistry: {{url: '{registry.url}'}}\n"
        assert registry.url not in str(refused(text, connect=True))  # the broker is missing, the registry is not
        assert len(registry.requests) == 1
        registry.failing = 1
        assert f"the schema registry at {registry.url} does not answer" in str(refused(text, connect=True))
        assert len(registry.requests) == 2
    error = refused(text, connect=True)
    assert f"the schema registry at {registry.url} can't be reached" in str(error) and isinstance(error, Retry)


def test_a_first_file_has_the_columns_and_keys_that_the_registry_knows(capsys: pytest.CaptureFixture[str]) -> None:
    with SchemaRegistry() as registry:
        registry.register(envelope_schema(FIELDS), subject="shop.orders-value")
        registry.register(
            {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}, subject="shop.orders-key"
        )
        command = [
            "init",
            "new.yml",
            "--source",
            "kafka",
            "--bootstrap-servers",
            "localhost:1",
            "--topic",
            "shop.orders",
            "--record-format",
            "debezium-avro",
            "--registry",
            registry.url,
        ]
        assert main(command) == 0
        assert main([*command[:1], "no.yml", *command[2:7], "nowhere", *command[8:]]) == 2
    assert "the columns of nowhere are not known: subject 'nowhere-value': " in capsys.readouterr().err
    made = load("new.yml", {})
    assert made.table.keys == ("id",) and made.table.path == "./lake/orders" and made.format_kind == "debezium-avro"
    assert made.table.schema == {
        "id": "long not null", "name": "string", "qty": "integer", "raw": "binary", "money": "decimal(38,2)",
        "at": "timestamp", "day": "date", "tags": "array<string>", "coupon": "string",
    }  # fmt: skip
    assert made.registry is not None and made.registry.url == registry.url
