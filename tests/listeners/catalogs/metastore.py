"""What tests ask a metastore of Hive, by the client that PyIceberg brings."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import NoSuchObjectException
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport


@contextmanager
def client_of(url: str) -> Iterator[Any]:
    """A client while the block runs."""
    parts = urllib.parse.urlsplit(url)
    transport = TBufferedTransport(TSocket(parts.hostname, parts.port))
    transport.open()
    try:
        yield Client(TBinaryProtocol(transport))
    finally:
        transport.close()


def table_in(url: str, database: str, table: str) -> Any:
    """An entry, None if there is none."""
    with client_of(url) as client:
        try:
            return client.get_table(database, table)
        except NoSuchObjectException:
            return None
