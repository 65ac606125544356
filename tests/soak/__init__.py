"""The service under a steady load, for what it must not do over weeks: grow."""
