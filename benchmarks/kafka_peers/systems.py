"""Which systems there are: their module and class, and the environment that they run in. Imports none of them."""

from __future__ import annotations

from benchmarks.peers.systems import System

SYSTEMS = {
    "append": System("append", "Append"),
    "lakebed": System("lakebed", "Lakebed"),
    "merge": System("merge", "Merge"),
    "hudi": System("hudi", "Hudi", environment="hudi"),
    "paimon": System("paimon", "Paimon", environment="paimon"),
}
