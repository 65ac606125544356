"""A log as records: time, severity, rank, host, process and text lines of each, however its lines are written."""
