"""The fleet: workers that share all tables below some folders, and maintain those that each of them owns."""
