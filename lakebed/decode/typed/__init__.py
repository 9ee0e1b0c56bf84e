"""Records whose schema stands elsewhere: how they find it (registry, wire format), and how they become changes of a table."""
