"""What CALL runs: the verbs of a table, with the names and the defaults of their arguments in Python.

The classes of Spark's catalogs know no procedure. They ask which there are (``PROCEDURES``), what each takes
(``described_procedure``), and for the rows of its result (``rows_of``).
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakebed.errors import InvalidInput, InvalidSchema
from lakebed.health.finding import finding_table
from lakebed.names.catalog import Catalog
from lakebed.names.definitions import listed
from lakebed.schema.change import steps_of
from lakebed.settings import suggest
from lakebed.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAMESPACE = "system"
_REQUIRED: Any = object()
_TEXT, _TRUTH, _NUMBER = "string", "boolean", "bigint"
_ARROW: dict[Any, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter: a method of ``Table`` has one of the same name and default."""

    name: str
    types: tuple[str, ...]  # of Spark: what is given has one of them, or is cast to the first
    default: Any = _REQUIRED

    def described(self) -> dict[str, Any]:
        """For ``NamedProcedure.java``, the default as SQL."""
        default = None if self.default is _REQUIRED else str(json.dumps(self.default))
        return {"name": self.name, "types": list(self.types), "default": default}


@dataclass(frozen=True, slots=True)
class Call:
    """A CALL."""

    catalog: Catalog
    session: SparkSession
    name: tuple[str, ...] | None  # of the table
    arguments: Mapping[str, Any]  # all others

    @property
    def table(self) -> Table:
        """The table. Raises TableNotFound with the nearest name."""
        assert self.name is not None
        return self.catalog.table(self.name)


@dataclass(frozen=True, slots=True)
class Procedure:
    """A procedure."""

    summary: str  # for people
    run: Callable[[Call], Any]  # returns an Arrow table, the figures of a result, or values by name
    parameters: tuple[Parameter, ...] = ()  # after the first one, ``table``
    may_be_of_all: bool = False  # ``table`` may be left out


def _option(name: str, default: bool = False) -> Parameter:
    return Parameter(name, (_TRUTH,), default)


def _text(name: str, default: Any = None) -> Parameter:
    return Parameter(name, (_TEXT,), default)


def _age(name: str) -> Parameter:
    return Parameter(name, (_TEXT, "interval day to second"), None)


_DRY_RUN, _SHORT = _option("dry_run", True), _option("allow_short_retention")
PROCEDURES: Mapping[str, Procedure] = {
    "settle": Procedure("settle the tail, so that every Delta reader sees it", lambda it: it.table.settle()),
    "compact": Procedure("merge parts until the plan is empty", lambda it: it.table.maintenance.compact()),
    "recluster": Procedure(
        "sort parts together, so that fewer cover a point of the sort key",
        lambda it: it.table.maintenance.recluster(**it.arguments, spark=it.session),
        (_text("where"), _option("final"), _option("dry_run")),
    ),
    "plan": Procedure("what maintenance would do now, and why", lambda it: it.table.maintenance.plan()),
    "status": Procedure("whether the table is healthy", lambda it: _status(it), (_option("deep"),)),
    "doctor": Procedure(
        "check log and files; a row for each finding",
        lambda it: finding_table(it.table.doctor(**it.arguments).findings),
        (_option("deep"),),
    ),
    "vacuum": Procedure(
        "delete data files of old versions, and orphans",
        lambda it: it.table.maintenance.vacuum(**it.arguments),
        (_age("retention"), _DRY_RUN, _SHORT),
    ),
    "expire_snapshots": Procedure(
        "expire old versions: delete their log files and data files",
        lambda it: it.table.maintenance.expire_snapshots(**it.arguments),
        (_age("older_than"), Parameter("retain_last", (_NUMBER,), 1), _DRY_RUN, _SHORT),
    ),
    "remove_orphan_files": Procedure(
        "delete files that no version refers to",
        lambda it: it.table.maintenance.remove_orphan_files(**it.arguments),
        (_age("older_than"), _DRY_RUN, _SHORT),
    ),
    "expire_rows": Procedure(
        "remove the rows whose time to live (lakebed.ttl) has ended",
        lambda it: it.table.maintenance.expire_rows(**it.arguments),
        (_DRY_RUN,),
    ),
    "clean_log": Procedure(
        "delete log files that nothing needs", lambda it: {"files": it.table.maintenance.clean_log()}
    ),
    "restore": Procedure(
        "make the table what it was at an earlier version",
        lambda it: {"version": it.table.restore(**it.arguments)},
        (
            Parameter("version", (_NUMBER,), None),
            Parameter("timestamp", (_TEXT, "timestamp"), None),
            _option("positions"),
        ),
    ),
    "purge": Procedure(
        "erase rows for good: no file keeps a byte of them",
        lambda it: it.table.purge(**it.arguments),
        (_text("where", _REQUIRED), _option("dry_run"), _option("force"), _text("quarantine")),
    ),
    "set_sort_key": Procedure(
        "change what parts are sorted by",
        lambda it: {"version": it.table.set_sort_key(_terms(it.arguments["columns"]))},
        (Parameter("columns", (_TEXT, "array<string>")),),
    ),
    "resume": Procedure("let continue what is parked", lambda it: {"resumed": it.table.maintenance.resume()}),
    "rewind": Procedure(
        "have the pipeline read a topic again",
        lambda it: {"version": it.table.maintenance.rewind(it.arguments["topic"], _offsets(it.arguments["to"]))},
        (_text("topic", _REQUIRED), Parameter("to", (_NUMBER, "map<int,bigint>"), None)),
    ),
    "restart_order": Procedure(
        "what is read from now on counts as newer than all that the table has",
        lambda it: {"version": it.table.maintenance.restart_order()},
    ),
    "detach_partition": Procedure(
        "take a partition out of the table; returns its name",
        lambda it: {"name": it.table.detach_partition(**it.arguments)},
        (Parameter("partition", ("map<string,string>",)),),
    ),
    "attach_partition": Procedure(
        "put a detached partition back",
        lambda it: {"version": it.table.attach_partition(**it.arguments)},
        (_text("name", _REQUIRED),),
    ),
    "drop_detached": Procedure(
        "drop a detached partition",
        lambda it: {"files": it.table.drop_detached(**it.arguments)},
        (_text("name", _REQUIRED),),
    ),
    "undrop": Procedure(
        "bring a dropped table back, as it was", lambda it: {"version": it.catalog.undrop(it.name or ())}
    ),
    "remove_dropped": Procedure(
        "delete the files of tables that were dropped long enough ago; those of one table at once",
        lambda it: it.catalog.remove_dropped(it.name, **it.arguments),
        (_option("dry_run"),),
        may_be_of_all=True,
    ),
}


