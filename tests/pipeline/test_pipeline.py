"""What a pipeline file may say, and what is said about one that is wrong."""

from __future__ import annotations

import itertools
import json
import re
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed import create
from lakebed.cli.commands.validate import effective_settings, validate
from lakebed.errors import DataLoss, InvalidInput, InvalidSchema, Retry, TableDropped, Unexpected
from lakebed.failures import encode, failure_in
from lakebed.pipeline.database.check import check_database
from lakebed.pipeline.sections import GeneratorSection, JsonFormat, KafkaSection
from lakebed.pipeline.settings import DatabasePipeline, Pipeline, load, maintenance_of, parse_pipeline
from lakebed.pipeline.sources import open_decoder, open_source, with_rate
from lakebed.pipeline.target import open_or_create
from lakebed.schema.type_names import table_schema
from tests.worlds import examples

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TABLE = """
table:
  path: {path}
  keys: [id]
  schema:
    id: long not null
    name: string
"""
GENERATED = "source: {kind: generator}\n"
DATABASE = """database: {path: d, topic_prefix: s}
source: {kind: kafka, topics: [s.a], config: {bootstrap.servers: b}}
format: debezium-json
"""
KAFKA = """
source:
  kind: kafka
  topics: [orders]
  config:
    bootstrap.servers: broker:9092
    sasl.username: ${USER_NAME}
    sasl.password: ${PASSWORD}
    ssl.key.pem: written-into-the-file
format: json
"""
ENVIRONMENT = {"USER_NAME": "reader-of-orders", "PASSWORD": "hunter2!"}


def read(text: str, environment: dict[str, str] | None = None, path: str = "lake/t") -> Pipeline:
    return parse_pipeline(text.replace("{path}", path), "p.yml", environment or {})


def complaint(text: str, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(InvalidInput) as raised:
        read(text, environment)
    return str(raised.value)


@pytest.mark.parametrize("name", sorted(file.name for file in EXAMPLES.glob("*.yml")))
def test_every_example_is_valid_and_can_be_attached(name: str, tmp_path: Path) -> None:
    pipeline = load(EXAMPLES / name, {})
    if isinstance(pipeline, DatabasePipeline):
        assert not check_database(pipeline).notes
        return
    columns = pipeline.table.columns
    assert columns is not None
    section = pipeline.table
    table = create(tmp_path / "t", columns, section.keys, section.sort_key, sequence_by=section.sequence_by)
    assert open_source(pipeline, columns)
    assert open_decoder(pipeline, table)


def test_the_defaults_are_those_of_the_documentation() -> None:
    pipeline = read(TABLE + GENERATED)
    assert isinstance(pipeline.source, GeneratorSection)
    assert (pipeline.format_kind, pipeline.trigger_seconds, pipeline.quarantine, pipeline.maintain) == (
        "debezium-json",
        0.0,
        "table",
        True,
    )
    assert (pipeline.maintenance.as_query, pipeline.maintenance.trigger_seconds) == (None, 1.0)
    assert (pipeline.metrics.port, pipeline.metrics.host) == (9464, "127.0.0.1")
    assert (pipeline.page.port, pipeline.page.host) == (9466, "127.0.0.1")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (TABLE + GENERATED + "trigger_second: 1\n", 9, "did you mean 'trigger_seconds'?"),
        (TABLE.replace("keys:", "key:") + GENERATED, 4, "table.key: there is no such key here; did you mean 'keys'?"),
        (TABLE + "source: {kind: generater}\n", 8, "did you mean 'generator'?"),
        (TABLE + "source: {kind: generator, rate: 5}\n", 8, "source.rate: there is no such key here"),
        (TABLE + GENERATED + "maintain: perhaps\n", 9, "it must be true or false"),
        (TABLE + GENERATED + "quarantine: fial\n", 9, "did you mean 'fail'?"),
        (TABLE + GENERATED + "maintain: true\nmaintain: false\n", 10, "'maintain' is there twice"),
        (TABLE + GENERATED + "maintenance: {trigger_seconds: -1}\n", 9, "must be at least 0"),
        (TABLE + GENERATED + "maintain: false\nmaintenance: {as_query: true}\n", 10, "it has no effect"),
        (DATABASE + "maintenance: {as_query: true}\n", 4, "share the threads that maintain them"),
        (TABLE + GENERATED + "metrics: {port: 70000}\n", 9, "between 0 and 65535"),
        (TABLE + GENERATED + "page: {port: 70000}\n", 9, "between 0 and 65535"),
        (TABLE + GENERATED + "page: {host: ''}\n", 9, "must not be empty"),
        (TABLE + "source: {kind: kafka, topics: [a]}\nformat: json\n", 8, "the key 'config' is missing"),
        (TABLE + "source: {kind: files, folder: x}\n", 2, "the key 'format' is missing"),
        (TABLE.replace("string", "sting") + GENERATED, 7, "there is no type 'sting'; did you mean 'string'?"),
        (TABLE + GENERATED + "table: [", 9, "this is not YAML"),
        (GENERATED, 1, "the key 'table' is missing"),
    ],
)
def test_a_wrong_file_is_shown_by_line_with_what_was_meant(text: str, line: int, said: str) -> None:
    message = complaint(text)
    assert said in message
    assert f"p.yml, line {line}:" in message


