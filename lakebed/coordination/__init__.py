"""What processes and people tell each other through the log of a table: jobs, parked work, attempts, readers."""
