"""What the value of a record's operation means: an upsert, a delete, or something that lakebed does not know.

A value that is spelled exactly like a known one has its meaning. Any other value is compared without regard to case; it is
unknown if it then equals both an upsert and a delete. An unknown value is never guessed: its record goes to the quarantine.

Values are texts. A truth value counts as ``true`` or ``false``, a whole number (``1``, ``1.0``) as its digits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from lakebed.decode.json.text import Number, shown
from lakebed.errors import InvalidInput
from lakebed.parts.changes import DELETE, UPSERT

WHOLE_MAX = 10**18
DELETE_VALUES = ("d", "delete")
UPSERT_VALUES = ("c", "r", "u", "i", "create", "read", "update", "insert", "upsert", "load")


@dataclass(frozen=True, slots=True)
class Operations:
    """The values of the operations, as they are spelled in the settings."""

    deletes: frozenset[str]
    upserts: frozenset[str]
    _folded: dict[str, str | None] = field(repr=False, compare=False)

    @classmethod
    def given(cls, deletes: Iterable[str] = DELETE_VALUES, upserts: Iterable[str] | None = None) -> Operations:
        """``upserts``: None for ``UPSERT_VALUES`` but for those that ``deletes`` has. Raises InvalidInput for a value in both."""
        deletes = frozenset(deletes)
        if upserts is None:
            upserts = frozenset(UPSERT_VALUES) - {value.casefold() for value in deletes}
        upserts = frozenset(upserts)
        if both := sorted(deletes & upserts):
            raise InvalidInput(
                f"{both[0]!r} is among delete_values and among upsert_values; leave it out of one of them"
            )
        folded: dict[str, str | None] = {}
        for values, meaning in ((deletes, DELETE), (upserts, UPSERT)):
            for value in values:
                small = value.casefold()
                folded[small] = meaning if folded.get(small, meaning) == meaning else None
        return cls(deletes, upserts, folded)

    def of(self, value: str) -> Literal["u", "d"] | None:
        """The operation that a value stands for; None if that is not known."""
        if value in self.deletes:
            return "d"
        if value in self.upserts:
            return "u"
        return self._folded.get(value.casefold())  # type: ignore[return-value]


def text_of(operation: Any) -> str:
    """A parsed operation as the text that the settings may list."""
    if isinstance(operation, str):
        return operation
    if isinstance(operation, Number) and operation.text[-1].isdigit():
        value = operation.decimal()
        if value == value.to_integral_value() and abs(value) < WHOLE_MAX:
            return str(int(value))
    is_whole = isinstance(operation, int) and not isinstance(operation, bool)
    return str(int(operation)) if is_whole else shown(operation)
