"""What a pipeline says while something that it needs is down, and how soon it goes on: see ``benchmarks.outages.__main__``."""
