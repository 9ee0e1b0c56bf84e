"""A table of MariaDB as one side of a comparison, read by PyMySQL in short statements, each of which is a transaction.

The position is the end of the server's binary log: ``number of the file << 40 | place in the file``, as ``source.pos`` orders
changes. MariaDB writes a transaction into its log before anybody sees its rows, so whatever a statement has read is below the
position that is taken after it.

A row has no mark that would tell that it changed and changed back between two readings. So more rounds have to find the same
difference (``comparing.STANDS_UNMARKED``).

The session reads only, in UTC, in utf8mb4. It has no snapshot between statements, so it holds back no purge.

``FrozenDatabase`` is the other way: one transaction, with a snapshot that InnoDB and the binary log make together, so it has
exactly the transactions below a position that MariaDB tells. Nothing is locked for it.

MySQL differs in a few names of settings. Nobody has tried it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import pyarrow as pa

from lakebed.decode.source_order import POSITIONS_PER_FILE, binlog_position
from lakebed.errors import InvalidInput, MissingPrerequisite, Retry
from lakebed.quoting import quote_for_spark as quote
from lakebed.verify.canonical import MARIADB, OfKey, Shape, key_texts, put, row_checksum, texts
from lakebed.verify.comparing import Key, Row, Span, States, Tally, Version
from lakebed.verify.source import Limit, SourceColumn, by_key, kept_rows
from lakebed.verify.types_of_mariadb import MariaDbType

if TYPE_CHECKING:
    import pymysql

_SCHEMES = ("mariadb", "mysql")
STATEMENT_SECONDS_MAX = 120
_CONNECT_SECONDS = 15
_PORT = 3306
_NAMES = "set names utf8mb4 collate utf8mb4_bin"
_SESSION = (
    "set session transaction isolation level read committed",
    "set session transaction read only",
    "set session time_zone = '+00:00', sql_mode = '', sql_select_limit = default, sql_big_selects = 1, "
    "lock_wait_timeout = 5, wait_timeout = 28800",
)
_OF_MARIADB = (
    f"set session max_statement_time = {STATEMENT_SECONDS_MAX}, in_predicate_conversion_threshold = 0",
    "set session old_mode = ''",
)
_OF_MYSQL = (f"set session max_execution_time = {STATEMENT_SECONDS_MAX * 1000}",)
_TLS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_cert", "ssl_verify_identity")
_KEYS_AT_ONCE = 500
_ENGINES = ("innodb", "rocksdb")
_PASSING = frozenset(
    [1040, 1053, 1152, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1226, 1317, 1412, 1927, 1969, 3024, 4031]
)
"""Errors of the server that may pass: too many connections, shut down, lost, killed, altered since a
snapshot, or too slow."""
_SLOW = frozenset([1205, 1317, 1969, 3024])
_CLIENT_ERRORS = range(2000, 3000)
_BYTE_ORDERS = ("binary", "utf8mb4_nopad_bin", "utf8mb3_nopad_bin", "utf8_nopad_bin", "utf8mb4_0900_bin")
GIVEN = "\0"
"""Where a query has a value that is given beside it."""
T = TypeVar("T")


class Database:
    """A connection to a server. Close it when done."""

    def __init__(self, url: str) -> None:
        """Raises MissingPrerequisite, InvalidInput, Retry."""
        try:
            import pymysql
        except ImportError:
            raise MissingPrerequisite("verify needs PyMySQL: pip install 'lakebed[verify]'") from None
        self._url, arguments = url, arguments_of(url)
        self._connection: pymysql.Connection[Any] = _asked(lambda: pymysql.connect(**arguments), connects=True)
        self.log_files = ""  # what the names of the binary log's files begin with
        self._transactions: dict[tuple[str, str], int] = {}
        self._newest = -1
        try:
            [(version,)] = self.all("select version()")
            self.is_mariadb = "mariadb" in str(version).lower()
            for statement in (*_SESSION, *(_OF_MARIADB if self.is_mariadb else _OF_MYSQL)):
                self.all(statement)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def all(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query, which has ``GIVEN`` for each of the values.

        Raises InvalidInput if the database refuses it, Retry if it does not answer.
        """
        sql = query.replace("%", "%%").replace(GIVEN, "%s") if values else query

        def ask() -> list[tuple[Any, ...]]:
            with self._connection.cursor() as cursor:
                cursor.execute(sql, tuple(values) or None)
                return list(cursor.fetchall())

        return _asked(ask)

    # -- The binary log --------------------------------------------------------------------------------------------------

    def position(self) -> int:
        """Where the binary log is written now. Raises InvalidInput if there is none, or if the user may not see it."""
        file, at = self._end()
        found = binlog_position(at, file)
        if found is None:
            raise InvalidInput(f"the database's binary log has the file {file}, whose name does not end in a number")
        self.log_files = file.rpartition(".")[0]
        self._newest = found
        if self.is_mariadb:
            [(transactions,)] = self.all("select @@global.gtid_binlog_pos")
            self._transactions = transactions_of(str(transactions or ""))
        return found

    def transactions_before(self, position: int) -> Mapping[tuple[str, str], int]:
        """The newest transaction of each domain when a position was taken; empty if it is not the one taken last."""
        return self._transactions if position == self._newest else {}

    def file_of(self, position: int) -> tuple[str, int]:
        """The file of a position and the place in it."""
        number, place = divmod(position, POSITIONS_PER_FILE)
        return f"{self.log_files}.{number:06d}", place

    def has_rows_between(self, begin: int, end: int) -> bool:
        """Whether the binary log may have changes of rows between two positions of one file."""
        file, place = self.file_of(begin)
        if self.file_of(end)[0] != file:
            return True
        events = f"show binlog events in {GIVEN} from {place} limit {_EVENTS_MAX}"
        try:
            found = self.all(events, [file])
        except InvalidInput:  # the user may not see them
            return True
        last = max((int(event[4]) for event in found), default=0)
        return last < end % POSITIONS_PER_FILE or not all(_is_idle(str(event[2]), str(event[5])) for event in found)

    def _end(self) -> tuple[str, int]:
        statements = ["show master status"] if self.is_mariadb else ["show binary log status", "show master status"]
        for number, statement in enumerate(statements, 1):
            try:
                found = self.all(statement)
            except InvalidInput as error:
                if number < len(statements):
                    continue
                raise InvalidInput(
                    f"{error}; verify needs the privilege binlog monitor, or replication client"
                ) from None
            if found:
                return str(found[0][0]), int(found[0][1])
        raise InvalidInput(
            "the database writes no binary log (log_bin); give the url of the server that the connector reads"
        )

    # -- Tables ----------------------------------------------------------------------------------------------------------

    def name(self) -> str:
        """See ``SourceDatabase``."""
        [names] = self.all("select @@hostname, @@port, @@server_id")
        return repr(names)

    def columns(self, schema: str, table: str) -> list[SourceColumn]:
        """The columns of a table, in their order; generated ones too, which Debezium sends as the others.

        Raises InvalidInput if it is not there.
        """
        found = self.all(
            "select column_name, data_type, column_type, numeric_precision, numeric_scale, collation_name "
            f"from information_schema.columns where table_schema = {GIVEN} and table_name = {GIVEN} "
            "order by ordinal_position",
            [schema, table],
        )
        if not found:
            raise InvalidInput(f"the database has no table {schema}.{table} that this user may see")
        return [
            SourceColumn(
                name=name,
                type=_type_of(kind, shown, precision, scale, collation),
                shown=shown,
            )
            for name, kind, shown, precision, scale, collation in found
        ]

    def table(self, schema: str, table: str, shape: Shape) -> _MariaDbTable:
        """One of its tables, as a source."""
        return _MariaDbTable(self, schema, table, shape)

    def frozen(self, seconds_max: float) -> FrozenDatabase:
        """All of it as it is now. Raises InvalidInput if no snapshot has a position, Retry."""
        self.position()  # so that this one knows the names of its log's files, too
        return FrozenDatabase(self._url, seconds_max)


