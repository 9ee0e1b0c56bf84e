"""Version 0 of a table, and the settings that an adopted Delta table gets."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import pyarrow as pa

from lakebed.column_groups import AGGREGATE, GROUPS, check_aggregates, check_groups
from lakebed.discovery import require_alone
from lakebed.errors import InvalidInput, InvalidSchema, StoreUnavailable, TableExists, Unsupported
from lakebed.log.actions import CommitInfo
from lakebed.log.entries import Operation
from lakebed.log.files.format import FORMAT
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import probe
from lakebed.log.table_log import GATE_FEATURE, Committed, Conflicted, Outcome, TableLog, Unknown
from lakebed.planning.time_to_live import check_time_to_live
from lakebed.schema.column_mapping import COLUMN_MAPPING, with_mapped_columns
from lakebed.schema.conversion import (
    SparkSchema,
    canonical_schema,
    check_columns,
    check_new_names,
    needs_column_mapping,
    schema_to_json,
    uses_timestamp_ntz,
)
from lakebed.schema.metadata import Metadata, Protocol
from lakebed.schema.possible_columns import check_levels
from lakebed.schema.widening import TYPE_WIDENING, widest_type
from lakebed.settings import (
    FORMAT_PROPERTY,
    INTERVAL_PROPERTIES,
    PREFIX,
    TableSettings,
    check_creatable,
    parse_settings,
    property_value,
)
from lakebed.sortkey.sort_key import parse_sort_key
from lakebed.version import ENGINE

_ADOPTABLE = frozenset(
    {
        "appendOnly",
        COLUMN_MAPPING,
        "deletionVectors",
        "domainMetadata",
        "inCommitTimestamp",
        "invariants",
        "timestampNtz",
        TYPE_WIDENING,
        "vacuumProtocolCheck",
    }
)
_NOT_KEPT_PROPERTIES = (
    "delta.enableChangeDataFeed",
    "delta.appendOnly",
    "delta.enableRowTracking",
)
_NOT_KEPT_COLUMN_METADATA = ("delta.generationExpression", "delta.identity.", "delta.invariants", "CURRENT_DEFAULT")


_TYPES = ("given", "wide")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """What a table is created with; see ``lakebed.create``."""

    schema: pa.Schema | SparkSchema
    keys: tuple[str, ...] = ()
    sort_key: tuple[str, ...] = ()
    sequence_by: str | None = None
    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    types: Literal["given", "wide"] = "given"

    def settings(self) -> TableSettings:
        """The settings of version 0. Raises InvalidInput for a property that can't be given."""
        check_creatable(self.properties)
        return replace(
            parse_settings(self.properties),
            keys=self.keys,
            sort_key=self.sort_key,
            sort_key_version=1,
            sequence_by=self.sequence_by,
        )


def create(path: str, log: TableLog, table: NewTable) -> None:
    """Create a table at ``path``, where ``log`` is.

    Raises TableExists, InvalidSchema, InvalidInput, UnsafeStore, StoreUnavailable.
    """
    settings = table.settings()
    if path.startswith("s3"):
        probe(log.store)
    require_alone(log.root)
    if table.types not in _TYPES:
        raise InvalidInput(f"types is {table.types!r}; it must be one of {', '.join(_TYPES)}")
    schema = canonical_schema(table.schema)
    if table.types == "wide":
        schema = pa.schema([each.with_type(widest_type(each.type)) for each in schema])
    match create_log(log, schema, settings, table.partition_by, table.properties, ENGINE):
        case Committed():
            return
        case Conflicted():
            raise TableExists(f"there is already a table at {path}; open it, or choose another path", table=path)
        case Unknown(_, _, cause):
            raise StoreUnavailable(f"whether the table at {path} was created is unknown: {cause}", table=path)


def create_log(
    log: TableLog,
    schema: pa.Schema,
    settings: TableSettings,
    partition_by: Sequence[str],
    properties: Mapping[str, str],
    engine: str,
) -> Outcome:
    """Write version 0. ``schema`` is canonical; ``properties`` are those that are not lakebed's.

    Raises InvalidSchema, InvalidInput naming the column.
    """
    check_layout(schema, settings, partition_by)
    # A key has a value in every row, so the table says so to every reader.
    schema = pa.schema([each.with_nullable(each.nullable and each.name not in settings.keys) for each in schema])
    others = {name: value for name, value in properties.items() if not name.startswith(PREFIX)}
    configuration = required_properties() | others | settings.to_properties()
    document, features = schema_to_json(schema), set[str]()
    if needs_column_mapping(schema):
        document, features = with_mapped_columns(document, configuration), {COLUMN_MAPPING}
    metadata = Metadata(
        id=str(uuid.uuid4()),
        schema_string=document,
        partition_columns=tuple(partition_by),
        configuration=configuration,
        created_ms=int(time.time() * 1000),
    )
    return log.create(
        [protocol_for(schema, features), metadata], CommitInfo(operation=Operation.CREATE, commit_id="", engine=engine)
    )


def check_layout(schema: pa.Schema, settings: TableSettings, partition_by: Sequence[str]) -> None:
    """Raises InvalidSchema, InvalidInput for what no table can be created with; ``schema`` is canonical."""
    check_new_names(schema)
    check_levels(schema)
    check_settings(settings, schema, partition_by)
    check_sequence_name(settings.sequence_by, schema)
    check_columns(partition_by, schema, "partition_by")
    _check_partitioning(partition_by, schema)


