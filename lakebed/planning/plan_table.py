"""What the planner answers, as an Arrow table: a row a plan, then a row a cause for which something was left alone."""

from __future__ import annotations

import pyarrow as pa

from lakebed.planning.plan import Planning

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


def plan_table(planning: Planning) -> pa.Table:
    """PLANS_SCHEMA; ``what`` is a plan's kind (settle, merge, …), or ``left: `` and a cause, with the count in ``parts``."""
    rows = [
        {
            "what": plan.kind.value, "partition": list(plan.partition), "parts": len(plan.inputs), "level": plan.level,
            "rows": plan.rows_in, "dead_rows": plan.dead_rows, "bytes_in": plan.bytes_in, "bytes_out": plan.bytes_out,
            "depth_before": plan.depth_before, "depth_after": plan.depth_after, "gain": plan.gain, "why": plan.why,
            "inputs": list(plan.inputs),
        }
        for plan in planning.plans
    ]  # fmt: skip
    rows += [
        {"what": f"left: {refusal.cause.value}", "parts": refusal.count, "why": refusal.why}
        for refusal in planning.refusals
    ]
    return pa.Table.from_pylist(rows, PLANS_SCHEMA)
