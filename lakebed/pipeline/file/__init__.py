"""A pipeline file as values: its text, its sections, its settings."""