def protocol_for(schema: pa.Schema, also: Collection[str] = ()) -> Protocol:
    """Features of a table: readers need deletion vectors, and writers the gate that only lakebed knows; both need ``also``."""
    reader = {"deletionVectors", *also}
    writer = {"deletionVectors", "domainMetadata", "appendOnly", "invariants", "inCommitTimestamp", GATE_FEATURE, *also}
    if uses_timestamp_ntz(schema):
        reader.add("timestampNtz")
        writer.add("timestampNtz")
    return Protocol(3, 7, frozenset(reader), frozenset(writer))


def required_properties() -> dict[str, str]:
    """The properties that every table of lakebed has: Delta's, and the format."""
    return {
        "delta.enableDeletionVectors": "true",
        "delta.enableInCommitTimestamps": "true",
        FORMAT_PROPERTY: str(FORMAT),
    }


def check_settings(settings: TableSettings, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raises InvalidSchema, InvalidInput if keys, sort key, sequence or groups do not fit the schema."""
    check_columns(settings.keys, schema, "keys")
    check_time_to_live(settings.ttl, schema)
    check_groups(settings, schema, partition_by)
    check_aggregates(settings, schema, partition_by)
    parse_sort_key(settings.sort_key, schema, settings.sort_key_frame)
    check_keep(settings)
    if settings.sequence_by is None:
        return
    if not settings.keys:
        raise InvalidInput("sequence_by orders the changes of a key; it needs keys")
    if settings.sequence_by in schema.names:
        check_columns([settings.sequence_by], schema, "sequence_by")


def check_keep(settings: TableSettings) -> None:
    """Raises InvalidInput for a table that keeps first rows and can't."""
    if settings.keep == "first" and not settings.keys:
        raise InvalidInput("lakebed.keep is 'first', and a table without keys keeps all rows; give it keys")
    if settings.keep == "first" and (settings.groups or settings.aggregates):
        raise InvalidInput(
            f"lakebed.keep is 'first', and the table has {GROUPS} or {AGGREGATE}…, which are about rows that change"
        )


def check_sequence_name(name: str | None, schema: pa.Schema) -> None:
    """Raises InvalidInput for a name in ``sequence_by`` that is no column, and looks like a misspelled one.

    Names of fewer than six characters are too often alike. One with a dot is metadata of an event, and rows of changes have
    underscores before a name that is a column's already.
    """
    if name is None or name in schema.names or "." in name or name.startswith("_"):
        return
    near = [each for each in schema.names if min(len(name), len(each)) > 5 and _is_slip(name.lower(), each.lower())]
    if near:
        raise InvalidInput(
            f"sequence_by {name!r} is no column; did you mean {' or '.join(map(repr, near))}? A sequence that only the changes "
            "have needs a name that is less like a column's"
        )


def _is_slip(one: str, other: str) -> bool:
    """Whether one character differs, is missing, is too many, or changed places with the next one; or none does."""
    start = next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )
    one, other = one[start:], other[start:]
    return one[1:] in (other, other[1:]) or other[1:] == one or (one[1:2] + one[:1] + one[2:] == other)


def check_adoptable(snapshot: Snapshot) -> None:
    """Raises Unsupported naming what of a Delta table lakebed would not keep; InvalidInput for a property that it can't read,
    InvalidSchema for a column that must be renamed.
    """
    check_new_names(snapshot.logical_schema)
    check_new_names(snapshot.schema)
    check_levels(snapshot.logical_schema)
    beyond = snapshot.protocol.writer_features - _ADOPTABLE
    if beyond:
        raise Unsupported(
            f"the table uses {', '.join(sorted(beyond))}, which lakebed does not keep; drop the feature first"
        )
    for name, value in snapshot.metadata.configuration.items():
        kept = name not in _NOT_KEPT_PROPERTIES and not name.startswith("delta.constraints.")
        if not kept and value.lower() not in ("false", "none"):
            raise Unsupported(f"the table has the property {name}, which lakebed does not keep; unset it first")
    for name in INTERVAL_PROPERTIES & snapshot.metadata.configuration.keys():
        try:
            property_value(name, snapshot.metadata.configuration[name])
        except InvalidInput as error:
            raise InvalidInput(f"the table's property {error}; set it so first") from None
    for marker in _NOT_KEPT_COLUMN_METADATA:
        if marker in snapshot.metadata.schema_string:
            raise Unsupported(f"a column of the table has {marker}, which lakebed does not keep; drop it first")


def check_adoptable_partitions(snapshot: Snapshot) -> None:
    """Raises Unsupported naming a partition column whose values text can't hold exactly."""
    for name in snapshot.metadata.partition_columns:
        if pa.types.is_binary(snapshot.logical_schema.field(name).type):
            raise Unsupported(
                f"the table is partitioned by {name!r}, which is binary: writers differ in how the log spells such a value, and "
                "some values can't be spelled; write the table again without that partition column first"
            )


def _check_partitioning(partition_by: Sequence[str], schema: pa.Schema) -> None:
    if len(partition_by) == len(schema):
        raise InvalidSchema("partition_by lists every column; at least one must be left in the files")
    for name in partition_by:
        kind = schema.field(name).type
        if pa.types.is_floating(kind) or pa.types.is_binary(kind):
            raise InvalidSchema(
                f"partition_by lists the column {name!r}, which is {kind}; a partition needs a value that text can hold exactly"
            )
