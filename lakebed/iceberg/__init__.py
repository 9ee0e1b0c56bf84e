"""The same parts and deletion vectors as an Iceberg table: its metadata is written beside the log, and no row is copied."""