class FrozenDatabase(Database):
    """The database as it was at one position. See ``source.FrozenDatabase``."""

    _limit: Limit | None = None  # until the transaction has begun

    def __init__(self, url: str, seconds_max: float) -> None:
        """Raises InvalidInput, Retry."""
        super().__init__(url)
        try:
            if not self.is_mariadb:
                raise InvalidInput("MySQL does not tell at which position a snapshot is; compare without --snapshot")
            self.all("set session transaction isolation level repeatable read")
            self.all(f"set session idle_transaction_timeout = {math.ceil(seconds_max)}")
            self.all("start transaction with consistent snapshot, read only")
            found = {name.lower(): value for name, value in self.all("show status like 'binlog_snapshot_%'")}
            file, place = str(found.get("binlog_snapshot_file")), found.get("binlog_snapshot_position")
            position = binlog_position(int(place or 0), file)
            if position is None:
                raise InvalidInput(
                    "the database does not tell at which position a snapshot is: it writes no binary log"
                )
        except BaseException:
            self.close()
            raise
        self._position, self._limit = position, Limit(seconds=seconds_max)

    def position(self) -> int:
        """Where the binary log was."""
        return self._position

    def all(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """See ``Database``."""
        if self._limit is not None:
            self._limit.require_time()
        return super().all(query, values)

    def table(self, schema: str, table: str, shape: Shape) -> _MariaDbTable:
        """One of its tables. Raises InvalidInput if its engine has no snapshots."""
        which = f"where table_schema = {GIVEN} and table_name = {GIVEN}"
        for (engine,) in self.all(f"select engine from information_schema.tables {which}", [schema, table]):
            if str(engine).lower() not in _ENGINES:
                raise InvalidInput(f"{schema}.{table} has the engine {engine}, which has no snapshots; leave it out")
        return super().table(schema, table, shape)


_EVENTS_MAX = 200
_IDLE_EVENTS = ("Format_desc", "Rotate", "Gtid_list", "Gtid", "Binlog_checkpoint", "Stop", "Start_encryption")


def _is_idle(kind: str, what: str) -> bool:
    """Whether an event of the log is none of a row: neither a statement that may empty a table, nor of a kind unknown here."""
    return kind in _IDLE_EVENTS or (kind == "Query" and "truncate" not in what.lower())


def transactions_of(text: str) -> dict[tuple[str, str], int]:
    """The newest number by domain and server of a position of MariaDB's transactions, as ``0-1-100,1-2-30``."""
    found: dict[tuple[str, str], int] = {}
    for one in text.split(","):
        domain, _, rest = one.strip().partition("-")
        server, _, number = rest.partition("-")
        if number.isdecimal():
            found[domain, server] = max(found.get((domain, server), 0), int(number))
    return found


_MEMBER = re.compile("'((?:[^']|'')*)'")
_ESCAPED = re.compile(r"\\(.)|''")


def members_of(shown: str) -> tuple[str, ...]:
    """The members of a type as MariaDB shows it, such as ``enum('a','it''s')``."""
    controls = {"n": "\n", "r": "\r", "0": "\0", None: "'"}
    return tuple(_ESCAPED.sub(lambda found: controls.get(found[1], found[1]), one) for one in _MEMBER.findall(shown))


def _type_of(kind: str, shown: str, precision: int | None, scale: int | None, collation: str | None) -> MariaDbType:
    return MariaDbType(
        name=kind.lower(),
        is_unsigned="unsigned" in shown.lower(),
        precision=precision,
        scale=scale,
        is_ordered_by_bytes=collation is None or collation in _BYTE_ORDERS,
        members=members_of(shown) if kind in ("enum", "set") else (),
    )


class _MariaDbTable:
    """One table. See ``Source``."""

    def __init__(self, database: Database, schema: str, table: str, shape: Shape) -> None:
        self._database = database
        self._table = f"{quote(schema)}.{quote(table)}"
        self._shape = shape
        self._keys = key_texts(shape, MARIADB, of_source=True)
        self._columns = [quote(each.source_name) for each in shape.keys]
        self._checksum = row_checksum(shape, MARIADB, texts(shape, MARIADB, of_source=True))

    def position(self) -> int:
        """See ``Source``."""
        return self._database.position()

    def bound(self, after: Key | None, rows: int) -> Key | None:
        """See ``Source``."""
        where, values = self._where(Span(after=after, upto=None))
        names = ", ".join(self._columns)
        found = self._database.all(
            f"select {', '.join(self._keys)} from (select {names} from {self._table} where {where} "
            f"order by {names} limit 1 offset {rows - 1}) s",
            values,
        )
        return tuple(found[0]) if found else None

    def tally(self, span: Span) -> Tally:
        """See ``Source``."""
        where, values = self._where(span)
        [(rows, hashed, total)] = self._database.all(
            f"select count(*), count(h), cast(coalesce(sum(h), 0) as char) from (select {self._checksum} as h "
            f"from {self._table} where {where}) s",
            values,
        )
        if hashed != rows:
            raise self._too_long()
        return Tally(rows=rows, sum=int(total))

    def checksums(self, span: Span) -> Iterator[pa.Table]:
        """See ``Source``."""
        where, values = self._where(span)
        query = f"select {', '.join([*self._keys, self._checksum])} from {self._table} where {where}"
        yield kept_rows(self._whole(self._database.all(query, values)), len(self._keys))

    def states(self, keys: Sequence[Key]) -> States:
        """See ``Source``."""
        found = by_key(self._whole(self._of(keys, [self._checksum])), len(self._keys))
        return {key: [Version(*one) for one in rows] for key, rows in found.items()}

    def rows(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Row]]:
        """See ``Source``."""
        return by_key(self._of(keys, texts(self._shape, MARIADB, of_source=True)), len(self._keys))

    def _whole(self, found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Rows that all have a checksum, which is their last value: MariaDB gives null for one of a text that is too long."""
        if any(row[-1] is None for row in found):
            raise self._too_long()
        return found

    def _too_long(self) -> InvalidInput:
        return InvalidInput(f"a row of {self._table} is longer than the database's max_allowed_packet")

    def _of(self, keys: Sequence[Key], outputs: Sequence[str]) -> list[tuple[Any, ...]]:
        """The canonical keys and these outputs of the rows of some keys.

        The database may take several keys for the same one, as ``a`` and ``A``: a row has the key that it was written with.
        """
        found: list[tuple[Any, ...]] = []
        selected = ", ".join([*self._keys, *outputs])
        for begin, end in pairwise([*range(0, len(keys), _KEYS_AT_ONCE), len(keys)]):
            some, values = set(keys[begin:end]), list[object]()
            # Not `(a, b) in (…)`: with texts in latin1 MariaDB finds too few rows so.
            where = " or ".join(f"({self._equal(key, len(key), values)})" for key in keys[begin:end])
            rows = self._database.all(f"select {selected} from {self._table} where {where}", values)
            found += [row for row in rows if tuple(row[: len(self._keys)]) in some]
        return found

    def _where(self, span: Span) -> tuple[str, list[object]]:
        """Rows of tuples are not compared as such: MariaDB finds no range of an index by them."""
        conditions: list[str] = []
        values: list[object] = []
        for sign, last, key in ((">", ">", span.after), ("<", "<=", span.upto)):
            if key is not None:
                conditions.append(self._compared(sign, last, key, values))
        return " and ".join(conditions) or "true", values

    def _compared(self, sign: str, last: str, key: Key, values: list[object]) -> str:
        of_keys = self._shape.of_keys
        final = len(key) - 1
        beside = f"{self._columns[0]} {sign}= {_given(of_keys[0], key[0], values)} and " if final else ""
        either = []
        for at in range(len(key)):
            equal = f"{self._equal(key, at, values)} and " if at else ""
            either.append(
                f"{equal}{self._columns[at]} {last if at == final else sign} {_given(of_keys[at], key[at], values)}"
            )
        return f"({beside}({' or '.join(either)}))"

    def condition(self, keys: Sequence[Key]) -> str:
        """What is true of the rows of some keys, in SQL without values beside it, whatever the settings of a session are."""
        either = []
        for key in keys:
            values = list[object]()
            parts = self._equal(key, len(key), values).split(GIVEN)
            texts = [_constant(str(value)) for value in values]
            either.append("".join(part + text for part, text in zip(parts, [*texts, ""], strict=True)))
        return " or ".join(f"({one})" for one in either)

    def _equal(self, key: Key, count: int, values: list[object]) -> str:
        """That the first ``count`` columns of the key are those of a key."""
        return " and ".join(
            f"{self._columns[at]} = {_given(self._shape.of_keys[at], key[at], values)}" for at in range(count)
        )


def _given(of_key: OfKey, text: str, values: list[object]) -> str:
    """The value of a key, whose text is given beside the query."""
    value = put(of_key.source, GIVEN)
    values += [text] * value.count(GIVEN)
    return value


def _constant(text: str) -> str:
    """A text as hexadecimal digits, so that no mode of SQL reads it otherwise."""
    return f"_utf8mb4 x'{text.encode().hex()}'"


# -- The connection ------------------------------------------------------------------------------------------------------


def arguments_of(url: str) -> dict[str, Any]:
    """What a url says, as PyMySQL takes it. Raises InvalidInput, whose text has no password."""
    form = "it has the form mariadb://user:password@host:3306/database"
    try:
        parts = urlsplit(url)
        port = parts.port or _PORT
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError:
        raise InvalidInput(f"database.verify.url is no address of MariaDB; {form}") from None
    if parts.scheme not in _SCHEMES or not parts.hostname or not parts.username:
        raise InvalidInput(f"database.verify.url is no address of MariaDB; {form}")
    if unknown := sorted(options.keys() - set(_TLS)):
        raise InvalidInput(f"database.verify.url has the option {unknown[0]}; it may have {', '.join(_TLS)}")
    return {
        "host": parts.hostname,
        "port": port,
        "user": unquote(parts.username),
        "password": unquote(parts.password or ""),
        **({"database": name} if (name := _database_of(parts)) else {}),
        **{name: _is_true(value) if "verify" in name else value for name, value in options.items()},
        "charset": "utf8mb4",
        "collation": "utf8mb4_bin",
        "autocommit": True,
        "connect_timeout": _CONNECT_SECONDS,
        "read_timeout": STATEMENT_SECONDS_MAX + 30,
        "write_timeout": 30,
        "program_name": "lakebed verify",
        "local_infile": False,
    }


def _database_of(parts: SplitResult) -> str:
    return unquote(parts.path.removeprefix("/"))


def _is_true(value: str) -> bool:
    return value.lower() in ("1", "true", "yes", "on")


def _asked(ask: Callable[[], T], *, connects: bool = False) -> T:
    """What the database answers. Raises Retry, InvalidInput."""
    import pymysql

    try:
        return ask()
    except pymysql.MySQLError as error:
        code, said = _said(error)
        if code in _SLOW:
            raise Retry(f"the database took too long for a bucket of rows: {said}") from None
        if code in _PASSING or code in _CLIENT_ERRORS or isinstance(error, pymysql.InterfaceError) or code == 0:
            raise Retry(f"the database did not answer: {said}") from None
        if connects:
            raise InvalidInput(f"the database refuses the user or the address in database.verify.url: {said}") from None
        raise InvalidInput(f"the database refuses a query: {said}") from None
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # of TLS, of a file of certificates, or a package that is missing
        if connects and not isinstance(error, ConnectionError | TimeoutError):
            raise InvalidInput(f"database.verify.url: {_first_line(str(error))}") from None
        raise Retry(f"the database did not answer: {_first_line(str(error))}") from None


def _said(error: Exception) -> tuple[int, str]:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    return code, _first_line(str(error.args[-1] if error.args else error))


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
