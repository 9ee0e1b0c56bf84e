"""What tests ask a metastore of Hive, by the client that PyIceberg brings."""

from __future__ import annotations

import select
import socket
import threading
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


class Losing:
    """A way to a metastore on which the answer to a request is lost, and the connection with it, once the metastore has acted."""

    def __init__(self, url: str) -> None:
        self.loses = b""  # the name of the request; empty again once that was done
        self.writes = 0
        self._metastore = urllib.parse.urlsplit(url)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"thrift://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, name="losing")

    def __enter__(self) -> Losing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        """Connections in turn: a new one ends the one before."""
        while True:
            try:
                caller, _ = self._listening.accept()
            except OSError:
                return
            with caller, socket.create_connection((self._metastore.hostname, self._metastore.port)) as metastore:
                self._carry(caller, metastore)

    def _carry(self, caller: socket.socket, metastore: socket.socket) -> None:
        is_lost = False
        while True:
            ready, _, _ = select.select([caller, metastore, self._listening], [], [])
            if self._listening in ready:
                return
            source = caller if caller in ready else metastore
            data = source.recv(1 << 16)
            if is_lost and source is metastore:
                self.loses = b""
                return
            if not data:
                return
            if source is caller:
                self.writes += any(name in data for name in (b"create_", b"alter_", b"drop_"))
                is_lost = is_lost or bool(self.loses and self.loses in data)
            (metastore if source is caller else caller).sendall(data)