def procedures_in(namespace: Sequence[str]) -> list[str]:
    """The names of the procedures of a namespace, after its own."""
    return [_NAMESPACE, *sorted(PROCEDURES)] if list(namespace) in ([], [_NAMESPACE]) else [""]


def described_procedure(name: Sequence[str]) -> dict[str, Any]:
    """What ``NamedProcedure.java`` keeps of a procedure. Raises InvalidInput with the nearest name."""
    known = {f"{_NAMESPACE}.{one}": one for one in PROCEDURES}
    asked = ".".join(name).lower()
    if asked not in known:
        near = suggest(asked, known) or suggest(f"{_NAMESPACE}.{name[-1].lower()}", known)
        raise InvalidInput(f"the catalog has no procedure {'.'.join(name)}{near}")
    procedure = PROCEDURES[known[asked]]
    return {
        "name": known[asked],
        "summary": procedure.summary,
        "parameters": [
            _text("table", None if procedure.may_be_of_all else _REQUIRED).described(),
            *(one.described() for one in procedure.parameters),
        ],
    }


def called(catalog: Catalog, known_as: str, session: SparkSession, procedure: str, arguments: str) -> pa.Table:
    """Run a procedure of a catalog; returns its result as rows. Raises what the verb raises.

    ``known_as``: the name of the catalog; ``arguments``: all of them, as JSON.
    """
    values, found = json.loads(arguments), PROCEDURES[procedure]
    text = values.pop("table")
    table = None if text is None and found.may_be_of_all else _table_name(text, known_as, session)
    return rows_of(found.run(Call(catalog, session, table, values)))


def _table_name(text: str | None, catalog: str, session: SparkSession) -> tuple[str, ...]:
    """A name as queries have it, in the catalog: with or without the catalog's own, or the current namespace."""
    try:
        name = steps_of(text or "")
    except InvalidSchema:
        said = "null" if text is None else repr(text)
        raise InvalidInput(f"{said} names no table; write 'schema.table', a name that has a dot in backticks") from None
    if len(name) > 2 and name[0] == catalog:
        return name[1:]
    if len(name) == 1 and session.catalog.currentCatalog() == catalog and (here := session.catalog.currentDatabase()):
        return (*steps_of(here), *name)
    return name


def _status(call: Call) -> pa.Table:
    found = call.table.status(**call.arguments)
    return rows_of(found).add_column(0, "severity", [[found.severity.value]])


def _terms(given: str | list[str] | None) -> list[str]:
    return given if isinstance(given, list) else listed(given)


def _offsets(given: int | dict[str, int] | None) -> int | dict[int, int] | None:
    return {int(partition): offset for partition, offset in given.items()} if isinstance(given, dict) else given


# -- Results as rows -------------------------------------------------------------------------------------------------------


def rows_of(result: Any) -> pa.Table:
    """An Arrow table as it is; what a verb says in fields, and values by name, as one row."""
    if isinstance(result, pa.Table):
        return result
    if isinstance(result, dict):
        return pa.Table.from_pylist([result])
    return pa.Table.from_pylist([_plain(result)], pa.schema(list(_struct(type(result)))))


def _struct(of: Any) -> pa.StructType:
    """A class of data as a type of Arrow."""
    hints = typing.get_type_hints(of)
    return pa.struct([(field.name, _arrow_type(hints[field.name])) for field in dataclasses.fields(of)])


def _arrow_type(hint: Any) -> pa.DataType:
    inner = [one for one in typing.get_args(hint) if one not in (type(None), Ellipsis)]
    if isinstance(hint, types.UnionType):  # X | None
        return _arrow_type(inner[0])
    match typing.get_origin(hint):
        case None if hint in _ARROW:
            return _ARROW[hint]
        case None if dataclasses.is_dataclass(hint):
            return _struct(hint)
        case None:
            return pa.string()
        case origin if issubclass(origin, Mapping):
            return pa.map_(_arrow_type(inner[0]), _arrow_type(inner[1]))
    return pa.list_(_arrow_type(inner[0]))


def _plain(value: Any) -> Any:
    """A value as Arrow takes it for the type of ``_arrow_type``."""
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return [(key, _plain(one)) for key, one in value.items()]
    return [_plain(one) for one in value] if isinstance(value, tuple) else value
