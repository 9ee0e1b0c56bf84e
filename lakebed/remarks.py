"""What a stream met that a person should look at: the kinds of remarks, and their counts by kind and by name, bounded.

A remark has a kind (``Remark``), a name within the kind, such as that of a field, and the number of records that it is about.
``KINDS`` says for each kind what ``lakebed status`` shows and what can be done, so a new kind is a member of ``Remark`` and an
entry of ``KINDS``. Decoders make remarks, a batch carries them to its commit, and the table's log keeps them
(``positions.remarks``).

Names come from outside. So their number and their length are bounded: further names of a kind are counted together, as
``OTHERS``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

NAMES_MAX = 100
CHARACTERS_MAX = 100
OTHERS = "(other)"
Counts = Mapping[str, Mapping[str, int]]
"""Numbers of records, by kind of remark and by name."""


class Remark(StrEnum):
    """The kinds of remarks."""

    UNKNOWN_FIELD = "unknown_field"
    """A member of a record's row that no column takes; its name."""
    REFUSED_FIELD = "refused_field"
    """A member of a record's row that no column takes; its name. The record is in the quarantine."""
    LEFT_OUT_FIELD = "left_out_field"
    """A field of the schema of a record's row that no column can be like; its name and the reason."""
    UNKNOWN_OPERATION = "unknown_operation"
    """An operation that is not known; its value. The record is in the quarantine."""
    ORDER_BEGAN_AGAIN = "order_began_again"
    """Changes are lower in the order of their source than others before them, and later by its clock; what orders them."""
    BATCH_LOST = "batch_lost"
    """All changes of a batch lost against newer ones; what orders them."""
    LOST = "lost_by_order"
    """Changes that lost against newer ones that had come before them; what orders them."""
    WAITING = "waiting_for_owner"
    """Changes of a group of columns that, when they were settled, had no row of the owner; the group."""
    KEY_MOVED = "key_moved"
    """Rows that got another key, and are older than the delete of the row before by the column that orders changes; which."""
    KEY_MOVE_UNCLEAR = "key_move_unclear"
    """Changes that may be an update of a key, and do not say whose row left the key; their topic."""
    KEY_MOVE_TRANSFORMED = "key_move_transformed"
    """Keys that lost a row to the SQL of a pipeline, if the row came to the key before another one left it; their topic."""
    ORDER_OF_ARRIVAL = "order_of_arrival"
    """A table was made whose changes have no order but that of arrival; the connector that sends them."""
    RESNAPSHOT_ADVISED = "resnapshot_advised"
    """A column in which rows from before a change of the source may be wrong; its name."""
    BEGAN_WITHOUT_ROWS = "began_without_rows"
    """A table was made from records that change a row which no record before them has made; the first of them."""
    JANUARY_1970 = "january_1970"
    """A number, of which no schema says what it counts, that was taken for a time in January 1970; its column."""
    FAR_DATE = "far_date"
    """A number, of which no schema says what it counts, that was taken for a date beyond the years 1 to 9999; its column."""
    FAR_TIMESTAMP = "far_timestamp"
    """A number, of which no schema says what it counts, that was taken for a time beyond the years 1 to 9999; its column."""
    UNSENT_KEY = "unsent_key"
    """A change that may be about another row than it says; the column of the key. The record is in the quarantine."""
    SOURCE_TABLE = "source_table"
    """An event of another table of the source than that whose rows the table has; its name. The record is in the quarantine."""
    UNORDERED_DELETE = "unordered_delete"
    """A delete without a value of the column that orders changes; the column. The record is in the quarantine."""
    UNORDERED_CHANGE = "unordered_change"
    """A change without the metadata that orders changes; its name, and what may be meant. The record is in the quarantine."""
    FILE_LATE = "file_late"
    """A file that came after newer ones were read; its name. It was read, and what it says replaced what they said."""
    FILE_REWRITTEN = "file_rewritten"
    """A file that was written again after it was read; its name. It is not read again."""
    FILE_FORGOTTEN = "file_forgotten"
    """A file that may have been read, but so long ago that the table does not remember it; its name. It is not read."""
    FILE_SKIPPED = "file_skipped"
    """A file that was gone or damaged, where the settings say to go on without it; its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What remarks of a kind mean to an operator."""

    what: str
    """A sentence without its end: the names follow, each with the number of its records."""
    remedy: str
    """What to do."""
    is_critical: bool = False
    """Whether rows of the table may be wrong."""
    counts: bool = True
    """Whether the number of records says something."""
    is_finding: bool = True
    """Whether it is one; else it is a figure."""
    until_sent_again: bool = False
    """Whether rows stay wrong until the source sends them again; without it the remark is of interest for a day."""


