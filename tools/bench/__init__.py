"""`make bench`: what the compressor costs and keeps, as a table."""
