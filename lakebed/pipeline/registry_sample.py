"""The columns and keys of a topic whose schemas are in a registry, for a pipeline file that somebody begins to write."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from lakebed.decode.json.connect_types import PLAIN, LogicalType
from lakebed.decode.json.text import Unreadable
from lakebed.decode.typed.formats import EVENTS, KINDS, record_format
from lakebed.decode.typed.registry import Registry, RegistrySettings
from lakebed.decode.typed.shapes import row_of
from lakebed.decode.typed.values import column_field
from lakebed.errors import InvalidInput
from lakebed.pipeline.sample import type_of


@dataclass(frozen=True, slots=True)
class Sample:
    """``columns``: name to type, as in a pipeline file. ``keys``: of the message key, those that are columns."""

    columns: dict[str, str]
    keys: tuple[str, ...] = ()


def sample_of(url: str, topic: str, format: str) -> Sample:
    """Asks a registry for the newest schemas of a topic, under the names that Confluent's and Debezium's converters give them.

    Raises InvalidInput saying why there are no columns; Retry if the registry does not answer; MissingPrerequisite.
    """
    registry = Registry(RegistrySettings(url=url))
    found = _fields(registry, f"{topic}-value", format, events=format.startswith(EVENTS))
    if isinstance(found, str) or not found[0]:
        why = found if isinstance(found, str) else f"subject '{topic}-value': it is no schema of rows"
        raise InvalidInput(f"the columns of {topic} are not known: {why}; give them as --columns")
    columns = [column_field(one, found[1].get(one.name, PLAIN)) for one in found[0]]
    named = {one.name: type_of(one.name, one.type) for one in columns if not pa.types.is_null(one.type)}
    keys = _fields(registry, f"{topic}-key", format, events=False)
    return Sample(named, () if isinstance(keys, str) else tuple(one.name for one in keys[0] if one.name in named))


def _fields(
    registry: Registry, subject: str, format: str, *, events: bool
) -> tuple[list[pa.Field], dict[str, LogicalType]] | str:
    """The fields of a subject's newest schema, or why there are none."""
    schema = registry.latest(subject)
    if isinstance(schema, str):
        return schema
    kind = KINDS[format.removeprefix(EVENTS)]
    if schema.kind != kind:
        return f"subject {subject!r} is a schema of {schema.kind}, and the format reads {kind}"
    try:
        return row_of(record_format(format).compile(schema.text, schema.references), events=events)
    except Unreadable as error:
        return f"subject {subject!r}: {error}"