_RESNAPSHOT = (
    "have all rows sent again: lakebed source resnapshot PIPELINE_FILE TABLE; for a table of a file of its own, a signal to the "
    "connector, and then lakebed resume PATH"
)
KINDS: Mapping[str, Kind] = {
    Remark.KEY_MOVED: Kind(
        what="rows got another key, and lost against the delete of the row that was there before, by the column",
        remedy="create the table again with a sequence_by that orders changes as the source does, such as source.lsn",
        is_critical=True,
        until_sent_again=True,
    ),
    Remark.KEY_MOVE_UNCLEAR: Kind(
        what="rows may have got another key, and neither headers nor old rows say which row left it",
        remedy="let Debezium's headers through (__debezium.newkey, __debezium.oldkey), or have the source send whole old rows "
        "(PostgreSQL: REPLICA IDENTITY FULL); the row that came last counts",
    ),
    Remark.KEY_MOVE_TRANSFORMED: Kind(
        what="rows that got another key may be lost, since the rows of a key are not counted where SQL changes them",
        remedy="bring the records into a table of their own, and have the SQL read that with the source lakebed",
        is_critical=True,
        until_sent_again=True,
    ),
    Remark.UNKNOWN_FIELD: Kind(
        what="records have fields that no column takes",
        remedy="add columns, or have the fields ignored (format.unknown_fields: ignore, or except_column_list)",
    ),
    Remark.REFUSED_FIELD: Kind(
        what="records with fields that no column takes are in the quarantine",
        remedy="add columns, then lakebed quarantine replay; or have the fields ignored (format.unknown_fields: ignore)",
    ),
    Remark.LEFT_OUT_FIELD: Kind(
        what="records have fields that can't be columns, and come in without them",
        remedy="name a column for such a field (columns in the pipeline file), change its name or type by a transformation of "
        "the connector, or leave it out there (column.exclude.list)",
    ),
    Remark.UNKNOWN_OPERATION: Kind(
        what="records have operations that are not known",
        remedy="add them to format.delete_values or format.upsert_values; these records are in the quarantine",
    ),
    Remark.ORDER_BEGAN_AGAIN: Kind(
        what="changes are later by the source's clock, and have lower positions than those before: the source was moved, "
        "restored, or its log was reset, so they lose against rows that are older",
        remedy="restart the order and have all rows sent again: lakebed source resnapshot PIPELINE_FILE TABLE does both; for a "
        "table of a file of its own, lakebed source restart-order PATH, and a signal to the connector",
        is_critical=True,
        until_sent_again=True,
    ),
    Remark.BATCH_LOST: Kind(
        what="whole batches of changes lost, because newer changes of their rows had come before",
        remedy="nothing, if records were sent or read again; if the source was moved or restored: lakebed source resnapshot "
        "PIPELINE_FILE TABLE, or lakebed source restart-order PATH and a signal to the connector. Where a column of the "
        "table orders changes, empty the table (lakebed delete --all) and have all rows sent again",
    ),
    Remark.LOST: Kind(
        what="changes lost, because newer changes of their rows had come before",
        remedy="nothing, if records are sent again or come late",
        is_finding=False,
    ),
    Remark.WAITING: Kind(
        what="changes of groups of columns had no row of the owner when they were settled, so no reader sees them until the "
        "owner brings the row",
        remedy="nothing, if the owner's changes come later: table.inspect.waiting() lists what waits, and "
        "lakebed.tombstone_retention says how long",
        is_finding=False,
    ),
    Remark.ORDER_OF_ARRIVAL: Kind(
        what="changes of a row count in the order in which they arrive, since the events of this connector have no position that "
        "lakebed knows",
        remedy="if a number in the events grows with every change, name it as sequence_by below database.tables, and move the "
        "table away so that it is made again; otherwise have no records sent again",
        counts=False,
    ),
    Remark.RESNAPSHOT_ADVISED: Kind(
        what="resnapshot advised: rows from before a change of the source may be wrong in columns that it added with a default, "
        "renamed, or dropped and added again, or that were added here later than there",
        remedy=f"{_RESNAPSHOT}. If the rows are right, or you have filled the columns: lakebed resume PATH",
        is_critical=True,
        counts=False,
        until_sent_again=True,
    ),
    Remark.BEGAN_WITHOUT_ROWS: Kind(
        what="resnapshot advised: the first changes that came are of rows that the source had before, so others may be missing: "
        "its table was renamed, or is captured without a snapshot",
        remedy=f"{_RESNAPSHOT}. If no rows are missing: lakebed resume PATH",
        is_critical=True,
        counts=False,
        until_sent_again=True,
    ),
    Remark.JANUARY_1970: Kind(
        what="numbers were taken for times in January 1970, so they may count something else",
        remedy="set format.timestamp_unit, to s for seconds, and read the records once more (lakebed source rewind)",
    ),
    Remark.FAR_DATE: Kind(
        what="numbers were taken for days, and give dates beyond the years 1 to 9999, so they may count something else",
        remedy="make the column a timestamp, set format.timestamp_unit, and read the records once more (lakebed source rewind)",
    ),
    Remark.FAR_TIMESTAMP: Kind(
        what="numbers were taken for times beyond the years 1 to 9999, so they may count something else",
        remedy="set format.timestamp_unit, and read the records once more (lakebed source rewind)",
    ),
    Remark.UNSENT_KEY: Kind(
        what="changes do not say for certain which row they are about, by the column of the key",
        remedy="the quarantine has them and the reasons: let the primary key of the source be the table's key and its replica "
        "identity, or send whole old rows (REPLICA IDENTITY FULL); then have all rows sent again (lakebed source "
        "resnapshot --mirror)",
        is_critical=True,
        until_sent_again=True,
    ),
    Remark.SOURCE_TABLE: Kind(
        what="records are of another table of the source, whose name is the same in a topic's",
        remedy="let a connector with another topic.prefix capture one of the two; if they belong together, name both in sources",
        is_critical=True,
    ),
    Remark.UNORDERED_DELETE: Kind(
        what="deletes lack the column that orders the changes (sequence_by)",
        remedy="send whole old rows (REPLICA IDENTITY FULL), or order by source.lsn; these records are in the quarantine",
    ),
    Remark.UNORDERED_CHANGE: Kind(
        what="events lack what orders the changes (sequence_by), and are in the quarantine",
        remedy="create the table again with a sequence_by that its connector writes, such as source.lsn, or fix the connector; "
        "then lakebed quarantine replay, or read the records once more (lakebed source rewind)",
        is_critical=True,
    ),
    Remark.FILE_LATE: Kind(
        what="files came after newer ones had been read, and what is in them replaced what those had said",
        remedy="deliver files in the order of their times, or let a column order the changes (table.sequence_by)",
    ),
    Remark.FILE_REWRITTEN: Kind(
        what="files were written again after they had been read, and are not read a second time",
        remedy="deliver each change in a file of a new name; to have one of these read, copy it to a new name",
    ),
    Remark.FILE_FORGOTTEN: Kind(
        what="files are not read, since the table does not remember files that arrived so long ago and may have read them",
        remedy="move files that were read out of the folder; copy one that is to be read to a new name",
    ),
    Remark.FILE_SKIPPED: Kind(
        what="files were gone or damaged, and what could not be read of them is not in the table",
        remedy="bring them under new names, or leave out ignoreMissingFiles and ignoreCorruptFiles",
        is_critical=True,
        until_sent_again=True,
    ),
}


