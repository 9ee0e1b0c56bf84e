"""Every error lakebed raises, named by what the caller must do.

    LakebedError
    ├── InvalidInput          fix the call, the settings or the pipeline file
    │   ├── InvalidSchema         ... the schema or a column
    │   └── InvalidChanges        ... the batch of changes
    ├── TableNotFound         create the table, or fix the path
    │   └── TableReplaced         another table is in its place now: open it again, if it is the one you want
    ├── TableExists           open the table instead
    ├── VersionNotFound       ask for a version that is still kept
    ├── Unsupported           the table or store uses a feature that lakebed does not have
    │   └── UnsafeStore           the store's put-if-absent is not atomic: use another
    ├── MissingPrerequisite   install or set what the message names
    ├── Retry                 nothing is wrong: the operation may be tried again
    │   ├── StoreUnavailable      the store did not answer in time
    │   └── Contention            others kept committing first
    ├── DataLoss              the source no longer has records that were not yet ingested
    ├── QuarantineRefused     a bad record arrived and ``quarantine: fail`` is set
    └── Corrupt               the table's files contradict each other: stop and look

A conflict between two commits is not an error but a value: see ``lakebed.manifest.table_log``.
"""

from __future__ import annotations


class LakebedError(Exception):
    """The root of all errors that lakebed raises on purpose."""


class InvalidInput(LakebedError):
    """A call, a setting or a pipeline file is wrong; the message names the value and what is allowed."""


class InvalidSchema(InvalidInput):
    """A schema or a column can't be used; the message names the column."""


class InvalidChanges(InvalidInput):
    """A batch of changes does not fit its table; nothing of it was committed."""


class TableNotFound(LakebedError):
    """There is no table at the path."""


class TableReplaced(TableNotFound):
    """The table was dropped and another one made in its place while it was open; nothing was written to that one."""


class TableExists(LakebedError):
    """There is already a table at the path."""


class VersionNotFound(LakebedError):
    """The version is newer than the table, or its log has expired."""


class Unsupported(LakebedError):
    """The table uses a feature that lakebed does not have; the message names it."""


class UnsafeStore(Unsupported):
    """The store lets two writers both win a put-if-absent, so it can't hold a log."""


class MissingPrerequisite(LakebedError):
    """Something outside lakebed is missing (Java, a package, a port, jars); the message says what to install or set."""


class Retry(LakebedError):
    """Nothing is wrong with the operation itself: it may be tried again."""


class StoreUnavailable(Retry):
    """The store failed or did not answer, also after retries."""


class Contention(Retry):
    """Other writers won every attempt of a bounded number of commits."""


class DataLoss(LakebedError):
    """The source dropped records before they were ingested."""


class QuarantineRefused(LakebedError):
    """A record could not be decoded, and the settings say to stop then."""


class Corrupt(LakebedError):
    """The table's log or files contradict each other; going on could lose rows."""
