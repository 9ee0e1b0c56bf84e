"""Sources, decoders, and the writer that commits batches of changes."""
