"""A foreign DuckDB for the tests of this folder, and a key index that no other test shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.infra.foreign_duckdb import ForeignDuckDB


@pytest.fixture(scope="session")
def duckdb_delta() -> Iterator[ForeignDuckDB]:
    with ForeignDuckDB() as process:
        yield process


@pytest.fixture(autouse=True)
def every_test_has_its_own_cache(own_cache: None) -> None:
    """No test of this folder finds what another one kept."""
