"""Which systems there are: their module, class and variant, and the environment that they run in. Imports none of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class System:
    """``environment`` None: the project's own. A system without a key (append-only) may have no use for a variant."""

    module: str
    name: str
    variant: str = ""
    environment: str | None = None
    append_only: bool = True


SYSTEMS = {
    "append": System("append", "Append"),
    "lakebed": System("lakebed", "Lakebed"),
    "lakebed-volatile": System("lakebed", "Lakebed", "volatile"),
    "paimon": System("paimon", "Paimon", environment="paimon"),
    "paimon-dv": System("paimon", "Paimon", "dv", environment="paimon", append_only=False),
    "hudi": System("hudi", "Hudi", environment="hudi"),
    "iceberg": System("iceberg", "Iceberg", environment="iceberg"),
    "iceberg-rewrite": System("iceberg", "Iceberg", "rewrite", environment="iceberg"),
    "delta": System("delta", "Delta"),
    "delta-optimize": System("delta", "Delta", "optimize"),
    "naive": System("naive", "Naive", append_only=False),
}

# The newest Spark that the newest release of each has a runtime for.
PACKAGES = {
    "paimon": ("pyspark==3.5.9",),
    "hudi": ("pyspark==3.5.9",),
    "iceberg": ("pyspark>=4.1,<4.2",),
}
