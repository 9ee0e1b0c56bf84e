"""What a catalog of another program says of a table: a pure function of a version of the table. And whose an entry is.

An entry that lakebed made has three parameters:

    lakebed.root       where the table is: an entry with another root, or none, is somebody else's, and is left as it is
    lakebed.table_id   Delta's id, another one after the table was made again
    lakebed.version    as of which version of the table the entry is: one of an earlier version never replaces it

Lakebed changes the parameters that ``_is_own_parameter`` names, the columns, and where the table is. The rest of an entry belongs
to whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import orjson

from lakebed.errors import InvalidInput
from lakebed.log.snapshot import Snapshot

_ROOT, _TABLE_ID, VERSION = "lakebed.root", "lakebed.table_id", "lakebed.version"
_PARTITIONS = "spark.sql.partitionProvider"
_OWN_PREFIXES = ("lakebed.", "delta.", "spark.sql.sources.")
METADATA_LOCATION, PREVIOUS_LOCATION, TABLE_TYPE = "metadata_location", "previous_metadata_location", "table_type"
_OWN = frozenset({METADATA_LOCATION, PREVIOUS_LOCATION, TABLE_TYPE, "EXTERNAL", "comment", _PARTITIONS})
_SCHEMA = "spark.sql.sources.schema"
_SCHEMA_CHARACTERS = 4000  # in a parameter, as Spark cuts a schema: a metastore keeps no longer ones
_NAME_CHARACTERS = 256  # of a parameter
_COMMENT_CHARACTERS = (
    255  # of a column's comment. A metastore tries to keep a longer one until nobody waits for its answer
)
_HIVE_TYPES = {
    "long": "bigint",
    "integer": "int",
    "short": "smallint",
    "byte": "tinyint",
    "timestamp_ntz": "timestamp",  # Hive has one type of times
}
Json: TypeAlias = dict[str, Any]
Parameters: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a table in a catalog."""

    database: str
    table: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


