"""Which tables there are below a path, what they are called, and when one is looked at next."""
