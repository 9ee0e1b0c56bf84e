"""A table of PostgreSQL as one side of a comparison, read by psycopg in short statements, each of which is a transaction.

The position is where PostgreSQL inserts into its log. A transaction writes the record of its commit before anybody sees its rows,
so whatever a statement has read was committed below the position that is taken after it. The mark of a row is its ``xmin``, the
transaction that wrote it.

The session reads only, in UTC; it has no snapshot between statements, so it holds back neither vacuum nor a slot.

``FrozenDatabase`` is the other way: one transaction, with the snapshot that a temporary slot for logical decoding exports. It has
exactly the transactions that committed below the slot's consistent point, which are those that a connector has sent when its own
slot is there. The slot is gone as soon as the transaction has the snapshot, and with its connection whatever happens.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from lakebed.errors import InvalidInput, MissingPrerequisite, Retry
from lakebed.quoting import quote
from lakebed.verify.canonical import POSTGRES, Shape, key_texts, put, row_checksum, texts
from lakebed.verify.comparing import Key, Row, Span, States, Tally, Version
from lakebed.verify.source import Limit, SourceColumn, by_key, kept_rows
from lakebed.verify.types_of_postgres import SourceType

if TYPE_CHECKING:
    import psycopg

STATEMENT_SECONDS_MAX = 120
_CONNECT_SECONDS = 15
_TRANSACTIONS_SECONDS_MAX = 60  # how long a snapshot waits for transactions that run
_SETTINGS = {
    "timezone": "UTC",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "search_path": "pg_catalog",  # so that functions of these names in other schemas are not taken
    "row_security": "off",  # so that rows that a policy hides are an error, and not missing
    "standard_conforming_strings": "on",
    "default_transaction_isolation": "read\\ committed",
    "default_transaction_read_only": "on",
    "statement_timeout": f"{STATEMENT_SECONDS_MAX}s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "60s",
}
_CONNECTION: dict[str, Any] = {
    "autocommit": True,
    "connect_timeout": _CONNECT_SECONDS,
    "application_name": "lakebed verify",
}
_BYTE_ORDERS = ("C", "POSIX", "C.UTF-8", "C.utf8")
_REFUSALS = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password", "permission denied")
_NO_RIGHT = (
    "a snapshot needs a user that may make a replication slot: alter role NAME replication; without --snapshot tables are "
    "compared without a slot"
)
_REFUSED_REPLICATION = {
    "max_wal_senders": (
        "a snapshot needs a connection for replication, and all of the database's are in use; raise max_wal_senders"
    ),
    "WAL sender": _NO_RIGHT,
    "walsender": _NO_RIGHT,
}
GIVEN = "\0"
"""Where a query has a value that is given beside it. No name and no text of PostgreSQL has this character."""
T = TypeVar("T")


class Database:
    """A connection to a database. Close it when done."""

    log_files = ""

    def __init__(self, url: str) -> None:
        """Raises MissingPrerequisite, InvalidInput, Retry."""
        try:
            import psycopg
        except ImportError:
            raise MissingPrerequisite("verify needs psycopg: pip install 'lakebed[verify]'") from None
        self._url = url
        self._connection: psycopg.Connection[tuple[Any, ...]] = _connected(
            lambda: psycopg.connect(url, options=_options(url), **_CONNECTION)
        )
        [(encoding,)] = self.all("show server_encoding")
        if encoding != "UTF8":
            raise InvalidInput(f"the database has the encoding {encoding}; only UTF8 can be compared")

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def all(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query, which has ``GIVEN`` for each of the values.

        Raises InvalidInput if the database refuses it, Retry if it does not answer.
        """
        sql = query.replace("%", "%%").replace(GIVEN, "%s").encode()
        return _asked(lambda: self._connection.execute(sql, values).fetchall())

    def position(self) -> int:
        """Where the log is written now."""
        [(is_standby,)] = self.all("select pg_is_in_recovery()")
        if is_standby:
            raise InvalidInput(
                "the database is a standby, where rows show before their position does; give the url of the primary"
            )
        [(at,)] = self.all("select (pg_current_wal_insert_lsn() - '0/0')::bigint")
        return int(at)

    def slots(self) -> dict[str, int]:
        """The slots of this database for logical decoding, by name: up to where their readers have everything."""
        found = self.all(
            "select slot_name, (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots "
            "where slot_type = 'logical' and not temporary and database = current_database() and confirmed_flush_lsn is not null"
        )
        return {str(name): int(at) for name, at in found}

    def emit(self) -> None:
        """Write an empty message into the log, so that a slot's reader has something to confirm on a quiet database."""
        self.all("select pg_logical_emit_message(false, 'lakebed.verify', '')")

    def name(self) -> str:
        """See ``SourceDatabase``: a copy of all its files has the same one."""
        [(name,)] = self.all("select system_identifier || ':' || current_database() from pg_control_system()")
        return str(name)

    def columns(self, schema: str, table: str) -> list[SourceColumn]:
        """The columns of a table, in their order. Raises InvalidInput if it is not there."""
        found = self.all(
            "select a.attname, a.atttypid::bigint, a.atttypmod, format_type(a.atttypid, a.atttypmod), "
            "coalesce(case l.collprovider when 'd' then coalesce(to_jsonb(d) ->> 'datlocprovider', 'c') "
            "else l.collprovider::text end, 'b'), case l.collprovider when 'd' then d.datcollate else l.collcollate end, "
            "coalesce(to_jsonb(a) ->> 'attgenerated', '') <> '' "
            "from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace "
            "left join pg_collation l on l.oid = a.attcollation "
            "join pg_database d on d.datname = current_database() "
            f"where n.nspname = {GIVEN} and c.relname = {GIVEN} and a.attnum > 0 and not a.attisdropped order by a.attnum",
            (schema, table),
        )
        if not found:
            raise InvalidInput(f"the database has no table {schema}.{table} that this user may see")
        types = self._types({oid for _, oid, *_ in found})
        return [
            SourceColumn(
                name=name,
                type=_type_of(types, oid, modifier, provider == "b" or (provider == "c" and collation in _BYTE_ORDERS)),
                shown=shown,
                is_generated=generated,
            )
            for name, oid, modifier, shown, provider, collation, generated in found
        ]

    def table(self, schema: str, table: str, shape: Shape) -> PostgresTable:
        """One of its tables, as a source."""
        return PostgresTable(self, schema, table, shape)

    def frozen(self, seconds_max: float) -> FrozenDatabase:
        """All of it as it is now. Raises InvalidInput if the user may not have a slot or there is none left, Retry."""
        return FrozenDatabase(self._url, seconds_max)

    def _types(self, wanted: set[int]) -> dict[int, tuple[Any, ...]]:
        """What ``pg_type`` says of types, of what they are based on and of their elements."""
        known: dict[int, tuple[Any, ...]] = {}
        while wanted:
            for oid, *rest in self.all(
                "select oid::bigint, typname, typtype::text, typbasetype::bigint, typtypmod, "
                "case when typcategory = 'A' then typelem::bigint else 0 end, format_type(oid, null) from pg_type "
                f"where oid = any({GIVEN}::oid[])",
                (sorted(wanted),),
            ):
                known[oid] = tuple(rest)
            wanted = {each for _, _, base, _, element, _ in known.values() for each in (base, element) if each} - set(
                known
            )
        return known


