"""The merge kernel: several parts become few sorted ones, with the provenance of every row."""
