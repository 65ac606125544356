"""Similar past incidents, and search in the log of one attempt. The means of both: hashed words and letter groups."""
