"""Which change of a key is newest, and where the rows are that it replaces."""
