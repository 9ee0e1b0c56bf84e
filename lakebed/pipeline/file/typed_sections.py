"""The settings of formats whose records have a schema elsewhere: in a registry, or in a file beside the pipeline's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lakebed.decode.formats import KeyFormat, SchemaText
from lakebed.decode.json.values import BinaryText, TimestampUnit, UnknownFields
from lakebed.decode.metadata import DELETE_VALUES
from lakebed.decode.typed.registry import RegistrySettings
from lakebed.errors import InvalidInput

_SCHEMA_BYTES_MAX = 4 << 20
FILES_MAX = 256
_IMPORT = re.compile(r'^\s*import\s+(?:public\s+|weak\s+)?"([^"\n]+)"\s*;', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySection:
    """``registry``: where the schemas of records are."""

    url: str
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of confluent-kafka's client, as they are."""
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        self.settings()

    def settings(self) -> RegistrySettings:
        """Raises InvalidInput."""
        return RegistrySettings(url=self.url, config=self.config, timeout_seconds=self.timeout_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesFormat:
    """What all formats of Kafka's records say about values."""

    timestamp_unit: TimestampUnit = "auto"
    binary_text: BinaryText = "auto"
    unavailable_value: str = "__debezium_unavailable_value"
    unknown_fields: UnknownFields = "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class _SchemaFiles(ValuesFormat):
    """``schema_file`` is for topics without a registry, and ``key_schema_file`` for their keys. ``message``: of Protobuf."""

    schema_file: str | None = None
    message: str | None = None
    key_schema_file: str | None = None
    key_message: str | None = None
    key_format: KeyFormat = "same"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedEventsFormat(_SchemaFiles):
    """``format: {kind: debezium-avro}``, ``debezium-protobuf`` and ``debezium-json-schema``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedRowsFormat(_SchemaFiles):
    """``format: {kind: avro}``, ``protobuf`` and ``json-schema``."""

    operation_field: str | None = None
    delete_values: tuple[str, ...] = DELETE_VALUES
    upsert_values: tuple[str, ...] | None = None


TypedFormat = TypedEventsFormat | TypedRowsFormat


def options_of(section: TypedFormat, registry: RegistrySection | None) -> dict[str, Any]:
    """The options of the decoder; files of schemas are read. Raises InvalidInput naming the file."""
    options = {name: value for name, value in asdict(section).items() if value is not None}
    schema_file, key_schema_file = options.pop("schema_file", None), options.pop("key_schema_file", None)
    message, key_message = options.pop("message", None), options.pop("key_message", None)
    if registry is not None:
        options["registry"] = registry.settings()
    if schema_file is not None:
        options["schema"] = _read_schema(schema_file, message)
    if key_schema_file is not None:
        options["key_schema"] = _read_schema(key_schema_file, key_message)
    return options


def without_effect(section: TypedFormat, registry: RegistrySection | None) -> Iterator[tuple[str, str]]:
    """The keys of a format section that do nothing, and why."""
    for name, needs in (
        ("message", "schema_file"),
        ("key_message", "key_schema_file"),
        ("key_schema_file", "schema_file"),
    ):
        if getattr(section, name) is not None and (getattr(section, needs) is None or registry is not None):
            yield name, f"it has no effect without {needs}; add that, or leave it out"


def _read_schema(file: str, message: str | None = None) -> SchemaText:
    """A file of a schema, and for ``.proto`` files those that it imports from beside it. Raises InvalidInput."""
    text = _text_of(Path(file), file)
    references: dict[str, str] = {}
    if file.endswith(".proto"):
        _import(text, Path(file).parent, references, ())
    return SchemaText(text=text, references=references, message=message)


def _import(text: str, folder: Path, found: dict[str, str], above: tuple[str, ...]) -> None:
    """Adds the files that a text imports, needed ones first. Those of Protobuf itself come with it."""
    for name in _IMPORT.findall(text):
        if name in found or name.startswith("google/protobuf/"):
            continue
        if name in above or len(found) >= FILES_MAX:
            raise InvalidInput(f"{name}: the imports of these files go in a circle, or are more than {FILES_MAX}")
        imported = _text_of(folder / name, name)
        _import(imported, folder, found, (*above, name))
        found[name] = imported


def _text_of(path: Path, shown: str) -> str:
    try:
        with path.open("rb") as opened:
            data = opened.read(_SCHEMA_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidInput(f"the schema file {shown} can't be read: {error.strerror or error}") from None
    if len(data) > _SCHEMA_BYTES_MAX:
        raise InvalidInput(f"the schema file {shown} has more than {_SCHEMA_BYTES_MAX:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the schema file {shown} is not UTF-8 (byte {error.start})") from None
