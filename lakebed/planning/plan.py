"""What the planner returns: plans, and why it left the rest alone; as values and as an Arrow table (``plan_table``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, assert_never

import pyarrow as pa

from lakebed.log.actions import Part, PartitionKey
from lakebed.schema.column_mapping import ColumnMapping


class MergeKind(Enum):
    """Why parts are merged."""

    MERGE = "merge"  # fewer runs
    PURGE = "purge"  # one part, without its dead rows
    RECLUSTER = "recluster"  # parts of one level, which makes it shallower
    RESORT = "resort"  # parts that an earlier sort key sorted


class Goal(Enum):
    """For which readers one call of the planner plans."""

    ALL = "all"  # no part is on a local disk: what is merged is in the store, for every reader
    ELSEWHERE = (
        "elsewhere"  # readers on other hosts, who do not see parts on this host's disk: what is merged is uploaded
    )
    HERE = "here"  # readers on this host: what is merged stays on its disk


class Cause(Enum):
    """Why something was left alone."""

    OFF = "off"  # by the table's settings
    WITHIN_READ_BUDGET = "within_read_budget"
    CLAIMED = "claimed"  # parts under a live claim
    CONSTANT = "constant"  # full parts that no sorting can separate
    PLAN_BYTES = "plan_bytes"  # not even two parts fit into lakebed.plan_bytes_max
    IN_FLIGHT = "in_flight"  # enough is under way
    OFF_PEAK = "off_peak"  # heavy, and it can wait for the hours of lakebed.off_peak
    FEW_DEAD = "few_dead"  # dead rows, but fewer than lakebed.purge_dead_ratio
    DELAYED = "delayed"  # the tail waits until settling pays
    WITHIN_DEPTH = "within_depth"  # every level's average depth is within lakebed.recluster_depth
    NO_ORDER = "no_order"  # neither a sort key nor keys
    NO_GAIN = "no_gain"  # it would not lower the measure that says that merges come to an end


PART_READ_BYTES = 4 * 2**20
"""What opening one more part costs a reader, as Spark weighs it by default (spark.sql.files.openCostInBytes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlePlan:
    """Settle the whole tail."""

    inputs: tuple[str, ...]  # paths of the change parts, in their order
    rows_in: int
    bytes_in: int
    deletes: int
    gain: int  # as in ``MergePlan``
    why: str  # as in ``MergePlan``


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """A merge of parts of one partition. Depths are in runs, at the deepest point of the inputs."""

    kind: MergeKind
    partition: PartitionKey
    inputs: tuple[str, ...]  # paths of the parts
    level: int  # of the parts that it makes
    rows_in: int  # of these, all but ``dead_rows`` are predicted to be written
    bytes_in: int  # of the whole files, which are read
    bytes_out: int  # as predicted
    dead_rows: int
    depth_before: int
    depth_after: int
    # bytes of reading that it saves a reader of these parts, where opening a part counts as ``PART_READ_BYTES``
    gain: int
    why: str  # a sentence for people
    is_local: bool = False  # what it writes stays on the local disk of the process that merges
    on_cluster: bool = False  # a task of Spark merges, not this process

    @classmethod
    def of(
        cls,
        kind: MergeKind,
        partition: PartitionKey,
        parts: Sequence[Part],
        *,
        depth_before: int,
        depth_after: int,
        why: str,
    ) -> MergePlan:
        """The plan to merge these parts; depths are those where they lie deepest."""
        bytes_in = sum(part.bytes for part in parts)
        bytes_out = round(sum(part.live_bytes for part in parts))
        in_order = sorted(parts, key=lambda part: (part.min_block, part.max_block, part.path))
        return cls(
            kind=kind,
            partition=partition,
            inputs=tuple(part.path for part in in_order),
            level=1 + max(part.level for part in parts),
            rows_in=sum(max(0, part.rows) for part in parts),
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            dead_rows=sum(part.dead_rows for part in parts),
            depth_before=depth_before,
            depth_after=depth_after,
            gain=bytes_in - bytes_out + (depth_before - depth_after) * PART_READ_BYTES,
            why=why,
        )

    @property
    def engine(self) -> str:
        """Where it runs, for users: ``process`` or ``spark``."""
        return "spark" if self.on_cluster else "process"

    def predicted(self) -> dict[str, object]:
        """The figures of the plan that the commit of a merge repeats, to be compared with the actual ones."""
        return {
            "plan": self.kind.value,
            "why": self.why,
            "rowsPredicted": self.rows_in - self.dead_rows,
            "bytesPredicted": self.bytes_out,
            "gain": self.gain,
            "depthBefore": self.depth_before,
            "depthAfter": self.depth_after,
            "engine": self.engine,
        }


_Plan = SettlePlan | MergePlan


def kind_of(plan: _Plan) -> str:
    """The kind's name for users: ``settle``, ``merge``, ``purge``, ``recluster``, ``resort``."""
    match plan:
        case SettlePlan():
            return "settle"
        case MergePlan():
            return plan.kind.value
    assert_never(plan)


@dataclass(frozen=True, slots=True)
class Refusal:
    """What was left alone for one cause."""

    cause: Cause
    count: int  # how many
    why: str  # what they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """What one call of the planner decided."""

    settle: SettlePlan | None = None
    merges: tuple[MergePlan, ...] = ()  # the best first
    refusals: tuple[Refusal, ...] = ()
    backlog_bytes: int = 0  # of the plans, and of free parts that lie where the read budget is still exceeded
    # runs at the deepest point of the base as readers meet it now, including claimed parts; in a partition of few parts those
    # that only touch may count
    depth_max: int = 0

    @property
    def plans(self) -> tuple[_Plan, ...]:
        """All of them; settling comes first."""
        return (self.settle, *self.merges) if self.settle else self.merges


def partition_order(partition: PartitionKey) -> list[tuple[str, bool, str]]:
    """The key that partitions are ordered by: null comes before any value."""
    return [(name, value is not None, value or "") for name, value in partition]


PLANS_SCHEMA = pa.schema(
    [
        ("what", pa.string()),
        ("partition", pa.map_(pa.string(), pa.string())),
        ("parts", pa.int64()),
        ("level", pa.int32()),
        ("rows", pa.int64()),
        ("dead_rows", pa.int64()),
        ("bytes_in", pa.int64()),
        ("bytes_out", pa.int64()),
        ("depth_before", pa.int32()),
        ("depth_after", pa.int32()),
        ("gain", pa.int64()),
        ("why", pa.string()),
        ("inputs", pa.list_(pa.string())),
    ]
)


def plan_table(planning: Planning, columns: ColumnMapping) -> pa.Table:
    """PLANS_SCHEMA, by the users' names; ``what`` is a plan's kind (settle, merge, …), or ``left: `` and a cause, with
    the count in ``parts``.
    """
    rows = [plan_row(plan, columns) for plan in planning.plans]
    rows += [
        {"what": f"left: {refusal.cause.value}", "parts": refusal.count, "why": refusal.why}
        for refusal in planning.refusals
    ]
    return pa.Table.from_pylist(rows, PLANS_SCHEMA)


def plan_row(plan: _Plan, columns: ColumnMapping) -> dict[str, Any]:
    """The row of a plan: PLANS_SCHEMA's columns by name."""
    row: dict[str, Any] = {
        "what": kind_of(plan),
        "parts": len(plan.inputs),
        "rows": plan.rows_in,
        "bytes_in": plan.bytes_in,
        "gain": plan.gain,
        "why": plan.why,
        "inputs": list(plan.inputs),
    }
    match plan:
        case SettlePlan():
            return row | {
                "partition": [],
                "level": 0,
                "dead_rows": plan.deletes,
                "bytes_out": 0,
                "depth_before": len(plan.inputs),
                "depth_after": 0,
            }
        case MergePlan():
            partition = [(columns.logical_name(name), value) for name, value in plan.partition]
            return row | {
                "partition": partition,
                "level": plan.level,
                "dead_rows": plan.dead_rows,
                "bytes_out": plan.bytes_out,
                "depth_before": plan.depth_before,
                "depth_after": plan.depth_after,
            }
    assert_never(plan)
