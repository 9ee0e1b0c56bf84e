"""What tests of a comparison have in common."""

from __future__ import annotations

import pytest

from tests.infra.spark_start import spark_options


@pytest.fixture
def java_that_starts_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison leaves Spark's variables to nobody, so that Java is what a user has. A test measures nothing."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", spark_options())
