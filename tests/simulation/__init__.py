"""A seeded world in which several writers share one log, the store fails, and writers crash: see ``world``."""
