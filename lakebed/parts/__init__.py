"""Rows of parts: writing, finding, comparing, resolving, merging them."""
