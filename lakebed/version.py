"""The version of the package, and how it signs its commits."""

from __future__ import annotations

__version__ = "0.2.0.dev0"
ENGINE = f"lakebed/{__version__}"
