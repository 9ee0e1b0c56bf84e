"""The planner's result, as an Arrow table: a row a plan, then a row a cause for which something was left alone."""

from __future__ import annotations

from typing import Any, assert_never

import pyarrow as pa

from lakebed.planning.plan import MergePlan, Plan, Planning, SettlePlan, kind_of
from lakebed.schema.column_mapping import ColumnMapping

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


def plan_row(plan: Plan, columns: ColumnMapping) -> dict[str, Any]:
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
