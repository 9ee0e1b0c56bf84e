"""Purge: erase rows for good, from every version and every copy on this host."""