def test_variables_are_filled_in_and_get_their_type_afterwards() -> None:
    text = TABLE + "source: {kind: generator, seed: '${SEED}', skew: '${SKEW:-0.5}'}\nmetrics: {host: '$${x}'}\n"
    pipeline = read(text, {"SEED": "7"})
    assert isinstance(pipeline.source, GeneratorSection)
    assert (pipeline.source.seed, pipeline.source.skew, pipeline.metrics.host) == (7, 0.5, "${x}")


def test_a_variable_that_is_not_set_is_named() -> None:
    message = complaint(TABLE + KAFKA, {"USER_NAME": "x"})
    assert "PASSWORD is not set" in message
    assert "${PASSWORD:-default}" in message


def test_yes_no_and_numbers_are_texts_where_a_text_is_wanted() -> None:
    pipeline = read(
        TABLE.replace("name:", "on:")
        + "source: {kind: kafka, topics: 17, config: {bootstrap.servers: b}}\nformat: json\n"
    )
    assert isinstance(pipeline.source, KafkaSection)
    assert pipeline.source.topics == ("17",)
    assert list(pipeline.table.schema) == ["id", "on"]
    assert isinstance(pipeline.format, JsonFormat)


TEXTS = [
    "0123456", "0x1f2e3d4c", "1e10", "1_000", "0b101", "1:30:00", "007", "3.10", ".5", "yes", "No", "on", "true", "null", "~",
    "2026-01-31", "=", "<<", "hun'ter\\\\2", "two\nlines", "ünïcode", " spaces ", "a: b # c", "*alias", "!tag", "%", "[1, 2]",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_what_is_written_or_comes_from_the_environment_and_hidden_where_it_is_a_secret(text: str) -> None:
    config = "{bootstrap.servers: b, sasl.password: '${P}', sasl.username: U, client.id: '${U}'}"
    source = "source: {kind: kafka, topics: ['${U}'], config: CONFIG}\nformat: {kind: json, operation_field: '${U}'}\n"
    quoted = json.dumps(text)
    text_of_file = TABLE.replace("[id]", "['${U}']") + source.replace("CONFIG", config).replace(" U,", f" {quoted},")
    pipeline = read(text_of_file, {"P": text, "U": text})
    assert isinstance(pipeline.source, KafkaSection) and isinstance(pipeline.format, JsonFormat)
    texts = [pipeline.source.config[name] for name in ("sasl.password", "sasl.username", "client.id")]
    assert [*texts, *pipeline.source.topics, *pipeline.table.keys, pipeline.format.operation_field] == [text] * 6
    for message in (f"login with {text} refused", f"login with {text!r} refused", f"login with {quoted} refused"):
        told = pipeline.document.redact(message)
        assert told.replace('"', "'").replace("'", "") == "login with *** refused", (
            "as it is, and as Python and JSON quote it"
        )
    assert effective_settings(pipeline)["source"]["config"]["sasl.password"] == "***"


@pytest.mark.parametrize("text", ["0123456", "0x1f2e3d4c", "1e10", "yes", "3.10", "2026-01-31"])
def test_a_secret_needs_no_quotes_to_stay_what_it_is(text: str) -> None:
    config = f"{{bootstrap.servers: b, sasl.password: {text}, ssl.key.pem: [{text}]}}".replace(
        f", ssl.key.pem: [{text}]", ""
    )
    pipeline = read(TABLE + f"source: {{kind: kafka, topics: [{text}], config: {config}}}\nformat: json\n")
    assert isinstance(pipeline.source, KafkaSection)
    assert (pipeline.source.config["sasl.password"], pipeline.source.topics) == (text, (text,))
    assert text not in pipeline.document.redact(f"refused: {text}")


def test_a_number_from_the_environment_is_hidden_by_where_it_stands() -> None:
    generator = "source: {kind: generator, seed: '${SEED}', skew: '${SKEW}', tasks: 3}\nmaintain: ${MAINTAIN}\n"
    pipeline = read(TABLE + generator, {"SEED": "1_234", "SKEW": "0.50", "MAINTAIN": "true"})
    assert isinstance(pipeline.source, GeneratorSection)
    assert (pipeline.source.seed, pipeline.source.skew, pipeline.maintain) == (1234, 0.5, True)
    shown = effective_settings(pipeline)
    assert (shown["source"]["seed"], shown["source"]["skew"], shown["source"]["tasks"]) == ("***", "***", 3)
    assert pipeline.document.redact("it is true") == "it is true"


@pytest.mark.parametrize("text", ["0x10", "1:30", "1e400", ".inf", ".nan", "9" * 19, "ten", "", "[1]"])
def test_a_number_is_in_plain_digits(text: str) -> None:
    for setting, wanted in (("seed", "whole number"), ("skew", "number"), ("events_max", "whole number")):
        if setting != "events_max" or text:  # it may be left empty
            message = complaint(TABLE + f"source:\n  kind: generator\n  {setting}: {text}\n")
            assert f"source.{setting}: " in message and (wanted in message or "one value" in message)


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in itertools.pairwise("abcdefghi")
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "table: &t {path: x, keys: *t}\n",
            "line 1: the value of table.keys has an anchor and contains its own alias",
        ),
        ("&all\ntable: *all\n", "contains its own alias"),
        (LAUGHS, "the file has more than 20,000 values"),
        ("[" * 1_000, "nested too deeply"),
        ("table: {path: !!binary aGk=}\n", "line 1: YAML tags are not supported"),
        ("table: !vault\n  path: x\n", "YAML tags are not supported"),
        ("? [a, b]\n: c\n", "line 1: a key must be a name"),
        ("table: {'': x}\n", "line 1: a key must be a name"),
        ("table: {<<: {path: x}}\n", "line 1: << is not supported"),
        ("table: {path: x, 'path': y}\n", "'path' is there twice"),
        ("${TABLE}: x\n", "only values can contain variables"),
        (
            "table:\n\tpath: x\n",
            "line 2: this is not YAML: found character '\\t' that cannot start any token; indent with spaces",
        ),
        ("table: x\n---\ntable: y\n", "this is not YAML: but found another document"),
        ("table: a\x00b\n", "this is not YAML"),
        ("source: {config: {sasl.password: *hunter2}}\n", "a text that begins with * & or ! must be in quotes"),
        ("source: {config: {sasl.password: !hunter2!x y}}\n", "a text that begins with * & or ! must be in quotes"),
        ("source: {config: {sasl.password: 'hunter2${x'}}\n", "'${' is not a variable"),
    ],
)
def test_what_yaml_can_do_and_a_pipeline_file_must_not_is_an_error_that_tells_no_secret(text: str, said: str) -> None:
    message = complaint(text)
    assert said in message
    assert "hunter2" not in message


