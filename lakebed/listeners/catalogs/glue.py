"""Entries in AWS Glue, which Athena, Trino, EMR and Spark read.

A Delta table has the parameters that Spark, Trino (``spark.sql.sources.provider``) and Athena (``table_type``) know one by; an
Iceberg table those of Iceberg's catalogs. Glue checks no types, so columns are real ones, for people who look at them: engines
take a table's own.

A write that replaces an entry names the ``VersionId`` that was read before, so of two at once one fails and reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from lakebed.errors import InvalidInput, MissingPrerequisite
from lakebed.listeners.catalogs.entry import (
    TABLE_TYPE,
    Column,
    Entry,
    Json,
    Name,
    Parameters,
    Unavailable,
    is_newer,
    locations,
    merged,
    require_ours,
)
from lakebed.listeners.targets import Catalog

_ATTEMPTS = 3
_OF_INPUT = frozenset({
    "Name", "Description", "Owner", "LastAccessTime", "LastAnalyzedTime", "Retention", "StorageDescriptor",
    "PartitionKeys", "ViewOriginalText", "ViewExpandedText", "TableType", "Parameters", "TargetTable",
})  # fmt: skip
"""What may be written of an entry; more of it is read."""
_RACES = frozenset({"ConcurrentModificationException", "AlreadyExistsException", "EntityNotFoundException"})
_OF_ALL = frozenset({
    "AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException",
    "ThrottlingException", "InternalServiceException", "OperationTimeoutException",
})  # fmt: skip
"""Answers that other tables would get too."""


class GlueClient:
    """The catalog of the account that the environment has credentials for."""

    def __init__(self, target: Catalog) -> None:
        """Raises MissingPrerequisite. Nothing is connected yet."""
        try:
            import boto3  # only those who use AWS need its client
            import botocore.exceptions
            from botocore.config import Config
        except ModuleNotFoundError as error:
            raise MissingPrerequisite("Glue needs boto3: pip install 'lakebed[s3]'") from error
        region = target.url.partition("://")[2].strip("/") or None
        config = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 2})
        self._errors = botocore.exceptions
        try:
            self._glue = boto3.client("glue", region_name=region, config=config)
        except botocore.exceptions.BotoCoreError as error:
            raise MissingPrerequisite(f"Glue can't be used: {error}") from error

    def ensure(self, name: Name, entry: Entry) -> bool:
        """See ``CatalogClient``."""
        name = Name(name.database.lower(), name.table.lower())
        with self._answering(name):
            for _ in range(_ATTEMPTS):
                before = self._found(name)
                try:
                    if before is None:
                        self._create(name, entry)
                        return True
                    require_ours(before.get("Parameters", {}), name, entry)
                    known = {key: value for key, value in before.items() if key in _OF_INPUT}
                    after = _changed(known, entry)
                    if is_newer(before.get("Parameters", {}), entry) or after == known:
                        return False
                    self._replace(name, before, after)
                    return True
                except self._errors.ClientError as error:
                    if _code(error) not in _RACES:
                        raise
        raise InvalidInput(f"others keep changing {name} in Glue")

    def drop(self, name: Name, is_ours: Callable[[Parameters], bool]) -> None:
        """See ``CatalogClient``."""
        name = Name(name.database.lower(), name.table.lower())
        with self._answering(name):
            before = self._found(name)
            if before is not None and is_ours(before.get("Parameters", {})):
                with suppress(self._glue.exceptions.EntityNotFoundException):  # another process was quicker
                    self._glue.delete_table(DatabaseName=name.database, Name=name.table)

    def close(self) -> None:
        """Let go of connections."""
        self._glue.close()

    @contextmanager
    def _answering(self, name: Name) -> Iterator[None]:
        """Raises Unavailable if Glue does not answer, or nobody, and InvalidInput for what it says of one table."""
        try:
            yield
        except self._errors.ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if status >= 500 or _code(error) in _OF_ALL:
                raise Unavailable(str(error)) from error
            raise InvalidInput(f"Glue refuses {name}: {error}") from error
        except self._errors.BotoCoreError as error:
            raise Unavailable(str(error)) from error

    def _found(self, name: Name) -> Json | None:
        try:
            found: Json = self._glue.get_table(DatabaseName=name.database, Name=name.table)["Table"]
        except self._glue.exceptions.EntityNotFoundException:
            return None
        return found

    def _create(self, name: Name, entry: Entry) -> None:
        new = _changed({"Name": name.table, "Owner": "lakebed", "TableType": "EXTERNAL_TABLE"}, entry)
        try:
            self._glue.create_table(DatabaseName=name.database, TableInput=new)
        except self._glue.exceptions.EntityNotFoundException:
            with suppress(self._glue.exceptions.AlreadyExistsException):
                self._glue.create_database(DatabaseInput={"Name": name.database})
            self._glue.create_table(DatabaseName=name.database, TableInput=new)

    def _replace(self, name: Name, before: Json, after: Json) -> None:
        version = {"VersionId": before["VersionId"]} if "VersionId" in before else {}
        self._glue.update_table(DatabaseName=name.database, TableInput=after, SkipArchive=True, **version)


def _changed(before: Json, entry: Entry) -> Json:
    """What is written of an entry, with what is ours as it should be."""
    ours = {"EXTERNAL": "TRUE", TABLE_TYPE: "DELTA", **entry.parameters}
    ours |= locations(before.get("Parameters", {}), entry)
    is_delta = not entry.metadata_location
    serde = before.get("StorageDescriptor", {}).get("SerdeInfo", {})
    own_serde = {"Parameters": {**serde.get("Parameters", {}), "path": entry.root, "serialization.format": "1"}}
    after = {
        **before,
        "Parameters": merged(before.get("Parameters", {}), ours),
        "StorageDescriptor": {
            **before.get("StorageDescriptor", {}),
            "Columns": [_column(each) for each in entry.columns],
            "Location": entry.root,
            **({"SerdeInfo": {**serde, **own_serde}} if is_delta else {}),
        },
        "PartitionKeys": [],  # partitions are in the table's log: an engine that looked for them here would find none
    }
    if entry.comment:
        after["Description"] = entry.comment[:2048]
    return after


def _column(column: Column) -> Json:
    comment = {"Comment": column.comment} if column.comment else {}
    return {"Name": column.name.lower(), "Type": column.type, **comment}


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
