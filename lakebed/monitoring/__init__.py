"""Reports events and states of tables as Prometheus metrics and as lines of a log; dashboards and alert rules."""
