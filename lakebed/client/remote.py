"""Tables behind a service, with the methods of the library's tables."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakebed.client.transport import Heard, Transport, error_named, events
from lakebed.errors import Cancelled, Retry
from lakebed.operations.alter import AlterResult
from lakebed.planning.plan import PLANS_SCHEMA
from lakebed.schema.conversion import canonical_type
from lakebed.schema.type_names import table_schema, type_text
from lakebed.view import metadata_tables as rows

_FIRST_LOOK_SECONDS = 0.05
_LOOK_SECONDS = 2.0


def connect(url: str, token: str | None = None, *, certificates: str | None = None) -> RemoteWarehouse:
    """The tables of a service (``lakebed serve api``). Nothing is sent yet.

    Args:
        url: ``http://host:port`` or ``https://host:port``.
        token: The caller's. By default the environment variable ``LAKEBED_TOKEN``.
        certificates: A file in PEM with the authorities to trust. By default the system's.

    Raises:
        InvalidInput: The url is not valid.
    """
    return RemoteWarehouse(Transport(url, token, certificates))


class RemoteWarehouse:
    """The tables of a service. Made by ``lakebed.connect``; safe to use from several threads."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return f"lakebed.connect({self._transport.url!r})"

    def tables(self, search: str | None = None) -> tuple[str, ...]:
        """The names of all tables, or of those with this text in it. Raises StoreUnavailable."""
        return tuple(dict.fromkeys(each["name"] for each in self._transport.pages(("tables",), search=search)))

    def table(self, name: str) -> RemoteTable:
        """A table. Raises TableNotFound."""
        table = RemoteTable(self._transport, name)
        table.describe()
        return table

    def survey(
        self, search: str | None = None, *, state: str | None = None, sort: str | None = None
    ) -> list[dict[str, Any]]:
        """The state of each table: ``state``, ``why``, ``late_seconds``, rows, parts, depth and more; the worst first.

        The answer is up to a minute old where others commit.

        Args:
            search: A text that names must have in them.
            state: unreadable, parked, failing, late, running, waiting or quiet.
            sort: state, name, late, rows, bytes, parts, depth or committed.
        """
        return self._transport.pages(("survey",), "rows", search=search, state=state, sort=sort)

    def jobs(
        self, *, state: str | None = None, kind: str | None = None, table: str | None = None
    ) -> list[dict[str, Any]]:
        """The jobs of all tables, or of one, newest first.

        Args:
            state: waiting, running, succeeded, failed or cancelled.
            kind: Such as ``recluster``.
            table: The name of a table.
        """
        return self._transport.pages(("jobs",), state=state, kind=kind, table=table)

    def queue(self, search: str | None = None, *, state: str | None = None) -> list[dict[str, Any]]:
        """The work on all tables: what is ``running``, ``waiting`` (and why), ``parked`` (with the error) or ``held``.

        Args:
            search: A text that names of tables must have in them.
            state: One of these four.
        """
        return self._transport.pages(("queue",), "tasks", search=search, state=state)

    def workers(self) -> list[dict[str, Any]]:
        """The workers of the fleets below the service's roots, with how much each runs, and how many of its tables wait."""
        found: list[dict[str, Any]] = self._transport.get("queue", limit=1)["workers"]
        return found

    def events(self, after: str | None = None) -> Iterator[Heard]:
        """The events of all tables, at least once, and in order for each table. Iterating waits for the next event.

        Args:
            after: A cursor (``Heard.cursor``), or ``"begin"`` for the beginning of the logs. By default only new events come.

        Raises:
            InvalidInput: The cursor is not valid.
            StoreUnavailable: The service does not answer for a minute.
        """
        return events(self._transport, ("events",), after)

    def create(
        self,
        name: str,
        schema: pa.Schema,
        keys: Sequence[str] = (),
        sort_key: Sequence[str] = (),
        *,
        sequence_by: str | None = None,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str | int | float | bool] | None = None,
        types: str = "given",
    ) -> RemoteTable:
        """Create a table, below the first root of the service that is not a table itself. Needs an operator.

        Args:
            name: ``table`` or ``schema.table``.
            schema: As for ``lakebed.create``, whose errors it raises too.
            keys: As for ``lakebed.create``.
            sort_key: As for ``lakebed.create``.
            sequence_by: As for ``lakebed.create``.
            partition_by: As for ``lakebed.create``.
            properties: As for ``lakebed.create``.
            types: As for ``lakebed.create``.
        """
        columns = [
            {"name": f.name, "type": type_text(canonical_type(f.type, f.name)), "nullable": f.nullable} for f in schema
        ]
        body: dict[str, Any] = {
            "name": name,
            "columns": columns,
            "keys": list(keys),
            "sort_key": list(sort_key),
            "partition_by": list(partition_by),
            "properties": dict(properties or {}),
            "types": types,
        }
        if sequence_by is not None:
            body["sequence_by"] = sequence_by
        self._transport.ask("POST", ("tables",), body=body)
        return RemoteTable(self._transport, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What to read of a table at one version."""

    root: str
    version: int
    files: tuple[Mapping[str, Any], ...]
    """As the service lists them: ``path`` below ``root``, ``deletion_vector``, ``stats`` and more."""
    files_of_version: int
    stored_names: Mapping[str, str]
    rows: str | None
    """Rows that are in no file, as an Arrow IPC stream in base 64."""


class RemoteTable:
    """A table behind a service. Made by ``RemoteWarehouse.table``."""

    def __init__(self, transport: Transport, name: str) -> None:
        self.name = name
        self._transport = transport
        self.inspect = RemoteInspect(self)
        """What the log says of the table, as Arrow tables."""
        self.maintenance = RemoteMaintenance(self)
        """Upkeep, as jobs that the service runs."""

    def __repr__(self) -> str:
        return f"lakebed.connect({self._transport.url!r}).table({self.name!r})"

    def describe(self) -> dict[str, Any]:
        """What the table is at its newest version, as the service answers it. Raises TableNotFound."""
        return dict(self.get())

    @property
    def path(self) -> str:
        """Its root, as the service sees it."""
        return str(self.describe()["root"])

    @property
    def version(self) -> int:
        """The newest version."""
        return int(self.describe()["version"])

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        columns = self.describe()["columns"]
        return table_schema({c["name"]: c["type"] + ("" if c["nullable"] else " not null") for c in columns})

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return dict(self.describe()["properties"])

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        version: int | None = None,
        *,
        timestamp: str | float | None = None,
        settled: bool = False,
    ) -> Scan:
        """The files to read at a version, with their dead rows and statistics. Raises InvalidInput, VersionNotFound.

        Args:
            columns: By default all.
            where: A condition. Files that can hold no such row are left out; the caller filters the rows of the others.
            version: By default the newest.
            timestamp: In place of a version, as for ``Table.read``.
            settled: What every Delta reader reads, without the tail.
        """
        given = {"where": where, "columns": None if columns is None else list(columns), "version": version}
        body = {name: value for name, value in (given | {"timestamp": timestamp}).items() if value is not None}
        body["read"] = "settled" if settled else "fresh"
        answer = first = self.ask("POST", "scan", body=body)
        files = list(first["files"])
        while answer["next"] is not None:
            body = {name: value for name, value in body.items() if name != "timestamp"}
            answer = self.ask("POST", "scan", body=body | {"version": first["version"], "after": answer["next"]})
            files += answer["files"]
        return Scan(
            root=first["root"],
            version=first["version"],
            files=tuple(files),
            files_of_version=first["files_of_version"],
            stored_names=first["stored_names"],
            rows=first["rows"],
        )

    def set_properties(
        self, properties: Mapping[str, str | int | float | bool], *, if_version: int | None = None
    ) -> int:
        """Set some properties; returns the version. Needs an operator.

        Args:
            properties: Values by name, as for ``Table.set_properties``.
            if_version: Set them only if columns and properties are still those of this version.

        Raises:
            InvalidInput: As for ``Table.set_properties``, or columns and properties are not those of ``if_version``.
        """
        answer = self.ask("PATCH", body={"properties": dict(properties)}, headers=_if_match(if_version))
        return int(answer["version"])

    def alter(
        self,
        *,
        add: Mapping[str, str | pa.DataType] | None = None,
        widen: Mapping[str, str | pa.DataType] | None = None,
        rename: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        relax: Sequence[str] = (),
        comment: Mapping[str, str] | None = None,
        reason: str = "",
        if_version: int | None = None,
    ) -> AlterResult:
        """Change the columns in one commit. Needs an operator.

        Args:
            add: As for ``Table.alter``, whose errors it raises too.
            widen: As for ``Table.alter``.
            rename: As for ``Table.alter``.
            drop: As for ``Table.alter``.
            relax: As for ``Table.alter``.
            comment: As for ``Table.alter``.
            reason: As for ``Table.alter``.
            if_version: As for ``set_properties``.
        """
        given = {
            "add": _type_texts(add),
            "widen": _type_texts(widen),
            "rename": dict(rename or {}),
            "drop": list(drop),
            "relax": list(relax),
            "comment": dict(comment or {}),
        }
        schema = {name: value for name, value in given.items() if value}
        answer = self.ask("PATCH", body={"schema": schema, "reason": reason}, headers=_if_match(if_version))
        return AlterResult(version=answer["version"], changed=answer["changed"], notes=tuple(answer["notes"]))

    def events(self, after: str | int | None = None) -> Iterator[Heard]:
        """The events of the table from now on, or after a version or a cursor. As ``RemoteWarehouse.events``."""
        return events(self._transport, ("tables", self.name, "events"), after)

    def settle(self) -> dict[str, Any]:
        """Settle the whole tail, by a job; returns what it did. Needs an operator, as all jobs do."""
        return self.start("settle").wait()

    def restore(self, version: int | None = None, timestamp: str | float | None = None) -> int:
        """Make the table what it was at an earlier version, by a job; returns the version of that. See ``Table.restore``."""
        return int(self.start("restore", version=version, timestamp=timestamp).wait()["version"])

    def purge(self, where: str, *, force: bool = False, quarantine: str | None = None) -> dict[str, Any]:
        """Erase the rows for which a condition is true, by a job; returns how many files held them, and how many still do.

        The condition is in no log; until the job has ended it is in a file of the table. See ``Table.purge`` for the arguments.
        """
        return self.start("purge", where=where, force=force, quarantine=quarantine).wait()

    def start(self, kind: str, *, id: str | None = None, **arguments: Any) -> RemoteJob:
        """Request a job and don't wait for it.

        Args:
            kind: Such as ``recluster``.
            id: A request with the same id gets the same job.
            **arguments: Those of the job, such as ``final=True``.

        Raises:
            InvalidInput: There is no such kind or argument.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        body = {"kind": kind, "arguments": given} | ({} if id is None else {"id": id})
        return RemoteJob(self, self.ask("POST", "jobs", body=body))

    def jobs(self, state: str | None = None) -> list[dict[str, Any]]:
        """The jobs of the table, newest first; of those that have ended the newest 100."""
        found: list[dict[str, Any]] = self.get("jobs", state=state)["jobs"]
        return found

    def drop(self, delay_seconds: int | None = None) -> RemoteJob:
        """Drop the table by a job that begins after a delay; cancelling the job keeps the table. Needs an operator.

        Args:
            delay_seconds: By default 7 days.
        """
        return RemoteJob(self, self.ask("DELETE", query={"delay_seconds": delay_seconds}))

    def get(self, *steps: str, **query: Any) -> Any:
        """The answer of a route of this table."""
        return self._transport.get("tables", self.name, *steps, **query)

    def pages(self, what: str, **query: Any) -> list[dict[str, Any]]:
        """The rows that a route of this table lists, of all its pages."""
        return self._transport.pages(("tables", self.name, what), **query)

    def ask(
        self,
        method: str,
        *steps: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The answer of a route of this table to a request with a body."""
        return self._transport.ask(method, ("tables", self.name, *steps), body=body, query=query, headers=headers)


class RemoteJob:
    """A job of a table. Made by ``RemoteTable.start``."""

    def __init__(self, table: RemoteTable, answer: Mapping[str, Any]) -> None:
        self._table = table
        self.id: str = answer["id"]
        self._seen = dict(answer)

    def __repr__(self) -> str:
        return f"{self._table!r}.job({self.id!r})"

    def look(self) -> dict[str, Any]:
        """The job as it is now: ``state``, ``progress``, ``result``, ``error`` and more. Raises InvalidInput if it is gone."""
        self._seen = self._table.get("jobs", self.id)
        return self._seen

    @property
    def state(self) -> str:
        """waiting, running, succeeded, failed or cancelled, now."""
        return str(self.look()["state"])

    def cancel(self) -> None:
        """Cancel it: at once if it waits, else when its runner sees it. One that has ended stays as it is."""
        self._seen = self._table.ask("DELETE", "jobs", self.id)

    def wait(self, timeout_seconds: float | None = None) -> dict[str, Any]:
        """Wait for its end; returns its result.

        Args:
            timeout_seconds: How long to wait. The job goes on after that.

        Raises:
            Cancelled: It was cancelled.
            Retry: It has not ended yet.
            LakebedError: It failed with this error.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        pause = _FIRST_LOOK_SECONDS
        while (seen := self.look())["state"] in ("waiting", "running"):
            if deadline is not None and time.monotonic() >= deadline:
                raise Retry(f"job {self.id} is still {seen['state']}; wait again")
            time.sleep(pause)
            pause = min(_LOOK_SECONDS, pause * 1.5)
        if seen["state"] == "cancelled":
            raise Cancelled(f"job {self.id} was cancelled")
        if seen["state"] == "failed":
            raise error_named(seen["error_kind"], seen["error"])
        return dict(seen["result"])


class RemoteInspect:
    """Tables about one table; the same as ``table.inspect`` of the library gives."""

    def __init__(self, table: RemoteTable) -> None:
        self._table = table

    def parts(self, version: int | None = None) -> pa.Table:
        """The parts at a version, a row each. Raises VersionNotFound."""
        return table_of(self._table.pages("parts", version=version), rows.PARTS_SCHEMA)

    def partitions(self, where: str | None = None) -> pa.Table:
        """The partitions, a row each, with rows, bytes and last change. Raises InvalidInput for a table without any."""
        return table_of(self._table.pages("partitions", where=where), rows.PARTITIONS_SCHEMA)

    def timeline(self, last: int = 100) -> pa.Table:
        """The newest commits, newest first."""
        return table_of(self._table.get("timeline", last=last)["commits"], rows.TIMELINE_SCHEMA)

    def schemas(self) -> pa.Table:
        """The schemas that the table has had, oldest first."""
        return table_of(self._table.get("schemas")["schemas"], rows.SCHEMAS_SCHEMA)

    def claims(self) -> pa.Table:
        """Who merges which parts until when."""
        return table_of(self._table.get("claims")["claims"], rows.CLAIMS_SCHEMA)

    def compactions(self, last: int = 100) -> pa.Table:
        """The merges among the newest commits, newest first."""
        return table_of(self._table.get("compactions", last=last)["compactions"], rows.COMPACTIONS_SCHEMA)


class RemoteMaintenance:
    """Upkeep of one table, done by the service."""

    def __init__(self, table: RemoteTable) -> None:
        self._table = table

    def plan(self) -> pa.Table:
        """What the planner would do now, best first, and what it leaves alone and why; nothing is done."""
        return table_of(self._table.get("plan")["plans"], PLANS_SCHEMA)

    def compact(self) -> dict[str, Any]:
        """Merge until the planner finds nothing more to merge, by a job; returns what it did."""
        return self._table.start("compact").wait()

    def recluster(self, where: str | None = None, final: bool = False) -> dict[str, Any]:
        """Sort parts together, by a job; returns what it did. See ``TableMaintenance.recluster``."""
        return self._table.start("recluster", where=where, final=final).wait()

    def expire_snapshots(self, older_than: str | None = None, retain_last: int = 1) -> dict[str, Any]:
        """Expire old versions, by a job; returns how many files it deleted, and their bytes."""
        return self._table.start("expire_snapshots", older_than=older_than, retain_last=retain_last).wait()

    def vacuum(self, retention: str | None = None) -> dict[str, Any]:
        """Delete data files of old versions, by a job; returns how many, and their bytes."""
        return self._table.start("vacuum", retention=retention).wait()

    def remove_orphan_files(self, older_than: str | None = None) -> dict[str, Any]:
        """Delete files that no version refers to, by a job; returns how many, and their bytes."""
        return self._table.start("remove_orphan_files", older_than=older_than).wait()

    def expire_rows(self) -> dict[str, Any]:
        """Remove the rows whose time to live has ended, by a job; returns how many."""
        return self._table.start("expire_rows").wait()


def _if_match(version: int | None) -> dict[str, str]:
    return {"If-Match": "*" if version is None else f'"{version}"'}


def _type_texts(columns: Mapping[str, str | pa.DataType] | None) -> dict[str, str]:
    return {
        path: kind if isinstance(kind, str) else type_text(canonical_type(kind, path))
        for path, kind in (columns or {}).items()
    }


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Objects as the rows of a table; members that the schema lacks are left out."""
    columns = [pa.array([_value(row[field.name], field.type) for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return list(value.items())
    if pa.types.is_timestamp(kind):
        return datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
    return value
