"""Where the keys of some parts are, as far as the log says it: enough to see that most changes of others are about other keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from lakebed.log.actions import PartitionKey
from lakebed.parts.changes import WriteSpec
from lakebed.parts.part_filter import trusts_bounds
from lakebed.sortkey.statistics import has_bounds, highest, lowest, parsed_stats

_Range = tuple[Any, Any]


class _HasStatistics(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def partition_values(self) -> Mapping[str, str | None]: ...
    @property
    def partition_key(self) -> PartitionKey: ...
    @property
    def stats(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Ranges of the keys of some parts.

    ``boxes``: for each part the least and the greatest value of each key column, None where that is not known. ``partition``:
    every part of this partition counts, whatever its keys are.
    """

    fields: tuple[pa.Field, ...]
    boxes: tuple[tuple[_Range | None, ...], ...]
    partition: PartitionKey | None = None

    @classmethod
    def of(cls, parts: Iterable[_HasStatistics], spec: WriteSpec, partition: PartitionKey | None = None) -> KeyRanges:
        """The ranges of these parts of a table."""
        fields = tuple(spec.schema.field(name) for name in spec.keys)
        return cls(fields, tuple(_box(part, fields) for part in parts), partition)

    def may_meet(self, part: _HasStatistics) -> bool:
        """Whether the part may have one of the keys, or is of the partition."""
        if self.partition is not None and part.partition_key == self.partition:
            return True
        box = _box(part, self.fields) if self.boxes else ()
        return any(all(map(_overlap, box, other)) for other in self.boxes)


NO_KEYS = KeyRanges((), ())


def _box(part: _HasStatistics, fields: tuple[pa.Field, ...]) -> tuple[_Range | None, ...]:
    stats = parsed_stats(part.stats) if part.stats else {}
    return tuple(_range(part, stats, field) for field in fields)


def _range(part: _HasStatistics, stats: Mapping[str, Any], field: pa.Field) -> _Range | None:
    if not has_bounds(field.type) or not trusts_bounds(part.path, field.type):
        return None
    low, high = ((stats.get(side) or {}).get(field.name) for side in ("minValues", "maxValues"))
    if field.name in part.partition_values:
        low = high = part.partition_values[field.name]
        if pa.types.is_decimal(field.type) or pa.types.is_floating(field.type) or not low:
            return None
        if pa.types.is_integer(field.type):
            low = high = int(low)
    if low is None or high is None:
        return None
    try:
        return lowest(low, field.type), highest(high, field.type)
    except (TypeError, ValueError):  # a time that Python lacks
        return None


def _overlap(one: _Range | None, other: _Range | None) -> bool:
    return one is None or other is None or bool(one[0] <= other[1] and other[0] <= one[1])
