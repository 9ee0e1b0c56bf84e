"""The decoders of formats with schemas, from the settings of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lakebed.decode.avro import AvroFormat
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.json.text import Unreadable
from lakebed.decode.json.values import JsonOptions
from lakebed.decode.json_schema.reader import JsonSchemaFormat
from lakebed.decode.record_format import RecordFormat
from lakebed.decode.typed.keys import KeySchemas
from lakebed.decode.typed.records import TypedRecords, TypedSettings
from lakebed.decode.typed.schemas import FixedSchema, RegisteredSchemas, Schemas
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


def typed_decoder(
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
    """Where the schemas of a format's values and keys are. ``options``, errors: ``typed_decoder``."""
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
        from lakebed.decode.protobuf.reader import ProtobufFormat

        return ProtobufFormat()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("lakebed"):
            raise
        raise MissingPrerequisite(
            f"the format {name} needs the package {error.name.split('.')[0]}, which is not installed: "
            "pip install 'lakebed[protobuf]'"
        ) from None
