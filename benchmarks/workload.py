"""The orders workload: a large table, then batches of changes skewed to recent keys (docs/measurements.md).

1. ``base(rows)``: orders with keys 0..rows-1, ten a second, in 20 regions.
2. ``batch()``: of ``changes`` rows 70 % update recent keys (exponentially skewed; or any, ``uniform``), 20 % insert, 10 %
   delete.
All of it is a pure function of the seed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("pk", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("region", pa.string()), ("status", pa.string()),
        ("amount", pa.float64()), ("note", pa.string()), ("seq", pa.int64()),
    ]
)  # fmt: skip
KEYS, SORT_KEY = ["pk"], ["region", "ts"]
DELETES = "op = 'd'"
_START_US = 1_750_000_000_000_000
_REGIONS = np.array([f"region-{number:02d}" for number in range(20)])
_STATUS = np.array(["new", "paid", "packed", "shipped", "returned"])
_WORDS = np.array(
    ["express", "fragile", "gift", "return", "invoice", "pickup", "customs", "bulk", "urgent", "standard"]
)


class Workload:
    """Makes the base and the batches, and keeps what the table must be equal to."""

    def __init__(self, rows: int, changes: int = 20_000, seed: int = 7, updates: str = "skewed") -> None:
        self.rows = rows
        self.changes = changes
        self._uniform = updates == "uniform"
        self._rng = np.random.default_rng(seed)
        self._next_key = rows
        self._sequence = 0

    def base(self, start: int = 0, stop: int | None = None) -> pa.Table:
        """Rows of the base with keys from ``start`` to ``stop``."""
        return self.orders(np.arange(start, self.rows if stop is None else stop))

    def batch(self) -> pa.Table:
        """The next batch of changes, in arrival order, with the column ``op``."""
        updates, inserts = int(self.changes * 0.7), int(self.changes * 0.2)
        deletes = self.changes - updates - inserts
        if self._uniform:
            back = self._rng.integers(0, self._next_key, updates)
        else:
            back = self._rng.exponential(self._next_key / 12, updates).astype(np.int64)
        updated = np.maximum(0, self._next_key - 1 - back)
        inserted = np.arange(self._next_key, self._next_key + inserts)
        deleted = self._rng.integers(0, self._next_key, deletes)
        self._next_key += inserts
        keys = np.concatenate([updated, inserted, deleted])
        ops = np.repeat(["u", "c", "d"], [updates, inserts, deletes])
        order = self._rng.permutation(len(keys))
        return self.orders(keys[order]).append_column("op", pa.array(ops[order]))

    def orders(self, keys: npt.NDArray[np.int64]) -> pa.Table:
        rng, count = self._rng, len(keys)
        words = [_WORDS[rng.integers(0, len(_WORDS), count)] for _ in range(3)]
        note = np.char.add(np.char.add(words[0], " "), np.char.add(np.char.add(words[1], " "), words[2]))
        note = np.char.add(np.char.add(note, " "), rng.integers(0, 100_000, count).astype(str))
        self._sequence += count
        return pa.table(
            {
                "pk": keys,
                "ts": pa.array(_START_US + keys * 100_000, pa.int64()).cast(pa.timestamp("us", "UTC")),
                "region": _REGIONS[(keys * 2_654_435_761 >> 7) % len(_REGIONS)],
                "status": _STATUS[rng.integers(0, len(_STATUS), count)],
                "amount": np.round(rng.gamma(2.0, 40.0, count), 2),
                "note": note,
                "seq": np.arange(self._sequence - count, self._sequence),
            },
        )


def table(title: str, header: list[str], rows: list[list[object]]) -> None:
    """Print a Markdown table."""
    print(f"\n### {title}\n")
    print("| " + " | ".join(header) + " |")
    print("| " + " | ".join("---" for _ in header) + " |")
    for row in rows:
        print("| " + " | ".join(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row) + " |")


def median(values: list[float]) -> float:
    return float(np.median(values))


def p95(values: list[float]) -> float:
    return float(np.percentile(values, 95))
