"""Entries in the metastore of Hive.

**A Delta table** is entered as Spark and Delta enter it (``CREATE TABLE … USING delta LOCATION …``). Its path is a property of
its serde, so the metastore needs no access to it. Its columns are in parameters, as Spark's JSON: Hive's own columns can't be of
all types, and a metastore refuses to change most of them. In their place is what Spark puts there.

**An Iceberg table** is entered as Iceberg's catalogs do it. Its columns are Hive's, as they were when it was entered: no reader
of Iceberg looks at them, and a metastore refuses most changes.

A write that replaces an entry fails if its ``lakebed.version`` is not what was read before, where the metastore can check that.
"""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any

from lakebed.errors import InvalidInput, MissingPrerequisite
from lakebed.listeners.catalogs.entry import (
    VERSION,
    Entry,
    Name,
    Parameters,
    Unavailable,
    is_newer,
    locations,
    merged,
    require_ours,
)
from lakebed.listeners.targets import Catalog

_TIMEOUT_MS = 10_000
_PORT = 9083
_ATTEMPTS = 3
_CHARACTERS = {"database": 128, "table": 256, "column": 767}
"""Of the longest name that a metastore keeps. At a longer one it tries until nobody waits for its answer."""
_PLACEHOLDER = "-__PLACEHOLDER__"
_SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
_DELTA_FORMATS = (
    "org.apache.hadoop.mapred.SequenceFileInputFormat",
    "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
)
_ICEBERG_FORMATS = ("org.apache.hadoop.mapred.FileInputFormat", "org.apache.hadoop.mapred.FileOutputFormat")


