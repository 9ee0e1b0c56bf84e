"""The newest metadata of a table: how those find it who write the next one, and those who only serve it. No log is read.

1. Metadata has numbers, and a hint names one. The hint may lag; where it is missing or wrong, the names are listed.
2. From there on the numbers that follow are read until one is not there.
3. What can't be read is passed over. The newest metadata that can is the *head*; the next one gets the number after all of them.
4. Who knows a head reads it again, and parses it only if it is another text: a table that was made anew at the same place has
   the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from lakebed.iceberg.metadata import Head
from lakebed.log.stores import LogStore

FOLDER = "_lakebed/iceberg"
METADATA_FOLDER = f"{FOLDER}/metadata"
HINT = f"{METADATA_FOLDER}/version-hint.text"
_PASSED_OVER_MAX = 32
"""So many damaged files are read to find one that is not. Older metadata would soon be deleted anyway."""


def metadata_name(number: int) -> str:
    """The name of metadata, relative to the table's root."""
    return f"{METADATA_FOLDER}/v{number}.metadata.json"


@dataclass(frozen=True, slots=True)
class Newest:
    """What there is of metadata."""

    head: Head | None = None  # the newest that can be read
    last: int = 0  # the highest number that is taken, 0 if none is

    @property
    def damaged(self) -> tuple[str, ...]:
        """The names of those after the head, which can't be read."""
        return tuple(map(metadata_name, range((self.head.number if self.head else 0) + 1, self.last + 1)))


class Heads:
    """The newest metadata of one table, as far as it was read. Safe to use from several threads."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._known = Newest()
        self._text: tuple[Head, bytes] | None = None  # of the head, as it was read

    def newest(self) -> Newest:
        """What there is now. If there is nothing new that takes two requests. Raises StoreUnavailable."""
        known = self._known
        if known.head is None or not self._is_there(known.head):
            known = self._first()  # it was deleted since, and so may be the numbers that follow it
        head, last = known.head, known.last
        while (text := self._read(metadata_name(last + 1))) is not None:
            last += 1
            head = _head_of(last, text) or head
        if (head, last) != (known.head, known.last):
            known = Newest(head, last)
        self._known = known
        return known

    def know(self, head: Head) -> Newest:
        """Take over metadata that was just written."""
        self._known = Newest(head, head.number)
        return self._known

    def hinted(self) -> int | None:
        """The number that the hint names; None if there is no hint. Raises StoreUnavailable."""
        text = self._read(HINT)
        if text is None:
            return None
        return int(text) if text.isascii() and text.strip().isdigit() and len(text) < 20 else 0

    def _is_there(self, head: Head) -> bool:
        """Whether a head that is known is still the metadata of its number."""
        text, known = self._read(metadata_name(head.number)), self._text
        if text is None:
            return False
        if known is not None and known == (head, text):
            return True
        found = _head_of(head.number, text)
        if found != head:
            return False
        self._text = head, text
        return True

    def _first(self) -> Newest:
        number = self.hinted()
        if number and (text := self._read(metadata_name(number))) is not None and (head := _head_of(number, text)):
            return Newest(head, number)
        names = self._store.list_from(METADATA_FOLDER, "v")
        texts = [name.removesuffix(".metadata.json")[1:] for name in names if name.endswith(".metadata.json")]
        numbers = sorted((int(each) for each in texts if each.isascii() and each.isdigit()), reverse=True)
        for number in numbers[:_PASSED_OVER_MAX]:
            if (text := self._read(metadata_name(number))) is not None and (head := _head_of(number, text)):
                return Newest(head, numbers[0])
        return Newest(None, numbers[0] if numbers else 0)

    def _read(self, name: str) -> bytes | None:
        try:
            return self._store.read(name)
        except FileNotFoundError:
            return None


def withdraw(store: LogStore) -> None:
    """Let nobody find the metadata, which may name files that will be deleted. Raises StoreUnavailable."""
    store.delete(HINT)


def _head_of(number: int, text: bytes) -> Head | None:
    """The metadata in a file; None if it is not what lakebed writes."""
    try:
        head = Head(number=number, document=orjson.loads(text))
        head.check()
    except (orjson.JSONDecodeError, LookupError, TypeError, ValueError):
        return None
    return head
