"""A log in the memory of one process: for simulation and for tests that need no disk."""

from __future__ import annotations

import threading

from lakebed.storage.counters import RequestCounter, StoreCounters


class MemoryLogStore:
    """``LogStore`` over a dictionary, atomic under one lock. It can't be sent to another process."""

    def __init__(self, root: str = "memory") -> None:
        self.root = root
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._counter = RequestCounter()

    def __repr__(self) -> str:
        return f"MemoryLogStore({self.root!r})"

    def counters(self) -> StoreCounters:
        """Operations so far, by kind."""
        return self._counter.value()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create the object; False if the name is taken."""
        self._counter.count("put_if_absent", bytes_written=len(data))
        with self._lock:
            if name in self._objects:
                return False
            self._objects[name] = bytes(data)
            return True

    def put(self, name: str, data: bytes) -> None:
        """Create or replace the object."""
        self._counter.count("put", bytes_written=len(data))
        with self._lock:
            self._objects[name] = bytes(data)

    def read(self, name: str) -> bytes:
        """The object's bytes. Raises FileNotFoundError if there is none."""
        with self._lock:
            data = self._objects.get(name)
        self._counter.count("read", failures=data is None, bytes_read=len(data or b""))
        if data is None:
            raise FileNotFoundError(f"{self.root}/{name}")
        return data

    def list_from(self, folder: str, start: str) -> list[str]:
        """Base names of the objects directly in ``folder``, at or after ``start``, in byte order; none is no error."""
        self._counter.count("list_from")
        prefix = folder + "/"
        with self._lock:
            below = [name[len(prefix) :] for name in self._objects if name.startswith(prefix)]
        return sorted(name for name in below if "/" not in name and name >= start)

    def delete(self, name: str) -> None:
        """Remove the object; removing a name that is not there is no error."""
        self._counter.count("delete")
        with self._lock:
            self._objects.pop(name, None)
