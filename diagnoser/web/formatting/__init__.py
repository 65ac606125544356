"""Values in words, for pages, search and the command line."""