def _type_of(types: Mapping[int, tuple[Any, ...]], oid: int, modifier: int, by_bytes: bool) -> SourceType:
    name, kind, base, base_modifier, element, written = types[oid]
    if kind == "d":
        return _type_of(types, base, base_modifier, by_bytes)
    inner = _type_of(types, element, modifier, by_bytes) if element else None
    return SourceType(
        name=name, modifier=modifier, kind=kind, written=written, element=inner, is_ordered_by_bytes=by_bytes
    )


class FrozenDatabase(Database):
    """The database as it was at one position. See ``source.FrozenDatabase``."""

    _limit: Limit | None = None  # until the transaction has its snapshot

    def __init__(self, url: str, seconds_max: float) -> None:
        """Raises InvalidInput, Retry."""
        super().__init__(url)
        try:
            with closing(_replication(url)) as replication:
                self._position, name = _exported(replication)
                self._run(f"set idle_in_transaction_session_timeout = '{math.ceil(seconds_max)}s'")
                self._run("begin isolation level repeatable read read only")
                self._run(f"set transaction snapshot {_constant(name)}")
        except BaseException:
            self.close()
            raise
        self._limit = Limit(seconds=seconds_max)

    def position(self) -> int:
        """The slot's consistent point."""
        return self._position

    def all(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """See ``Database``. A statement that fails does not end the transaction."""
        if self._limit is None:
            return super().all(query, values)
        self._limit.require_time()
        return _asked(lambda: self._saved(query, values))

    def _saved(self, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with self._connection.transaction():  # a savepoint, as there is one already
            return super().all(query, values)

    def _run(self, statement: str) -> None:
        _asked(lambda: self._connection.execute(statement.encode()))


def _replication(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection that takes commands of replication. Raises InvalidInput, Retry."""
    import psycopg

    options = f"{_options(url)} -c lock_timeout={_TRANSACTIONS_SECONDS_MAX}s"
    return _connected(
        lambda: psycopg.connect(url, options=options, replication="database", **_CONNECTION), _REFUSED_REPLICATION
    )


def _exported(replication: psycopg.Connection[tuple[Any, ...]]) -> tuple[int, str]:
    """The position and the name of a snapshot, which is there as long as the connection. Raises InvalidInput, Retry."""
    import psycopg

    slot = f"lakebed_verify_{uuid.uuid4().hex}"
    command = f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
    try:
        [(_, point, name, _)] = replication.execute(command.encode()).fetchall()
    except psycopg.errors.ConfigurationLimitExceeded:
        raise InvalidInput(
            "a snapshot needs a replication slot for a moment, and all of the database's are in use; raise "
            "max_replication_slots, or drop a slot that nobody reads"
        ) from None
    except psycopg.errors.LockNotAvailable:
        raise Retry(
            f"a snapshot waits until the transactions that run have ended, and one goes on for more than "
            f"{_TRANSACTIONS_SECONDS_MAX} seconds (pg_stat_activity)"
        ) from None
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        raise InvalidInput(f"the database can't make a snapshot: {_first_line(error)}") from None
    except psycopg.Error as error:
        raise Retry(f"the database made no snapshot: {_first_line(error)}") from None
    high, _, low = str(point).partition("/")
    return (int(high, 16) << 32) + int(low, 16), str(name)


class SlotConnector:
    """The connector that reads a slot. Debezium confirms in its slot what Kafka has acknowledged."""

    def __init__(self, database: Database, slot: str) -> None:
        self._database = database
        self._slot = slot

    def missing(self, position: int) -> str:
        """See ``Connector``."""
        confirmed = self._database.slots().get(self._slot)
        if confirmed is None:
            raise InvalidInput(
                f"the replication slot {self._slot} is gone, so nobody knows what the connector has sent"
            )
        if confirmed >= position:
            return ""
        return (
            f"the connector has confirmed {position - confirmed:,} bytes less of the database's log than is needed: "
            "does it run? On a quiet database it needs heartbeat.interval.ms"
        )

    def nudge(self) -> None:
        """See ``Connector``: an empty message of PostgreSQL's log."""
        self._database.emit()

    def close(self) -> None:
        """The connection is the database's."""


class PostgresTable:
    """One table. See ``Source``."""

    def __init__(self, database: Database, schema: str, table: str, shape: Shape) -> None:
        self._database = database
        self._table = f"{quote(schema)}.{quote(table)}"
        self._shape = shape
        self._keys = key_texts(shape, POSTGRES, of_source=True)
        self._names = ", ".join(quote(each.source_name) for each in shape.keys)
        self._texts = [f"c{at}" for at in range(len(shape.columns))]
        self._checksum = row_checksum(shape, POSTGRES, self._texts)
        self._key_texts = [f"c{shape.columns.index(key)}" for key in shape.keys]

    def position(self) -> int:
        """See ``Source``."""
        return self._database.position()

    def bound(self, after: Key | None, rows: int) -> Key | None:
        """See ``Source``."""
        where, values = self._where(Span(after=after, upto=None))
        found = self._database.all(
            f"select {', '.join(self._keys)} from (select {self._names} from {self._table} where {where} "
            f"order by {self._names} offset {rows - 1} limit 1) s",
            values,
        )
        return tuple(found[0]) if found else None

    def tally(self, span: Span) -> Tally:
        """See ``Source``."""
        where, values = self._where(span)
        [(rows, total)] = self._database.all(
            f"select count(*), coalesce(sum({self._checksum}), 0)::text from {self._rows(where)}", values
        )
        return Tally(rows=rows, sum=int(total))

    def checksums(self, span: Span) -> Iterator[pa.Table]:
        """See ``Source``."""
        where, values = self._where(span)
        query = f"select {', '.join([*self._key_texts, self._checksum])} from {self._rows(where)}"
        yield kept_rows(self._database.all(query, values), len(self._keys))

    def states(self, keys: Sequence[Key]) -> States:
        """See ``Source``."""
        found = by_key(self._of(keys, [self._checksum, "mark::text"]), len(self._keys))
        return {key: [Version(*one) for one in rows] for key, rows in found.items()}

    def rows(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Row]]:
        """See ``Source``."""
        return by_key(self._of(keys, self._texts), len(self._keys))

    def condition(self, keys: Sequence[Key]) -> str:
        """What is true of the rows of some keys, in SQL without values beside it, whatever the settings of a session are."""
        wanted = ", ".join(
            f"({', '.join(values)})"
            for key in keys
            for values in product(
                *(
                    [put(value, _constant(text)) for value in (one.source, one.source_too) if value]
                    for one, text in zip(self._shape.of_keys, key, strict=True)
                )
            )
        )
        return f"({self._names}) in ({wanted})"

    def _of(self, keys: Sequence[Key], outputs: Sequence[str]) -> list[tuple[Any, ...]]:
        """The canonical keys and these outputs of the rows of some keys."""
        keys = [key for key in keys if not any("\0" in text for text in key)]  # no row of PostgreSQL has it
        if not keys:
            return []
        numbers = range(len(self._keys))
        arrays = ", ".join(f"{GIVEN}::text[]" for _ in numbers)
        given = ", ".join(f"k{at}" for at in numbers)
        values = [
            [put(value, f"k{at}") for value in (one.source, one.source_too) if value]
            for at, one in enumerate(self._shape.of_keys)
        ]
        wanted = " union ".join(f"select {', '.join(each)} from given" for each in product(*values))
        query = (
            f"with given({given}) as (select * from unnest({arrays})) "
            f"select {', '.join([*self._key_texts, *outputs])} from {self._rows(f'({self._names}) in ({wanted})')}"
        )
        return self._database.all(query, [list(column) for column in zip(*keys, strict=True)])

    def _rows(self, where: str) -> str:
        """Rows with their canonical texts and marks. Without ``offset`` PostgreSQL would make a text each time it is used."""
        made = texts(self._shape, POSTGRES, of_source=True)
        named = ", ".join(f"{text} as {name}" for text, name in zip(made, self._texts, strict=True))
        return f"(select {named}, xmin as mark from {self._table} where {where} offset 0) r"

    def _where(self, span: Span) -> tuple[str, list[object]]:
        conditions: list[str] = []
        values: list[object] = []
        for sign, key in ((">", span.after), ("<=", span.upto)):
            if key is not None:
                bounds = [put(one.source, f"{GIVEN}::text") for one in self._shape.of_keys]
                conditions.append(f"({self._names}) {sign} ({', '.join(bounds)})")
                for bound, text in zip(bounds, key, strict=True):
                    values += [text] * bound.count(GIVEN)
        return " and ".join(conditions) or "true", values


def _constant(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"


def _options(url: str) -> str:
    """The settings of the session, after those that the url has. Raises InvalidInput."""
    import psycopg.conninfo

    try:
        own = psycopg.conninfo.conninfo_to_dict(url).get("options", "")
    except psycopg.Error:  # libpq's message has the whole url, and so a password
        raise InvalidInput(
            "database.verify.url is no address of PostgreSQL; it has the form postgresql://user:password@host:5432/database"
        ) from None
    return " ".join([*([str(own)] if own else []), *(f"-c {name}={value}" for name, value in _SETTINGS.items())])


def _connected(connect: Callable[[], T], refused: Mapping[str, str] = MappingProxyType({})) -> T:
    """A connection. A refusal has no code, so its text tells those that will come again. Raises InvalidInput, Retry.

    ``refused``: what is said instead, by what the refusal has.
    """
    try:
        return _asked(connect)
    except Retry as error:
        _, _, said = str(error).partition("did not answer: ")
        for text, sentence in refused.items():
            if text in said:
                raise InvalidInput(sentence) from None
        if any(text in said for text in _REFUSALS):
            raise InvalidInput(f"the database refuses the user or the address in database.verify.url: {said}") from None
        raise


def _asked(ask: Callable[[], T]) -> T:
    """What the database answers. Raises Retry, InvalidInput."""
    import psycopg

    try:
        return ask()
    except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable) as error:
        raise Retry(f"the database took too long for a bucket of rows: {_first_line(error)}") from None
    except psycopg.OperationalError as error:
        raise Retry(f"the database did not answer: {_first_line(error)}") from None
    except psycopg.Error as error:
        raise InvalidInput(f"the database refuses a query: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