def name_of(table: str, database: str) -> Name:
    """The name of an entry. ``table``: the table's name below the root; in ``database``, ``{schema}`` stands for its schema."""
    schema, dot, rest = table.partition(".")
    return Name(database.replace("{schema}", schema if dot else "default"), rest if dot else table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column, with its type as Hive and Glue spell it."""

    name: str
    type: str
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a catalog is to say of a table."""

    root: str  # where the table is
    table_id: str
    version: int  # of the table, as of which all this is so
    columns: tuple[Column, ...]
    comment: str
    parameters: Parameters
    metadata_location: str  # the newest metadata of Iceberg; "" for a Delta table


class CatalogClient(Protocol):
    """One catalog. Only one thread uses it. Each call takes bounded time, and may be made again whatever became of it."""

    def ensure(self, name: Name, entry: Entry) -> bool:
        """Make a name say what an entry says, unless it says something newer; returns whether that took a write.

        Raises InvalidInput if the catalog does not take it, also where the name is somebody else's; Unavailable.
        """
        ...

    def drop(self, name: Name, is_ours: Callable[[Parameters], bool]) -> None:
        """Remove an entry, and no file, if its parameters say that it is ours. Raises Unavailable."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class Unavailable(Exception):
    """The catalog does not answer, or not to anybody: later it may."""


def entry_of(snapshot: Snapshot, root: str, *, metadata_location: str = "", version: int | None = None) -> Entry:
    """The entry of a version of a table. ``version``: that which Iceberg's readers see, with ``metadata_location``. Pure."""
    metadata = snapshot.metadata
    fields = [_plain(field) for field in orjson.loads(metadata.schema_string)["fields"]]
    schema = orjson.dumps({"type": "struct", "fields": fields}).decode()
    own = {name: value for name, value in metadata.configuration.items() if _is_own_parameter(name)}
    seen = snapshot.version if version is None else version
    spark = {"spark.sql.sources.provider": "delta", _PARTITIONS: "catalog"}
    delta = {} if metadata_location else {**spark, **_in_pieces(_SCHEMA, schema)}
    comment = {"comment": metadata.description[:_SCHEMA_CHARACTERS]} if metadata.description else {}
    fitting = {name: value for name, value in own.items() if _fits(name, value)}
    return Entry(
        root=root,
        table_id=metadata.id,
        version=seen,
        columns=tuple(
            Column(
                name=field["name"],
                type=_hive_type(field["type"]),
                comment=field["metadata"].get("comment", "")[:_COMMENT_CHARACTERS],
            )
            for field in fields
        ),
        comment=metadata.description or "",
        parameters={**fitting, **delta, **comment, **marks_of(root, metadata.id, seen)},
        metadata_location=metadata_location,
    )


def _hive_type(kind: Any) -> str:
    """A type of Delta's JSON as Hive and Glue spell it."""
    if isinstance(kind, str):
        return _HIVE_TYPES.get(kind, kind)
    match kind["type"]:
        case "array":
            return f"array<{_hive_type(kind['elementType'])}>"
        case "map":
            return f"map<{_hive_type(kind['keyType'])},{_hive_type(kind['valueType'])}>"
        case _:
            fields = (f"{field['name']}:{_hive_type(field['type'])}" for field in kind["fields"])
            return f"struct<{','.join(fields)}>"


# -- Whose an entry is ------------------------------------------------------------------------------------------------------


def _is_own_parameter(name: str) -> bool:
    """Whether lakebed says what a parameter of its entry is, and whether there is one."""
    return name in _OWN or name.startswith(_OWN_PREFIXES)


def require_ours(parameters: Parameters, name: Name, entry: Entry) -> None:
    """Raises InvalidInput if an entry that is there is somebody else's."""
    root = parameters.get(_ROOT)
    if root != entry.root:
        what = f"the table at {root}" if root else "something that lakebed did not enter"
        raise InvalidInput(
            f"{name} is taken in the catalog by {what}: remove that entry, or leave {entry.root} out of the listener's tables"
        )


def marks_of(root: str, table_id: str, version: int) -> dict[str, str]:
    """The parameters by which an entry is known."""
    return {_ROOT: root, _TABLE_ID: table_id, VERSION: str(version)}


def is_newer(parameters: Parameters, entry: Entry) -> bool:
    """Whether what is there is of a later version of the same table: another process was quicker."""
    version = parameters.get(VERSION, "")
    return parameters.get(_TABLE_ID) == entry.table_id and version.isdecimal() and int(version) > entry.version


def is_same(before: Entry, after: Entry) -> bool:
    """Whether two entries say the same, be it as of two versions."""
    return replace(before, version=0, parameters={**before.parameters, VERSION: ""}) == replace(
        after, version=0, parameters={**after.parameters, VERSION: ""}
    )


def merged(before: Parameters, ours: Parameters) -> dict[str, str]:
    """The parameters of an entry that is there, with ours as they should be; as before if they are so, be it of a version."""
    after = {name: value for name, value in before.items() if not _is_own_parameter(name)} | dict(ours)
    same = after | ({VERSION: before[VERSION]} if VERSION in before else {})
    return same if same == before else after


def locations(before: Parameters, entry: Entry) -> dict[str, str]:
    """The parameters by which an entry of Iceberg is known, and its metadata found."""
    if not entry.metadata_location:
        return {}
    is_known = before.get(METADATA_LOCATION) == entry.metadata_location
    previous = before.get(PREVIOUS_LOCATION if is_known else METADATA_LOCATION)
    found = {TABLE_TYPE: "ICEBERG", METADATA_LOCATION: entry.metadata_location}
    return found | ({PREVIOUS_LOCATION: previous} if previous else {})


def owned_by(is_at: Callable[[str], bool], table_id: str) -> Callable[[Parameters], bool]:
    """Whether an entry is of the table with this id. ``is_at``: whether a root is the table's: a copy has the same id."""

    def is_ours(parameters: Parameters) -> bool:
        return is_at(parameters.get(_ROOT, "")) and table_id in ("", parameters.get(_TABLE_ID))

    return is_ours


def _fits(name: str, value: str) -> bool:
    return len(name) <= _NAME_CHARACTERS and len(value) <= _SCHEMA_CHARACTERS


def _plain(field: Json) -> Json:
    """A field of Spark's schema, with its comment and no other metadata."""
    comment = field.get("metadata", {}).get("comment")
    return {
        "name": field["name"],
        "type": _plain_type(field["type"]),
        "nullable": field.get("nullable", True),
        "metadata": {"comment": comment} if comment else {},
    }


def _plain_type(kind: Any) -> Any:
    if not isinstance(kind, dict):
        return kind
    inner = {key: _plain_type(kind[key]) for key in ("elementType", "keyType", "valueType") if key in kind}
    fields = {"fields": [_plain(field) for field in kind["fields"]]} if "fields" in kind else {}
    return {**kind, **inner, **fields}


def _in_pieces(name: str, text: str) -> dict[str, str]:
    """A long text as Spark cuts it into parameters."""
    return dict(_pieces(name, text))


def _pieces(name: str, text: str) -> Iterator[tuple[str, str]]:
    if len(text) <= _SCHEMA_CHARACTERS:
        yield name, text
        return
    starts = range(0, len(text), _SCHEMA_CHARACTERS)
    yield f"{name}.numParts", str(len(starts))
    for number, start in enumerate(starts):
        yield f"{name}.part.{number}", text[start : start + _SCHEMA_CHARACTERS]
