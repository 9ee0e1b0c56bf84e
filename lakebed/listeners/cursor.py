"""Cursors: how far a reader has read the events of tables. A cursor is a value; whoever has it goes on from any process."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from lakebed.errors import InvalidInput

_TEXT_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class At:
    """A version of a table. ``version``: -1 before the first one; ``table_id``: Delta's, "" for whichever table is there;
    ``digest``: of the version's commit, "" if it is not known. The two show that another table was made in its place."""

    version: int
    table_id: str = ""
    digest: str = ""

    def is_of(self, other: At) -> bool:
        """Whether both may be of one history: nothing that both know differs."""
        return (not self.table_id or not other.table_id or self.table_id == other.table_id) and (
            self.version != other.version or not self.digest or not other.digest or self.digest == other.digest
        )


@dataclass(frozen=True, slots=True)
class Cursor:
    """Up to which versions the events of tables were read, by the tables' names. A table that is not in it is read from its first
    event on."""

    tables: Mapping[str, At] = field(default_factory=dict)

    def moved(self, moved: Mapping[str, At | None]) -> Cursor:
        """The cursor with these tables moved; those with None leave it."""
        tables = {**self.tables, **moved}
        return Cursor({name: at for name, at in tables.items() if at is not None})

    def to_text(self) -> str:
        """The cursor as a text that may stand in a URL: some 60 bytes a table."""
        value = {name: [at.version, at.table_id, at.digest] for name, at in sorted(self.tables.items())}
        return base64.urlsafe_b64encode(zlib.compress(orjson.dumps(value), 9)).decode().rstrip("=")

    @staticmethod
    def of_text(text: str) -> Cursor:
        """The inverse of ``to_text``. Raises InvalidInput."""
        try:
            packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(packed, _TEXT_BYTES_MAX)
            if not unpacker.eof:
                raise ValueError("it is cut off, or too large")
            value = orjson.loads(data)
            return Cursor({str(name): _at(one) for name, one in value.items()})
        except (ValueError, TypeError, AttributeError, binascii.Error, zlib.error) as error:
            raise InvalidInput(
                f"{text[:40]!r} is no cursor of a feed ({error}); begin without one, or with one that a feed gave"
            ) from None


def _at(value: object) -> At:
    if isinstance(value, list) and len(value) == 3:
        version, table_id, digest = value
        if isinstance(version, int) and version >= -1 and isinstance(table_id, str) and isinstance(digest, str):
            return At(version, table_id, digest)
    raise ValueError("a table has no version")
