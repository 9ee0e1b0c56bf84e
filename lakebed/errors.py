"""Every error that lakebed raises, named by what the caller must do.

    LakebedError
    ├── InvalidInput          fix the call, the settings or the pipeline file
    │   ├── InvalidSchema         ... the schema or a column
    │   └── InvalidChanges        ... the batch of changes
    ├── TableNotFound         create the table, or fix the path
    │   ├── TableDropped          bring it back, or delete its files
    │   └── TableReplaced         another table is in its place now: open it again, if it is the one you want
    ├── TableExists           open the table instead
    ├── VersionNotFound       ask for a version that is still kept
    ├── Unsupported           the table or store uses a feature that lakebed does not have
    │   └── UnsafeStore           the store's put-if-absent is not atomic: use another
    ├── MissingPrerequisite   install or set what the message names
    ├── Retry                 nothing is wrong: the operation may be tried again
    │   ├── StoreUnavailable      the store did not answer in time
    │   ├── ClusterUnavailable    the Spark cluster did not answer, or has ended
    │   └── Contention            other writers kept committing first
    ├── DataLoss              the source no longer has records that were not yet ingested
    ├── QuarantineRefused     a bad record arrived, and ``quarantine: fail`` or ``on_mismatch: fail`` is set
    ├── Corrupt               the table's files contradict each other: stop and look
    ├── Cancelled             the process stopped the operation before its end
    └── Unexpected            lakebed does not know this cause: read the message and the log

An error has a text, for people, and data, for programs: ``table``, ``version`` and ``path``, and some classes have more. Data
that is unknown, or does not apply, is None. Errors can be pickled and copied with their data. Spark and DuckDB pass on text
alone; ``failures`` carries errors through them.

A conflict between two commits is not an error but a value: see ``lakebed.log.table_log``.
"""

from __future__ import annotations

import copy
from typing import Self, TypedDict, Unpack


class _Where(TypedDict, total=False):
    table: str | None
    version: int | None
    path: str | None


class LakebedError(Exception):
    """The root of all errors that lakebed raises on purpose.

    Attributes:
        table: The root of the table.
        version: The version of the table.
        path: The file, as the log names it or with its folder.
    """

    def __init__(
        self, text: str = "", *, table: str | None = None, version: int | None = None, path: str | None = None
    ) -> None:
        super().__init__(text)
        self.table = table
        self.version = version
        self.path = path

    def data(self) -> dict[str, object]:
        """The data of the error, by name."""
        return {name: value for name, value in vars(self).items() if value is not None and not name.startswith("_")}

    def with_text(self, text: str) -> Self:
        """A copy with the same data, another text, and no notes."""
        changed = copy.copy(self)
        vars(changed).pop("__notes__", None)
        changed.args = (text,)
        return changed


class InvalidInput(LakebedError):
    """A call, a setting or a pipeline file is wrong; the text names the value and what is allowed."""


class InvalidSchema(InvalidInput):
    """A schema or a column can't be used; the text names the column."""


class InvalidChanges(InvalidInput):
    """A batch of changes does not fit its table; nothing of it was committed."""


class TableNotFound(LakebedError):
    """There is no table at the path."""


class TableDropped(TableNotFound):
    """The table was dropped. It can come back until its files are deleted.

    Attributes:
        is_final: Whether its files are being deleted.
    """

    def __init__(self, text: str = "", *, is_final: bool = False, **where: Unpack[_Where]) -> None:
        super().__init__(text, **where)
        self.is_final = is_final


class TableReplaced(TableNotFound):
    """The table was dropped and another one made in its place while it was open; nothing was written to that one."""


class TableExists(LakebedError):
    """There is already a table at the path."""


class VersionNotFound(LakebedError):
    """The version is newer than the table, or the log no longer keeps it.

    Attributes:
        oldest: The oldest version that can be read, if it is known.
        newest: The newest version, if it is known.
    """

    def __init__(
        self, text: str = "", *, oldest: int | None = None, newest: int | None = None, **where: Unpack[_Where]
    ) -> None:
        super().__init__(text, **where)
        self.oldest = oldest
        self.newest = newest


class Unsupported(LakebedError):
    """The table uses a feature that lakebed does not have; the text names it."""


class UnsafeStore(Unsupported):
    """The store lets two writers both win a put-if-absent, so it can't hold a log."""


class MissingPrerequisite(LakebedError):
    """Something outside lakebed is missing (Java, a package, a port, jars); the text says what to install or set."""


class Retry(LakebedError):
    """Nothing is wrong with the operation itself: it may be tried again."""


class StoreUnavailable(Retry):
    """The store failed or did not answer, also after retries."""


class ClusterUnavailable(Retry):
    """The Spark cluster that merges were to run on does not answer, has no executor, or has ended."""


class Contention(Retry):
    """Other commits came first at each attempt of an operation to commit.

    Attributes:
        operation: Its name in the log.
        attempts: How many there were.
    """

    def __init__(
        self, text: str = "", *, operation: str | None = None, attempts: int | None = None, **where: Unpack[_Where]
    ) -> None:
        super().__init__(text, **where)
        self.operation = operation
        self.attempts = attempts


class DataLoss(LakebedError):
    """The source dropped records before they were ingested.

    Attributes:
        topic: The topic that had them.
        partition: Its partition.
        records: How many were lost.
    """

    def __init__(
        self,
        text: str = "",
        *,
        topic: str | None = None,
        partition: int | None = None,
        records: int | None = None,
        **where: Unpack[_Where],
    ) -> None:
        super().__init__(text, **where)
        self.topic = topic
        self.partition = partition
        self.records = records


class QuarantineRefused(LakebedError):
    """Some records could not be decoded, and the settings say to stop then.

    Attributes:
        records: How many.
    """

    def __init__(self, text: str = "", *, records: int | None = None, **where: Unpack[_Where]) -> None:
        super().__init__(text, **where)
        self.records = records


class Corrupt(LakebedError):
    """The table's log or files contradict each other; going on could lose rows.

    Attributes:
        path: The file that is missing or damaged.
        part: The part whose rows can't be read because of it, as the log names it.
        invariants: The ids of those that a commit would break (docs/invariants.md).
    """

    def __init__(
        self,
        text: str = "",
        *,
        part: str | None = None,
        invariants: tuple[str, ...] | None = None,
        **where: Unpack[_Where],
    ) -> None:
        super().__init__(text, **where)
        self.part = part
        self.invariants = invariants


class Cancelled(LakebedError):
    """The process stopped the operation before its end, and nothing of it was committed."""


class Unexpected(LakebedError):
    """A failure that lakebed did not foresee: in Spark, in the environment, or in lakebed itself."""
