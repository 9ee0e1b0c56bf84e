"""Members of a record's row that no column takes. None is left out unseen: ``format.unknown_fields`` decides what happens.

    warn         the member is left out, its name counted
    ignore       the member is left out
    quarantine   the record goes to the quarantine

``on_mismatch`` has its say in place of ``warn``: ``rescue`` keeps such members, as JSON, in a column of their own. Where records
carry their schema, a member that the table could not get a column for is a mismatch, and the record is quarantined. A member
that no column can be like (``schema.fitting``) is left out, and counted with the reason.

1.  A record that is read one by one is looked at as a whole, also what is inside its structs (``address.zip``).
2.  Of records that are read by columns the native parser reports such members (``UnknownByRecord``), unless the table has
    structs.
3.  Else the parser skips them. So ``warn`` looks at a sample of each slice (``sample_of``): its longest records, as a member
    more makes a record longer, and others spread evenly. A slice of up to ``SAMPLE_MIN`` records is looked at as a whole.
    Counts are of records that were looked at. ``quarantine`` looks at all records, which takes longer than decoding them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from lakebed.decode.json.encoded_columns import Placeholder
from lakebed.decode.json.objects import UNKNOWN_MAX, Parsed, Path
from lakebed.decode.json.text import Mismatch, Unreadable, loaded, shown, written
from lakebed.decode.json.values import UnknownFields
from lakebed.remarks import Counts, Names, Remark, remarks_on
from lakebed.schema.column_mapping import by_case
from lakebed.schema.fitting import EvolvePolicy, FieldPath

SAMPLE_MIN = 32
_SAMPLE_SHARE = 128
"""One of so many records is in the sample."""
_LONGEST = 4
_NAMES_SHOWN = 5


UnknownMode = UnknownFields | Literal["rescue"]


def unknown_mode(unknown_fields: UnknownFields, policy: EvolvePolicy, *, has_schema: bool) -> UnknownMode:
    """What becomes of members that no column takes. ``has_schema``: of records that carry their schema."""
    if unknown_fields != "warn":
        return unknown_fields
    if policy.rescues:
        return "rescue"
    return "quarantine" if has_schema and policy.by_schema else "warn"


class UnknownMembers(Mismatch):
    """A record with members that no column takes, where the settings send it to the quarantine."""

    def __init__(self, names: tuple[str, ...], why: str = "unknown_fields: quarantine is set") -> None:
        listed = ", ".join(shown(name) for name in names[:_NAMES_SHOWN])
        more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
        super().__init__(f"no column takes its fields {listed}{more} ({why})")
        self.remarks = tuple((Remark.REFUSED_FIELD, name) for name in names)


class UnknownOperation(Unreadable):
    """A record whose operation is not known."""

    def __init__(self, reason: str, operation: str) -> None:
        super().__init__(reason)
        self.remarks = ((Remark.UNKNOWN_OPERATION, operation),)


def unknown_remarks(names: Iterable[str]) -> tuple[tuple[Remark, str], ...]:
    """The remarks on a record with such members."""
    return tuple((Remark.UNKNOWN_FIELD, name) for name in names)


@dataclass(frozen=True, slots=True)
class UnknownByRecord:
    """The unknown members of the records of a slice: bit i of a record's ``met`` says whether it has ``names[i]``."""

    names: Mapping[int, str]
    met: np.ndarray[Any, Any]

    @property
    def having(self) -> np.ndarray[Any, Any]:
        """Which records have one."""
        mask: np.ndarray[Any, Any] = self.met != 0
        return mask

    def remarks(self, among: np.ndarray[Any, Any]) -> Counts:
        """In how many of the records of a mask each name is."""
        if not self.names:
            return {}
        met, counts = self.met[among & self.having], Names()
        for bit, name in self.names.items():
            if count := int(np.count_nonzero(met & np.uint64(1 << bit))):
                counts.add(name, count)
        return remarks_on(Remark.UNKNOWN_FIELD, counts.counts)


