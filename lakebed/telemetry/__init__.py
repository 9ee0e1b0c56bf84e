"""What a task cost and which requests it made, measured where it runs and returned with its result."""
