"""The stores a log can live in, behind one small protocol.

A log needs three things of a store: read one object, put one object only if its name is free, and list names from a
point on. ``put_if_absent`` is the only synchronisation between writers, so it must be atomic (invariant M1): see
``lakebed.log.stores.probe``.

A put has three outcomes. It succeeded; another writer's object has the name; or nobody knows (the answer was lost), which
the store reports as ``StoreUnavailable`` and the caller resolves by reading the name back.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class QuickStore(Protocol):
    """A store that knows a cheaper way to find out whether an object is there than to read it."""

    def has(self, name: str) -> bool:
        """Whether the object is there. Raises StoreUnavailable if the store fails."""
        ...


def has_object(store: LogStore, name: str) -> bool:
    """Whether a store has an object, asked in one request. Raises StoreUnavailable."""
    if isinstance(store, QuickStore):
        return store.has(name)
    try:
        store.read(name)
    except FileNotFoundError:
        return False
    return True


class LogStore(Protocol):
    """Named immutable objects below one root; names are relative paths with ``/``, such as ``_delta_log/0…0.json``."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create the object durably; False if the name is taken. Raises StoreUnavailable if the outcome is unknown."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Create or replace the object durably and atomically (a hint or a checkpoint, never a commit)."""
        ...

    def read(self, name: str) -> bytes:
        """The object's bytes. Raises FileNotFoundError if there is none, StoreUnavailable if the store fails."""
        ...

    def list_from(self, folder: str, start: str) -> list[str]:
        """Base names of the objects directly in ``folder``, at or after ``start``, in byte order. None: an empty list."""
        ...

    def delete(self, name: str) -> None:
        """Remove the object; removing a name that is not there is no error."""
        ...
