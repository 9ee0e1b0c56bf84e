"""The decoder of each format, by the name that a pipeline file uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_type_hints

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import Decoder, DecoderSchema
from lakebed.decode.json.values import JsonOptions
from lakebed.decode.json_rows import JsonRows
from lakebed.decode.typed.formats import EVENTS, TYPED_FORMATS, typed_decoder
from lakebed.errors import InvalidInput

FORMATS = ("debezium-json", "json", *TYPED_FORMATS)
JSON_OPTIONS = ("timestamp_unit", "decimal_text", "binary_text", "unavailable_value", "unknown_fields")
ROW_OPTIONS = ("operation_field", "delete_values", "upsert_values")
TYPED_OPTIONS = ("registry", "schema", "key_schema", "key_format")


def decoder(format: str, decoder_schema: DecoderSchema, options: Mapping[str, Any] | None = None) -> Decoder:
    """The decoder of a format. ``options``: ``JSON_OPTIONS``; for formats of rows also ``ROW_OPTIONS``; for formats with
    schemas also ``TYPED_OPTIONS`` (``typed.formats``).
    """
    if format not in FORMATS:
        raise InvalidInput(f"format {format!r} is unknown; use one of {', '.join(FORMATS)}")
    given = dict(options or {})
    allowed = JSON_OPTIONS + (() if format.startswith(EVENTS) else ROW_OPTIONS)
    if format in TYPED_FORMATS:
        allowed = tuple(name for name in allowed if name != "decimal_text") + TYPED_OPTIONS
    if unknown := sorted(given.keys() - set(allowed)):
        raise InvalidInput(f"format {format!r} has no option {unknown[0]!r}; its options are {', '.join(allowed)}")
    json_options = JsonOptions(**{name: _checked(name, given[name]) for name in JSON_OPTIONS if name in given})
    if format == "debezium-json":
        return DebeziumJson(decoder_schema, json_options)
    rows = {name: given[name] for name in ROW_OPTIONS if name in given}
    rows |= {name: tuple(rows[name]) for name in ("delete_values", "upsert_values") if rows.get(name) is not None}
    if format in TYPED_FORMATS:
        return typed_decoder(format, decoder_schema, json_options, rows, given)
    return JsonRows(decoder_schema, json_options, **rows)


def reads_headers(format: str, keys: Sequence[str]) -> bool:
    """Whether headers of records say something to the decoder: that a row got another key, or what schema a record has."""
    return bool(keys) or format in TYPED_FORMATS


def _checked(name: str, value: Any) -> Any:
    choices = get_args(get_type_hints(JsonOptions)[name])
    if (choices and value not in choices) or not isinstance(value, str):
        raise InvalidInput(f"{name} is {value!r}; use {' or '.join(choices) if choices else 'a string'}")
    return value
