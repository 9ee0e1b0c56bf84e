"""What should be merged, and why: pure functions of a snapshot, settings and time; and their simulator."""
