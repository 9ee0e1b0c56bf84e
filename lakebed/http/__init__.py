"""The one HTTP server of lakebed: the service, the page and the metrics are applications of it."""
