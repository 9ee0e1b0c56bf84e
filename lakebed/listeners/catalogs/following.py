"""The destination of a listener that is a catalog: its entries follow the tables.

1. What events say does not matter, only of which tables they are: whatever came in a round, the entry is made what the table is
   now. So it does not matter either how often an event comes, or which one is the last.
2. A table that is dropped, gone, or not published for Iceberg any more, has no entry.
3. After a write the table is looked at again: who was slow, and wrote something old meanwhile, finds that out.
4. For Iceberg the entry names metadata that has all events of the round. Maintenance publishes it. Where it does not within
   ``_PUBLISH_PAUSES`` times ``lakebed.iceberg_seconds``, the version is published here; then it is certain also that nothing was
   to be published.

A catalog that does not answer concerns all tables; what it does not take of one table concerns that one.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lakebed.errors import InvalidInput, LakebedError, TableNotFound
from lakebed.iceberg.metadata import metadata_name
from lakebed.iceberg.publisher import Publisher
from lakebed.listeners.catalogs.entry import (
    CatalogClient,
    Entry,
    Unavailable,
    entry_of,
    is_same,
    name_of,
    owned_by,
)
from lakebed.listeners.catalogs.glue import GlueClient
from lakebed.listeners.catalogs.hive import HiveClient
from lakebed.listeners.catalogs.rest import RestClient
from lakebed.listeners.destination import Failure, Groups, Sent
from lakebed.listeners.event_types import DEFINITION_KINDS, Dropped, TableEvent
from lakebed.listeners.feed import name_below
from lakebed.listeners.targets import Catalog
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.storage.data_files import open_part_storage

_SEND_SECONDS_MAX = 30.0  # no table is begun later in a round
_TABLES_MAX = 256  # whose logs are kept in memory
_WRITES_MAX = 5  # of one table in a round
_PUBLISH_PAUSES = 3
_LOOK_SECONDS = 1.0  # between two looks for metadata that maintenance may publish


@dataclass(slots=True)
class _Table:
    log: TableLog
    publisher: Publisher
    waits_since: float | None = None  # for metadata of Iceberg that has an event
    look_at: float = -math.inf  # when that is looked for next


class CatalogDestination:
    """A catalog. ``source``: the root that the tables are below; ``root_of``: where one is, None if it is gone."""

    def __init__(
        self,
        target: Catalog,
        source: str,
        root_of: Callable[[str], str | None],
        *,
        connect: Callable[[Catalog], CatalogClient] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._source = source
        self._root_of = root_of
        self._connect = connect or _client_of
        self._clock = clock
        self._client: CatalogClient | None = None
        self._tables: OrderedDict[str, _Table] = OrderedDict()
        self._unpublished: dict[str, str] = {}  # the ids of tables that are not for Iceberg, by root

    def send(self, groups: Groups) -> Mapping[str, Sent]:
        """Make the entries of tables what the tables are. Raises MissingPrerequisite."""
        ends_at = self._clock() + _SEND_SECONDS_MAX
        sent = dict.fromkeys(groups, Sent(0))
        for table, events in groups.items():
            if self._clock() >= ends_at:
                break
            try:
                sent[table] = Sent(len(events) if self._follow(table, events) else 0)
            except Unavailable as error:
                self.close()
                reason = f"{self._target.url} does not answer: {error}"
                sent[table] = Sent(0, Failure(reason=reason, is_of_all=True))
                break
            except LakebedError as error:
                sent[table] = Sent(0, Failure(reason=f"{table}: {error}"))
        return sent

    def close(self) -> None:
        """Let go of the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _follow(self, table: str, events: Sequence[TableEvent]) -> bool:
        """Make one entry what its table is; False if Iceberg's metadata does not have the events yet."""
        client = self._client = self._client or self._connect(self._target)
        name, last, root = name_of(table, self._target.database), events[-1], self._root_of(table)
        if self._unpublished.get(root or "") == last.table_id and not any(
            event.kind in DEFINITION_KINDS for event in events
        ):
            return True
        try:
            if root is None or isinstance(last, Dropped):
                raise TableNotFound(f"{table} is gone")
            found, written = self._table(root, last.table_id), None
            for _ in range(_WRITES_MAX):
                entry = self._entry(found, root, last.version)
                if entry is None:
                    return False
                if (written and is_same(written, entry)) or not client.ensure(name, entry):
                    break
                written = entry
            found.waits_since, found.look_at = None, -math.inf
        except TableNotFound:
            self._tables.pop(root or "", None)
            client.drop(name, owned_by(lambda at: self._is_of(table, at), last.table_id))
        return True

    def _is_of(self, table: str, root: str) -> bool:
        """Whether a root is that of a table, which may be gone."""
        is_below = root == self._source or root.startswith(f"{self._source.rstrip('/')}/")
        return is_below and name_below(self._source, root) == table

    def _entry(self, table: _Table, root: str, version: int) -> Entry | None:
        """The entry of the newest version; None to wait for metadata. Raises TableNotFound if there is to be none."""
        snapshot = table.log.refresh()
        if not self._target.is_iceberg:
            return entry_of(snapshot, root)
        self._unpublished.pop(root, None)
        if not snapshot.settings.iceberg:
            self._unpublished[root] = snapshot.metadata.id
            raise TableNotFound(f"lakebed.iceberg is off for {root}")
        now = self._clock()
        if now < table.look_at:
            return None
        head = table.publisher.head()
        if head is not None and head.document["location"] != table.publisher.location:
            head = None  # it is of the place that the table was copied from
        if head is not None and head.version >= version:
            location = f"{root}/{metadata_name(head.number)}"
            return entry_of(snapshot, root, metadata_location=location, version=head.version)
        table.waits_since = now if table.waits_since is None else table.waits_since
        if now - table.waits_since < _PUBLISH_PAUSES * snapshot.settings.iceberg_seconds:
            table.look_at = now + _LOOK_SECONDS
            return None
        published = table.publisher.publish(snapshot)
        return entry_of(snapshot, root, metadata_location=published.metadata, version=published.version)

    def _table(self, root: str, table_id: str) -> _Table:
        """What is kept of a table for Iceberg, of which any commit may be an event. A log does not see that it was made anew."""
        known = self._tables.pop(root, None)
        if known is None or (known.log.newest is not None and known.log.newest.metadata.id != table_id):
            log, storage = TableLog(open_store(root)), open_part_storage(root)
            known = _Table(log, Publisher(log, storage))
        if self._target.is_iceberg:
            self._tables[root] = known
        if len(self._tables) > _TABLES_MAX:
            self._tables.popitem(last=False)
        return known


def _client_of(target: Catalog) -> CatalogClient:
    """The catalog itself. Raises MissingPrerequisite, Unavailable."""
    match target.scheme:
        case "thrift":
            return HiveClient(target)
        case "glue":
            return GlueClient(target)
        case "http" | "https":
            return RestClient(target)
        case _:
            raise InvalidInput(f"{target.url!r} is no catalog")