def test_a_file_is_read_with_a_byte_order_mark_and_not_without_end(tmp_path: Path) -> None:
    text = (TABLE + GENERATED).replace("{path}", "x")
    file = tmp_path / "p.yml"
    file.write_bytes(text.encode("utf-8-sig"))
    assert load(file, {}).table.path == "x"
    for data, said in (
        (text.encode("utf-16"), "is not UTF-8"),
        (b"#" * (1 << 20) + text.encode(), "has more than 1,048,576 bytes"),
    ):
        file.write_bytes(data)
        with pytest.raises(InvalidInput, match=said):
            load(file, {})
    with pytest.raises(InvalidInput, match="more than 1,048,576 bytes"):
        load("/dev/zero", {})


@pytest.mark.parametrize("path", ["lake/orders", "a ${HOME} b", "ünïcode", "🦆", "a\x85b\u2028c", '"\\', "a\udc80b"])
def test_any_path_can_be_maintained(path: str) -> None:
    assert maintenance_of(path).table.path == path


@examples(60)
@given(
    st.lists(
        st.sampled_from(
            [*"abx01 \t\n\n::-,[]{}&*!|>'\"%@#?~$", ": ", "- ", "&a ", "*a", "${A}", "<<: ", "table", "\ufeff", "!!"]
        )
    )
)
def test_any_text_is_a_pipeline_or_a_complaint(pieces: list[str]) -> None:
    with suppress(InvalidInput):
        read("".join(pieces), {"A": "x"})


