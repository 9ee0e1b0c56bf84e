"""What commands print: tables and records, progress, and the display of a run."""
