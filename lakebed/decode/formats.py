"""The decoder of each format, by the name and the settings that a pipeline file has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_type_hints

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import Decoder, DecoderSchema, RecordFormat
from lakebed.decode.json.text import Unreadable
from lakebed.decode.json.values import JsonOptions
from lakebed.decode.json_rows import JsonRows
from lakebed.decode.json_schema import JsonSchemaFormat
from lakebed.decode.typed.avro_reader import AvroFormat
from lakebed.decode.typed.records import TypedRecords, TypedSettings
from lakebed.decode.typed.schemas import FixedSchema, KeySchemas, RegisteredSchemas, Schemas
from lakebed.errors import InvalidInput, MissingPrerequisite

TYPED_FORMATS = ("debezium-avro", "avro", "debezium-protobuf", "protobuf", "debezium-json-schema", "json-schema")
KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF", "json-schema": "JSON"}
"""What a registry calls each format."""
EVENTS = "debezium-"

KeyFormat = Literal["same", "json", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaText:
    """A schema from a file: its text, those that it refers to by name, and which message of it records are, for Protobuf."""

    text: str = field(repr=False)
    references: Mapping[str, str] = field(default_factory=dict, repr=False)
    message: str | None = None


def _typed_decoder(
    format: str,
    decoder_schema: DecoderSchema,
    json_options: JsonOptions,
    rows: Mapping[str, Any],
    options: Mapping[str, Any],
) -> TypedRecords:
    """``rows``: the options of plain rows. ``options``: ``registry`` (RegistrySettings) or ``schema`` and ``key_schema``
    (SchemaText), and ``key_format``. Raises InvalidInput, or MissingPrerequisite for a package that is not installed.
    """
    values, keys = schemas_of(format, options)
    return TypedRecords(
        TypedSettings(
            decoder_schema=decoder_schema,
            values=values,
            keys=keys,
            events=format.startswith(EVENTS),
            options=json_options,
            **rows,
        )
    )


def schemas_of(format: str, options: Mapping[str, Any]) -> tuple[Schemas, KeySchemas]:
    """Where the schemas of a format's values and keys are. ``options``, errors: ``_typed_decoder``."""
    reads = record_format(format)
    registry, schema, key_schema = (options.get(each) for each in ("registry", "schema", "key_schema"))
    key_format: KeyFormat = options.get("key_format") or "same"
    if (registry is None) == (schema is None):
        raise InvalidInput(
            f"format {format!r} needs the schemas of records: set either 'registry' or 'schema_file'"
            + ("" if registry is None else ", not both")
        )
    values: Schemas
    keys: KeySchemas
    if registry is not None:
        if key_schema is not None:
            raise InvalidInput("key_schema_file has no effect with a registry; leave one of them out")
        values = keys = RegisteredSchemas(registry, KINDS[format.removeprefix(EVENTS)], reads)
    else:
        assert isinstance(schema, SchemaText)
        values = _fixed(reads, schema, "schema_file")
        keys = None if key_schema is None else _fixed(reads, key_schema, "key_schema_file")
    if key_format != "same":
        keys = key_format
    return values, keys


def _fixed(reads: RecordFormat, schema: SchemaText, setting: str) -> FixedSchema:
    try:
        reads.compile(schema.text, schema.references, schema.message)
    except Unreadable as error:
        raise InvalidInput(f"{setting}: {error}") from None
    return FixedSchema(reads, schema.text, tuple(schema.references.items()), schema.message)


def record_format(format: str) -> RecordFormat:
    """What reads records of a format. Raises MissingPrerequisite."""
    name = format.removeprefix(EVENTS)
    if name == "avro":
        return AvroFormat()
    if name == "json-schema":
        return JsonSchemaFormat()
    try:
        from lakebed.decode.typed.protobuf_reader import ProtobufFormat

        return ProtobufFormat()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("lakebed"):
            raise
        raise MissingPrerequisite(
            f"the format {name} needs the package {error.name.split('.')[0]}, which is not installed: "
            "pip install 'lakebed[protobuf]'"
        ) from None


_FORMATS = ("debezium-json", "json", *TYPED_FORMATS)
_JSON_OPTIONS = ("timestamp_unit", "decimal_text", "binary_text", "unavailable_value", "unknown_fields")
_ROW_OPTIONS = ("operation_field", "delete_values", "upsert_values")
_TYPED_OPTIONS = ("registry", "schema", "key_schema", "key_format")


def decoder(format: str, decoder_schema: DecoderSchema, options: Mapping[str, Any] | None = None) -> Decoder:
    """The decoder of a format. ``options``: ``_JSON_OPTIONS``; for formats of rows also ``_ROW_OPTIONS``; for formats with
    schemas also ``_TYPED_OPTIONS``.
    """
    if format not in _FORMATS:
        raise InvalidInput(f"format {format!r} is unknown; use one of {', '.join(_FORMATS)}")
    given = dict(options or {})
    allowed = _JSON_OPTIONS + (() if format.startswith(EVENTS) else _ROW_OPTIONS)
    if format in TYPED_FORMATS:
        allowed = tuple(name for name in allowed if name != "decimal_text") + _TYPED_OPTIONS
    if unknown := sorted(given.keys() - set(allowed)):
        raise InvalidInput(f"format {format!r} has no option {unknown[0]!r}; its options are {', '.join(allowed)}")
    json_options = JsonOptions(**{name: _checked(name, given[name]) for name in _JSON_OPTIONS if name in given})
    if format == "debezium-json":
        return DebeziumJson(decoder_schema, json_options)
    rows = {name: given[name] for name in _ROW_OPTIONS if name in given}
    rows |= {name: tuple(rows[name]) for name in ("delete_values", "upsert_values") if rows.get(name) is not None}
    if format in TYPED_FORMATS:
        return _typed_decoder(format, decoder_schema, json_options, rows, given)
    return JsonRows(decoder_schema, json_options, **rows)


def reads_headers(format: str, keys: Sequence[str]) -> bool:
    """Whether headers of records say something to the decoder: that a row got another key, or what schema a record has."""
    return bool(keys) or format in TYPED_FORMATS


def _checked(name: str, value: Any) -> Any:
    choices = get_args(get_type_hints(JsonOptions)[name])
    if (choices and value not in choices) or not isinstance(value, str):
        raise InvalidInput(f"{name} is {value!r}; use {' or '.join(choices) if choices else 'a string'}")
    return value