class KnownFields:
    """The members that columns take: those of a row and, below struct columns, those of structs."""

    def __init__(
        self,
        columns: pa.Schema,
        placeholder: Placeholder,
        also: Iterable[str] = (),
        left_out: Iterable[FieldPath] = (),
        *,
        exact_names: bool = False,
    ) -> None:
        """``placeholder``: of an unavailable value; ``also``: members of the row that are known and no columns; ``left_out``:
        members that no column takes, and that are told otherwise than as unknown; ``exact_names``: see ``JsonOptions``.
        """
        self._placeholder = placeholder
        self._exact_names = exact_names
        self._known: dict[str, Any] = {column.name: _structs_in(column.type) for column in columns}
        for path in (*((name,) for name in also), *left_out):
            _add(self._known, path)
        self._names = self._known.keys()
        self._nested = any(below is not None for below in self._known.values())

    def unknown_in(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of a row's unknown members, each once."""
        if not self._nested and row.keys() <= self._names:
            return ()
        return tuple(dict.fromkeys(self._find(row, self._known, "")))

    def members_with_unknown(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """The members of a row that are unknown, or that have unknown ones within."""
        if not self._nested:
            return tuple(name for name in row if name not in self._names)
        return tuple(
            name for name, value in row.items() if next(self._find({name: value}, self._known, ""), None) is not None
        )

    def rescued(self, row: Mapping[str, Any]) -> str | None:
        """These members of a parsed row, as ``rescued_text`` has them."""
        return rescued_text({name: row[name] for name in self.members_with_unknown(row)})

    def unknown_by_record(self, parsed: Parsed, side: Path) -> UnknownByRecord | None:
        """The unknown members of the rows at ``side``; None where the parser does not report all of them."""
        if parsed.met is None or self._nested or (parsed.met >> np.uint64(UNKNOWN_MAX)).any():
            return None
        names = {
            bit: path[-1]
            for bit, path in enumerate(parsed.unknown)
            if path[:-1] == side and path[-1] not in self._names
        }
        return UnknownByRecord(names, parsed.met & np.uint64(sum(1 << bit for bit in names)))

    def _find(self, members: Mapping[str, Any], known: Mapping[str, Any], above: str) -> Iterator[str]:
        """``known``: of a row under the names of its columns, or of a struct under the names that it is sent with."""
        is_spelled_so = self._exact_names or not above or members.keys() <= known.keys()
        columns = None if is_spelled_so else by_case(known, members)
        for name, value in members.items():
            column = name if columns is None else columns.get(name, name)
            if column not in known:
                if not (above and name in self._placeholder.texts):
                    yield above + name
            elif known[column] is not None and value is not None:
                yield from self._find_in(value, known[column], f"{above}{name}.")

    def _find_in(self, value: Any, below: Any, above: str) -> Iterator[str]:
        kind, inner = below
        if kind == "struct":
            if isinstance(value, dict):
                yield from self._find(value, inner, above)
            return
        items: Iterable[Any] = ()  # none of a value that is no list or map: it is unreadable
        if kind == "map" and isinstance(value, dict):
            items = value.values()
        elif kind == "list" and isinstance(value, list):
            items = value
        for item in items:
            if item is not None:
                yield from self._find_in(item, inner, above)


def rescued_text(members: Mapping[str, Any]) -> str | None:
    """Members of a row as the JSON object that ``RESCUED_COLUMN`` keeps; None without any. Raises ``Mismatch``."""
    if not members:
        return None
    try:
        text = written(dict(members))
        text.encode()
    except (Unreadable, UnicodeEncodeError) as error:
        raise Mismatch(f"what no column takes can't be kept as JSON: {error}") from None
    return text


def _structs_in(kind: pa.DataType) -> Any:
    """The members of the structs in a type: (struct, members), (list, below) or (map, below); None if it has no struct."""
    if pa.types.is_struct(kind):
        return "struct", {field.name: _structs_in(field.type) for field in kind}
    if pa.types.is_list(kind):
        below = _structs_in(kind.value_type)
        return None if below is None else ("list", below)
    if pa.types.is_map(kind):
        below = _structs_in(kind.item_type)
        return None if below is None else ("map", below)
    return None


def _add(known: dict[str, Any], path: FieldPath) -> None:
    """Add a member that is known, with all that is in it."""
    for name in path[:-1]:
        below = known.get(name)
        while isinstance(below, tuple) and below[0] != "struct":
            below = below[1]
        if below is None:
            return  # nothing is looked for there
        known = below[1]
    known.setdefault(path[-1], None)


def sample_of(values: pa.BinaryArray) -> np.ndarray[Any, Any]:
    """The numbers of the records of a slice that are looked at, in order."""
    count = len(values)
    if count <= SAMPLE_MIN:
        return np.arange(count)
    lengths = np.diff(np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + count + 1])
    evenly = np.linspace(0, count - 1, max(SAMPLE_MIN, count // _SAMPLE_SHARE), dtype=np.int64)
    return np.unique(np.concatenate([evenly, np.argpartition(lengths, count - _LONGEST)[count - _LONGEST :]]))


def names_in(
    values: pa.BinaryArray,
    chosen: Sequence[int] | np.ndarray[Any, Any],
    row_of: Callable[[Any], Mapping[str, Any] | None],
    known: KnownFields,
) -> tuple[dict[str, int], list[int]]:
    """In how many of the chosen documents each unknown name is, and which documents have one. ``row_of`` finds the row."""
    names, having = Names(), []
    for number, text in zip(chosen, values.take(pa.array(chosen, pa.int64())).to_pylist(), strict=True):
        row = row_of(_document(text))
        found = known.unknown_in(row) if row is not None else ()
        for name in found:
            names.add(name)
        if found:
            having.append(int(number))
    return names.counts, having


def _document(text: bytes) -> Any:
    try:
        return loaded(text)
    except Unreadable:
        return None
