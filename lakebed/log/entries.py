"""The vocabulary of the log: every name of lakebed's in it.

Only standard actions carry state: other readers ignore unknown ones and lose them at their next checkpoint. State for
which Delta has no action is an *entry*: a ``domainMetadata`` whose name begins with ``lakebed.``.
"""

from __future__ import annotations

from enum import StrEnum

PART = "lakebed.part."
"""A change part of the tail; with the name of its file."""
CLAIM = "lakebed.claim."
"""A merge under way; with the claim's id."""
HOLD = "lakebed.hold."
"""A version that a reader holds; with the hold's id."""
EXPIRED = "lakebed.expired"
"""Which versions have expired."""
DETACHED = "lakebed.detached."
"""A detached partition; with its id."""
TRUNCATED = "lakebed.truncated"
"""The version that last emptied the table."""
DROPPED = "lakebed.dropped"
"""Since when the table is dropped, and whether its files are being deleted."""
PURGE = "lakebed.purge."
"""A purge under way; with its id."""
PURGED = "lakebed.purged"
"""The newest purge: which versions are gone, because rows of them were purged."""
FENCE = "lakebed.fence"
"""A number. What was written for a version with a lower one is not committed any more."""
REPLACED = "lakebed.replaced"
"""The version that last replaced partitions, and which."""
RESTORED = "lakebed.restored"
"""The version that last restored an earlier one, and which."""
ROWS_EXPIRED = "lakebed.rows_expired"
"""Which rows left the table last because their time to live had ended, and when such rows were last looked for."""
SOURCE_TRUNCATES = "lakebed.source_truncates"
"""The truncates of the source that the table has seen."""
SCHEMA = "lakebed.schema."
"""A change of the schema; with its number, counted from 1."""
POSITION = "lakebed.position."
"""Up to where the table has read a topic of its source; with the topic."""
ORDER_RESTARTS = "lakebed.order_restarts"
"""From which offsets on changes count as newer than all before them, whatever their places in the order of their source."""
FILES = "lakebed.files."
"""Files of folders that the table has read; with a number, counted from 1."""
QUARANTINED = "lakebed.quarantined"
"""In the log of a table: parts of its quarantine that the quarantine may not have yet. In the log of a quarantine, with the id of
the table: which of them it has."""
SOURCE_COLUMNS = "lakebed.source_columns"
"""The columns that records of a topic lacked at some time, and since when they have them again."""
CROWDED_KEYS = "lakebed.crowded_keys"
"""Keys that have several rows in a transaction of the source of which only a part is settled."""
REMARKS = "lakebed.remarks"
"""What streams met that a person should look at, and in how many records."""
FAILING = "lakebed.failing."
"""A merge that keeps failing, and until when its parts are left alone; with an id that follows from them."""
LOST = "lakebed.lost."
"""A claim whose replica was lost, with its id: parts that are in several are parked."""
SETTLING = "lakebed.settling"
"""Attempts to settle the table that did not end: after several the tail is left alone for some time."""
PARKED = "lakebed.parked"
"""Why the pipeline of a database leaves the table alone, until it is resumed."""
TOPIC_GONE = "lakebed.topic_gone"
"""Since when the topic that the table is read from is gone."""
FORMER_COLUMNS = "lakebed.former_columns"
"""The stored names of columns and fields that files may have and the table has not any more."""
RESNAPSHOT = "lakebed.resnapshot"
"""Rows of the table that the connector was asked to send again, and how far that is."""

JOB = "lakebed.job."
"""Work that a user requested; with the id of the job."""

POINT = "lakebed.point"
"""The newest point, in the log of a database."""
POINT_TABLE = "lakebed.point_table."
"""At which version a table is in the points, in the log of a database; with the table's name."""

SETTLED = "lakebed.settled"
"""The newest point up to which all its tables are settled, in the log of a database."""
SETTLED_TABLE = "lakebed.settled_table."
"""The version of a table at which it is settled up to that point; with the table's name."""

WORKER = "lakebed.worker."
"""A worker that maintains tables, in the log of a fleet; with its id."""

FRESH_TABLES = "lakebed.fresh."
"""The tables of a worker that have a freshness, in the log of a fleet; with the worker's id."""

LISTENER = "lakebed.listener."
"""Where events are sent, in the log of listeners; with the listener's name."""
LISTENER_CURSOR = "lakebed.cursor."
"""Up to which version the events of a table were acknowledged; with the listener's name and the table's."""
DELIVERING = "lakebed.delivering."
"""Which process delivers to a listener; with its name."""

