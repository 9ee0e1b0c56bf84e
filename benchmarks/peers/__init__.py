"""lakebed beside its peers on the same input: `make bench-peers`; docs/measurements.md tells how it is measured."""
