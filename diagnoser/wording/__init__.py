"""Values in words, for pages, alerts, search and the command line."""
