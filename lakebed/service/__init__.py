"""The service: what the logs of many tables say, and jobs on them, over HTTP. It has no state of its own."""
