"""Bodies of messages to people."""
