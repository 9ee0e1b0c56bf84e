"""Points: moments of the source at which every transaction up to them is in the tables, whole, and none after them."""