class Names:
    """Counts by name, bounded."""

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self.counts: dict[str, int] = {}
        self.add_all(counts or {})

    def add(self, name: str, count: int = 1) -> str:
        """Count a name; returns the name under which it was counted."""
        name = short(name)
        if name not in self.counts and len(self.counts) >= NAMES_MAX:
            name = OTHERS
        self.counts[name] = self.counts.get(name, 0) + count
        return name

    def add_all(self, counts: Mapping[str, int]) -> None:
        """Add other counts."""
        for name, count in counts.items():
            self.add(name, count)


class RemarkCounts:
    """Counts by kind and name, bounded."""

    def __init__(self) -> None:
        self._kinds: dict[str, Names] = {}

    def add(self, kind: str, name: str, count: int = 1) -> None:
        """Count a remark."""
        self._kinds.setdefault(kind, Names()).add(name, count)

    def add_all(self, counts: Counts) -> None:
        """Add other counts."""
        for kind, names in counts.items():
            self._kinds.setdefault(kind, Names()).add_all(names)

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        return {kind: names.counts for kind, names in self._kinds.items() if names.counts}


def remarks_on(kind: str, names: Mapping[str, int]) -> Counts:
    """Counts of one kind; empty if there are no names."""
    return {kind: names} if names else {}


def short(name: str) -> str:
    """The name as valid text of at most ``CHARACTERS_MAX`` characters."""
    text = name[: CHARACTERS_MAX + 1].encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= CHARACTERS_MAX else text[: CHARACTERS_MAX - 1] + "…"


def sum_of(several: Iterable[Counts]) -> dict[str, dict[str, int]]:
    """Several counts as one."""
    total = RemarkCounts()
    for counts in several:
        total.add_all(counts)
    return total.counts
