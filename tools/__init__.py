"""What makes files of the package, and is not in it."""