class HiveClient:
    """A metastore, by Thrift."""

    def __init__(self, target: Catalog) -> None:
        """Raises MissingPrerequisite. Nothing is connected yet."""
        try:
            import hive_metastore.ttypes  # only those who use a metastore need its client
            import thrift.Thrift  # noqa: F401
        except ModuleNotFoundError as error:
            raise MissingPrerequisite(
                "a metastore of Hive needs PyIceberg's client: pip install 'lakebed[catalogs]'"
            ) from error
        self._types = hive_metastore.ttypes
        self._url = urllib.parse.urlsplit(target.url)
        self._open: tuple[Any, Any] | None = None  # a transport, and the client on it

    def ensure(self, name: Name, entry: Entry) -> bool:
        """See ``CatalogClient``."""
        name = _lower(name)
        for what, text in (("database", name.database), ("table", name.table)):
            if len(text) > _CHARACTERS[what]:
                raise InvalidInput(
                    f"{name} can't be entered: a metastore keeps no longer name than {_CHARACTERS[what]} characters of a {what}; "
                    "leave the table out of the listener's, or give the listener another database"
                )
        with self._answering(name) as client:
            for _ in range(_ATTEMPTS):
                before = self._found(client, name)
                if before is None:
                    if self._create(client, name, entry):
                        return True
                    continue
                require_ours(before.parameters, name, entry)
                after = self._changed(before, entry)
                if is_newer(before.parameters, entry) or after == before:
                    return False
                if self._replace(client, name, before, after):
                    return True
        raise InvalidInput(f"others keep changing {name} in the metastore")

    def drop(self, name: Name, is_ours: Callable[[Parameters], bool]) -> None:
        """See ``CatalogClient``."""
        name = _lower(name)
        with self._answering(name) as client:
            before = self._found(client, name)
            if before is not None and is_ours(before.parameters):
                with suppress(self._types.NoSuchObjectException):  # another process was quicker
                    client.drop_table(name.database, name.table, False)

    def close(self) -> None:
        """Let go of the connection."""
        opened, self._open = self._open, None
        if opened is not None:
            opened[0].close()

    # -- requests ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def _answering(self, name: Name) -> Iterator[Any]:
        """A client. Raises Unavailable if the metastore does not answer, InvalidInput for what it says of one table."""
        from thrift.protocol.TProtocol import TProtocolException
        from thrift.Thrift import TException
        from thrift.transport.TTransport import TTransportException

        try:
            yield self._connected()
        except (TTransportException, TProtocolException, OSError) as error:
            self.close()
            raise Unavailable(str(error) or type(error).__name__) from error
        except TException as error:
            said = getattr(error, "message", "") or error
            raise InvalidInput(f"the metastore refuses {name}: {type(error).__name__}: {said}") from error

    def _connected(self) -> Any:
        from hive_metastore.ThriftHiveMetastore import Client
        from thrift.protocol.TBinaryProtocol import TBinaryProtocol
        from thrift.transport.TSocket import TSocket
        from thrift.transport.TTransport import TBufferedTransport

        if self._open is None:
            socket = TSocket(self._url.hostname, self._url.port or _PORT)
            socket.setTimeout(_TIMEOUT_MS)
            transport = TBufferedTransport(socket)
            transport.open()
            self._open = transport, Client(TBinaryProtocol(transport))
        return self._open[1]

    def _found(self, client: Any, name: Name) -> Any:
        try:
            return client.get_table(name.database, name.table)
        except self._types.NoSuchObjectException:
            return None

    def _create(self, client: Any, name: Name, entry: Entry) -> bool:
        """Add an entry, and its database if that is not there; False if another process was quicker."""
        try:
            database = client.get_database(name.database)
        except self._types.NoSuchObjectException:
            with suppress(self._types.AlreadyExistsException):
                client.create_database(self._types.Database(name=name.database, parameters={}))
            database = client.get_database(name.database)
        try:
            client.create_table(self._table(name, entry, database.locationUri))
        except self._types.AlreadyExistsException:
            return False
        return True

    def _replace(self, client: Any, name: Name, before: Any, after: Any) -> bool:
        """Replace an entry, unless its version is another one by now."""
        expected = {"expected_parameter_key": VERSION, "expected_parameter_value": before.parameters[VERSION]}
        context = self._types.EnvironmentContext(properties={"DO_NOT_UPDATE_STATS": "true", **expected})
        try:
            client.alter_table_with_environment_context(name.database, name.table, after, context)
        except self._types.MetaException as error:
            if "parameter" in str(error.message) and VERSION in str(error.message):
                return False
            raise
        return True

    # -- entries ----------------------------------------------------------------------------------------------------------

    def _table(self, name: Name, entry: Entry, database_location: str) -> Any:
        """A new entry. The metastore makes the folder of its location: for a Delta table none that anybody uses."""
        types, is_iceberg = self._types, bool(entry.metadata_location)
        formats = _ICEBERG_FORMATS if is_iceberg else _DELTA_FORMATS
        fitting = [each for each in entry.columns if len(each.name) <= _CHARACTERS["column"]]
        fields = [types.FieldSchema(each.name.lower(), each.type, each.comment or None) for each in fitting]
        if not is_iceberg:
            fields = [types.FieldSchema("col", "array<string>", "from deserializer")]
        return types.Table(
            tableName=name.table,
            dbName=name.database,
            owner="lakebed",
            createTime=int(time.time()),
            lastAccessTime=0,
            retention=0,
            sd=types.StorageDescriptor(
                cols=fields,
                location=_path(entry.root) if is_iceberg else f"{database_location}/{name.table}{_PLACEHOLDER}",
                inputFormat=formats[0],
                outputFormat=formats[1],
                compressed=False,
                numBuckets=-1,
                serdeInfo=types.SerDeInfo(serializationLib=_SERDE, parameters=_serde_parameters(entry)),
                bucketCols=[],
                sortCols=[],
                parameters={},
            ),
            partitionKeys=[],
            parameters={"EXTERNAL": "TRUE", **entry.parameters, **locations({}, entry)},
            tableType="EXTERNAL_TABLE",
        )

    def _changed(self, before: Any, entry: Entry) -> Any:
        """An entry that is there, with what is ours as it should be."""
        after = deepcopy(before)
        ours = {"EXTERNAL": "TRUE", **entry.parameters, **locations(before.parameters, entry)}
        after.parameters = merged(before.parameters, ours)
        after.sd.serdeInfo.parameters = {**(before.sd.serdeInfo.parameters or {}), **_serde_parameters(entry)}
        return after


def _serde_parameters(entry: Entry) -> dict[str, str]:
    return {"serialization.format": "1", **({} if entry.metadata_location else {"path": _path(entry.root)})}


def _path(root: str) -> str:
    """A root as Hadoop's file systems know it."""
    return f"s3a://{root.removeprefix('s3://')}" if root.startswith("s3://") else f"file:{root}"


def _lower(name: Name) -> Name:
    """A metastore knows names in lower case alone."""
    return Name(name.database.lower(), name.table.lower())
