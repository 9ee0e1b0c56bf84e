"""Work that a user requested: jobs, which stand in the logs of tables, and what runs them."""
