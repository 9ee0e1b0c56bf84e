"""What differs between the sources that tables are compared with: statements, types, and where a connector is."""