def test_no_secret_is_shown_by_any_text_about_the_pipeline() -> None:
    pipeline = read(TABLE + KAFKA, ENVIRONMENT)
    texts = [repr(pipeline), str(effective_settings(pipeline)), repr(pipeline.source), repr(pipeline.document)]
    texts.append(
        str(pipeline.document.error(pipeline.document.root, "login as reader-of-orders with hunter2! refused"))
    )
    for secret in (*ENVIRONMENT.values(), "written-into-the-file"):
        assert not any(secret in text for text in texts)
    assert "broker:9092" in str(effective_settings(pipeline))


def test_a_place_from_the_environment_is_no_secret_but_a_password_within_it_is() -> None:
    config = "{bootstrap.servers: '${BROKERS}', sasl.password: '${P}'}"
    text = TABLE + "source: {kind: kafka, topics: ['${TOPIC}'], config: CONFIG}\nformat: json\n".replace(
        "CONFIG", config
    )
    pipeline = read(text, {"TOPIC": "orders", "BROKERS": "kafka-1:9092", "P": "hunter2!"})
    told = pipeline.document.redact("kafka at kafka-1:9092 refuses hunter2! for orders")
    assert told == "kafka at kafka-1:9092 refuses *** for orders"


def test_a_secret_in_the_wrong_place_is_not_shown_by_the_complaint() -> None:
    text = TABLE + GENERATED + "quarantine: ${PASSWORD}\nmaintain: true\n"
    message = complaint(text, ENVIRONMENT)
    assert "hunter2!" not in message
    assert "***" in message


def test_a_short_secret_does_not_mangle_words() -> None:
    pipeline = read(TABLE + "source: {kind: generator, seed: '${SEED}'}\n", {"SEED": "4"})
    assert pipeline.document.redact("seed 4 of 1404") == "seed *** of 1404"


def test_types_are_written_as_in_delta_or_as_in_sql() -> None:
    schema = table_schema(
        {
            "a": "bigint NOT NULL",
            "b": "decimal(12, 2)",
            "c": "array<struct<sku: string, pieces: int>>",
            "d": "map<string, timestamp_ntz>",
            "e": "timestamp",
        }
    )
    assert schema.field("a") == pa.field("a", pa.int64(), nullable=False)
    assert schema.field("b").type == pa.decimal128(12, 2)
    assert schema.field("c").type.value_type.field("pieces").type == pa.int32()
    assert schema.field("d").type.item_type == pa.timestamp("us")
    assert schema.field("e").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    "text", ["lng", "array<long", "struct<a long>", "long long", "decimal(50,2) x", "map<string>", ""]
)
def test_a_type_that_is_none_is_named_with_its_column(text: str) -> None:
    with pytest.raises(InvalidSchema, match="column 'a'"):
        table_schema({"a": text})


