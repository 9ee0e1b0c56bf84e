"""Which changes of a batch are part of a move: an update that changed the key of a row.

Debezium sends such an update as a delete of the old key and a create of the new one, and says so in headers of both. What the
changes of a transaction come to then is counted (``parts.key_moves``). Here the changes get what is needed for that, and old rows
that events carry are used as far as they say whose delete it is:

1.  Marked are records with such headers, and updates whose ``before`` has another key. If records have no headers at all,
    a program has dropped them. Then a create right after a delete of another key, in one transaction, may be a move too.
2.  A transaction is a run of records of a partition. The changes of a key are counted if one of them is marked; the others of the
    transaction count too. An earlier batch may have marked a key of the transaction that a batch begins with. So each change of
    that transaction says that it belongs to it, unless the record right before it is known to be of another one.
3.  If a key is deleted after a row came to it, the old row of the delete is compared with the row that came. If they differ, the
    delete is of the row that was there before, so the values are those of the row that came. If they are equal, that row is gone.
    If the old row says nothing (by default PostgreSQL sends keys alone), the row that came last has the values.
4.  A table whose rows come of several changes each counts no rows. There the newest change counts, and a delete of which nobody
    can say whose it is goes to the quarantine.
5.  A row that came without all its values, because its source did not send what it had not changed, is a bad record: its values
    are those of a row with another key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.earlier_rows import EarlierRow, is_same, plain
from lakebed.decode.metadata import NEW_KEY, OLD_KEY, headers_of, mappings_of, values_of
from lakebed.decode.places import Describing, Transactions, number_of
from lakebed.far_times import python_values
from lakebed.lateness import Place
from lakebed.parts.changes import DELETE, MOVES_COLUMN, MOVES_TYPE, OP_COLUMN, UNAVAILABLE_COLUMN, WEAK
from lakebed.parts.key_moves import CAME, LEFT, STAYED, UNKNOWN_TRANSACTION
from lakebed.parts.quarantine import HEADERS
from lakebed.positions.positions import Last
from lakebed.remarks import Remark

_Mask = np.ndarray[Any, Any]
Found = tuple[Remark, str]
_NOT_WHOLE = (
    "the row got another key, and the source did not send {}, which it did not change: let it send whole rows (PostgreSQL: "
    "REPLICA IDENTITY FULL)"
)
_WHOSE = (
    "a row left this key within a transaction in which another one came to it, or may have come before this batch, and the event "
    "does not say which row it is; a table with groups of columns, aggregates or first rows does not count the rows of a key: "
    "delete the row if the source has none with this key (PostgreSQL's REPLICA IDENTITY FULL says which row left)"
)
_KEYS_AT_ONCE = 256
_INT63 = (1 << 63) - 1
_PLACES_MAX = 100
"""Of so many changes that are no moves the place is looked up, so that they are known if they are sent again."""


class Events(Describing, Protocol):
    """What records say, by their numbers."""

    def earlier_row(self, number: int) -> EarlierRow | None:
        """What it says of the old row."""


@dataclass(slots=True)
class _Moves:
    """Change rows with what is known of moves."""

    rows: pa.Table
    bad: list[tuple[int, str]] = field(default_factory=list)
    """The numbers of records whose rows are left out, and why."""
    ignored: int = 0
    """Records of which nothing is left beside others, because they undo each other, or were sent again."""
    remarks: list[Found] = field(default_factory=list)
    last: Mapping[Place, Last] = field(default_factory=dict)
    """The last record of each partition, where its transaction is known."""


class BatchMoves:
    """Finds out what is part of a move among the change rows of a batch."""

    def __init__(
        self,
        rows: pa.Table,
        at: _Mask,
        creates: _Mask,
        records: pa.Table,
        events: Events,
        decoder_schema: DecoderSchema,
        *,
        regions: Sequence[tuple[int, int]],
        before: Mapping[Place, Last],
    ) -> None:
        """Keep what is known of the batch.

        Args:
            rows: Change rows, in the order of their records.
            at: For each row twice the number of its record; one more for the second row of a record.
            creates: For each row whether its event says that the row is new.
            records: The records of the batch.
            events: What the records say.
            decoder_schema: The schema of the table.
            regions: The records of each partition that follow each other (``places.regions_of``).
            before: The last record of each partition that earlier batches read.
        """
        self._rows = rows
        self._numbers: _Mask = at // 2
        self._records = records
        self._events = events
        self._schema = decoder_schema
        self._deletes: _Mask = np.asarray(pc.equal(rows.column(OP_COLUMN), DELETE))
        self._values = records.column("value")
        self._keys_of_rows: dict[int, tuple[Any, ...]] = {}
        self._changes_of: dict[int, Sequence[int]] = {}
        """The rows whose changes a row stands for, where these are not just its own."""
        self._bad: set[int] = set()
        self._guessed: set[int] = set()
        """Rows without headers that look like a move."""
        self._transactions = Transactions(records, events, regions, before)
        self._marked = self._moved(at)
        self._creates = creates & ~self._deletes

    def found(self) -> _Moves:
        """The rows with what is known of moves."""
        if not self._schema.keys:
            return _Moves(self._rows)
        if not len(self._rows):
            return _Moves(self._rows, last=self._transactions.last())
        bad, remarks = self._not_whole(), list[Found]()
        self._bad = {number for number, _ in bad}
        sequence = self._schema.sequence_column
        if sequence is not None:
            remarks += [(Remark.KEY_MOVED, sequence)] * self._lost(sequence)
            rows = self._rows.filter(pa.array(~np.isin(self._numbers, list(self._bad)))) if bad else self._rows
            return _Moves(rows, bad, remarks=remarks)
        if not self._schema.counts_rows:
            return self._uncounted(bad)
        suspects: list[list[int]] = []
        if HEADERS not in self._records.column_names:
            self._marked |= self._adjacent()
            suspects = self._suspects()
        count = len(self._rows)
        transactions = np.zeros(count, np.int64)
        counted = np.zeros(count, bool)
        void = np.zeros(count, bool)
        for rows_of_region in self._rows_of_regions():
            first = int(self._numbers[rows_of_region.start])
            if self._transactions.may_go_on(first):
                begin, end, transaction = self._transactions.run(first)
                if transaction is not None:
                    transactions[self._between(begin, end)] = transaction
        for group in self._marked_groups():
            name = self._transaction_of(group[0])
            transactions[group] = UNKNOWN_TRANSACTION if name is None else number_of(name)
            counted[group] = True
            if self._settle(group, void, is_marked=True) and not self._guessed.isdisjoint(group):
                remarks.append((Remark.KEY_MOVE_UNCLEAR, self._topic(group[0])))
        for group in suspects:
            if not counted[group].any():
                self._settle(group, void, is_marked=False)
        if self._bad:
            void |= np.isin(self._numbers, list(self._bad))
        void |= self._repeated()
        rows = self._arranged(transactions, counted, void)
        return _Moves(rows, bad, self._ignored(void), remarks, self._transactions.last())

    def _uncounted(self, bad: list[tuple[int, str]]) -> _Moves:
        """For a table that counts no rows. The newest change of a key counts, which is wrong only for a delete after a row came
        to its key in the same transaction. Old rows may say whose it is; if not, it is a bad record.
        """
        void = np.zeros(len(self._rows), bool)
        unclear, looked_at, remarks = set[int](), set[int](), list[Found]()
        suspects = self._suspects() if HEADERS not in self._records.column_names else []
        for group in self._marked_groups():
            looked_at.update(group)
            new = sorted(set(group) - self._sent_again(group))
            came = [at for at, row in enumerate(new) if not self._deletes[row] and self._came(row)]
            left = [row for row in new[came[-1] + 1 if came else 0 :] if self._deletes[row]]
            may_have_come = self._settle(group, void, is_marked=True) if came and left else self._goes_on(group[0])
            if left and may_have_come and self._guessed.isdisjoint(group):
                unclear.update(self._numbers[left].tolist())
            elif left and may_have_come and came:
                remarks.append((Remark.KEY_MOVE_UNCLEAR, self._topic(group[0])))
        for group in suspects:
            if looked_at.isdisjoint(group):
                self._settle(group, void, is_marked=False)
        self._bad |= unclear
        void |= np.isin(self._numbers, list(self._bad)) | self._repeated()
        bad = [*bad, *((number, _WHOSE) for number in sorted(unclear - {number for number, _ in bad}))]
        rows = self._rows.filter(pa.array(~void)) if void.any() else self._rows
        return _Moves(rows, bad, self._ignored(void), remarks, self._transactions.last())

    def _goes_on(self, row: int) -> bool:
        """Whether the transaction of a change may have begun before this batch."""
        number = int(self._numbers[row])
        begin = self._transactions.run(number)[0]
        return begin == self._transactions.region(number)[0] and self._transactions.may_go_on(number)

    def _ignored(self, void: _Mask) -> int:
        """How many records came to nothing."""
        gone = set(self._numbers[void].tolist()) - self._bad
        gone.difference_update(self._numbers[~void].tolist())
        return len(gone)

    def _lost(self, sequence: str) -> int:
        """How many rows came to a key, and are older by a column than a delete of the row that was there before."""
        came = np.flatnonzero(self._marked & ~self._deletes).tolist()
        if not came:
            return 0
        keys, values = {self._key(row) for row in came}, plain(self._rows.column(sequence)).to_pylist()
        newest: dict[tuple[Any, ...], tuple[Any, int]] = {}
        for row in np.flatnonzero(self._deletes).tolist():
            if (key := self._key(row)) in keys and values[row] is not None:
                newest[key] = max(newest.get(key, (values[row], row)), (values[row], row))
        return sum(self._key(row) in newest and (values[row], row) < newest[self._key(row)] for row in came)

    # What is marked --------------------------------------------------------------------------------------------------

    def _moved(self, at: _Mask) -> _Mask:
        """Rows of records that say by a header, or by an old row with another key, that a row got another key."""
        second = at % 2 == 1
        marked = np.isin(self._numbers, self._numbers[second]) if second.any() else second
        headers = headers_of(self._records)
        for name, deletes in ((NEW_KEY, True), (OLD_KEY, False)):
            values = values_of(headers, name)
            if values is not None:
                marked |= np.asarray(values.is_valid())[self._numbers] & (self._deletes == deletes)
        return marked

    def _not_whole(self) -> list[tuple[int, str]]:
        """Records with a row that came to another key without all its values. A row that is really new always has them."""
        unsent = self._rows.column(UNAVAILABLE_COLUMN)
        if unsent.null_count == len(unsent):
            return []
        found = []
        for row in np.flatnonzero((self._marked | self._creates) & ~self._deletes).tolist():
            if names := unsent[row].as_py():
                found.append((int(self._numbers[row]), _NOT_WHOLE.format(", ".join(map(repr, names)))))
        return found

    def _adjacent(self) -> _Mask:
        """Without headers: deletes right before a create of another key, and these, in the last transaction of each partition."""
        follows, is_last = np.zeros((2, len(self._rows)), bool)
        follows[1:] = self._deletes[:-1] & ~self._deletes[1:]
        for rows in self._rows_of_regions():
            if follows[rows].any():
                begin, end, transaction = self._transactions.run(int(self._numbers[rows.stop - 1]))
                is_last[self._between(begin, end)] = transaction is not None
        return self._moves_of(np.flatnonzero(follows & is_last))

    def _moves_of(self, rows: _Mask) -> _Mask:
        """The rows of the moves that creates may be part of: right after a delete of another key in their transaction."""
        found = np.zeros(len(self._rows), bool)
        rows = rows[self._creates[rows]]
        if not len(rows):
            return found
        begins = np.array([begin for begin, _ in self._transactions.regions])
        begin = begins[np.searchsorted(begins, self._numbers[rows], "right") - 1]
        is_first = (rows == 0) | (self._numbers[rows - 1] < begin)
        found[rows[is_first]] = True  # what came before is not known
        rows = rows[~is_first & self._deletes[rows - 1]]
        keys = zip(self._keys(rows - 1), self._keys(rows), strict=True)
        rows = rows[np.array([one != other for one, other in keys], bool)]
        rows = rows[self._transactions.are_one(self._numbers[rows - 1], self._numbers[rows])]
        moves = np.union1d(rows - 1, rows)
        found[moves] = True
        self._guessed.update(moves.tolist())
        return found

    def _suspects(self) -> list[list[int]]:
        """Without headers: the changes of keys of which a row was created and one deleted later, in one transaction."""
        came, left = self._created_and_deleted()
        came = came[self._transactions.are_one(self._numbers[came], self._numbers[left])]
        if not len(came):
            return []
        chosen = set(self._keys(came))
        has_key = np.ones(len(self._rows), bool)
        for name in self._schema.keys:
            column = self._rows.column(name)
            has_key &= np.asarray(pc.is_in(column, value_set=column.take(pa.array(came)).combine_chunks()))
        rows = np.flatnonzero(has_key)
        groups: dict[tuple[tuple[Any, ...], int], list[int]] = {}
        ids = self._transactions.ids(self._numbers[rows])
        for row, key, id in zip(rows.tolist(), self._keys(rows), ids.tolist(), strict=True):
            if key in chosen and id >= 0:
                groups.setdefault((key, id), []).append(row)
        found, creates = [], list[int]()
        for group in groups.values():
            of_group = [row for row in group if self._creates[row]]
            if of_group and self._deletes[group[-1]] and of_group[0] < group[-1]:
                found.append(group)
                creates += of_group
        self._marked |= self._moves_of(np.array(sorted(creates), np.int64))
        return found

    def _created_and_deleted(self) -> tuple[_Mask, _Mask]:
        """Creates, and the delete that comes next among the creates and deletes of the key."""
        creates, deletes = np.flatnonzero(self._creates), np.flatnonzero(self._deletes)
        for name in self._schema.keys:  # which leaves few
            column = self._rows.column(name)
            created, deleted = (column.take(pa.array(some)).combine_chunks() for some in (creates, deletes))
            is_both = np.asarray(pc.is_in(created, value_set=deleted))
            creates, created = creates[is_both], created.filter(pa.array(is_both))
            deletes = deletes[np.asarray(pc.is_in(deleted, value_set=created))]
        rows = np.union1d(creates, deletes)
        keys = np.zeros(len(rows), np.int64)
        for name in self._schema.keys:
            encoded = self._rows.column(name).take(pa.array(rows)).combine_chunks().dictionary_encode()
            keys = np.unique(keys * (len(encoded.dictionary) + 1) + np.asarray(encoded.indices), return_inverse=True)[1]
        order = np.argsort(keys, kind="stable")
        rows, keys = rows[order], keys[order]
        goes = self._creates[rows[:-1]] & self._deletes[rows[1:]] & (keys[:-1] == keys[1:])
        return rows[:-1][goes], rows[1:][goes]

    def _marked_groups(self) -> list[list[int]]:
        """The changes of each key and transaction of which one is marked."""
        groups: list[list[int]] = []
        runs: dict[tuple[int, int, str | None], list[int]] = {}
        latest: dict[str | None, tuple[int, int]] = {}
        for row in np.flatnonzero(self._marked).tolist():
            number, transaction = int(self._numbers[row]), self._transaction_of(row)
            begin, end = latest.get(transaction, (0, 0))
            if not begin <= number < end:
                begin, end = latest[transaction] = self._transactions.run(number)[:2]
            runs.setdefault((begin, end, transaction), []).append(row)
        for (begin, end, transaction), marked in runs.items():
            keys: dict[tuple[Any, ...], list[int]] = {self._key(row): [] for row in marked}
            within = self._between(begin, end)
            for row in range(within.start, within.stop):
                if (key := self._key(row)) in keys and self._transaction_of(row) == transaction:
                    keys[key].append(row)
            groups += keys.values()
        return groups

    # Whose delete it is ----------------------------------------------------------------------------------------------

    def _settle(self, group: list[int], void: _Mask, *, is_marked: bool) -> bool:
        """Find the row that stands for the changes of a key in one transaction, as far as old rows say whose they are.

        Returns whether an old row does not say it.
        """
        again = self._sent_again(group) | {row for row in group if int(self._numbers[row]) in self._bad}
        void[list(again)] = True
        counted = [row for row in group if row not in again]
        came: list[list[int]] = []
        own: list[int] = []
        gone: set[int] = set()
        for row in counted:
            if not self._deletes[row] and self._came(row):
                came.append([row])
                continue
            at = self._whose(row, came) if came else -1
            if at is None:
                return True
            if not self._deletes[row]:
                (own if at == -1 else came[at]).append(row)
            elif at == -1:
                own.append(row)
            elif is_marked:
                gone |= {row, *came.pop(at)}
            else:
                return False
        kept = came[-1] if came else own
        if not is_marked:
            void[own if came else []] = True
        elif counted:
            if self._schema.counts_rows:  # else rows that came and left again leave nothing
                kept = kept or [row for row in counted if self._deletes[row]][-1:]
                self._changes_of.update(dict.fromkeys(kept, ()))
                self._changes_of[kept[-1]] = counted
            void[list(set(counted).difference(kept))] = True
        return False

    def _whose(self, row: int, came: Sequence[Sequence[int]]) -> int | None:
        """Which row that came the old row of a change is; -1: none of them, None: it does not say."""
        old = self._earlier_row(int(self._numbers[row]))
        if old is None:
            return None
        same = [is_same(old, self._rows, rows[-1], self._schema) for rows in came]
        if True in same:
            return len(same) - 1 - same[::-1].index(True)
        return -1 if not any(one is None for one in same) else None

    def _repeated(self) -> _Mask:
        """Tombstones that say once more what the record before them said: in a topic of rows both are deletes."""
        found = np.zeros(len(self._rows), bool)
        for row in np.flatnonzero(self._marked & self._deletes).tolist():
            number = int(self._numbers[row])
            is_next = row > 0 and self._deletes[row - 1] and self._numbers[row - 1] == number - 1
            found[row] = is_next and not self._values[number].is_valid and self._key(row - 1) == self._key(row)
        return found

    def _sent_again(self, group: Sequence[int]) -> set[int]:
        """Changes of a transaction that a connector sends again."""
        again: set[int] = set()
        last: tuple[int, bool] | None = None
        for row in group:
            place = self._place(row)
            if place is None:
                continue
            here = (place, bool(self._deletes[row]))
            if last is not None and (place < last[0] or here == last):
                again.add(row)
            else:
                last = here
        return again

    def _came(self, row: int) -> bool:
        return bool(self._marked[row] or self._creates[row])

    # Columns ---------------------------------------------------------------------------------------------------------

    def _arranged(self, transactions: _Mask, counted: _Mask, void: _Mask) -> pa.Table:
        """The rows with the changes that they stand for, without those that came to nothing."""
        kept, rows = np.flatnonzero(~void), self._rows
        if void.any():
            rows = rows.take(pa.array(kept))
        if not transactions.any():
            return rows
        lengths = (transactions != 0).astype(np.int32)
        for row, changes in self._changes_of.items():
            lengths[row] = len(changes)
        offsets = np.concatenate([[0], np.cumsum(lengths[kept], dtype=np.int32)])
        listed = np.repeat(kept, lengths[kept])
        for row, changes in self._changes_of.items():
            if changes and not void[row]:
                begin = offsets[np.searchsorted(kept, row)]
                listed[begin : begin + len(changes)] = changes
        counts = np.where(self._deletes, LEFT.code, np.where(self._marked | self._creates, CAME.code, STAYED.code))
        counts = np.where(counted, counts, counts + WEAK)
        columns = (
            pa.array(transactions[listed]),
            self._places(transactions != 0, counted).take(pa.array(listed)),
            pa.array(self._deletes[listed]),
            pa.array(counts[listed], pa.int16()),
        )
        changes = pa.StructArray.from_arrays(columns, fields=list(MOVES_TYPE.value_type))
        is_whole = pa.array(transactions[kept] == 0)
        moves = pa.ListArray.from_arrays(pa.array(offsets), changes, type=MOVES_TYPE, mask=is_whole)
        return rows.append_column(MOVES_COLUMN, moves)

    def _places(self, wanted: _Mask, counted: _Mask) -> pa.Array:
        """The places of changes in the source's log; of those that are not counted perhaps not all."""
        places, has_place = np.zeros(len(counted), np.int64), np.zeros(len(counted), bool)
        others = np.flatnonzero(wanted & ~counted)[:_PLACES_MAX]
        for row in [*np.flatnonzero(counted).tolist(), *others.tolist()]:
            place = self._place(row)
            places[row], has_place[row] = place or 0, place is not None
        return pa.array(places, mask=~has_place)

    # Records and their rows ----------------------------------------------------------------------------------------

    def _between(self, begin: int, end: int) -> slice:
        """The rows of records from one number to before another one."""
        low, high = np.searchsorted(self._numbers, [begin, end]).tolist()
        return slice(low, high)

    def _rows_of_regions(self) -> list[slice]:
        """The rows of each region that has some."""
        rows = [self._between(*region) for region in self._transactions.regions]
        return [one for one in rows if one.start < one.stop]

    def _earlier_row(self, number: int) -> EarlierRow | None:
        try:
            return self._events.earlier_row(number)
        except Exception:
            return None

    def _transaction_of(self, row: int) -> str | None:
        """No row has one that a snapshot reads while changes go on."""
        found = self._transactions.described(int(self._numbers[row]))
        return None if found is None else found.transaction

    def _place(self, row: int) -> int | None:
        found = self._transactions.described(int(self._numbers[row]))
        if found is None or found.transaction is None:
            return self._content(row) if self._marked[row] else None
        return found.place

    def _content(self, row: int) -> int:
        """A number for what a change says, which is the same if it is sent again."""
        values = [python_values(self._rows.column(name).slice(row, 1)) for name in self._schema.columns.names]
        return number_of(repr([values, mappings_of(self._records.slice(int(self._numbers[row]), 1))])) & _INT63

    def _topic(self, row: int) -> str:
        return str(self._records.column("topic")[int(self._numbers[row])].as_py())

    def _key(self, row: int) -> tuple[Any, ...]:
        if row not in self._keys_of_rows:
            # The next ones, too: a single value of a column costs as much as some hundred.
            rows = np.arange(row, min(row + _KEYS_AT_ONCE, len(self._rows)))
            self._keys_of_rows.update(zip(rows.tolist(), self._keys(rows), strict=True))
        return self._keys_of_rows[row]

    def _keys(self, rows: _Mask) -> list[tuple[Any, ...]]:
        columns = [plain(self._rows.column(name).take(pa.array(rows))).to_pylist() for name in self._schema.keys]
        return list(zip(*columns, strict=True))
