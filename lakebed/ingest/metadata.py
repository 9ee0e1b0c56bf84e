"""Metadata of an event by name, which ``sequence_by`` may refer to in place of a column of the table.

``source.pos`` of MariaDB and MySQL begins anew with each file of the server's binary log. So it stands for the file's number
and the position in the file, as one number: ``number << 40 | pos``. It counts within the log of one server.

``source.lsn`` of PostgreSQL is where a change is in the log, which is no order of commits: a transaction may write, and commit
after others that wrote later. So it stands for the greater one of it and of the last commit before its transaction, which is
the first text of ``source.sequence``. Changes of one row by several transactions are in the order of ``lsn`` anyway, since a
transaction waits for the one before it. But rows of an incremental snapshot are as of a moment between two commits: what commits
later is newer than they, wherever it is in the log. Changes of one row by one transaction may be equal: the later one counts.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.errors import InvalidSchema

ENVELOPE = ("ts_ms", "ts_us", "ts_ns")
PARENTS = ("source", "transaction", "kafka")
KAFKA = ("offset", "timestamp", "partition")
BINLOG_POSITION = ("source", "pos")
BINLOG_FILE = ("source", "file")
LOG_POSITION = ("source", "lsn")
LOG_SEQUENCE = ("source", "sequence")
FILE_NUMBER = re.compile(r"\.([0-9]+)\Z")
_LAST_COMMIT = r'^\["(?P<commit>[0-9]{1,18})"'
FILE_NUMBERS, POSITIONS_PER_FILE = 1 << 23, 1 << 40  # all positions fit into 63 bits


def metadata_path(name: str | None) -> tuple[str, str] | None:
    """``source.lsn`` as (source, lsn), ``ts_ms`` as ("", ts_ms). Raises ``InvalidSchema`` for any other name."""
    if name is None:
        return None
    if name in ENVELOPE:
        return "", name
    parent, _, member = name.partition(".")
    if parent not in PARENTS or not member or (parent == "kafka" and member not in KAFKA):
        raise InvalidSchema(
            f"sequence_by {name!r} is neither a column of the table nor metadata of an event: use a column, "
            f"{', '.join(ENVELOPE)}, source.<field>, transaction.<field> or kafka.<{'|'.join(KAFKA)}>"
        )
    return parent, member


def binlog_position(file: object, pos: int | None) -> int | None:
    """The place of an event in a server's binary log as one number; None if it has none. ``file``: as ``binlog.000007``."""
    number = _file_number(file)
    if number is None or pos is None or not 0 <= pos < POSITIONS_PER_FILE:
        return None
    return number * POSITIONS_PER_FILE + pos


def binlog_positions(files: pa.Array, positions: pa.Array) -> pa.Array:
    """``binlog_position`` of each event."""
    encoded = files.dictionary_encode()
    firsts = [
        None if number is None else number * POSITIONS_PER_FILE
        for number in map(_file_number, encoded.dictionary.to_pylist())
    ]
    in_range = pc.and_(pc.greater_equal(positions, 0), pc.less(positions, POSITIONS_PER_FILE))
    known = pc.if_else(in_range, positions, pa.scalar(None, pa.int64()))
    return pc.add(pa.array(firsts, pa.int64()).take(encoded.indices), known)


def log_position(sequence: object, lsn: int) -> int:
    """The place of an event in PostgreSQL's log in the order of commits. ``sequence``: as ``["39419360","39419152"]``."""
    found = re.match(_LAST_COMMIT, sequence) if isinstance(sequence, str) else None
    return max(lsn, int(found["commit"])) if found else lsn


def log_positions(sequences: pa.Array, lsns: pa.Array) -> pa.Array:
    """``log_position`` of each event; null where there is no ``lsn``."""
    commits = pc.struct_field(pc.extract_regex(sequences, _LAST_COMMIT), "commit").cast(pa.int64())
    return pc.if_else(lsns.is_valid(), pc.max_element_wise(lsns, commits), pa.scalar(None, pa.int64()))


def _file_number(file: object) -> int | None:
    found = FILE_NUMBER.search(file) if isinstance(file, str) else None
    number = int(found[1]) if found and len(found[1]) < 20 else None
    return number if number is not None and number < FILE_NUMBERS else None


def kafka_metadata(records: pa.RecordBatch, name: str) -> pa.Array:
    """A record's own offset, timestamp (milliseconds) or partition."""
    values = records.column(name)
    return values.view(pa.int64()) if name == "timestamp" else values.cast(pa.int64())