def test_the_table_is_created_once_and_compared_afterwards(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    created = open_or_create(read(TABLE + GENERATED, path=path))
    assert created.version == 0
    assert open_or_create(read(TABLE + GENERATED, path=path)).version == 0
    other = TABLE.replace("name: string", "name: long\n    extra: date").replace("keys: [id]", "keys: []") + GENERATED
    with pytest.raises(InvalidInput) as raised:
        open_or_create(read(other, path=path))
    for said in (
        "keys is ['id'] in the table and [] in the file",
        "the column name is string",
        "the column extra is only in",
    ):
        assert said in str(raised.value)


def test_a_table_that_is_dropped_is_not_made_anew(tmp_path: Path) -> None:
    pipeline = read(TABLE + GENERATED, path=str(tmp_path / "t"))
    open_or_create(pipeline).drop()
    with pytest.raises(TableDropped, match=r"was dropped at .*; lakebed\.undrop"):
        open_or_create(pipeline)


PROPERTIES = """
  properties:
    lakebed.tombstone_retention: 30 days
    lakebed.settle_after_age: 10 minutes
    lakebed.purge_dead_ratio: 0.50
    lakebed.target_part_rows: 0500
    lakebed.volatile: on
    lakebed.merge: auto
    lakebed.recluster_depth: 2.0
    lakebed.log_retention: interval 1 week
    delta.deletedFileRetentionDuration: 168 hours
    owner: 007
"""


def test_a_pipeline_starts_again_however_its_properties_are_spelled(tmp_path: Path) -> None:
    text = TABLE + PROPERTIES + GENERATED
    table = open_or_create(read(text, path=str(tmp_path / "t")))
    assert open_or_create(read(text, path=str(tmp_path / "t"))).version == 0
    table.set_properties({"lakebed.tombstone_retention": "720 hours", "lakebed.read_budget": "2"})
    assert open_or_create(read(text, path=str(tmp_path / "t"))).version == 1, "what the file leaves out may be anything"
    for name, value in (("log_retention", "1 day"), ("tombstone_retention", "29 days"), ("volatile", "off")):
        other = re.sub(rf"(lakebed.{name}): .*", rf"\1: {value}", text)
        with pytest.raises(
            InvalidInput, match=rf"the property lakebed\.{name} is .* in the table and '{value}' in the"
        ):
            open_or_create(read(other, path=str(tmp_path / "t")))


def test_every_difference_between_the_table_and_the_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    columns = pa.schema([("id", pa.int64()), ("at", pa.int64()), pa.field("name", pa.string(), nullable=False)])
    create(
        path, columns, ["id"], ["at"], sequence_by="at", partition_by=["name"], properties={"lakebed.read_budget": "2"}
    )
    text = (
        f"table:\n  path: {path}\n  keys: [name]\n  sort_key: ['substr(name, 1, 2)']\n  partition_by: [at]\n"
        "  properties: {lakebed.read_budget: 3, lakebed.log_retention: 1 day, owner: me}\n"
        "  schema: {more: date, name: string, at: string not null, id: long}\n" + GENERATED
    )
    with pytest.raises(InvalidInput) as raised:
        open_or_create(read(text))
    for said in (
        "keys is ['id'] in the table and ['name'] in the file",
        "partition_by is ['name'] in the table and ['at'] in the file",
        "sequence_by is at in the table and None in the file",
        "sort_key is ['at'] in the table and ['substr(name, 1, 2)'] in the file",
        "the column more is only in the file",
        "the column at is int64 in the table and string in the file",
        "the column at may be null in the table and is NOT NULL in the file",
        "the column id is NOT NULL in the table and may be null in the file",
        "in the order id, at, name in the table and name, at, id in the file",
        "the property lakebed.read_budget is '2' in the table and '3' in the file",
        "the property lakebed.log_retention is not set in the table and '1 day' in the file",
        "the property owner is not set in the table and 'me' in the file",
        f"lakebed alter {path} --sort-key 'substr(name, 1, 2)'",
        "set_properties({'lakebed.read_budget': '3', 'lakebed.log_retention': '1 day', 'owner': 'me'})",
        "choose another table.path",
    ):
        assert said in str(raised.value)


def test_without_a_schema_what_the_file_does_say_is_compared(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    create(path, pa.schema([("id", pa.int64()), ("at", pa.int64())]), ["id"], sequence_by="at")
    start = f"table:\n  path: {path}\n"
    assert open_or_create(read(start + GENERATED)).version == 0
    for more, said in (
        ("  keys: [at]\n", "keys is"),
        ("  sequence_by: id\n", "sequence_by is at in the table and id"),
        ("  sort_key: [at]\n", "sort_key is"),
        ("  partition_by: [at]\n", "partition_by is"),
        ("  properties: {lakebed.read_budget: 3}\n", "read_budget is not set in the table"),
    ):
        with pytest.raises(InvalidInput, match=said):
            open_or_create(read(start + more + GENERATED))


@pytest.mark.parametrize(
    ("property", "said"),
    [
        ("lakebed.log_retention: soon", "lakebed.log_retention is 'soon'; it must be an interval such as '7 days'"),
        ("lakebed.reed_budget: 3", "did you mean 'lakebed.read_budget'?"),
        (
            "lakebed.target_part_bytes: 1000000000",
            "lakebed.plan_bytes_max is 1073741824; it must be at least 2000000000",
        ),
        ("lakebed.keys: '[]'", "lakebed.keys is no property to set"),
    ],
)
def test_a_property_that_can_not_be_is_shown_by_the_line_of_the_file(property: str, said: str) -> None:
    message = complaint(TABLE + f"  properties:\n    {property}\n" + GENERATED)
    assert said in message and "p.yml, line 9:" in message
    read(
        TABLE
        + "  properties: {lakebed.target_part_bytes: 1000000000, lakebed.plan_bytes_max: 3000000000}\n"
        + GENERATED
    )


def test_a_table_that_exists_needs_no_schema_in_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    text = f"table: {{path: {path}}}\n" + GENERATED
    with pytest.raises(InvalidInput, match=r"no table\.schema to create it with"):
        open_or_create(read(text))
    create(path, pa.schema([("id", pa.int64())]), keys=["id"])
    assert open_or_create(read(text)).version == 0


def test_the_rate_is_for_the_generator_alone() -> None:
    faster = with_rate(read(TABLE + GENERATED), 9000)
    assert isinstance(faster.source, GeneratorSection)
    assert faster.source.events_per_second == 9000
    with pytest.raises(InvalidInput, match=r"the source of p\.yml is kafka"):
        with_rate(read(TABLE + KAFKA, ENVIRONMENT), 1)


def test_the_error_of_a_task_comes_out_of_the_text_of_a_failed_query() -> None:
    text = (
        "[STREAM_FAILED] Query failed: Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        f"lakebed.errors.DataLoss: offset 3 is lost\n{encode(DataLoss('offset 3 is lost', topic='a', partition=0))}\n"
        " SQLSTATE: 38000\n\n\tat org.x.Y(Z)"
    )
    error = failure_in(text, "ingest")
    assert isinstance(error, DataLoss)
    assert (str(error), error.topic, error.partition) == ("offset 3 is lost", "a", 0)
    assert isinstance(failure_in("lakebed.errors.DataLoss: offset 3 is lost", "ingest"), Unexpected), (
        "words prove nothing"
    )
    late = "org.apache.spark.SparkException: Python worker failed to connect back.\n\tat org.x.Y(Z)"
    assert isinstance(failure_in(late, "ingest"), Retry)
    two = "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 7. SQLSTATE: 40000"
    assert isinstance(failure_in(two, "ingest"), InvalidInput)  # not one that is started again: it would end the other
    assert "another process runs or ran this pipeline" in str(failure_in(two, "ingest"))
    start = failure_in(
        "An error occurred while calling o8.load.\n: a.b.NoSuchException: no such place\n\tat a.b", "ingest"
    )
    assert str(start) == "the ingest query failed: a.b.NoSuchException: no such place"
    other = failure_in("Job aborted\nValueError: no such thing\n", "ingest")
    assert isinstance(other, Unexpected)
    assert str(other) == "the ingest query failed: ValueError: no such thing"


def test_a_sort_key_may_be_spelled_otherwise_in_the_file_than_in_the_table(tmp_path: Path) -> None:
    text = TABLE + "  sort_key: [%s]\n" + GENERATED
    open_or_create(read(text % "'substr(name, 1, 2) desc', id", path=str(tmp_path / "t")))
    again = read(text % "'SUBSTR(name,1,2) DESC nulls last', id asc", path=str(tmp_path / "t"))
    assert open_or_create(again).version == 0
    with pytest.raises(InvalidInput, match="sort_key is"):
        open_or_create(read(text % "id", path=str(tmp_path / "t")))


def test_validate_names_what_is_wrong_with_a_sort_key(tmp_path: Path) -> None:
    file = tmp_path / "p.yml"
    file.write_text(TABLE.replace("{path}", str(tmp_path / "t")) + "  sort_key: [year(name)]\n" + GENERATED)
    with pytest.raises(
        InvalidInput, match="character 6: year takes a date or a timestamp, and the column 'name' is string"
    ):
        validate(str(file))


@pytest.mark.parametrize(
    ("form", "kind", "asks"),
    [
        ("{kind: debezium-json}", "array<decimal(9,2)>", True),
        ("{kind: debezium-json, decimal_text: string}", "decimal(9,2)", False),
        ("{kind: debezium-json}", "double", False),
        ("json", "decimal(9,2)", False),
    ],
)
def test_validate_asks_how_decimals_come_if_nothing_tells(
    form: str, kind: str, asks: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.yml"
    file.write_text(
        f"table: {{path: {tmp_path}/t, keys: [id], schema: {{id: long, price: '{kind}'}}}}\n"
        f"source: {{kind: files, folder: {tmp_path}}}\nformat: {form}\n"
    )
    validate(str(file))
    assert ("# price: unless events contain schemas" in capsys.readouterr().out) is asks
