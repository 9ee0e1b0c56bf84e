"""JSON, as text and as columns: values become those of a table exactly, or the record says why not."""
