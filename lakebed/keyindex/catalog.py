"""The catalog of a key index: a small JSON file, replaced in one step, that lists the runs and their parts.

It says which runs there are. Parts that have left the table since it was written may still be in it: whoever opens the index
forgets them, as parts that left while nobody had it open.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from lakebed.keyindex.key_runs import TEMPORARY_SUFFIX, RunFile, StorageFailed

CATALOG = "catalog.json"
Listed: TypeAlias = tuple[RunFile, frozenset[str]]
"""A run, and which of its parts still count."""
_log = logging.getLogger(__name__)


def write_catalog(folder: Path, identity: Mapping[str, Any], parts: Mapping[str, int], runs: Iterable[Listed]) -> None:
    """Replace the catalog. Raises StorageFailed."""
    listed = [
        {
            "name": file.name,
            "bytes": file.bytes,
            "crc32": file.crc32,
            "parts": list(file.parts.items()),
            "removed": sorted(file.parts.keys() - live),
        }
        for file, live in runs
    ]
    temporary = folder / (CATALOG + TEMPORARY_SUFFIX)
    try:
        temporary.write_bytes(orjson.dumps({**identity, "parts": dict(parts), "runs": listed}))
        os.replace(temporary, folder / CATALOG)
    except OSError as error:
        raise StorageFailed(f"{temporary}: {error}") from error


def read_catalog(folder: Path, identity: Mapping[str, Any]) -> tuple[dict[str, int], list[Listed]] | None:
    """The parts, and the runs; None where there is no catalog that fits and can be read."""
    try:
        catalog = orjson.loads((folder / CATALOG).read_bytes())
        if any(catalog[name] != value for name, value in identity.items()):
            return None
        runs = []
        for run in catalog["runs"]:
            file = RunFile(Path(run["name"]).name, run["bytes"], run["crc32"], dict(run["parts"]))
            runs.append((file, frozenset(file.parts) - set(run["removed"])))
        return catalog["parts"], runs
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        _log.warning("the catalog of the key index in %s can't be read, so the index is built again: %s", folder, error)
        return None