COORDINATION = (
    SOURCE_COLUMNS, REMARKS, FAILING, LOST, SETTLING, PARKED, TOPIC_GONE, RESNAPSHOT, JOB, SCHEMA, ROWS_EXPIRED, WORKER,
    FRESH_TABLES, LISTENER, DELIVERING, FORMER_COLUMNS,
)  # fmt: skip
"""Entries that no row and no file rests on: one that can't be read counts as not there (``entry_values``)."""

# Names of applications in ``txn``, which committed a batch.
STREAM = "lakebed.ingest."
"""A streaming query whose source has no positions; with the id of its checkpoint."""
NAMED_BATCH = "lakebed.batch."
"""A batch whose id is a text; with that text."""
APPLIED = "lakebed.apply"
"""Batches of ``apply`` whose ids are numbers."""

REPLAY = "lakebed.replay."
"""A replay of the quarantine; with the id of the quarantine table. While its records are still in the quarantine, an entry of the
same name says which they are."""

# Tags of an ``add``: properties of a part that Delta has no field for (``Part``).
LEVEL_TAG = "lakebed.level"
MIN_BLOCK_TAG = "lakebed.min_block"
MAX_BLOCK_TAG = "lakebed.max_block"
SORT_KEY_VERSION_TAG = "lakebed.sort_key_version"
PASSES_TAG = "lakebed.passes"
DELETES_TAG = "lakebed.deletes"
DELETES_MS_TAG = "lakebed.deletes_ms"
OP_COLUMN_TAG = "lakebed.op_column"
CHECKSUM_TAG = "lakebed.crc32"

# Members of ``commitInfo``: the identity of a commit, and the commit that it follows.
COMMIT_CHECKSUM = "lakebedChecksum"
COMMIT_TABLE = "lakebedTable"
COMMIT_PARENT = "lakebedParent"
COMMIT_ATTEMPT = "lakebedAttempt"

# In the key-value metadata of a checkpoint's file.
CHECKPOINT_COMMIT = "lakebed.commit"
CHECKPOINT_TIMESTAMP = "lakebed.timestamp"
CHECKPOINT_CHECKSUM = "lakebed.checksum"


class Operation(StrEnum):
    """The operation that made a commit: a name for people, in ``commitInfo``, in metrics and in messages.

    No decision rests on the name in a log. The kind of a commit follows from its actions.
    """

    CREATE = "CREATE TABLE"
    CONVERT = "CONVERT"
    SET_PROPERTIES = "SET TBLPROPERTIES"
    SET_SORT_KEY = "SET SORT KEY"
    ALTER = "ALTER TABLE"
    APPLY = "APPLY"
    STREAMING_UPDATE = "STREAMING UPDATE"
    BOOTSTRAP = "BOOTSTRAP"
    QUARANTINE = "QUARANTINE"
    REWIND = "REWIND"
    REPLAY = "REPLAY QUARANTINE"
    SETTLE = "SETTLE"
    BEGIN_SETTLE = "BEGIN SETTLE"
    CLAIM = "CLAIM"
    EXTEND_CLAIM = "EXTEND CLAIM"
    ABANDON_CLAIM = "ABANDON CLAIM"
    MERGE = "MERGE"
    UPLOAD = "UPLOAD"
    INSERT = "INSERT"
    DELETE = "DELETE"
    UPDATE = "UPDATE"
    MERGE_INTO = "MERGE INTO"
    TRUNCATE = "TRUNCATE"
    DETACH_PARTITION = "DETACH PARTITION"
    ATTACH_PARTITION = "ATTACH PARTITION"
    DROP_DETACHED = "DROP DETACHED"
    REPLACE_PARTITION = "REPLACE PARTITION"
    OVERWRITE = "OVERWRITE"
    RESTORE = "RESTORE"
    DROP = "DROP TABLE"
    UNDROP = "UNDROP TABLE"
    EXPIRE_ROWS = "EXPIRE ROWS"
    PURGE = "PURGE"
    HOLD_VERSION = "HOLD VERSION"
    RELEASE_VERSION = "RELEASE VERSION"
    EXPIRE_VERSIONS = "EXPIRE VERSIONS"
    POINT = "POINT"
    LISTENER = "LISTENER"
    WORKER = "WORKER"
    PARK = "PARK TABLE"
    RESUME = "RESUME TABLE"
    PARK_MERGE = "PARK MERGE"
    RESUME_MERGES = "RESUME MERGES"
    REMOVE_ENTRY = "REMOVE ENTRY"
    RESNAPSHOT = "RESNAPSHOT"
    TOPIC = "TOPIC GONE"
    REMARK = "REMARK"
    RESTART_ORDER = "RESTART ORDER"
    JOB = "JOB"
