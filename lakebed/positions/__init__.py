"""What the log of a table says about its sources: how far each has been read, and what was met there."""
