"""Measurements anyone can run: ``python -m benchmarks.NAME``; each prints a table."""
