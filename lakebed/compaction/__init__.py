"""Settling, merging, reclustering, and the processes that do so as long as they run."""
