"""A foreign DuckDB for the tests of this folder, and a key index that no other test shares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.infra.foreign_duckdb import ForeignDuckDB


@pytest.fixture(scope="session")
def duckdb_delta() -> Iterator[ForeignDuckDB]:
    with ForeignDuckDB() as process:
        yield process


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
