"""lakebed beside its peers on the same input: `make bench-peers`; docs/benchmarks.md tells how it is measured."""
