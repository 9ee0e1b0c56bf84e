"""Work that somebody asked for: jobs, which stand in the logs of tables, and what runs them."""
