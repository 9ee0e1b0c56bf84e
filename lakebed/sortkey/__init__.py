"""Sort keys: parsed, evaluated on Arrow tables; ranges of parts over them, overlaps, depth. No engine."""
