"""Delete and update rows by a condition."""
