"""Ingest: from the position of a source to a write and its commit, each record once."""
